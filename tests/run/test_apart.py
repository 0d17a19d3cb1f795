"""The server computes gradients for its diagnosis only where that cannot hang it, kill it, or keep a user waiting."""

import signal

import numpy as np
import pytest
from engines.inline import Inline, InlinePool
from run.common import train

import asyncsgd as asgd
from asyncsgd.engines.base import Died
from asyncsgd.run import Callback
from asyncsgd.run.diagnosis import Observed, diagnose
from asyncsgd.run.journal import Faults
from asyncsgd.testing.bench import Bowl


class OneDies(InlinePool):
    told = False

    def poll(self, timeout):
        if self.jobs and not self.told:
            self.told = True
            return [Died(0, "was killed by SIGSEGV")]
        return super().poll(timeout)


class Interrupts(Callback):
    def on_evaluation(self, view, metrics, control):
        if view.iteration == 20:
            signal.raise_signal(signal.SIGINT)


@pytest.fixture
def estimates(monkeypatch):
    """How often L was estimated."""
    calls = []

    def estimate(task, x, workers):
        calls.append(workers)
        return 2.0

    monkeypatch.setattr("asyncsgd.run.diagnosis.estimate_smoothness", estimate)
    return calls


def test_a_quiet_run_is_judged(estimates):
    run = train(None)
    assert len(estimates) == 1
    assert run.diagnosis.smoothness == 2.0


def test_not_where_workers_died(estimates):
    run = train(None, engine=Inline(2, OneDies))
    assert run.faults.deaths == 1
    assert not estimates
    assert "the step cannot be judged: a worker died or hung" in "\n".join(run.diagnosis.facts)


def test_not_while_somebody_waits_behind_his_ctrl_c(estimates, capfd):
    with pytest.raises(KeyboardInterrupt):
        train(None, callbacks=[Interrupts()], progress=True)
    assert not estimates
    assert "the step cannot be judged: the run was interrupted" in capfd.readouterr().err


def test_not_where_the_jobs_took_long(estimates, monkeypatch):
    monkeypatch.setattr("asyncsgd.theory.coverage.BUDGET", 0.0)
    run = train(None)
    assert not estimates
    assert "the step cannot be judged: gradients take" in "\n".join(run.diagnosis.facts)


@pytest.mark.parametrize("apart", [None, "it is far away"])
def test_the_largest_l_counts(apart):
    """A model that has blown up may lie where the loss is flat: what was found before is not forgotten."""
    task, method = asgd.tasks.quadratic(dim=4, workers=2), asgd.async_sgd(0.1)
    run = asgd.simulate(task, method, asgd.durations.fixed([1.0, 1.0]), iterations=10)
    nowhere = np.full_like(run.x, np.nan)
    seen = diagnose(Observed(run.trace, run.metrics, Faults(), method, task, nowhere, known=50.0), apart=apart)
    assert seen.smoothness == 50.0
    assert "L ≈ 50" in "\n".join(seen.facts)


def test_an_l_found_before_outlives_an_estimate_that_fails(monkeypatch):
    monkeypatch.setattr("asyncsgd.run.diagnosis.estimate_smoothness", lambda task, x, workers: None)
    task, method = asgd.tasks.quadratic(dim=4, workers=2), asgd.async_sgd(0.1)
    run = asgd.simulate(task, method, asgd.durations.fixed([1.0, 1.0]), iterations=10)
    seen = diagnose(Observed(run.trace, run.metrics, Faults(), method, task, run.x, known=50.0))
    assert seen.smoothness == 50.0


def test_what_a_task_has_to_say_is_printed(capfd):
    class Talks(Bowl):
        notes = ("BatchNorm: a job normalises by its own batch.",)

    train(None, task=Talks(), progress=True)
    assert "BatchNorm: a job normalises by its own batch." in capfd.readouterr().err
