"""One call of `train`: where it ends, what it says, what it does when workers or the model go wrong."""

from __future__ import annotations

import signal
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline, InlinePool
from run.common import METHOD, Notes, events, sound, train
from run.tasks import Exploding, Failing, FarOff, Fickle, Rubbish, Wordy

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival, Arrived, Outcome
from asyncsgd.core.transforms import Transform
from asyncsgd.engines import EngineError, processes
from asyncsgd.engines.base import Report
from asyncsgd.run import WorkersFailed, checkpoints
from asyncsgd.run.options import Target
from asyncsgd.testing import AtJobs, Fault, FaultyTask
from asyncsgd.testing.bench import Bowl


def saved(directory: Path) -> list[int]:
    return [int(path.stem) for path in checkpoints.listed(directory / "checkpoints")]


# ---------------------------------------------------------------------------------------------- the end


@pytest.mark.processes
def test_it_learns(tmp_path: Path) -> None:
    run = train(tmp_path, iterations=200, engine=processes(2))
    assert run.metrics["loss"][-1] < 0.1 * run.metrics["loss"][0]
    assert run.metrics["iteration"].tolist() == list(range(0, 201, 10))
    assert (np.diff(run.metrics["time"]) >= 0).all()
    assert run.reached
    assert run.diverged is None
    assert run.seconds > 0
    sound(run, 200)


def test_until_a_target(tmp_path: Path) -> None:
    run = train(tmp_path, iterations=100_000, until="loss <= 25")
    assert run.reached
    assert run.trace.iterations < 1000
    assert run.metrics["loss"][-1] <= 25 < run.metrics["loss"][-2]
    sound(run, run.trace.iterations)
    again = train(tmp_path, iterations=100_000, until="loss <= 25", resume=True)  # it is there already
    assert again.reached
    assert again.trace.iterations == run.trace.iterations
    further = train(tmp_path, iterations=100_000, until="loss <= 10", resume=True)
    assert further.trace.iterations > run.trace.iterations
    sound(further, further.trace.iterations)


def test_a_target_that_is_missed() -> None:
    run = train(None, until="loss < 0")
    assert not run.reached
    assert run.trace.iterations == 60


@pytest.mark.parametrize(("until", "met"), [("loss >= 2", True), ("loss > 2", False), ("loss < 2", False)])
def test_a_target_is_taken_literally(until: str, met: bool) -> None:
    assert Target.parse(until).met({"loss": 2.0}) == met
    assert str(Target.parse(until)) == f"{until}.0"


@pytest.mark.parametrize("until", ["loss", "loss = 3", "loss <= soon", "<= 3", "loss <= nan"])
def test_a_target_that_is_none(tmp_path: Path, until: str) -> None:
    with pytest.raises(BadParameter, match=r"until = .* is not a target; write a metric"):
        train(tmp_path / "run", until=until)
    assert not (tmp_path / "run").exists()


