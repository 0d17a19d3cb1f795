"""Every recipe and every option of a method, reached from the command line and from a TOML file."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import click
import pytest
from engines.inline import Inline
from run.common import train as train_bowl
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd import methods, recipes
from asyncsgd.cli import app, run_commands, simulate
from asyncsgd.cli.application import in_options
from asyncsgd.core.errors import AsyncSGDError, BadParameter, WorkersFailed
from asyncsgd.core.optimizers import Adam, Momentum
from asyncsgd.core.work import LocalSteps
from asyncsgd.run.lookup import as_options, method_options, named_method
from asyncsgd.run.stored import unpackage

NEEDED: dict[str, dict[str, Any]] = {
    "adadelay": {"smoothness": 2.0},
    "async_diloco": {},
    "async_sgd": {"stepsize": 0.05},
    "dc_asgd": {"stepsize": 0.05},
    "decoupled_diloco": {},
    "delay_adaptive": {"stepsize": 0.05},
    "delayed_average": {"stepsize": 0.05},
    "diloco": {},
    "fedasync": {"concurrency": 2},
    "fedavg": {"clients": 1},
    "fedbuff": {"stepsize": 0.05, "concurrency": 2},
    "federated_async_sgd": {"stepsize": 0.05, "concurrency": 2},
    "mifa": {"stepsize": 0.05},
    "minibatch_sgd": {"stepsize": 0.05},
    "picky_sgd": {"stepsize": 0.05, "threshold": 10.0},
    "rennala": {"stepsize": 0.05, "batch": 2},
    "ringmaster": {"stepsize": 0.05, "limit": 5},
    "staleness_aware": {"stepsize": 0.05, "splits": 1},
}
"""Every recipe with what it needs."""
NAMED = (
    "stepsize",
    "schedule",
    "warmup",
    "total",
    "final",
    "concurrency",
    "clip",
    "noise",
    "momentum",
    "optimizer",
    "local_steps",
    "local_stepsize",
    "local_optimizer",
    "local_state",
    "local_clip",
    "per_worker",
    "compressed",
    "compressed_down",
)
"""Options of ``asyncsgd train`` itself; the others go through --set."""


def quadratic() -> Any:
    return asgd.tasks.quadratic(dim=3, workers=2)


def network() -> Any:
    torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'asyncsgd[torch]'")
    torch.manual_seed(0)
    inputs = torch.randn(40, 3)
    targets = (inputs[:, 0] > 0).long()
    return asgd.tasks.torch(torch.nn.Linear(3, 2), torch.nn.CrossEntropyLoss(), data=(inputs, targets), batch_size=8)


def words(options: dict[str, Any]) -> list[str]:
    """Options as somebody types them."""
    typed: list[str] = []
    for name, value in options.items():
        typed += [f"--{name.replace('_', '-')}", str(value)] if name in NAMED else ["--set", f"{name}={value}"]
    return typed


def train(directory: Path, *arguments: str, task: str = "quadratic", iterations: int = 20) -> dict[str, Any]:
    fixed = ["--iterations", str(iterations), "--workers", "2", "--directory", str(directory), "--json"]
    done = CliRunner().invoke(app, ["train", f"{__name__}:{task}", *arguments, *fixed], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def test_these_are_all() -> None:
    assert set(NEEDED) == set(recipes.recipes()) == set(methods.__all__) - {"table"}


@pytest.mark.parametrize("name", NEEDED)
def test_every_recipe_trains(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without processes, which are the same for all of them."""
    monkeypatch.setattr(run_commands, "named_engine", lambda described, changes: Inline(changes["workers"]))
    row = train(tmp_path / "run", "--method", name, *words(NEEDED[name]))
    assert (row["method"], row["iterations"], row["diverged"]) == (name, 20, None)
    assert json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["method_name"] == name


