"""A run that ends in mid-batch says so, simulated or real."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines.inline import Inline
from run.common import train
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd.cli import app
from asyncsgd.core.server import Server
from asyncsgd.result import leftover
from asyncsgd.run import checkpoints
from asyncsgd.run.view import RunView

TIMES = asgd.durations.fixed([1.0, 1.5, 2.0])
BUFFERED = {
    "fedbuff": asgd.fedbuff(0.1, concurrency=3, buffer=4),
    "over_selection": asgd.fedavg(0.1, clients=2, ask=3),
    "rennala": asgd.rennala(0.1, batch=4),
    "staleness_aware": asgd.methods.staleness_aware(0.1, splits=1).bind(3),
    "noise": asgd.fedbuff(0.1, concurrency=3, buffer=5).clipped(1.0, noise=0.1),
}


def simulate(method: Any, iterations: int) -> asgd.Run:
    return asgd.simulate(asgd.tasks.quadratic(workers=3), method, TIMES, iterations=iterations)


@pytest.mark.parametrize("method", BUFFERED.values(), ids=BUFFERED)
def test_what_waits_in_a_buffer(tmp_path: Path, method: Any) -> None:
    """The same count as the buffer's own, in a real run, a resumed one and a simulation of as many updates."""
    seen = set()
    for iterations in (20, 33, 46, 59):
        run = train(tmp_path, iterations, method, engine=Inline(3), resume=True)
        state = checkpoints.read(checkpoints.listed(tmp_path / "checkpoints")[0]).state
        held = state["update"]["memory"]["aggregation"]["held"]
        assert run.unused == RunView.of(run).headline()["unused"] == held
        said = leftover(method, run.trace)
        assert (said is None) == (held == 0)
        if said is not None:
            assert said in run.diagnosis.facts
            assert said in RunView.of(run).text()
            assert said in repr(run)
        seen.add(held)
    assert len(seen) > 1


@pytest.mark.parametrize(("iterations", "left"), [(24, 0), (25, 1), (27, 3)])
def test_a_simulation_says_it_too(iterations: int, left: int) -> None:
    run = simulate(BUFFERED["fedbuff"], iterations)
    assert run.unused == left
    words = {0: None, 1: "the last update was not used", 3: "the last 3 updates were not used"}[left]
    assert (words or "not used") in repr(run) or left == 0
    assert ("not used" in repr(run)) == bool(left)
    end = {0: None, 1: "; more iterations use it", 3: "; more iterations use them"}[left]
    said = leftover(run.method, run.trace)
    assert said == end or (said is not None and end is not None and said.endswith(end))


@pytest.mark.parametrize(("iterations", "words"), [(30, None), (31, "1 of its 3"), (32, "2 of its 3")])
def test_a_mini_batch_that_is_not_complete(iterations: int, words: str | None) -> None:
    run = simulate(asgd.minibatch_sgd(0.1), iterations)
    assert run.unused == 0
    said = leftover(run.method, run.trace)
    assert said == (words and f"the last batch is not complete: {words} updates arrived, and the model has used these")
    real = train(None, iterations, asgd.minibatch_sgd(0.1), engine=Inline(3))
    assert (said in real.diagnosis.facts) == (said is not None)


def test_a_memory_that_never_started() -> None:
    """One worker is not heard, so nothing that arrives is used."""
    times = asgd.durations.fixed([1.0, 1.0, 100.0])
    run = asgd.simulate(asgd.tasks.quadratic(workers=3), asgd.mifa(0.1), times, iterations=20)
    assert run.unused == 20
    assert "as not every worker was heard" in repr(run)
    assert simulate(asgd.mifa(0.1), 20).unused == 0


@pytest.mark.parametrize("method", [asgd.async_sgd(0.1), asgd.federated_async_sgd(0.1, concurrency=2)])
def test_methods_without_batches_have_no_rest(method: Any) -> None:
    run = simulate(method, 31)
    assert (run.unused, leftover(method, run.trace)) == (0, None)


def test_the_command_prints_it(tmp_path: Path) -> None:
    (tmp_path / "rounds.toml").write_text(
        '[task]\nkind = "quadratic"\nworkers = 2\n[durations]\nkind = "fixed"\nseconds = [1, 2]\n'
        '[[method]]\nkind = "fedbuff"\nstepsize = 0.1\nconcurrency = 2\nbuffer = 4\n[run]\niterations = 11\n'
    )
    said = CliRunner().invoke(app, ["simulate", str(tmp_path / "rounds.toml")])
    assert "fedbuff: the last 3 updates were not used, as the model moves after every 4" in said.output, said.output
    assert '"unused": 3' in CliRunner().invoke(app, ["simulate", str(tmp_path / "rounds.toml"), "--json"]).output


def test_the_buffer_of_a_restored_server_is_not_forgotten(tmp_path: Path) -> None:
    """More iterations use what was left: the model of 22 + 22 updates is that of 44."""
    method = BUFFERED["fedbuff"]
    first = train(tmp_path / "twice", 22, method)
    assert first.unused == 2
    assert (
        Server.restore(
            checkpoints.read(checkpoints.listed(tmp_path / "twice" / "checkpoints")[0]).state, method
        ).version
        == 22 // 4
    )
    assert train(tmp_path / "twice", 44, method, resume=True).unused == 0
