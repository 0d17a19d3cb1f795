"""Runs that go on for a number of epochs: every row is used once in each, or counted as skipped."""

from __future__ import annotations

import os
import re
import signal
from io import StringIO
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from markers import share
from rich.console import Console
from run.common import Notes, events
from run.rows import Rows, WritingRows

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Outcome
from asyncsgd.core.method import Method
from asyncsgd.run.epochs import EpochCount
from asyncsgd.run.read import read_lines
from asyncsgd.run.view import RunView
from asyncsgd.testing import AtJobs, Fault, FaultyTask
from asyncsgd.testing.bench import Bowl
from asyncsgd.trace import Trace

SGD = asgd.async_sgd(1.0)


def train(task: Any, directory: Path | None = None, method: Method = SGD, **options: Any) -> Any:
    given = {"engine": Inline(3), "progress": False, "checkpoints": asgd.Checkpoints(every=4), **options}
    return asgd.train(task, method, directory=directory, **given)


def used(task: Rows, trace: Trace, outcomes: tuple[Outcome, ...] = (Outcome.APPLIED,)) -> list[int]:
    """How often each row was in a job that ended so, counted from the trace, one mini-batch at a time."""
    counts = np.zeros(task.epoch_rows, int)
    jobs = trace.jobs
    for outcome, worker, steps, batch in zip(jobs.outcome, jobs.worker, jobs.steps, jobs.batch, strict=True):
        if Outcome(outcome) in outcomes:
            for number in range(int(batch), int(batch + steps)):
                counts[task.of(int(worker), number)] += 1
    return counts.tolist()


SKIPPED = (Outcome.LOST, Outcome.REJECTED, Outcome.CANCELLED, Outcome.DROPPED)


def complete(run: Any, task: Rows, epochs: int) -> None:
    """Every row was handed out once per epoch; the model used those of applied jobs, all others are counted."""
    assert not run.trace.jobs.in_flight.any()
    assert used(task, run.trace, (Outcome.APPLIED, *SKIPPED)) == [epochs] * task.epoch_rows
    assert run.skipped_rows == sum(used(task, run.trace, SKIPPED))
    assert RunView.of(run).ending.kind == "done"