def test_every_recipe_simulates_from_a_file(tmp_path: Path) -> None:
    """Also with a grid of steps: each has a step size that can be exchanged."""
    tables = "".join(
        f"[[method]]\nkind = {json.dumps(name)}\n" + "".join(f"{key} = {value}\n" for key, value in options.items())
        for name, options in NEEDED.items()
    )
    described = (
        '[task]\nkind = "quadratic"\ndim = 3\nworkers = 2\n[durations]\nkind = "fixed"\nseconds = [1.0, 3.0]\n'
        + tables
        + "[run]\niterations = 30\n[sweep]\nstepsizes = [0.05, 0.1, 0.2]\n"
    )
    file = tmp_path / "all.toml"
    file.write_text(described, "utf-8")
    done = CliRunner().invoke(app, ["simulate", str(file), "--json"], catch_exceptions=False)
    assert [row["method"] for row in json.loads(done.stdout)] == list(NEEDED)
    assert all(row["iterations"] == 30 for row in json.loads(done.stdout))
    for name, recipe in simulate.load(file).methods.items():
        assert recipe(0.125).step.stepsize == 0.125, name


@pytest.mark.processes
@pytest.mark.slow
def test_local_steps_of_a_torch_task_train_and_replay(tmp_path: Path) -> None:
    local = {"local_steps": 3, "local_stepsize": 0.05, "proximal": 0.1}
    options = words({**NEEDED["fedasync"], **local, "stepsize": 0.5, "weighting": "hinge"})
    row = train(tmp_path / "run", "--method", "fedasync", *options, task="network")
    assert row["iterations"] == 20
    method = asgd.fedasync(0.5, concurrency=2, weighting="hinge").local(3, 0.05, proximal=0.1)
    assert unpackage(tmp_path / "run")[1] == method
    assert asgd.replay(tmp_path / "run").model_compared


@pytest.mark.processes
@pytest.mark.slow
def test_every_part_has_its_option(tmp_path: Path) -> None:
    parts = {"stepsize": 0.05, "clip": 1.0, "noise": 0.1, "momentum": 0.5, "local_steps": 2, "local_stepsize": 0.1}
    train(tmp_path / "run", *words({**parts, "scaled": "true"}))
    _, method = unpackage(tmp_path / "run")
    local = asgd.delay_adaptive(0.05).using(
        optimizer=asgd.optimizers.momentum(0.5), work=LocalSteps(2, 0.1, scaled=True)
    )
    assert method == local.clipped(1.0, noise=0.1)
    described = simulate.parse(
        {
            "task": {"kind": "quadratic", "workers": 2},
            "durations": {"kind": "fixed", "seconds": [1.0, 2.0]},
            "method": {"kind": "delay_adaptive", **parts, "scaled": True},
            "run": {"iterations": 5},
        }
    )
    assert described.methods["delay_adaptive"](None) == method


# ---------------------------------------------------------------------------------------------- buffers and weights


def fedbuff(*pairs: str) -> asgd.Method:
    return named_method("fedbuff", method_options({"stepsize": 0.1, "concurrency": 4}, pairs))


def test_rules_for_buffers_by_name() -> None:
    aggregation = asgd.aggregation
    assert fedbuff("calibrated=true") == asgd.fedbuff(0.1, concurrency=4, calibrated=True)
    assert fedbuff("weighted=true") == asgd.fedbuff(0.1, concurrency=4).weighted()
    assert fedbuff("weighted=false") == asgd.fedbuff(0.1, concurrency=4)
    assert fedbuff("aggregation=median").aggregation == aggregation.median(10)
    assert fedbuff("buffer=6", "aggregation=krum").aggregation == aggregation.krum(6)
    tables = ("aggregation.kind=trimmed_mean", "aggregation.size=8", "aggregation.fraction=0.25")
    assert fedbuff(*tables).aggregation == aggregation.trimmed_mean(8, fraction=0.25)


@pytest.mark.parametrize(
    ("pairs", "says"),
    [
        (["aggregation=mediam"], "aggregation = 'mediam' is not a rule for buffers; did you mean median?"),
        (["aggregation=krum", "aggregation.byzantine=5"], "aggregation.size = 10 is too small for byzantine = 5"),
        (["aggregation=median", "weighted=true"], "weighted = .* cannot be used: Median counts every update once"),
        (["weighted=3"], "weighted = 3 is of the wrong type; write true or false"),
    ],
)
def test_mistakes_about_buffers(pairs: list[str], says: str) -> None:
    with pytest.raises(BadParameter, match=says):
        fedbuff(*pairs)


def test_a_rule_for_a_buffer_needs_its_size() -> None:
    with pytest.raises(BadParameter, match=r"aggregation.size is missing, because async_sgd has no buffer; pass"):
        made("aggregation=median")


# ---------------------------------------------------------------------------------------------- optimizers


