"""Local work, compression and the DiLoCo family, reached from the command line and from a TOML file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd import recipes
from asyncsgd.cli import app, run_commands, simulate
from asyncsgd.core.errors import BadParameter, LocalWorkWarning, UsageError
from asyncsgd.core.method import Method
from asyncsgd.core.work import LocalSteps
from asyncsgd.run.lookup import method_options, named_method

ADAMW = asgd.optimizers.adamw(weight_decay=0.1)


def quadratic() -> Any:
    return asgd.tasks.quadratic(dim=3, workers=2)


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A function that returns the method of a line that somebody types, without training."""

    def method(*arguments: str) -> Method:
        seen: list[Method] = []

        def record(task: Any, method: Method, engine: Any, **options: Any) -> Any:
            seen.append(method)
            raise UsageError("enough")

        monkeypatch.setattr(run_commands, "train_task", record)
        line = ["train", f"{__name__}:quadratic", *arguments, "--iterations", "20", "--workers", "2"]
        done = CliRunner().invoke(app, line)
        assert seen, done.output or done.exception
        return seen[0]

    return method


def test_every_option_of_local_work_and_compression_has_a_name(typed: Any) -> None:
    method = typed(
        *("--method", "async_diloco", "--steps", "30", "--inner-stepsize", "0.01", "--momentum", "0.8"),
        *("--local-state", "kept", "--local-clip", "1.5", "--per-worker", "30,40"),
        *("--compressed", "int4", "--compressed-down", "bfloat16"),
        *("--set", "every=3", "--set", "activation=0.25", "--set", "proximal=0.5"),
    )
    expected = asgd.async_diloco(momentum=0.8, every=3, activation=0.25).local(
        30, 0.01, optimizer=ADAMW, state="kept", clip=1.5, proximal=0.5, per_worker=[30, 40]
    )
    assert method == expected.compressed("int4", down="bfloat16")


def test_local_options_change_what_a_recipe_has(typed: Any) -> None:
    assert typed("--method", "diloco", "--local-steps", "100") == asgd.diloco(steps=100)
    assert typed("--method", "diloco", "--set", "steps=100") == asgd.diloco(steps=100)
    assert typed("--method", "decoupled_diloco", "--set", "quorum=2") == asgd.decoupled_diloco(quorum=2)
    muon = typed("--method", "diloco", "--local-optimizer", "muon", "--local-stepsize", "0.02")
    assert muon == asgd.diloco().local(50, 0.02, optimizer=asgd.optimizers.muon())
    speed = typed("--stepsize", "1", "--local-steps", "5", "--local-stepsize", "0.1", "--per-worker", "speed")
    assert speed.work == LocalSteps(5, 0.1, per_worker="speed")
    one = typed("--method", "async_diloco", "--per-worker", "25")  # a run of one worker
    assert one.work.per_worker == (25,)


def test_options_of_a_part_follow_its_name(typed: Any) -> None:
    method = typed(
        *("--method", "diloco", "--local-optimizer", "adamw", "--set", "local_optimizer.weight_decay=0.2"),
        *("--compressed", "top_k", "--set", "compressed.fraction=0.05", "--set", "compressed.decay=0.9"),
        *("--set", "inner_stepsize.kind=cosine", "--set", "inner_stepsize.peak=0.01"),
        *("--set", "inner_stepsize.warmup=10"),
    )
    assert method.up == asgd.compression.top_k(0.05, decay=0.9)
    assert method.work.optimizer == asgd.optimizers.adamw(weight_decay=0.2)
    assert method.work.stepsize == asgd.schedules.cosine(0.01, warmup=10)


def test_servers_optimizers_by_name() -> None:
    for name, options, expected in (
        ("delayed_nesterov", {"every": 4}, asgd.optimizers.delayed_nesterov(every=4)),
        ("look_ahead", {"gamma": 0.8, "ahead": True}, asgd.optimizers.look_ahead(0.8, ahead=True)),
        ("muon", {"others": ["head"]}, asgd.optimizers.muon(others=["head"])),
    ):
        assert (
            recipes.make("async_sgd", {"stepsize": 0.1, "optimizer": {"kind": name, **options}}).optimizer == expected
        )


