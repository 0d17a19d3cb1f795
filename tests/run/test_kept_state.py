"""Workers that keep state: killed, with their server killed too, resumed, and replayed bit for bit."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.subject import Subject
from run.common import events, sound

import asyncsgd as asgd
from asyncsgd.core.events import Arrival, Outcome
from asyncsgd.core.worker import WorkerState
from asyncsgd.engines import processes
from asyncsgd.run import ReplayDiffers, replaying
from asyncsgd.run.read import read_trace
from asyncsgd.run.verify import verify
from asyncsgd.testing import AtJobs, Fault, FaultyTask
from asyncsgd.testing.bench import Bowl
from asyncsgd.testing.faults import job_seed

ADAMW: dict[str, Any] = {"optimizer": asgd.optimizers.adamw(), "state": "kept"}
ITERATIONS = 90


def killed_and_resumed(folder: Path, method: str, address: str) -> Path:
    """Return the directory of a run whose server was killed at two updates."""
    program = (Path(__file__).parent / "kept_killed.py").read_text("utf-8")
    directory = folder / "run"
    for at in (27, 61, 0):
        arguments = (str(directory), method, address, str(ITERATIONS), str(at))
        with Subject(program, folder, arguments=arguments) as subject:
            code, _, complaints = subject.end()
            assert code == (-signal.SIGKILL if at else 0), complaints
            subject.none_left()
    (folder / "armed").unlink(missing_ok=True)  # the killed servers left it, and a replay must meet no faults
    return directory


def check_killed(directory: Path) -> None:
    trace = read_trace(directory)
    assert trace.iterations == ITERATIONS
    trace.check(early=False)
    assert len(events(directory, "resumed")) == 2
    assert len(events(directory, "died")) >= 1
    assert trace.counts[Outcome.REJECTED] >= 1
    assert trace.counts[Outcome.LOST] >= 3
    assert verify(directory) == []
    again = asgd.replay(directory)
    assert again.compared == ITERATIONS
    assert again.model_compared


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("method", ["int4", "top_k"])
def test_a_killed_server_of_processes(tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = killed_and_resumed(tmp_path, method, "processes")
    check_killed(directory)
    # State that outlived a death or a resume would show.
    monkeypatch.setattr(replaying._Afresh, "__call__", lambda *_, **__: [])
    with pytest.raises(ReplayDiffers):
        asgd.replay(directory)


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("inner", ["adamw", "torch"])
def test_a_torch_model(tmp_path: Path, inner: str) -> None:
    """A small network in float32; a worker is killed, an update rejected, and the run resumed."""
    torch = pytest.importorskip("torch")
    inputs = np.random.default_rng(0).normal(size=(300, 20)).astype(np.float32)
    targets = (inputs[:, :5].sum(axis=1) > 0).astype(np.int64)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 2))
    task = asgd.tasks.torch(net, torch.nn.CrossEntropyLoss(), (inputs, targets), batch_size=16)
    optimizer = asgd.optimizers.adamw() if inner == "adamw" else asgd.optimizers.torch("AdamW", weight_decay=0.01)
    method = asgd.federated_async_sgd(1.0, concurrency=4).local(3, 0.01, optimizer=optimizer, state="kept")
    method = method.compressed("int8", down="bfloat16")
    faulty = FaultyTask(task, AtJobs({10: Fault.NAN, 30: Fault.KILL}, step=1), tmp_path)
    options: dict[str, Any] = {"directory": tmp_path / "run", "every": 40, "progress": False}
    with faulty.armed():
        asgd.train(faulty, method, processes(2), iterations=80, **options)
        run = asgd.train(faulty, method, processes(2), iterations=120, resume=True, **options)
    assert (run.faults.rejected, run.faults.deaths) == (1, 1)
    assert run.metrics["accuracy"][-1] > 0.8
    sound(run, 120)


@pytest.mark.processes
@pytest.mark.slow
def test_look_at_a_rejected_job_of_a_worker_that_keeps_state(tmp_path: Path) -> None:
    """It waited behind jobs that arrived after it was assigned: the state is theirs, the model an older one."""
    dispatch = asgd.federated_async_sgd(1.0, concurrency=8)
    method = dispatch.local(2, 0.05, **ADAMW).compressed("int4", down="bfloat16")
    faulty = FaultyTask(Bowl(200), AtJobs({40: Fault.NAN}, step=1), tmp_path)
    with faulty.armed():
        run = asgd.train(faulty, method, processes(2), iterations=60, directory=tmp_path / "run", progress=False)
    jobs = run.trace.jobs
    worker = int(jobs.worker[40])
    assert Outcome(jobs.outcome[40]) is Outcome.REJECTED
    seen: list[tuple[Arrival, np.ndarray]] = []
    asgd.replay(tmp_path / "run", look=lambda arrival, _: seen.append((arrival, arrival.point.copy())))
    twin = WorkerState(method.job, Bowl(200).initial())
    for arrival, point in seen:
        if arrival.worker == worker and arrival.job < 40:
            job = arrival.job
            twin.encode(twin.compute(Bowl(200), twin.start(point), worker, job_seed(0, job), 2, int(jobs.batch[job])))
            twin.settle(used=True)
    at = asgd.replay(tmp_path / "run", job=40)
    began = int(jobs.assigned_iteration[40])
    assert at.iterations > began  # else this test shows nothing
    assert at.point is not None
    assert at.update is not None
    assert at.point.tobytes() == asgd.replay(tmp_path / "run", stop=began).arrival.x.tobytes()
    expected = twin.compute(Bowl(200), twin.start(at.point), worker, job_seed(0, 40), 2, int(jobs.batch[40]))
    assert at.update.tobytes() == expected.tobytes()