def made(*pairs: str, **named: Any) -> asgd.Method:
    return named_method("async_sgd", method_options({"stepsize": 0.1, **named}, pairs))


def test_an_optimizer_by_name() -> None:
    assert made(optimizer="adamw").optimizer == Adam()
    assert made("optimizer.beta1=0.5", optimizer="adamw").optimizer == Adam(beta1=0.5)
    excluding = made("optimizer.weight_decay=0.1", 'optimizer.exclude=["bias", "norm"]', optimizer="adamw").optimizer
    assert excluding == Adam(weight_decay=0.1, exclude=("bias", "norm"))
    excluding = made("optimizer.exclude=bias", "optimizer.weight_decay=0.1", optimizer="adamw").optimizer
    assert excluding == Adam(weight_decay=0.1, exclude=("bias",))
    assert made(optimizer="momentum").optimizer == Momentum(0.9)
    assert made("optimizer.nesterov=true", momentum=0.5).optimizer == Momentum(0.5, nesterov=True)
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'asyncsgd[torch]'")
    assert made("optimizer.weight_decay=0.1", optimizer="AdamW").optimizer == asgd.optimizers.torch(
        "AdamW", weight_decay=0.1
    )


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("sgd", {}, "--method = 'sgd' is not a method; did you mean async_sgd?"),
        ("async_sgd", {"lr": 3}, "is not an option of async_sgd; the step size is called stepsize: --stepsize 3"),
        ("async_sgd", {"stepsize": 1, "momentum": 2}, "--momentum = 2 must lie in [0, 1); pass 0 <= --momentum < 1"),
        (
            "async_sgd",
            {"stepsize": 1, "momentum": 2, "optimizer": "momentum"},
            "--momentum = 2 must lie in [0, 1); pass 0 <= --momentum < 1",
        ),
        ("fedasyn", {}, "--method = 'fedasyn' is not a method; did you mean fedasync?"),
        ("FedAsync", {}, "--method = 'FedAsync' is not a method; did you mean fedasync?"),
        ("qqq", {}, "--method = 'qqq' is not a method; pass one of: adadelay, async_diloco, "),
        ("mifa", {}, "--stepsize is missing; mifa needs it: pass one"),
        ("fedasync", {}, "--concurrency is missing; fedasync needs it: pass one"),
        ("mifa", {"stepsize": 1.0, "compressed": "int7"}, "--compressed = 'int7' is not a code; did you mean int8?"),
        ("ringmaster", {"stepsize": 1.0}, "--set limit is missing; ringmaster needs it: pass one"),
        (
            "mifa",
            {"stepsize": 1.0, "limt": 3},
            "--set limt = 3 is not an option of mifa; pass one of: --stepsize, --concurrency, --clip, ",
        ),
        (
            "ringmaster",
            {"stepsize": 1.0, "limt": 3},
            "--set limt = 3 is not an option of ringmaster; did you mean --set limit?",
        ),
        (
            "mifa",
            {"stepsize": 1.0, "momentm": 0.9},
            "--set momentm = 0.9 is not an option of mifa; did you mean --momentum?",
        ),
        ("mifa", {"stepsize": 1.0, "momentum": 2.0}, "--momentum = 2.0 must lie in [0, 1); pass 0 <= --momentum < 1"),
        ("mifa", {"stepsize": 1.0, "noise": 1.0}, "--clip is missing; --noise needs it: pass the norm"),
        (
            "mifa",
            {"stepsize": 1.0, "local_steps": 3},
            "--local-stepsize is missing; pass --local-steps and --local-stepsize together",
        ),
        ("mifa", {"stepsize": 1.0, "local_steps": 0, "local_stepsize": 1.0}, "--local-steps = 0 must be an integer"),
        (
            "fedasync",
            {"concurrency": 2, "local_steps": 0, "local_stepsize": 1.0},
            "--local-steps = 0 must be an integer",
        ),
        (
            "fedasync",
            {"concurrency": 2, "local_steps": 2, "local_stepsize": 1.0, "stepsize": 2.0},
            "--stepsize = 2.0 moves",
        ),
        ("mifa", {"stepsize": 1.0, "proximal": 0.1}, "--set proximal = 0.1 has no meaning for mifa"),
        ("delayed_average", {"stepsize": 1.0, "momentum": 0.9}, "--momentum = 0.9 cannot replace DelayedAverage"),
        (
            "mifa",
            {"stepsize": 1.0, "optimizer": "adamw", "momentum": 0.9},
            "--momentum = 0.9 contradicts --optimizer = 'adamw'",
        ),
        (
            "mifa",
            {"stepsize": 1.0, "optimizer": {"kind": "adamw", "beta3": 0.9}},
            "--set optimizer.beta3 = 0.9 is not an option of adamw; did you mean --set optimizer.beta",
        ),
        (
            "federated_async_sgd",
            {"stepsize": 1.0, "concurrency": 2, "early": "no"},
            "--set early = 'no' is of the wrong type",
        ),
        (
            "delay_adaptive",
            {"stepsize": 1.0, "rule": ["a"]},
            "--set rule = ['a'] is not known; pass one of scale, drop",
        ),
        (
            "delay_adaptive",
            {"stepsize": 1.0, "threshold": 3},
            "--set threshold = 3 has no meaning with --set rule=scale; pass --set rule=drop",
        ),
        ("mifa", {"stepsize": 1.0, "warmup": 3}, "--warmup = 3 is an option of a schedule; pass --schedule too, one"),
        (
            "fedbuff",
            {"stepsize": 1.0, "concurrency": 2, "bufer": 3},
            "--set bufer = 3 is not an option of fedbuff; did you mean --set buffer?",
        ),
        (
            "mifa",
            {"lr": 1.0},
            "--set lr = 1.0 is not an option of mifa; the step size is called stepsize: --stepsize 1.0",
        ),
        ("mifa", {"stepsize": 1 << 70}, "is too large"),
    ],
)
def test_a_mistake_names_the_option_as_it_is_typed(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadParameter) as caught:
        named_method(name, options)
    assert says in str(caught.value)


