"""One job in a worker: every way it can end, and what the user's code can and cannot do to its process."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from asyncsgd.core.errors import Stopped
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Gradient, LocalSteps
from asyncsgd.engines import job as module
from asyncsgd.engines.job import JobRules, JobRunner, Kind
from asyncsgd.testing.bench import Bowl, WritingBowl


class Doing(Bowl):
    """Applies a given function to the point."""

    def __init__(self, what: Any) -> None:
        super().__init__()
        self.what = what

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        found: Vector = self.what(x)
        return found


def raising(error: BaseException) -> Doing:
    def fail(x: Vector) -> Vector:
        raise error

    return Doing(fail)


def run(task: Any, **rules: Any) -> tuple[module.Answer, Vector]:
    x = np.ones(100)
    out = np.full(100, 7.0)
    return JobRunner(task, Gradient(), 0, JobRules(**rules))(x, 3, out), out


@pytest.mark.parametrize("task", [Bowl(), WritingBowl()])
def test_the_update_is_where_the_server_looks(task: Bowl) -> None:
    answer, out = run(task)
    assert (answer.kind, answer.value) == (Kind.DONE, None)
    assert np.array_equal(out, Bowl().update(np.ones(100), 0, 3))


def test_only_plain_gradients_are_written_in_place() -> None:
    """An update of several steps is not what ``update_into`` would write."""
    work = LocalSteps(2, 0.1)
    out = np.empty(100)
    JobRunner(WritingBowl(), work, 0, JobRules())(np.ones(100), 3, out)
    assert np.array_equal(out, work.compute(Bowl().update, np.ones(100), 0, 3))


@pytest.mark.parametrize(
    ("task", "kind", "words"),
    [
        (raising(RuntimeError("too bad")), Kind.FAILED, "RuntimeError: too bad"),
        (raising(SystemExit(3)), Kind.FAILED, "SystemExit: 3"),
        (raising(KeyboardInterrupt()), Kind.FAILED, "KeyboardInterrupt"),
        (Doing(lambda x: x * np.nan), Kind.REJECTED, "nan"),
        (Doing(lambda x: x[:3]), Kind.REJECTED, "3"),
        (Doing(lambda x: x.__setitem__(0, 1.0)), Kind.FAILED, "read-only"),
    ],
)
def test_what_goes_wrong_has_words(task: Any, kind: Kind, words: str) -> None:
    answer, out = run(task)
    assert answer.kind is kind
    assert words in answer.value
    assert np.all(out == 7.0)


def test_a_stopped_job_says_nothing() -> None:
    assert run(raising(Stopped()))[0][:2] == (Kind.STOPPED, None)


class Clock:
    """A clock that advances by sleeping, and by a second at each reading."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, [0.0]

    def perf_counter(self) -> float:
        self.now += 1.0
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)


@pytest.mark.parametrize(
    ("rules", "seconds"),
    [({}, 0.0), ({"slowdown": 3.0}, 2.0), ({"min_seconds": 5.0}, 4.0), ({"min_seconds": 0.5}, 0.0)],
)
def test_a_worker_that_pretends_to_be_slow(
    monkeypatch: pytest.MonkeyPatch, rules: dict[str, float], seconds: float
) -> None:
    """The computation takes one second; what it waits counts as seconds of the job. A job that fails does not wait."""
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    answer, _ = run(Bowl(), **rules)
    assert clock.slept[-1] == seconds
    assert answer.seconds == 3.0 + seconds
    clock.slept = [0.0]
    run(raising(RuntimeError()), **rules)
    assert clock.slept == [0.0]