def test_a_target_that_is_not_measured() -> None:
    with pytest.raises(BadParameter, match="until = 'accuracy' is not among the task's metrics; pass one of: loss"):
        train(None, until="accuracy > 1")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"iterations": 0}, "iterations = 0"),
        ({"checkpoints": 30}, r"checkpoints = 30 is a int; pass asgd.Checkpoints\(seconds=30\)"),
        ({"limits": 3}, r"limits = 3 is a int; pass asgd.Limits\(max_failures=3\)"),
        ({"every": 0}, "every = 0"),
        ({"seed": 1.5}, "seed = 1.5"),
        ({"method": asgd.fedavg(0.1, clients=5, ask=7)}, "clients = 5 can never be reached by 2 workers"),
    ],
)
def test_wrong_parameters(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        train(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


# ---------------------------------------------------------------------------------------------- going on


@pytest.mark.processes
def test_a_finished_run_goes_on(tmp_path: Path) -> None:
    first = train(tmp_path, iterations=50)
    same = train(tmp_path, iterations=50, resume=True)
    assert same.trace.iterations == 50
    assert same.x.tobytes() == first.x.tobytes()
    more = train(tmp_path, iterations=120, resume=True, engine=processes(3))
    sound(more, 120)
    # What was in flight at the end was lost with its workers; everything before is as it was.
    assert more.trace.worker[:50].tolist() == first.trace.worker.tolist()
    assert set(more.trace.worker[50:].tolist()) <= {0, 1, 2}
    flying = first.trace.jobs.job[first.trace.jobs.in_flight]
    assert (more.trace.jobs.outcome[flying] == Outcome.LOST).all()
    assert more.metrics["iteration"].tolist() == list(range(0, 121, 10))
    assert more.seconds > same.seconds >= first.seconds


def test_the_clock_goes_on(tmp_path: Path) -> None:
    first = train(tmp_path, iterations=30)
    more = train(tmp_path, iterations=60, resume=True)
    assert (np.diff(more.trace.time) >= 0).all()
    assert more.trace.time[30] > first.trace.time[29]


def test_methods_with_memories_go_on(tmp_path: Path) -> None:
    methods = {
        "fedbuff": asgd.fedbuff(0.5, concurrency=4, buffer=7),
        "mifa": asgd.mifa(0.05),
        "adam": asgd.async_sgd(0.01).using(optimizer=asgd.optimizers.adamw()),
        "early": asgd.federated_async_sgd(0.05, concurrency=5, early=True),
    }
    for name, method in methods.items():
        train(tmp_path / name, iterations=33, method=method)
        sound(train(tmp_path / name, iterations=60, method=method, resume=True), 60)


@pytest.mark.slow
@pytest.mark.processes
def test_other_threads_after_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay uses for every part of the run as many threads as its workers had."""
    train(tmp_path, iterations=20, engine=processes(2, threads=1))
    train(tmp_path, iterations=40, engine=processes(2, threads=3), resume=True)
    train(tmp_path, iterations=60, engine=processes(2, threads=2), resume=True)
    used: list[int | None] = []
    monkeypatch.setattr(
        sys.modules["asyncsgd.run.replaying"], "limited", lambda number: nullcontext(used.append(number))
    )
    asgd.replay(tmp_path)
    assert used == [1, 3, 2]


def test_a_mended_task_is_the_one_that_is_replayed(tmp_path: Path) -> None:
    """The run stops at an exception; resumed with a task without it, it can be replayed as a whole."""
    with pytest.raises(WorkersFailed):
        train(tmp_path, iterations=300, task=Failing(after=200))
    run = train(tmp_path, iterations=300, task=Failing(after=10**9), resume=True)
    sound(run, 300)


# ---------------------------------------------------------------------------------------------- callbacks


def test_callbacks_hear_everything(tmp_path: Path) -> None:
    notes = Notes()
    run = train(tmp_path, iterations=60, callbacks=[notes])
    kinds = [kind for kind, _ in notes.calls]
    assert kinds[0] == "started"
    assert kinds[-1] == "ended"
    assert notes.of("measured") == list(range(0, 61, 10))
    assert notes.of("ended") == [run]
    assert notes.of("started")[0].config["iterations"] == 60
    status = notes.of("progressed")[0]
    assert status.wanted == 60
    assert 0 <= status.iteration <= 60
    assert status.maximum_delay >= status.average_delay >= 0


def test_a_callback_that_raises_ends_the_run(tmp_path: Path) -> None:
    class Bad(Notes):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            if view.iteration == 30:
                raise ZeroDivisionError("in the callback")

    with pytest.raises(ZeroDivisionError, match="in the callback"):
        train(tmp_path, callbacks=[Bad()])
    sound(train(tmp_path, resume=True), 60)


class Clock:
    """Stands still unless it is told to move."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def test_the_speed_is_not_that_of_a_single_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job takes a second, and somebody looks far more often."""
    clock = Clock()

    class Slow(InlinePool):
        def poll(self, timeout: float) -> list[Report]:
            clock.now += 0.25
            return super().poll(timeout)[:1] if self.newcomers or clock.now % 1 == 0 else []

    monkeypatch.setattr("asyncsgd.run.recording.time", clock)
    notes = Notes()
    train(None, engine=Inline(1, Slow), callbacks=[notes])
    late = [status for status in notes.of("progressed") if status.iteration > 10]
    assert len(late) > 150
    assert all(0.8 <= status.updates_per_second <= 1.2 for status in late)


# ---------------------------------------------------------------------------------------------- errors in between


class Blind(Bowl):
    """It cannot be evaluated from some call on."""

    def __init__(self, calls: int) -> None:
        super().__init__()
        self.calls = calls

    def evaluate(self, x: np.ndarray) -> dict[str, float]:
        if self.calls == 0:
            raise OSError("the test data are gone")
        self.calls -= 1
        return super().evaluate(x)


def test_an_evaluation_that_fails_loses_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the test data are gone"):
        train(tmp_path, task=Blind(3), limits=asgd.Limits(evaluation_errors="raise"))
    assert saved(tmp_path) == [30, 20, 0]
    assert [row["iteration"] for row in events(tmp_path, "evaluation_failed")] == [30]
    assert events(tmp_path, "stopped")[0]["reason"] == "the test data are gone"
    sound(train(tmp_path, resume=True), 60)


def test_a_task_that_cannot_be_evaluated_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="the test data are gone"):
        train(tmp_path, task=Blind(0))
    sound(train(tmp_path), 60)  # not "already contains a run"


def test_a_callback_that_fails_loses_nothing(tmp_path: Path) -> None:
    class Full(Notes):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            if view.iteration == 40:
                raise OSError("no space left on the log's device")

    with pytest.raises(OSError, match="no space left"):
        train(tmp_path, callbacks=[Full()], checkpoints=asgd.Checkpoints(every=1000))
    assert saved(tmp_path) == [40, 0]
    sound(train(tmp_path, resume=True), 60)


@dataclass(frozen=True)
class Breaks(Transform):
    """A part of a method that raises at some arrival, having changed what it remembers."""

    at: int

    def init(self, x: np.ndarray) -> dict[str, Any]:
        return {"seen": 0}

    def apply(self, state: dict[str, Any], g: np.ndarray, arrival: Arrival) -> np.ndarray:
        state["seen"] += 1
        if arrival.iteration == self.at:
            raise RuntimeError("half-way")
        return g


def test_a_method_that_fails_half_way_is_not_saved(tmp_path: Path) -> None:
    """Its memory may be half changed; the checkpoint before is whole."""
    with pytest.raises(RuntimeError, match="half-way"):
        train(tmp_path, method=METHOD.using(transforms=(Breaks(35),)), checkpoints=asgd.Checkpoints(every=20))
    assert saved(tmp_path) == [20, 0]


# ---------------------------------------------------------------------------------------------- interrupts


def interrupted_at(iteration: int) -> type[InlinePool]:
    class Interrupted(InlinePool):
        arrived = 0

        def poll(self, timeout: float) -> list[Report]:
            if self.arrived >= iteration and not self.newcomers:
                signal.raise_signal(signal.SIGINT)
                return []
            reports = super().poll(timeout)
            self.arrived += sum(isinstance(report, Arrived) for report in reports)
            return reports

    return Interrupted


@pytest.mark.parametrize("iteration", [0, 24])
@pytest.mark.parametrize("kept", [True, False])
def test_an_interrupt_is_summed_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], iteration: int, kept: bool
) -> None:
    before = signal.getsignal(signal.SIGINT)
    notes = Notes()
    directory = tmp_path / "run" if kept else None
    with pytest.raises(KeyboardInterrupt, match=f"stopped by SIGINT at iteration {iteration}; "):
        train(directory, engine=Inline(2, interrupted_at(iteration)), callbacks=[notes], progress=True)
    assert signal.getsignal(signal.SIGINT) is before
    [run] = notes.of("ended")
    assert (run.interrupted, run.trace.iterations) == ("SIGINT", iteration)
    said = capsys.readouterr().err
    assert f"async_sgd interrupted by SIGINT at iteration {iteration} of 60: {iteration} iterations in " in said
    assert ("nothing was saved" in said) != ("resume with resume=True" in said) == kept
    if directory is not None:
        assert saved(directory)[0] == iteration
        sound(train(directory, resume=True), 60)


