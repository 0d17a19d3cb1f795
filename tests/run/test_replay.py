"""Replay: the same bits in one process, or the job with which it parts from the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.progress
from run.common import reseal, sound, train

import asyncsgd as asgd
from asyncsgd.core.dispatch import Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Outcome
from asyncsgd.engines import processes
from asyncsgd.run import BadRunDirectory, ReplayDiffers, checkpoints
from asyncsgd.run.read import read_blocks
from asyncsgd.testing import AtJobs, Fault, FaultyTask
from asyncsgd.testing.bench import Bowl, WritingBowl
from asyncsgd.trace.sealed import block


class Later(Bowl):
    """Another task from some job on."""

    def __init__(self, jobs: list[int]) -> None:
        super().__init__()
        self.seeds = {asgd.testing.faults.job_seed(0, job) for job in jobs}

    def update(self, x: np.ndarray, worker: int, seed: int) -> np.ndarray:
        g = super().update(x, worker, seed)
        if seed in self.seeds:
            g = np.nextafter(g, np.inf)
        return g


class Sick(Later):
    """With a mini-batch that gives no finite gradient."""

    def update(self, x: np.ndarray, worker: int, seed: int) -> np.ndarray:
        return super().update(x, worker, seed) * (np.nan if seed in self.seeds else 1.0)


def test_the_first_job_that_differs_is_named(tmp_path: Path) -> None:
    run = train(tmp_path)
    job = int(run.trace.job[23])
    later = [int(job) for job in run.trace.job[23:]]
    with pytest.raises(ReplayDiffers, match=rf"job {job} of worker \d \(iteration 23\) differs from the run") as told:
        asgd.replay(tmp_path, task=Later(later), method=run.method)
    assert (told.value.job, told.value.iteration) == (job, 23)


def test_another_method_ends_with_another_model(tmp_path: Path) -> None:
    """The first update is computed at the same point whatever the method; from the next on they differ."""
    run = train(tmp_path)
    with pytest.raises(ReplayDiffers):
        asgd.replay(tmp_path, task=Bowl(), method=asgd.async_sgd(0.051))
    short = train(tmp_path / "short", iterations=1, method=asgd.async_sgd(0.05))
    with pytest.raises(ReplayDiffers, match="all updates match, but the models differ: first at coordinate 0"):
        asgd.replay(tmp_path / "short", task=Bowl(), method=asgd.async_sgd(0.051))
    assert short.trace.iterations == 1
    assert run.trace.iterations == 60


def test_stop_and_look(tmp_path: Path) -> None:
    run = train(tmp_path, iterations=60)
    at = asgd.replay(tmp_path, stop=30)
    assert at.arrival is not None
    assert at.update is not None
    assert at.iterations == 30
    assert (at.arrival.iteration, at.arrival.job) == (30, run.trace.job[30])
    assert at.arrival.delay == run.trace.delay[30]
    seed = asgd.testing.faults.job_seed(0, at.arrival.job)
    assert at.update.tobytes() == Bowl().update(at.arrival.point, at.arrival.worker, seed).tobytes()
    assert at.x.tobytes() == at.arrival.x.tobytes()
    after = asgd.replay(tmp_path, stop=31)
    assert np.allclose(after.x, at.x - 0.05 * at.update, rtol=1e-12)
    assert asgd.replay(tmp_path, stop=0).x.tobytes() == Bowl().initial().tobytes()


def test_look_at_a_job_that_was_rejected(tmp_path: Path) -> None:
    """The damage is in a job that never arrived: its update is computed again where it was."""
    run = train(tmp_path, task=Sick([17]))
    assert Outcome(run.trace.jobs.outcome[17]) is Outcome.REJECTED
    at = asgd.replay(tmp_path, job=17)
    assert at.arrival is None
    assert at.update is not None
    assert np.isnan(at.update).any()
    began = int(run.trace.jobs.assigned_iteration[17])
    assert at.iterations == began
    assert at.point.tobytes() == asgd.replay(tmp_path, stop=began).x.tobytes()


def test_look_at_a_job_by_its_number(tmp_path: Path) -> None:
    run = train(tmp_path)
    job = int(run.trace.job[30])
    by_number, by_iteration = asgd.replay(tmp_path, job=job), asgd.replay(tmp_path, stop=30)
    assert by_number.arrival.job == job
    assert by_number.update.tobytes() == by_iteration.update.tobytes()
    last = len(run.trace) - 1  # in flight at the end, at the model that is the answer
    assert int(run.trace.jobs.assigned_iteration[last]) == 60
    seed = asgd.testing.faults.job_seed(0, last)
    at = asgd.replay(tmp_path, job=last)
    assert at.update.tobytes() == Bowl().update(run.x, int(run.trace.jobs.worker[last]), seed).tobytes()


@pytest.mark.parametrize(("asked", "why"), [({"job": 10**6}, "is not one of"), ({"job": 1, "stop": 2}, "both given")])
def test_a_job_that_is_none(tmp_path: Path, asked: dict[str, int], why: str) -> None:
    train(tmp_path)
    with pytest.raises(BadParameter, match=why):
        asgd.replay(tmp_path, **asked)


@pytest.mark.parametrize("stop", [60, 10**9])
def test_stop_beyond_the_end(tmp_path: Path, stop: int) -> None:
    train(tmp_path)
    with pytest.raises(BadParameter, match=rf"stop = {stop} is beyond the 60 arrivals of the run; pass 0\.\.59"):
        asgd.replay(tmp_path, stop=stop)


def test_a_run_that_was_cut_off(tmp_path: Path) -> None:
    """Nothing but the log and the fingerprints of what was flushed: it is replayed up to there."""
    train(tmp_path)
    (tmp_path / "trace.parquet").unlink()
    log = tmp_path / "trace.log"
    os.truncate(log, log.stat().st_size - 20)
    known = read_blocks(tmp_path, "fingerprints.bin")
    (tmp_path / "fingerprints.bin").write_bytes(block(known[:40], 0)[0] + b"torn")
    reseal(tmp_path)
    again = asgd.replay(tmp_path)
    assert 0 < again.iterations <= 60
    assert again.compared == min(10, again.iterations)


def test_without_the_task(tmp_path: Path) -> None:
    run = train(tmp_path)
    (tmp_path / "job.pkl").unlink()
    with pytest.raises(BadRunDirectory, match=r"has no job\.pkl; pass the task and the method to replay"):
        asgd.replay(tmp_path)
    assert asgd.replay(tmp_path, task=Bowl(), method=run.method).model_compared


def test_progress_is_true_or_false(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path)
    with pytest.raises(BadParameter, match=r"progress = .* is not True or False; pass progress=True"):
        asgd.replay(tmp_path, progress=print)
    seen: list[int] = []
    bars = rich.progress.Progress.advance
    monkeypatch.setattr(rich.progress.Progress, "advance", lambda *given: seen.append(1) or bars(*given))
    asgd.replay(tmp_path)
    assert (len(seen), capsys.readouterr().err) == (0, "")
    asgd.replay(tmp_path, progress=True)
    assert len(seen) == 60


@pytest.mark.processes
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 65, 20_000])
def test_bits_of_every_size(tmp_path: Path, dtype: type, dim: int) -> None:
    sound(train(tmp_path, iterations=40, task=WritingBowl(dim, dtype), engine=processes(2)), 40)


@pytest.mark.processes
def test_membership_is_replayed(tmp_path: Path) -> None:
    """MIFA waits until everybody present was heard; who that is changes as workers die and come back."""
    task = FaultyTask(Bowl(), AtJobs(dict.fromkeys((0, 1, 2, 9, 10, 31), Fault.KILL)), tmp_path)
    with task.armed():
        run = train(tmp_path / "run", iterations=150, method=asgd.mifa(0.05), task=task, engine=processes(3))
    assert run.faults.deaths >= 3
    sound(run, 150)


def test_the_saved_model_is_compared_with_all_its_bits(tmp_path: Path) -> None:
    """A coordinate that no fingerprint samples differs in the checkpoint of the end."""
    run = train(tmp_path, task=Bowl(1000))
    newest, *_ = checkpoints.listed(tmp_path / "checkpoints")
    kept = checkpoints.read(newest)
    points = kept.state["update"]["points"]
    model = points["live"][points["current"]] = points["live"][points["current"]].copy()
    model[777] = np.nextafter(model[777], 2.0)
    checkpoints.write(tmp_path / "checkpoints", kept)
    reseal(tmp_path)
    with pytest.raises(ReplayDiffers, match="first at coordinate 777"):
        asgd.replay(tmp_path)
    assert run.trace.iterations == 60


@pytest.mark.slow
@pytest.mark.processes
def test_a_torch_model(tmp_path: Path) -> None:
    """A small network in float32 by three workers, one killed on the way.

    Jobs queue at workers that are drawn: however slow the one that is killed is, the run waits for it in the end.
    """
    torch = pytest.importorskip("torch")
    inputs = np.random.default_rng(0).normal(size=(300, 20)).astype(np.float32)
    targets = (inputs[:, :5].sum(axis=1) > 0).astype(np.int64)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(64, 2))
    task = asgd.tasks.torch(net, torch.nn.CrossEntropyLoss(), (inputs, targets), batch_size=16)
    faulty = FaultyTask(task, AtJobs({10: Fault.NAN, 40: Fault.KILL}), tmp_path)
    with faulty.armed():
        run = train(
            tmp_path / "run",
            iterations=250,
            task=faulty,
            method=asgd.delay_adaptive(0.1).using(dispatch=Uniform(3)),
            engine=processes(3),
            every=50,
            checkpoints=asgd.Checkpoints(every=100),
        )
    assert (run.faults.rejected, run.faults.deaths) == (1, 1)
    assert run.metrics["accuracy"][-1] > 0.8
    sound(run, 250)


def test_the_gradients_of_a_run_can_be_looked_at(tmp_path: Path) -> None:
    """L and G of a bowl, from what its run computed: the gradients of x²/2 are x, without noise."""
    train(tmp_path, task=Bowl(3))
    seen: list[tuple[Any, Any, int]] = []
    asgd.replay(tmp_path, look=lambda arrival, g: seen.append((arrival.point.copy(), g.copy(), arrival.worker)))
    points, gradients, workers = zip(*seen, strict=True)
    assert len(seen) == 60
    found = asgd.theory.estimate_from_gradients(points, gradients, workers=workers, noise_variance=0.0)
    assert found.smoothness.value > 0
    assert found.gradient_bound.value == pytest.approx(max(np.linalg.norm(g) for g in gradients))