def test_a_file_has_the_same_options(tmp_path: Path) -> None:
    (tmp_path / "far.toml").write_text(
        '[task]\nkind = "quadratic"\nworkers = 2\n[durations]\nkind = "fixed"\nseconds = [1.0, 3.0]\n'
        '[[method]]\nkind = "async_diloco"\nsteps = 20\nper_worker = [20, 30]\ncompressed_down = "float16"\n'
        'inner_stepsize = {kind = "linear", peak = 0.1}\ncompressed = {kind = "int8", block = 32}\n'
        '[[method]]\nkind = "mifa"\nstepsize = 1.0\nlocal_steps = 2\nlocal_stepsize = {kind = "constant", peak = 0.1}\n'
        'local_optimizer = "momentum"\nlocal_state = "kept"\n[run]\niterations = 30\n',
        "utf-8",
    )
    far, mifa = (recipe(0.5) for recipe in simulate.load(tmp_path / "far.toml").methods.values())
    linear = asgd.schedules.linear(0.1)
    expected = asgd.async_diloco(0.5, steps=20, inner_stepsize=linear, per_worker=[20, 30])
    assert far == expected.compressed(asgd.compression.int8(32), down="float16")
    momentum = asgd.optimizers.momentum()
    assert mifa == asgd.mifa(0.5).local(2, asgd.schedules.constant(0.1), optimizer=momentum, state="kept")


def test_few_steps_are_warned_of_here_too() -> None:
    with pytest.warns(LocalWorkWarning, match="steps = 5 of an Adam"):
        recipes.make("diloco", {"local_steps": 5})


LOCAL = {"stepsize": 1.0, "local_steps": 2, "local_stepsize": 0.1}


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("diloco", {"local_steps": 0}, "--local-steps = 0 must be an integer of at least 1; pass --local-steps >= 1"),
        ("diloco", {"steps": 0}, "--set steps = 0 must be an integer"),
        ("diloco", {"inner_stepsize": -1}, "--set inner_stepsize = -1 must be a positive"),
        ("diloco", {"momentum": 2}, "--momentum = 2 must lie in [0, 1)"),
        ("diloco", {"optimizer": "adamw"}, "--optimizer = 'adamw' cannot replace Momentum of diloco"),
        ("decoupled_diloco", {"quorum": 0}, "--set quorum = 0 must be an integer"),
        ("async_diloco", {"activation": 2}, "--set activation = 2 must lie in [0, 1/every]"),
        ("async_diloco", {"per_worker": "slow"}, "--per-worker = 'slow' is not known; pass \"speed\", or"),
        ("mifa", {"stepsize": 1.0, "local_state": "kept"}, "--local-state = 'kept' has no meaning for mifa"),
        ("mifa", {**LOCAL, "local_state": "lost"}, "--local-state = 'lost' is not known"),
        (
            "mifa",
            {**LOCAL, "local_clip": 0},
            "--local-clip = 0 must be a positive finite number; pass --local-clip > 0",
        ),
        ("mifa", {**LOCAL, "local_optimizer": "adam"}, "--local-optimizer = 'adam' is not an optimizer"),
        ("mifa", {**LOCAL, "local_optimizer": "look_ahead"}, "--local-optimizer = 'look_ahead' needs the arrivals"),
        (
            "mifa",
            {**LOCAL, "local_optimizer": {"kind": "adamw", "beta3": 1}},
            "--set local_optimizer.beta3 = 1 is not an option of adamw",
        ),
        ("mifa", {**LOCAL, "local_optimizer": {"beta1": 1}}, "--set local_optimizer.kind is missing"),
        ("mifa", {**LOCAL, "local_stepsize": {"kind": "cosine"}}, "--set local_stepsize.peak is missing"),
        ("mifa", {**LOCAL, "local_stepsize": {"peak": 0.1}}, "--set local_stepsize.kind is missing"),
        (
            "mifa",
            {**LOCAL, "local_stepsize": {"kind": "cosine", "peak": -1}},
            "--set local_stepsize.peak = -1 must be a positive",
        ),
        (
            "mifa",
            {**LOCAL, "local_stepsize": {"kind": "inverse_sqrt", "peak": 1}},
            "--set local_stepsize.warmup is missing",
        ),
        ("mifa", {"stepsize": 1.0, "compressed": "int7"}, "--compressed = 'int7' is not a code; did you mean int8?"),
        (
            "mifa",
            {"stepsize": 1.0, "compressed_down": "top_k"},
            "--compressed-down = 'top_k' leaves out most numbers of the model that a worker starts from; "
            "pass --compressed-down bfloat16",
        ),
        (
            "mifa",
            {"stepsize": 1.0, "compressed_down": {"kind": "top_k", "fraction": 0.1}},
            "--compressed-down = 'top_k' leaves out",
        ),
        (
            "mifa",
            {"stepsize": 1.0, "compressed": {"kind": "top_k", "fraction": 0}},
            "--set compressed.fraction = 0 is not a share of the numbers",
        ),
        (
            "mifa",
            {"stepsize": 1.0, "compressed": {"kind": "int8", "size": 3}},
            "--set compressed.size = 3 is not an option of int8",
        ),
    ],
)
def test_a_mistake_names_the_option_as_it_is_typed(name: str, options: dict[str, Any], says: str) -> None:
    with pytest.raises(BadParameter) as caught:
        named_method(name, method_options(options, []))
    assert says in str(caught.value)