@pytest.mark.parametrize(("typed", "meant"), [("adam", "Adam"), ("adanw", "adamw"), ("Adagrd", "Adagrad")])
def test_a_mistyped_optimizer(typed: str, meant: str) -> None:
    pytest.importorskip("torch", reason="needs PyTorch: pip install 'asyncsgd[torch]'")
    with pytest.raises(BadParameter, match=rf"--optimizer = '{typed}' is not an optimizer; did you mean {meant}\?"):
        made(optimizer=typed)


def test_an_option_cannot_be_given_twice() -> None:
    with pytest.raises(
        BadParameter, match=r"--set clip = 2 is given twice, the other time as 1\.0; leave out --clip or"
    ):
        method_options({"clip": 1.0}, ["clip=2"])


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--engine", "rya"), "--engine = 'rya' is not an engine; did you mean ray?"),
        (("--engine", "proceses"), "did you mean processes?"),
        (("--until", "los <= 1"), "--until = 'los' is not among the task's metrics; did you mean loss?"),
    ],
)
def test_other_mistyped_names(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_commands, "named_engine", lambda described, changes: Inline(2))
    options = ["--stepsize", "0.1", "--iterations", "5", "--directory", str(tmp_path / "run"), *arguments]
    with pytest.raises(AsyncSGDError) as caught:
        CliRunner().invoke(app, ["train", f"{__name__}:quadratic", *options], catch_exceptions=False)
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--epochs", "1"), "--epochs = 1 and --iterations = 5 were both given; pass one of them"),
        (
            ("--schedule", "cosine", "--warmup", "9"),
            "--warmup = 9 is too long for a run of 5 iterations; pass a shorter one, or more iterations, or --total",
        ),
        (
            ("--method", "fedavg", "--set", "clients=9"),
            "--set clients = 9 can never be reached by 2 workers; pass --set clients <= 2",
        ),
        (("--every", "0"), "--every = 0 must be an integer of at least 1; pass --every >= 1"),
        (("--directory", "run.txt"), "--directory = 'run.txt' cannot be made or written to"),
    ],
)
def test_a_mistake_in_a_run_names_the_option_as_it_is_typed(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_commands, "named_engine", lambda described, changes: Inline(2))
    monkeypatch.chdir(tmp_path)
    Path("run.txt").touch()
    options = ["--stepsize", "0.1", "--iterations", "5", "--directory", "run", *arguments]
    with pytest.raises(BadParameter) as caught:
        CliRunner().invoke(app, ["train", f"{__name__}:quadratic", *options], catch_exceptions=False)
    assert str(caught.value).startswith(says)