def test_a_run_sums_itself_up_on_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    run = train(None, progress=True)
    said = capsys.readouterr().err
    assert "async_sgd done: 60 iterations in " in said
    assert all(fact in said for fact in run.diagnosis.facts)


# ---------------------------------------------------------------------------------------------- divergence


def test_a_run_that_diverges_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = train(tmp_path, iterations=100_000, method=asgd.async_sgd(1e5), checkpoints=asgd.Checkpoints(every=1))
    assert run.diverged is not None
    assert np.isfinite(run.x).all()
    assert events(tmp_path, "diverged")
    assert saved(tmp_path)
    for path in checkpoints.listed(tmp_path / "checkpoints"):
        state = checkpoints.read(path).state
        points = state["update"]["points"]
        assert np.isfinite(points["live"][points["current"]]).all()
    assert run.trace.iterations < 1000


@pytest.mark.processes
def test_a_model_that_is_infinite_before_it_is_measured(tmp_path: Path) -> None:
    """All updates are refused then, every worker is retired, and that is seen for what it is."""
    method = asgd.async_sgd(1e200)
    run = train(tmp_path, 10**6, method, every=10**6, checkpoints=asgd.Checkpoints(every=1), engine=processes(2))
    assert run.diverged is not None
    assert run.faults.retired == (0, 1)
    for path in checkpoints.listed(tmp_path / "checkpoints"):
        points = checkpoints.read(path).state["update"]["points"]
        assert np.isfinite(points["live"][points["current"]]).all()


