"""What compiles and what does not: every answer has a reason, and the reason is true."""

from dataclasses import dataclass

import numpy as np
import pytest
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd.cli import app
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.core.optimizers import Adam
from asyncsgd.core.parts import Reason
from asyncsgd.core.steps import Constant
from asyncsgd.core.transforms import Clip, Interpolate
from asyncsgd.simulation.lowering import Rule, lower
from asyncsgd.tasks import quadratic

TASK = quadratic(workers=2)
DURATIONS = asgd.durations.fixed([1.0, 3.0])


class Single:
    """A task in single precision, without a compiled gradient."""

    def initial(self):
        return np.ones(2, np.float32)

    def update(self, x, worker, seed):
        return x

    def evaluate(self, x):
        return {"loss": float(x @ x)}


@dataclass(frozen=True)
class Mine(Constant):
    """A subclass that may do anything."""

    def weight(self, arrival):
        return 1.0


class Busy(AlwaysBusy):
    """The same for a dispatch rule."""


plain = asgd.async_sgd(0.1)
SLOW = {
    "optimizer Adam has no compiled form": (plain.using(optimizer=Adam()), TASK),
    "weights by examples have no compiled form": (plain.weighted(), TASK),
    "aggregation Calibrated has no compiled form": (asgd.fedbuff(0.1, concurrency=2, calibrated=True), TASK),
    "aggregation TrimmedMean has": (plain.using(aggregation=asgd.aggregation.trimmed_mean(3, fraction=0.4)), TASK),
    "aggregation Memory has no compiled form": (asgd.mifa(0.1), TASK),
    "averaging has no compiled form": (plain.using(average=True), TASK),
    "step rule Mine does not say that": (plain.using(step=Mine(0.1)), TASK),
    "a buffer with noise": (plain.using(aggregation=Buffer(2, noise=1.0), transforms=(Clip(1.0),)), TASK),
    "transforms (Clip, Interpolate)": (plain.using(transforms=(Clip(1.0), Interpolate())), TASK),
    "task Single has no compiled gradient": (plain, Single()),
    "dispatch rule Busy has no compiled form": (plain.using(dispatch=Busy()), TASK),
    "stops late jobs": (asgd.ringmaster(0.1, limit=2, stops=True), TASK),
}


@pytest.mark.parametrize("words", SLOW)
def test_a_slow_run_says_why(words):
    method, task = SLOW[words]
    low = lower(method, task)
    reasons = [str(half) for half in (low.schedule, low.numbers) if isinstance(half, Reason)]
    assert len(reasons) == 1
    assert words in reasons[0]
    run = asgd.simulate(task, method, DURATIONS, iterations=12)
    assert (run.compiled, run.slow_because) == (False, reasons[0])


def test_a_fast_run_says_nothing():
    method = asgd.fedbuff(0.1, concurrency=2, buffer=3).using(transforms=(Interpolate(), Clip(2.0)))
    low = lower(method, TASK)
    assert low.schedule
    assert low.schedule.random
    assert low.numbers.rule == Rule(buffer=3, clip=2.0, interpolate=1)
    run = asgd.simulate(TASK, method, DURATIONS, iterations=12)
    assert (run.compiled, run.slow_because) == (True, "")


def test_a_recorded_trace_needs_no_compiled_schedule():
    """The schedule is on record, so only the numbers can be slow."""
    recorded = asgd.simulate(TASK, plain, DURATIONS, iterations=12).trace
    run = asgd.simulate(TASK, plain.using(dispatch=Busy()), recorded)
    assert (run.compiled, run.slow_because) == (True, "")


def test_the_command_says_why(tmp_path):
    file = tmp_path / "slow.toml"
    file.write_text(
        '[task]\nkind = "quadratic"\nworkers = 2\n[durations]\nkind = "fixed"\nseconds = [1, 2]\n'
        '[[method]]\nkind = "mifa"\nstepsize = 0.1\n[run]\niterations = 20\n'
    )
    said = CliRunner().invoke(app, ["simulate", str(file)]).output
    assert "aggregation Memory has no compiled form" in " ".join(said.split())
    assert '"slow_because": "aggregation Memory' in CliRunner().invoke(app, ["simulate", str(file), "--json"]).output
