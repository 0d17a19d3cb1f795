"""Compare methods under the same durations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.schedules import Schedule
from asyncsgd.result import Run, write_report
from asyncsgd.simulation._simulate import run_simulation
from asyncsgd.simulation._sweep import Goal, Recipe, Sweep, check_grid, run_sweep, with_step
from asyncsgd.simulation.compiled_replay import shown
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace


@dataclass(frozen=True, eq=False)
class Comparison:
    """The best run of each method under the same durations, in the order given.

    >>> import asyncsgd as asgd
    >>> task, speeds = asgd.tasks.quadratic(workers=2), asgd.durations.fixed([1.0, 3.0])
    >>> found = asgd.compare(task, [asgd.async_sgd(0.1), asgd.minibatch_sgd(0.1)], speeds, iterations=50)
    >>> [row["method"] for row in found.rows()]
    ['async_sgd', 'minibatch_sgd']

    See docs/tutorial.md for a comparison step by step.
    """

    runs: dict[str, Run]
    sweeps: dict[str, Sweep]
    target: float | None
    metric: str

    def __repr__(self) -> str:
        return f"<Comparison of {', '.join(self.runs)}: see .rows(), .runs, .sweeps>"

    def rows(self) -> list[dict[str, Any]]:
        """Return one row per method: step, iterations and seconds to the target, final metric, delays."""
        table = []
        for name, run in self.runs.items():
            found = self.sweeps.get(name)
            last = run.metrics[self.metric][-1] if run.diverged is None else None
            table.append(
                {
                    "method": name,
                    "stepsize": run.method.step.peak,
                    "schedule": None if run.method.step.schedule is None else repr(run.method.step.schedule),
                    "iterations_to_target": found.best_iterations if found and self.target is not None else None,
                    "seconds_to_target": found.best_time if found and self.target is not None else None,
                    self.metric: None if last is None else float(last),
                    "diverged": run.diverged,
                    "seconds": float(run.metrics["time"][-1]),
                    "average_delay": run.trace.delays.average,
                    "maximum_delay": run.trace.delays.maximum,
                    "bytes_up": run.bytes_up,
                    "bytes_down": run.bytes_down,
                }
            )
        return table

    def write_report(self, path: str | Path = "report.html", *, title: str = "", task: Task | None = None) -> Path:
        """Write one self-contained HTML page about all runs side by side, and return where; see `Run.write_report`."""
        return write_report(self, path, title, task)


def compare(
    task: Task,
    methods: Mapping[str, Recipe | Method] | Iterable[Recipe | Method],
    durations: Durations | Trace,
    *,
    stepsizes: Sequence[float] | NDArray[np.float64] | None = None,
    seeds: Sequence[int] = (0,),
    iterations: int | None = None,
    target: float | None = None,
    metric: str = "gradient_norm",
    window: int = 30,
    sustained: bool = False,
    progress: bool = False,
) -> Comparison:
    """Compare methods under the same durations, each at its own best step size if a grid is given.

    Args:
        task: What a job computes, as for `asyncsgd.simulate`.
        methods: Methods, or recipes if a grid is given. Pass a dict to choose the names of the rows. In a list, a
            method that occurs twice is labelled by its step size or schedule, or by another option that differs.
        durations: How long jobs take, or a recorded trace whose timing is repeated.
        stepsizes: A grid of step sizes. It replaces the step size of a method, or the peak of its schedule.
        seeds: The seeds of the sweeps. The runs of the comparison have the first one.
        iterations: The number of gradients that arrive in a run. With a trace, the default is all of its arrivals.
        target: A value of the metric; the rows then hold the iterations and seconds to it.
        metric: The metric to judge by: "loss", "gradient_norm" or "distance", if the task measures it.
        window: The number of values that decide whether the target is reached: their mean is at or below it.
        sustained: Ask for ``window`` values in a row at or below the target instead, counted from the first of them.
        progress: Whether to show a progress bar on the terminal.

    >>> import asyncsgd as asgd
    >>> both = asgd.compare(
    ...     asgd.tasks.quadratic(workers=4),
    ...     [asgd.minibatch_sgd(0.1), asgd.async_sgd(0.1)],
    ...     asgd.durations.fixed([1, 1, 1, 10]),
    ...     iterations=1000,
    ...     target=1e-6,
    ... )
    >>> {row["method"]: row["seconds_to_target"] for row in both.rows()}
    {'minibatch_sgd': 311.0, 'async_sgd': 82.0}

    docs/users/researcher.md has more examples.
    """
    if isinstance(methods, str) or not isinstance(methods, Iterable):
        fix = "pass the task first, then a list of methods: compare(task, [method, ...], durations)"
        raise BadParameter("methods", methods, f"is a {type(methods).__name__}", fix)
    methods = methods if isinstance(methods, Mapping) else list(methods)
    if not methods:
        raise BadParameter("methods", methods, "is empty", "pass at least one method")
    named = methods if isinstance(methods, Mapping) else _named(methods, steps=True)
    if stepsizes is not None:
        refuse_same(named, float(check_grid(stepsizes)[0]))
        named = methods if isinstance(methods, Mapping) else _named(methods, steps=False)
    for name, method in named.items():
        if stepsizes is None and not isinstance(method, Method):
            raise BadParameter(
                "methods", name, "is a recipe without a step", "pass stepsizes=..., or a method such as async_sgd(0.1)"
            )
    runs: dict[str, Run] = {}
    sweeps: dict[str, Sweep] = {}
    goal = Goal(target, metric, window, sustained)
    judged = stepsizes is not None or target is not None
    each = 1 + (np.size(seeds) * (1 if stepsizes is None else len(stepsizes)) if judged else 0)
    length = durations.iterations if iterations is None and isinstance(durations, Trace) else iterations
    with shown(progress, None if length is None else len(named) * each * length, "comparing") as advance:
        for name, method in named.items():
            if judged:
                steps = [method.step.peak] if stepsizes is None and isinstance(method, Method) else stepsizes
                assert steps is not None
                sweeps[name] = run_sweep(
                    task, method, durations, stepsizes=steps, seeds=seeds, iterations=iterations, goal=goal,
                    progress=advance,
                )  # fmt: skip
                method = with_step(method, sweeps[name].best)
            assert isinstance(method, Method)
            runs[name] = run_simulation(task, method, durations, iterations=iterations, seed=seeds[0], progress=advance)
    return Comparison(runs, sweeps, target, metric)


def labels(methods: Sequence[tuple[str, float | Schedule | None, Method | None]]) -> list[str]:
    """Return a unique name for each row (name, step, method); a step or method of None is not used for the name.

    A repeated name gets its step, then the options that differ between methods of the same name and step, else a
    number.

    >>> labels([("async_sgd", 0.1, None), ("async_sgd", 0.3, None), ("mifa", 0.1, None)])
    ['async_sgd(0.1)', 'async_sgd(0.3)', 'mifa']
    >>> from asyncsgd.schedules import cosine
    >>> labels([("async_sgd", 0.1, None), ("async_sgd", cosine(0.1, warmup=20), None)])
    ['async_sgd(0.1)', 'async_sgd(cosine(0.1, warmup=20))']
    >>> labels([("fedbuff", None, None), ("fedbuff", None, None)])
    ['fedbuff #1', 'fedbuff #2']
    """
    found = []
    for name, step, method in methods:
        same = [(other, its) for known, other, its in methods if known == name]
        said = []
        if step is not None and len(same) > 1:
            said.append(_short(step, [other for other, _ in same]))
        if method is not None:
            said += _differences(method, [its for other, its in same if other == step and its is not None])
        found.append(f"{name}({', '.join(said)})" if said else name)
    return [
        label if found.count(label) == 1 else f"{label} #{found[: place + 1].count(label)}"
        for place, label in enumerate(found)
    ]


def _short(step: float | Schedule, steps: Sequence[float | Schedule | None]) -> str:
    """Return a step size in few digits, or in all if others would look the same; a schedule with its options."""
    if isinstance(step, Schedule):
        return repr(step)
    near = {other for other in steps if isinstance(other, int | float) and f"{other:g}" == f"{step:g}"}
    return f"{step:g}" if len(near) == 1 else repr(float(step))


def _differences(method: Method, twins: Sequence[Method]) -> list[str]:
    """Return what differs between a method and others of its name: kinds of parts, and options with plain values."""
    words = []
    schedule = method.step.schedule
    if schedule is not None and any(_shape(twin) != schedule.shape for twin in twins):
        words.append(f"schedule={schedule.shape}")
    for name in ("step", "dispatch", "work", "aggregation", "optimizer"):
        part, others = getattr(method, name), [getattr(twin, name) for twin in twins]
        alike = [other for other in others if type(other) is type(part)]
        if len(alike) < len(others):
            words.append(f"{name}={type(part).__name__}")
        for option in (parameter.name for parameter in fields(part) if parameter.name != "stepsize"):
            value, values = getattr(part, option), [getattr(other, option) for other in alike]
            if isinstance(value, int | float | str | None) and len(set(map(repr, values))) > 1:
                words.append(f"{option}={value!r}")
    return words


def _shape(method: Method) -> str | None:
    return None if method.step.schedule is None else method.step.schedule.shape


def refuse_same(methods: Mapping[str, Recipe | Method], stepsize: float) -> None:
    """Raise if two methods become the same once a grid replaces their steps."""
    seen: list[tuple[str, Method]] = []
    for name, given in methods.items():
        method = with_step(given, stepsize)
        for other, earlier in seen:
            if _equal(method, earlier):
                problem = "are the same method once stepsizes=... replaces their steps"
                fix = "pass it once, or leave stepsizes out to compare the steps themselves"
                raise BadParameter("methods", [other, name], problem, fix)
        seen.append((name, method))


def _named(methods: Sequence[Recipe | Method], *, steps: bool) -> dict[str, Recipe | Method]:
    known = [str(getattr(method, "name", getattr(method, "__name__", "method"))) for method in methods]
    made = [method if isinstance(method, Method) else None for method in methods]
    stepsizes = [method.step.stepsize if steps and method else None for method in made]
    return dict(zip(labels(list(zip(known, stepsizes, made, strict=True))), methods, strict=True))


def _equal(one: Method, other: Method) -> bool:
    try:
        return one == other
    except ValueError:  # a part written by the user holds arrays, whose comparison is an array
        return False
