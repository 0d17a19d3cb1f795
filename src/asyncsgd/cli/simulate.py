"""``asyncsgd simulate``, ``asyncsgd sweep`` and ``asyncsgd paper``."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncsgd import recipes, tasks
from asyncsgd.cli import application
from asyncsgd.cli.application import SIMULATE, Json, app, examples
from asyncsgd.core.errors import BadConfig, BadParameter, MissingLibrary, UsageError
from asyncsgd.core.method import Method
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.validate import nearest
from asyncsgd.simulation import durations
from asyncsgd.simulation._compare import labels
from asyncsgd.simulation._sweep import grid

# --------------------------------------------------------------------------------------------------------------
# A simulation or sweep described in a TOML file.
# ::
#     [task]
#     kind = "quadratic"              # any function of asgd.tasks; the other keys are its arguments
#     dim = 10
#     workers = 2
#     [durations]
#     kind = "fixed"                  # any function of asgd.durations; the other keys are its arguments
#     seconds = [1.0, 16.0]
#     communication = {down = 0.1}    # optional; or network = {bandwidth = 1e8, latency = 0.1}
#     [method]                        # or [[method]] several times, to compare
#     kind = "delay_adaptive"         # any recipe of `asyncsgd methods`; the other keys are its options
#     stepsize = 0.1
#     schedule = {kind = "cosine", warmup = 200}    # optional: stepsize is then its peak, also in a sweep
#     clip = 1.0                      # optional, for any method; also those that `asyncsgd methods` lists last
#     optimizer = {kind = "adamw"}    # optional, for any method; the other keys are the optimizer's options
#     compressed = "int4"             # optional, for any method; or {kind = "top_k", fraction = 0.05}
#     name = "mine"                   # optional: name in the table
#     [run]
#     iterations = 10000              # also: seed, every
#     [sweep]                         # for `asyncsgd sweep`
#     stepsizes = {low = 1e-5, high = 1e2, points = 141}    # or a list
#     target = 1e-14                  # also: seeds, metric, window, sustained


TASKS = ("quadratic", "paper_quadratic", "logistic", "softmax", "digits")
"""The tasks that a file can describe: those without arrays as arguments."""


WORDS: dict[Any, str] = {
    int: "a whole number such as 1000",
    float: "a number",
    str: "a word in quotes",
    bool: "true or false",
    list: "a list such as [1, 2]",
    Mapping: "{low = ..., high = ..., points = ...}",
}


@dataclass(frozen=True)
class Config:
    """The objects that a file describes."""

    task: Any
    durations: durations.Durations
    methods: dict[str, Callable[[float | None], Method]]
    """By name: a function of the step size; None means the step size in the file."""
    run: dict[str, Any]
    sweep: dict[str, Any]


def load(path: str | Path) -> Config:
    """Read a file. Errors name the table and the key."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}; pass the path of a TOML file") from None
    except UnicodeDecodeError:
        raise BadConfig(f"{path}: not text in UTF-8; pass the path of a TOML file") from None
    try:
        return parse(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise BadConfig(f"{path}: not TOML: {error}; fix that line") from None
    except BadConfig as error:
        raise BadConfig(f"{path}: {error}") from None


def parse(tables: Mapping[str, Any]) -> Config:
    """Return the objects that the tables describe."""
    _known(tables, ("task", "durations", "method", "run", "sweep"), "")
    for needed in ("task", "durations", "method"):
        if needed not in tables:
            raise BadConfig(f"the table [{needed}] is missing; add it with a key kind = ...")
    task = _call(tables["task"], "task", _functions(tasks, TASKS))
    given = dict(tables["durations"]) if isinstance(tables["durations"], Mapping) else tables["durations"]
    communication = given.pop("communication", None) if isinstance(given, dict) else None
    network = given.pop("network", None) if isinstance(given, dict) else None
    speeds = _call(given, "durations", _functions(durations, durations.__all__))
    if communication is not None:
        speeds = _guarded("durations.communication", speeds.with_communication, communication)
    if network is not None:
        if communication is not None:
            raise BadConfig("durations.network replaces durations.communication; give one of the two")
        speeds = _guarded("durations.network", speeds.with_network, network)
    listed = tables["method"] if isinstance(tables["method"], list) else [tables["method"]]
    made = [_method(entry) for entry in listed]
    names = labels([(name, step, method) for name, step, method, _ in made])
    steps = {name: recipe for name, (*_, recipe) in zip(names, made, strict=True)}
    run = _typed(tables.get("run", {}), "run", {"iterations": int, "seed": int, "every": int})
    if "iterations" not in run:
        raise BadConfig("the key run.iterations is missing; add it below [run]")
    kinds = {"seeds": list, "target": (int, float), "metric": str, "window": int, "sustained": bool}
    sweep = _typed(tables.get("sweep", {}), "sweep", {"stepsizes": (list, Mapping), **kinds})
    if isinstance(sweep.get("stepsizes"), Mapping):
        sweep["stepsizes"] = _guarded("sweep.stepsizes", grid, sweep["stepsizes"])
    return Config(task, speeds, steps, run, sweep)


def _method(entry: Any) -> tuple[str, float | Schedule | None, Method, Callable[[float | None], Method]]:
    """Return the name, the step size in the file or None, the method, and a function of the step size."""
    options = dict(_table(entry, "method"))
    kind, name = options.pop("kind", None), options.pop("name", None)
    known = recipes.recipes()
    if kind is None:
        raise BadConfig(f"the key method.kind is missing; use one of {', '.join(known)}")
    if not isinstance(kind, str) or kind not in known:
        raise BadConfig(f"method.kind = {kind!r} is not a method; {nearest(kind, known)}")
    written = "stepsize" in options

    def recipe(stepsize: float | None) -> Method:
        try:
            return recipes.make(kind, options if stepsize is None else {**options, "stepsize": stepsize})
        except BadParameter as error:
            raise BadConfig(f"method.{error}") from None

    made = recipe(None if written else 1.0)  # reports mistakes when the file is read
    return kind if name is None else str(name), made.step.stepsize if written else None, made, recipe


def _functions(module: Any, names: Iterable[str]) -> dict[str, Callable[..., Any]]:
    return {name: getattr(module, name) for name in names if inspect.isfunction(getattr(module, name))}


def _call(table: Any, where: str, functions: Mapping[str, Callable[..., Any]]) -> Any:
    arguments = dict(_table(table, where))
    kind = arguments.pop("kind", None)
    if kind is None:
        raise BadConfig(f"the key {where}.kind is missing; use one of {', '.join(functions)}")
    if not isinstance(kind, str) or kind not in functions:
        raise BadConfig(f"{where}.kind = {kind!r} is not known; {nearest(kind, functions)}")
    return _guarded(where, functions[kind], arguments)


def _guarded(where: str, function: Callable[..., Any], arguments: Any) -> Any:
    """Call a function with the keys of a table as arguments. Errors name the table and the key."""
    arguments = _table(arguments, where)
    parameters = inspect.signature(function).parameters
    _known(arguments, parameters, where)
    missing = [
        n for n, p in parameters.items() if p.default is p.empty and n not in arguments and p.kind != p.VAR_KEYWORD
    ]
    if missing:
        raise BadConfig(f"the key {where}.{missing[0]} is missing; add it")
    for key, value in arguments.items():
        if parameters[key].annotation in (bool, "bool") and not isinstance(value, bool):
            raise BadConfig(f"{where}.{key} = {value!r} is of the wrong type; write true or false")
        if isinstance(value, int) and abs(value) >= 1 << 62:
            raise BadConfig(f"{where}.{key} = {value} is too large; write a smaller number")
    try:
        return function(**arguments)
    except BadParameter as error:
        raise BadConfig(f"{where}.{error}") from None
    except MissingLibrary:
        raise
    except (TypeError, AttributeError, ValueError, ArithmeticError, LookupError, MemoryError) as error:
        raise BadConfig(f"[{where}] does not fit {function.__name__}: {error}; fix its values") from None


def _table(table: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise BadConfig(f"{where} = {table!r} is not a table; write [{where}] with its keys below")
    return table


def _typed(given: Any, where: str, kinds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table as a dict. Refuse unknown keys and values of the wrong type."""
    _known(given, kinds, where)
    for key, value in given.items():
        fits = isinstance(value, kinds[key]) and (kinds[key] is bool or not isinstance(value, bool))
        if isinstance(value, int) and abs(value) >= 1 << 62:
            raise BadConfig(f"{where}.{key} = {value} is too large; write a smaller number")
        if not fits:
            names = kinds[key] if isinstance(kinds[key], tuple) else (kinds[key],)
            words = " or ".join(WORDS[kind] for kind in names)
            raise BadConfig(f"{where}.{key} = {value!r} is of the wrong type; write {words}")
    return dict(given)


def _known(given: Any, known: Iterable[str], where: str) -> None:
    known = list(known)
    for key in _table(given, where or "the file"):
        if key not in known:
            place = f"{where}.{key}" if where else f"[{key}]"
            raise BadConfig(f"the key {place} is not known; {nearest(key, known)}")


File = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG.toml", help="TOML file with a task, durations and methods. Example: examples/straggler.toml"
    ),
]
PageFile = Annotated[
    Path | None, typer.Option("--output", metavar="PAGE.html", help="Write a page about the runs to this file.")
]


@app.command(
    rich_help_panel=SIMULATE,
    epilog=examples("simulate examples/straggler.toml", "simulate examples/straggler.toml --output straggler.html"),
)
def simulate(config: File, output: PageFile = None, json: Json = False) -> None:
    """Simulate the methods of a TOML file: loss, time and delays.

    The file names a task, durations and methods; see examples/straggler.toml.
    """
    from asyncsgd.cli import simulate as configs
    from asyncsgd.result import leftover
    from asyncsgd.simulation._simulate import run_simulation
    from asyncsgd.simulation.compiled_replay import Bar
    from asyncsgd.trace.columns import WHEN

    described = configs.load(config)
    iterations = described.run["iterations"]
    rows: list[dict[str, Any]] = []
    runs: dict[str, Any] = {}
    with Bar(len(described.methods) * iterations, "simulating") as advance, _naming(config):
        for name, recipe in described.methods.items():
            run = run_simulation(described.task, recipe(None), described.durations, progress=advance, **described.run)
            runs[name] = run
            delays = run.trace.delays
            last = {key: float(values[-1]) for key, values in run.metrics.items() if key not in WHEN}
            rows.append(
                {
                    "method": name,
                    "iterations": run.trace.iterations,
                    "seconds": float(run.metrics["time"][-1]),
                    **({key: None for key in last} if run.diverged is not None else last),
                    "diverged": run.diverged,
                    "unused": run.unused or None,
                    **({"slow_because": run.slow_because} if json else {}),
                    "average_delay": delays.average,
                    "maximum_delay": delays.maximum,
                    "concurrency": delays.concurrency,
                    **({"bytes_up": run.bytes_up, "bytes_down": run.bytes_down} if json else {}),
                }
            )
    application.show(rows, json, f"{config.name}: simulated")
    for name, run in runs.items():
        if not json and (rest := leftover(run.method, run.trace)) is not None:
            typer.echo(f"{name}: {rest}")
        if not json and run.slow_because:
            typer.echo(f"{name}: simulated slowly, without compiled code: {run.slow_because}")
    if output is not None:
        _page(runs, described.task, output, json)


@app.command(
    rich_help_panel=SIMULATE,
    epilog=examples("sweep examples/paper_figure.toml", "sweep examples/paper_figure.toml --output best.html"),
)
def sweep(config: File, output: PageFile = None, json: Json = False) -> None:
    """Search a grid of step sizes; report the best one for each method.

    The file is one for simulate with a table named sweep. The page shows each method with its best step size.
    """
    from asyncsgd.cli import simulate as configs
    from asyncsgd.simulation._compare import refuse_same
    from asyncsgd.simulation._sweep import Goal, check_grid, run_sweep
    from asyncsgd.simulation.compiled_replay import Bar

    described = configs.load(config)
    if "stepsizes" not in described.sweep:
        raise BadConfig(f"{config}: the key sweep.stepsizes is missing; add it below [sweep]")
    if "every" in described.run:
        raise BadConfig(f"{config}: the key run.every has no meaning in a sweep; remove it")
    run: dict[str, Any] = {"iterations": described.run["iterations"]}
    grid = dict(described.sweep)
    grid.setdefault("seeds", [described.run.get("seed", 0)])
    goal = Goal(**{key: grid.pop(key) for key in ("target", "metric", "window", "sustained") if key in grid})
    rows: list[dict[str, Any]] = []
    sweeps: dict[str, Any] = {}
    with _naming(config):
        refuse_same(described.methods, float(check_grid(grid["stepsizes"])[0]))
    lanes = len(grid["stepsizes"]) * len(grid["seeds"])
    with Bar(len(described.methods) * lanes * run["iterations"], "sweeping") as advance, _naming(config):
        for name, recipe in described.methods.items():
            found = run_sweep(described.task, recipe, described.durations, goal=goal, progress=advance, **run, **grid)
            sweeps[name] = found
            reached = found.target is not None
            rows.append(
                {
                    "method": name,
                    "stepsize": found.best,
                    "iterations_to_target": found.best_iterations if reached else None,
                    "seconds_to_target": found.best_time if reached else None,
                    found.metric: float(found.final[found.index].mean()),
                    "diverged": int(found.diverged.sum()),
                    "runs": int(found.diverged.size),
                    "on_edge": found.on_edge,
                }
            )
    application.show(rows, json, f"{config.name}: best of the grid")
    if output is not None:
        _page(_at_their_best(described, sweeps), described.task, output, json)


@app.command(rich_help_panel=SIMULATE, epilog=examples("paper", "paper --only 3,5 --output paper"))
def paper(
    output: Annotated[Path, typer.Option(help="Folder for the page, the figures and claims.json.")] = Path("paper"),
    only: Annotated[
        str | None, typer.Option(metavar="3,5", help="Numbers of the claims to check. Default: all ten.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print claims.json instead of a table.")] = False,
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Docs folder of a source checkout, whose page about the claims is rewritten."),
    ] = None,
) -> None:
    """Check ten claims of the paper by simulation.

    Writes a page, figures and claims.json. Takes about three minutes. Exit code 1 if a claim could not be judged.
    """
    from asyncsgd.cli.paper import show

    if not show(output, only, as_json=json, docs=docs):
        raise typer.Exit(1)


def _at_their_best(described: Any, sweeps: dict[str, Any]) -> Any:
    """Run every method with its best step size and the first seed, up to the target if there is one."""
    from asyncsgd.simulation._compare import Comparison
    from asyncsgd.simulation._simulate import simulate as run_one

    runs = {}
    for name, found in sweeps.items():
        most = described.run["iterations"]
        until = most if found.target is None else max(1, int(min(most, found.iterations[found.index, 0])))
        method = described.methods[name](found.best)
        runs[name] = run_one(described.task, method, described.durations, iterations=until, seed=found.seeds[0])
    return Comparison(runs, sweeps, found.target, found.metric)


def _page(runs: Any, task: Any, output: Path, as_json: bool) -> None:
    """Write the page and print its path; with --json, to standard error."""
    from asyncsgd.pages import report

    typer.echo(f"Page: {report(runs, output, task=task)}", err=as_json)


@contextmanager
def _naming(config: Path) -> Iterator[None]:
    """Add the name of the file to errors."""
    try:
        yield
    except UsageError as error:
        raise BadConfig(f"{config}: {error}") from error
    except (MemoryError, OverflowError) as error:
        raise BadConfig(f"{config}: too large for this machine ({error}); use fewer iterations or runs") from error