def test_a_mistake_in_other_commands_names_what_was_typed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    train_bowl(Path("run"), iterations=20)
    damaged = tmp_path / "damaged"
    shutil.copytree("run", damaged)
    (damaged / "job.pkl").write_bytes(b"nothing")
    train_again = "name them: asyncsgd train MODULE:TASK --method NAME --resume --directory DIR"
    for arguments, says in [
        (("replay", "run", "--job", "1", "--stop", "3"), "--job = 1 and --stop = 3 were both given; pass one of them"),
        (("replay", "damaged"), f"restore it from a backup, or {train_again}"),
        (("plan", "nofile.csv"), "DURATIONS = 'nofile.csv' does not exist; check the path"),
        (("plan", "durations.csv", "--heterogeneity", "1"), "the data are alike; pass --heterogeneous too"),
        (
            ("plan", "durations.csv", "--parameters", "9"),
            "--parameters = 9 has no effect without --bandwidth; pass --bandwidth too",
        ),
        (("plan", "durations.csv", "--bandwidth", "9"), "--parameters is missing"),
        (("watch", "nothing"), "DIR = 'nothing' does not exist; pass a run directory, such as runs/task-1, or --wait"),
        (("verify", "nothing"), "nothing holds no run (no run.json); pass a run directory, such as runs/task-1"),
        (("export", "run", "model.bin"), "MODEL = 'model.bin' does not name a format"),
        (("export", "run", "--chrome", "run"), "--chrome = 'run' "),
        (("report", "run", "--output", "run"), "--output = 'run' cannot be written"),
        (("paper", "--only", "77"), "--only = 77 is not a claim"),
    ]:
        Path("durations.csv").write_text("a,b\n1,2\n1,2\n", "utf-8")
        with pytest.raises(AsyncSGDError) as caught:
            CliRunner().invoke(app, list(arguments), catch_exceptions=False)
        assert says in str(caught.value), arguments


def test_an_ordinary_word_is_not_an_option() -> None:
    names = {name: f"--{name}" for name in ("noise", "steps", "resume", "workers")}
    sentence = "adds noise in all steps; resume with fewer workers, less noise, or processes(workers=4)"
    assert as_options(sentence, names) == sentence


def test_a_failing_task_is_quoted_as_it_is() -> None:
    params = [click.Option(["--seed"]), click.Option(["--resume"], is_flag=True)]
    error = in_options(WorkersFailed("worker 1 failed with seed = 3; fix the task and resume with resume=True"), params)
    assert str(error) == "worker 1 failed with seed = 3; fix the task and resume with --resume"


def test_a_mistyped_command_task_and_metric_of_a_sweep() -> None:
    assert "Did you mean 'simulate'?" in CliRunner().invoke(app, ["simulat"]).output
    with pytest.raises(BadParameter, match=r"has no 'quadratc'\); did you mean quadratic\?"):
        CliRunner().invoke(
            app, ["train", f"{__name__}:quadratc", "--stepsize", "1", "--iterations", "5"], catch_exceptions=False
        )
    with pytest.raises(BadParameter, match=r"metric = 'gradient_nrm' is not measured .*; did you mean gradient_norm"):
        asgd.sweep(
            quadratic(),
            asgd.async_sgd,
            asgd.durations.fixed([1, 2]),
            stepsizes=[0.1],
            iterations=5,
            metric="gradient_nrm",
        )


def test_a_method_that_is_made_already_can_be_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_made.py").write_text("import asyncsgd as asgd\nmethod = asgd.mifa(0.1)\n", "utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert named_method("mine_made:method", {}) == asgd.mifa(0.1)
    assert named_method("mine_made:method", {"stepsize": 0.2, "clip": 1.0}) == asgd.mifa(0.2).clipped(1.0)
    with pytest.raises(BadParameter, match="--concurrency = 3 is not an option of mifa"):
        named_method("mine_made:method", {"concurrency": 3})


def test_the_list_has_every_recipe() -> None:
    shown = CliRunner().invoke(app, ["methods"]).stdout
    for name, options in NEEDED.items():
        [line] = [line for line in shown.splitlines() if line.startswith(f"{name} ")]
        assert set(options) - {"stepsize", "splits"} <= set(line.split()), line
    rows = json.loads(CliRunner().invoke(app, ["methods", "--json"]).stdout)["methods"]
    assert [row["method"] for row in rows] == list(recipes.recipes())