def test_a_model_that_is_far_off_before_it_is_measured(tmp_path: Path) -> None:
    """Every update is refused, though the model is finite: the loss tells that it has diverged, and why is said."""
    run = train(tmp_path, 10**6, asgd.async_sgd(1e6), task=FarOff(), every=10**6)
    assert run.diverged is not None
    assert run.faults.retired == (0, 1)
    assert any("the step is too large" in problem for problem in run.diagnosis.problems)


def test_a_loss_that_is_not_finite_ends_the_run() -> None:
    run = train(None, task=Exploding(at=25.0), iterations=100_000)
    assert run.diverged is not None
    assert run.metrics["loss"][-1] < np.inf


# ---------------------------------------------------------------------------------------------- faults


@pytest.mark.processes
def test_an_exception_is_shown_once_and_ends_a_hopeless_run(tmp_path: Path) -> None:
    notes = Notes()
    with pytest.raises(WorkersFailed, match=r"worker \d failed 3 times in a row, at last with Runtime") as told:
        train(tmp_path, iterations=300, task=Failing(after=100), callbacks=[notes], engine=processes(2))
    assert "resume with resume=True" in str(told.value)
    assert "in update" in told.value.__notes__[0]
    shown = [note for note in notes.of("noted") if "an exception in your code" in note]
    assert len(shown) == 1
    assert "Traceback" in shown[0]
    assert "worker " in shown[0]
    [stopped] = events(tmp_path, "stopped")
    assert saved(tmp_path)[0] == stopped["iteration"] >= 99  # one worker may still be at the last good job
    assert len(events(tmp_path, "failed")) >= 3
    again = asgd.replay(tmp_path)  # also a run that did not come to its end
    assert again.model_compared
    assert again.iterations == stopped["iteration"]


