"""One job in a worker: every way it can end, and what the user's code can and cannot do to its process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from asyncsgd.core.compression import BFloat16, Int4
from asyncsgd.core.errors import Stopped
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Encoded, Gradient, LocalSteps, compute_job
from asyncsgd.engines import job as module
from asyncsgd.engines.job import JobRules, JobRunner, Kind
from asyncsgd.optimizers import adamw
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
    assert np.array_equal(out, compute_job(work, Bowl(), np.ones(100), 0, 3, None, 0))


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


@pytest.mark.parametrize(("rules", "seconds"), [({"slowdown": 3.0}, 2.0), ({"min_seconds": 5.0}, 19.0)])
def test_the_least_time_is_that_of_a_mini_batch(
    monkeypatch: pytest.MonkeyPatch, rules: dict[str, float], seconds: float
) -> None:
    """As durations in a simulation are. A job may have fewer steps than the work says."""
    for work, steps in ((LocalSteps(4, 0.1), None), (LocalSteps(9, 0.1), 4)):
        clock = Clock()
        monkeypatch.setattr(module, "time", clock)
        answer = JobRunner(Bowl(), work, 0, JobRules(**rules))(np.ones(100), 3, np.empty(100), steps)
        assert clock.slept[-1] == seconds
        assert answer.seconds == 3.0 + seconds


# ---------------------------------------------------------------------------------------------- kept state


class StopsAt(Bowl):
    """Raises in one of the calls of ``update``, counted from 1; 0: never."""

    call = 0

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        self.call -= 1
        if self.call == 0:
            raise Stopped
        return super().update(x, worker, seed)


def test_a_job_that_is_stopped_anywhere_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a local step, or after the update was encoded; likewise one that was dropped."""
    work = Encoded(LocalSteps(2, 0.05, optimizer=adamw(), state="kept"), up=Int4(), down=BFloat16())
    task, plain = StopsAt(), StopsAt()
    eventful, twin = JobRunner(task, work, 0, JobRules()), JobRunner(plain, work, 0, JobRules())
    for runner in (eventful, twin):
        runner.state(np.empty(100))
    used = False

    def stop(self: Any, update: Vector, out: Vector) -> None:
        JobRunner.deliver(self, update, out)
        raise Stopped

    for seed, trouble in enumerate(["", "first", "second", "delivered", "dropped", ""]):
        point, out, expected = np.full(100, 1.0 + seed), np.empty(100), np.empty(100)
        eventful.settle(used)
        used = False
        task.call = {"first": 1, "second": 2}.get(trouble, 0)
        with monkeypatch.context() as patched:
            if trouble == "delivered":
                patched.setattr(eventful, "deliver", stop.__get__(eventful))
            kind = eventful(point, seed, out).kind
        assert kind is (Kind.DONE if trouble in ("", "dropped") else Kind.STOPPED)
        if trouble == "":
            assert twin(point, seed, expected).kind is Kind.DONE
            twin.settle(used=True)
            used = True
            assert out.tobytes() == expected.tobytes()


LOADED = """
import numpy as np
import asyncsgd as asgd
from asyncsgd.engines.job import JobRules, JobRunner, load_compiled
from asyncsgd.testing.bench import Bowl
from numba.core.registry import CPUDispatcher
import gc

local = asgd.async_sgd(1.0).local(2, 0.05, optimizer=asgd.optimizers.adamw(), state="kept", clip=1.0)
work = local.compressed("int4", down="bfloat16").job
load_compiled(work, "float32")

def versions():
    return {id(found): len(found.signatures) for found in gc.get_objects() if isinstance(found, CPUDispatcher)}

before = versions()
runner = JobRunner(Bowl(100, np.float32), work, 0, JobRules())
print(runner(np.ones(100, np.float32), 3, np.empty(100, np.float32)).kind.name)
print(sum(versions().values()) - sum(before.values()))
"""


@pytest.mark.slow
def test_compiled_code_is_loaded_before_the_first_job() -> None:
    """In a process of its own, as any test before may have loaded it."""
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["DONE", "0"]