METHODS = {
    "async_sgd": SGD,
    "one at a time": asgd.async_sgd(1.0, concurrency=1),
    "rounds of all": asgd.minibatch_sgd(1.0),
    "any worker": asgd.federated_async_sgd(1.0, concurrency=5),
    "early": asgd.federated_async_sgd(1.0, concurrency=4, early=True),
    "shuffled": asgd.federated_async_sgd(1.0, concurrency=4, order="shuffled"),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
@pytest.mark.parametrize(("rows", "batch_size"), [(20, 3), (21, 3), (5, 8), (1, 1)])
def test_every_row_is_used_once_per_epoch(method: Method, rows: int, batch_size: int) -> None:
    task = Rows(rows, batch_size)
    run = train(task, method=method, epochs=3)
    assert run.x.tolist() == [3.0] * rows
    assert run.trace.iterations == len(run.trace) == 3 * task.batches_per_epoch
    assert run.skipped_rows == 0
    complete(run, task, 3)


@pytest.mark.processes
@pytest.mark.parametrize("kind", [Rows, WritingRows])
def test_worker_processes_use_every_row_once_per_epoch(tmp_path: Path, kind: type[Rows]) -> None:
    task = kind(50, 4)
    run = train(task, tmp_path, engine=asgd.engines.processes(2), epochs=3)
    assert run.x.tolist() == [3.0] * 50
    complete(run, task, 3)
    again = asgd.replay(tmp_path)
    assert again.model_compared
    assert again.compared == 39


@pytest.mark.ray
def test_ray_workers_use_every_row_once_per_epoch(tmp_path: Path) -> None:
    task = Rows(50, 4)
    run = train(task, tmp_path, engine=asgd.engines.ray(2), epochs=2)
    assert run.x.tolist() == [2.0] * 50
    complete(run, task, 2)
    assert asgd.replay(tmp_path).model_compared


@pytest.mark.parametrize(("steps", "epochs"), [(2, 2), (3, 1), (5, 3), (40, 1)])
def test_local_steps_hand_out_mini_batches_of_their_own(tmp_path: Path, steps: int, epochs: int) -> None:
    """The last job has as many steps as mini-batches are left."""
    task = Rows(20, 3)  # 7 mini-batches
    run = train(task, tmp_path, SGD.local(steps, 1.0), epochs=epochs)
    assert run.x.tolist() == [epochs] * 20
    assert run.trace.jobs.steps.sum() == 7 * epochs
    assert run.trace.jobs.steps.tolist()[:-1] == [steps] * (len(run.trace) - 1)
    assert run.trace.iterations == run.config["iterations"] == -(-7 * epochs // steps)
    complete(run, task, epochs)
    assert asgd.replay(tmp_path).model_compared


def test_workers_with_data_of_their_own_walk_it_in_order() -> None:
    """An epoch has as many jobs as all workers have mini-batches; every worker walks its own permutations."""
    task = Rows(10, 4, workers=3)
    run = train(task, method=asgd.federated_async_sgd(1.0, concurrency=3), epochs=4)
    assert len(run.trace) == 4 * 9
    jobs = run.trace.jobs
    for worker in range(3):
        mine = jobs.batch[jobs.worker == worker]
        assert mine.tolist() == list(range(len(mine)))
        block, (whole, rest) = run.x[10 * worker : 10 * worker + 10], divmod(len(mine), 3)
        assert set(block.tolist()) <= {whole, whole + (rest > 0)}
    assert run.x.tolist() == used(task, run.trace)


def test_a_buffer_that_is_not_full_is_reported(tmp_path: Path) -> None:
    run = train(Rows(20, 3), tmp_path, asgd.fedbuff(1.0, concurrency=3, buffer=4), epochs=1)
    assert run.unused == 7 % 4
    assert any("the last 3 updates were not used" in line for line in (*run.diagnosis.facts, *run.diagnosis.problems))


def test_rounds_skip_what_they_cancel() -> None:
    task = Rows(20, 3)
    run = train(task, method=asgd.fedavg(1.0, clients=1, ask=3), epochs=2)
    complete(run, task, 2)
    assert run.trace.counts[Outcome.CANCELLED] > 0
    assert run.skipped_rows > 0


# ---------------------------------------------------------------------------------------------- rows that are skipped


@pytest.mark.processes
def test_the_rows_of_a_killed_worker_are_counted(tmp_path: Path) -> None:
    task = Rows(50, 4)
    faulty = FaultyTask(task, AtJobs({5: Fault.KILL, 12: Fault.NAN, 17: Fault.KILL}), tmp_path / "faults")
    (tmp_path / "faults").mkdir()
    with faulty.armed():
        run = train(faulty, tmp_path / "run", engine=asgd.engines.processes(2), epochs=3)
    complete(run, task, 3)
    lost = run.trace.jobs.outcome[[5, 12, 17]].tolist()
    assert lost == [Outcome.LOST, Outcome.REJECTED, Outcome.LOST]
    # A worker may hold a second job when it is killed, which is lost too.
    assert run.x.tolist() == used(task, run.trace)
    assert run.skipped_rows == 3 * 50 - sum(run.x)
    assert run.skipped_rows >= 4 + 2 + 4  # mini-batch 12 is the last one of the first epoch, of 2 rows
    view = RunView.read(tmp_path / "run")
    assert view.ending.kind == "done"
    assert view.skipped_rows == RunView.of(run).headline()["skipped_rows"] == run.skipped_rows
    fact = f"{run.skipped_rows} rows of data were skipped (jobs: "
    assert fact in RunView.of(run).text()
    assert fact in view.text()
    assert fact in asgd.report(tmp_path / "run", tmp_path / "page.html").read_text("utf-8")
    (ended,) = events(tmp_path / "run", "ended")
    assert ended["skipped_rows"] == run.skipped_rows


def test_the_last_worker_may_be_retired_by_the_last_job(tmp_path: Path) -> None:
    """No worker is left, and none is needed."""

    class Spoils(Rows):
        def update(self, x: Any, worker: int, seed: int, batch: int) -> Any:
            return super().update(x, worker, seed, batch) * (np.nan if batch == 6 else 1.0)

    run = train(Spoils(20, 3), tmp_path, engine=Inline(1), epochs=1, limits=asgd.Limits(max_failures=1))
    assert run.faults.retired == (0,)
    assert run.skipped_rows == 2
    assert RunView.read(tmp_path).ending.kind == "done"


def test_dropped_rows_are_skipped() -> None:
    task = Rows(20, 3)
    run = train(task, method=asgd.delay_adaptive(1.0, rule="drop", threshold=1), epochs=2)
    complete(run, task, 2)
    assert run.trace.counts[Outcome.DROPPED] > 0


def test_without_examples_an_epoch_is_shared_out_evenly() -> None:
    class Plain(Rows):
        examples = None

    seen = EpochCount(Plain(20, 3))
    for batch in range(7):
        seen.add(Outcome.LOST, 0, 1, batch)
    assert seen.rows == 20


def test_a_run_without_epochs_counts_nothing(tmp_path: Path) -> None:
    run = train(Bowl(), tmp_path, iterations=10)
    assert run.skipped_rows is None
    assert events(tmp_path, "ended")[0]["skipped_rows"] is None
    assert "epoch" not in run.metrics


# ---------------------------------------------------------------------------------------------- progress


def test_metrics_and_callbacks_know_the_epoch(tmp_path: Path) -> None:
    seen = []

    class Look(asgd.Callback):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            assert "epoch" not in metrics
            seen.append((view.iteration, view.epoch))

        def on_update(self, view: Any, control: Any) -> None:
            assert view.epochs == 2
            assert view.headline()["epoch"] == view.epoch

    run = train(Rows(20, 3), tmp_path, asgd.async_sgd(1.0, concurrency=1), epochs=2, every=7, callbacks=[Look()])
    assert run.metrics["iteration"].tolist() == [0, 7, 14]
    assert run.metrics["epoch"].tolist() == [0.0, 1.0, 2.0]
    assert seen == [(0, 0.0), (7, 1.0), (14, 2.0)]
    assert [row["epoch"] for row in read_lines(tmp_path, "metrics.jsonl")] == [0.0, 1.0, 2.0]
    assert "epoch" not in RunView.of(run).last_metrics


def test_the_progress_line_shows_the_epoch() -> None:
    from asyncsgd.run.callbacks.terminal import describe

    notes = Notes()
    train(Rows(20, 3), epochs=2, callbacks=[notes])
    assert re.search(r"  epoch [01]\.\d\d/2  ", describe(notes.of("progressed")[-1]))


def test_watch_shows_the_epoch(tmp_path: Path) -> None:
    from asyncsgd.cli.inspect import line
    from asyncsgd.cli.watch_view import view
    from asyncsgd.run.live import Watcher

    train(Rows(20, 3), tmp_path, epochs=2)
    with Watcher(tmp_path) as watcher:
        frame = watcher.look()
    assert (frame.epoch, frame.epochs) == (2.0, 2)
    assert frame.headline()["epoch"] == 2.0
    assert "  14/14  epoch 2.00  " in line(frame)
    out = StringIO()
    Console(width=120, file=out).print(view(frame, 120))
    assert "14 of 14   epoch 2.00 of 2   " in out.getvalue()


def test_the_journal_says_when_the_last_job_was_handed_out(tmp_path: Path) -> None:
    run = train(Rows(20, 3), tmp_path, epochs=2)
    (drained,) = events(tmp_path, "drained")
    assert drained["reason"] == "all mini-batches of 2 epochs are handed out"
    assert drained["iteration"] == run.trace.jobs.assigned_iteration[-1] == 14 - 3


# ---------------------------------------------------------------------------------------------- resume


class Stop(asgd.Callback):
    """Stops the run after an update, as a user would with Ctrl-C."""

    def __init__(self, at: int) -> None:
        self.at = at

    def on_update(self, view: Any, control: Any) -> None:
        if view.iteration == self.at:
            os.kill(os.getpid(), signal.SIGINT)


# A third in `make quick`: every method, and every iteration.
@pytest.mark.parametrize(("name", "at"), share(product(METHODS, [5, 8, 18, 20]), every=3))
def test_a_resume_in_mid_epoch_hands_out_every_row_once(tmp_path: Path, name: str, at: int) -> None:
    """Rows in flight at the stop are skipped, and counted; all others are used once per epoch over both parts."""
    task, method = Rows(20, 3), METHODS[name]
    with pytest.raises(KeyboardInterrupt):
        train(task, tmp_path, method, epochs=3, callbacks=[Stop(at)])
    stopped = RunView.read(tmp_path)
    assert stopped.ending.kind == "interrupted"
    run = train(task, tmp_path, method, epochs=3, resume=True)
    complete(run, task, 3)
    flying = int(stopped.trace.jobs.in_flight.sum())
    assert run.trace.counts[Outcome.LOST] == flying
    assert run.x.tolist() == used(task, run.trace)
    assert RunView.read(tmp_path).ending.kind == "done"
    assert asgd.replay(tmp_path).model_compared
    # The journal says when the last mini-batch was handed out, and for a run stopped after that, at its resume, too.
    before = stopped.trace.jobs.steps.sum() == 21
    assert len(events(tmp_path, "drained")) == 1 + before
    last = events(tmp_path, "drained")[-1]["iteration"]
    assert last == (at if before else run.trace.jobs.assigned_iteration[-1] + run.method.dispatch.early)


def test_a_finished_run_is_left_alone_and_can_be_continued(tmp_path: Path) -> None:
    task = Rows(20, 3)
    first = train(task, tmp_path, epochs=2)
    notes = Notes()
    same = train(task, tmp_path, epochs=2, resume=True, callbacks=[notes])
    assert notes.calls == [("noted", "already at 2 epochs; pass epochs=N to continue")]
    assert same.trace == first.trace
    assert same.skipped_rows == 0
    with pytest.raises(BadParameter, match=r"^epochs = 1 is too few: .* was started with 2; pass epochs >= 2$"):
        train(task, tmp_path, epochs=1, resume=True)
    longer = train(task, tmp_path, epochs=5, resume=True)
    assert longer.x.tolist() == [5.0] * 20
    complete(longer, task, 5)
    more = train(task, tmp_path, iterations=50, resume=True)
    assert more.trace.iterations == 50
    assert RunView.of(more).ending.kind == "done"


# ---------------------------------------------------------------------------------------------- bad input


def test_bad_input(tmp_path: Path) -> None:
    for options, words in {
        (): "iterations is missing; pass iterations=N, or epochs=N",
        (("iterations", 5), ("epochs", 2)): "epochs = 2 and iterations = 5 were both given; pass one of them",
        (("epochs", 0),): "epochs = 0 must be an integer of at least 1; pass epochs >= 1",
        (("epochs", 1.5),): "epochs = 1.5 must be an integer of at least 1; pass epochs >= 1",
        (("epochs", True),): "epochs = True must be an integer of at least 1; pass epochs >= 1",
    }.items():
        with pytest.raises(BadParameter, match=re.escape(words)):
            train(Rows(), tmp_path, **dict(options))
    with pytest.raises(BadParameter, match=r"^epochs = 2 needs a task that walks its data in epochs, and Bowl draws"):
        train(Bowl(), tmp_path, epochs=2)
    assert list(tmp_path.iterdir()) == []