def test_an_exception_with_other_words_each_time_is_shown_once() -> None:
    notes = Notes()
    run = train(None, task=Wordy(), callbacks=[notes], limits=asgd.Limits(10**9))
    assert run.faults.exceptions > 10
    assert len([note for note in notes.of("noted") if "an exception in your code" in note]) == 1


@pytest.mark.processes
def test_exceptions_now_and_then_are_counted(tmp_path: Path) -> None:
    """Every round waits for everybody, so that the run does not end before a slow worker has come to its fault."""
    task = FaultyTask(Bowl(), AtJobs(dict.fromkeys((3, 17, 30), Fault.RAISE)), tmp_path)
    with task.armed():
        run = train(tmp_path / "run", task=task, method=asgd.minibatch_sgd(0.05), engine=processes(2))
    assert run.faults.exceptions == 3
    assert (run.trace.jobs.outcome[[3, 17, 30]] == Outcome.LOST).all()
    sound(run, 60)


@pytest.mark.processes
@pytest.mark.parametrize(("method", "engine"), [(METHOD, Inline(3)), (asgd.minibatch_sgd(0.05), processes(3))])
def test_a_worker_that_sends_rubbish_is_retired(tmp_path: Path, method: Any, engine: Any) -> None:
    """With processes the method waits for everybody: else the others may be done before the first bad update comes."""
    notes = Notes()
    run = train(tmp_path, 200, method, task=Rubbish(worker=1), engine=engine, callbacks=[notes])
    assert run.faults.retired == (1,)
    assert run.faults.rejected == 3
    assert run.trace.counts[Outcome.REJECTED] == 3
    assert set(run.trace.worker.tolist()) == {0, 2}
    assert any("worker 1 is retired: 3 updates in a row were rejected" in note for note in notes.of("noted"))
    assert any("holds nan at position 0" in note for note in notes.of("noted"))
    sound(run, 200)


def test_rubbish_from_everybody_ends_the_run(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed, match=r"no worker is left; the last one, worker \d: 3 updates in a row"):
        train(tmp_path, iterations=200, task=Rubbish(worker=None))
    assert saved(tmp_path) == [0]


@pytest.mark.processes
@pytest.mark.parametrize("early", [False, True])
def test_retired_with_jobs_in_its_queue(tmp_path: Path, early: bool) -> None:
    """Several bad updates of one worker can be in one list of reports; it is retired in the middle of it.

    However slow it is, the run waits for it, once every job in flight is in its queue.
    """
    method = asgd.federated_async_sgd(0.05, concurrency=6, early=early)
    run = train(
        tmp_path, iterations=300, task=Rubbish(worker=0), engine=processes(3), method=method, limits=asgd.Limits(2)
    )
    assert run.faults.retired == (0,)
    assert run.faults.rejected == 2
    sound(run, 300)


@pytest.mark.processes
def test_whoever_keeps_dying_ends_the_run_and_it_is_saved(tmp_path: Path) -> None:
    task = FaultyTask(Bowl(), AtJobs(dict.fromkeys(range(100, 400), Fault.KILL)), tmp_path)
    with task.armed(), pytest.raises(EngineError, match="died 5 times in a row without finishing a job"):
        train(tmp_path / "run", iterations=300, task=task, engine=processes(2))
    [stopped] = events(tmp_path / "run", "stopped")
    assert saved(tmp_path / "run")[0] == stopped["iteration"]
    assert 50 < stopped["iteration"] <= 100
    sound(train(tmp_path / "run", iterations=120, task=task, resume=True), 120)


def test_an_error_while_evaluating_is_the_users(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        train(tmp_path, task=Fickle(at=3), limits=asgd.Limits(evaluation_errors="raise"))
    sound(train(tmp_path, resume=True), 60)
