"""What only the processes engine does: its fork server, its places for updates, artificial delays."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.subject import GUARD
from engines.tasks import Awkward, Quitting, Spinning

import asyncsgd as asgd
from asyncsgd.core.events import Arrived, Joined, Left, Lost
from asyncsgd.core.server import Server
from asyncsgd.core.work import Gradient
from asyncsgd.engines import Died, EngineError, Failed, processes
from asyncsgd.engines._processes.pool import ProcessPool, explain
from asyncsgd.engines.base import Engine
from asyncsgd.testing import Abilities, Fault
from asyncsgd.testing.bench import Bench, Bowl, Setting
from asyncsgd.testing.faults import Gate, job_seed

pytestmark = pytest.mark.processes


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(processes, Abilities(), GUARD, tmp_path)


def inner(bench: Bench) -> ProcessPool:
    pool = bench.pool._pool
    assert isinstance(pool, ProcessPool)
    return pool


def fork_server(pool: ProcessPool) -> int:
    return pool._forks._process.pid


def kill_workers(folder: Path, worker: int) -> None:
    """From outside; those that were before are gone already."""
    for mark in folder.glob(f"process-{worker}-*"):
        try:
            os.kill(int(mark.name.rpartition("-")[2]), signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_concurrency_is_restored(tmp_path: Path) -> None:
    """With a server on top: a worker dies, and a moment later as many jobs are in flight as before."""
    with playing(4, {9: Fault.KILL}, tmp_path) as (server, pool):
        run_until(server, pool, lambda _: server.concurrency == 4, "four jobs in flight")
        seen: list[type] = []

        def back(report: Any) -> bool:
            seen.append(type(report))
            return Died in seen and isinstance(report, Joined)

        run_until(server, pool, back, "the one that died to be back")
        assert seen.count(Died) == 1
        assert server.concurrency == 4
        assert len(server.workers) == 4
        reached = server.iteration + 50
        run_until(server, pool, lambda _: server.iteration >= reached, "50 iterations more")


@contextmanager
def playing(workers: int, faults: dict[int, Fault], folder: Path) -> Iterator[tuple[Server, Any]]:
    task = Setting(processes, Abilities(), GUARD, folder).task(faults)
    with task.armed(), processes(workers).start(task, Gradient(), task.initial()) as pool:
        yield Server(task.initial(), asgd.async_sgd(0.1), 0, pool.allocate), pool


def handle(server: Server, pool: Any, report: Any) -> None:
    if isinstance(report, Failed):
        report = Lost(report.job)
    if not isinstance(report, Died):
        for command in server.handle(report).commands:
            pool.execute(command)


def run_until(server: Server, pool: Any, done: Callable[[Any], bool], what: str) -> None:
    """Until a report is there that ends it; what came in one list with it is handled too."""
    deadline = time.monotonic() + GUARD
    ended = False
    while not ended:
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        for report in pool.poll(1.0):
            handle(server, pool, report)
            ended |= done(report)


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (3, "ended by itself with exit code 3"),
        (-signal.SIGSEGV, "was killed by SIGSEGV"),
        (-signal.SIGKILL, "was killed by SIGKILL, perhaps because memory ran out"),
        (-40, "was killed by signal 40"),
    ],
)
def test_every_end_has_words(status: int, words: str) -> None:
    assert explain(status) == words


def test_killed_from_outside_while_idle(setting: Setting) -> None:
    with setting.bench(2) as bench:
        bench.until_all_there()
        bench.until_ended(bench.give(0) + bench.give(1))
        kill_workers(setting.folder, 0)
        bench.until_left(0)
        bench.until_all_there()
        bench.until_ended(bench.give(0, 3))


def test_a_killed_fork_server_comes_back_with_all_workers(setting: Setting) -> None:
    with setting.bench(3, {0: Fault.WAIT}) as bench:
        bench.until_all_there()
        bench.give(0, 3)
        bench.give(1, 3)
        bench.until_begun(0)
        bench.until_ended([3, 4, 5])
        before = fork_server(inner(bench))
        os.kill(before, signal.SIGKILL)
        for worker in range(3):
            bench.until_left(worker)
        bench.until_all_there()
        assert fork_server(inner(bench)) != before
        jobs = [job for worker in range(3) for job in bench.give(worker, 3)]
        bench.until_ended(jobs)
        for job in jobs:
            bench.expect(job, "arrived")
        for job in (0, 1, 2):
            bench.expect(job, "lost with its worker")


def test_a_killed_fork_server_while_a_retired_worker_stays_away(setting: Setting) -> None:
    with setting.bench(2) as bench:
        bench.until_all_there()
        bench.pool.retire(0)
        os.kill(fork_server(inner(bench)), signal.SIGKILL)
        bench.until_left(1)
        bench.until(lambda: bench.ledger.present == {1}, "worker 1 to be back")
        bench.until_ended(bench.give(1, 3))


def test_whoever_dies_again_and_again_ends_it(setting: Setting) -> None:
    with setting.bench(2, dict.fromkeys(range(20), Fault.KILL)) as bench:
        bench.until_all_there()

        def dying() -> bool:
            for worker in bench.ledger.present:
                if not bench.ledger.queues[worker]:
                    bench.give(worker)
            return False

        with pytest.raises(EngineError, match="died 5 times in a row without finishing a job: at last it was killed"):
            bench.until(dying, "the end")


def test_a_worker_that_hangs_again_and_again_is_named_for_it(setting: Setting) -> None:
    with setting.bench(1, dict.fromkeys(range(20), Fault.HANG), job_timeout=0.05) as bench:
        bench.until_all_there()

        def hanging() -> bool:
            if bench.ledger.present and not bench.ledger.queues[0]:
                bench.give(0)
            return False

        with pytest.raises(EngineError, match=r"at last it was killed, because its job \d took more than 0\.05 s"):
            bench.until(hanging, "the end")


def test_a_cancel_in_the_middle_of_an_error_does_not_kill(setting: Setting) -> None:
    """The job fails, and is cancelled while its traceback is being written."""
    gate = Gate(setting.folder, job_seed(0, 0))
    with setting.bench(1, task=Awkward(setting.folder)) as bench:
        bench.until_all_there()
        bench.give(0, 2)
        bench.until(gate.has_begun, "job 0 to fail")
        bench.cancel(0)
        [worker] = bench.task.processes
        os.kill(worker, signal.SIGUSR1)  # as the cancel does, but it is there for sure before the gate opens
        gate.open()
        bench.until_ended([1])
        bench.expect(1, "arrived")
        assert not any(isinstance(report, Died | Left | Failed) for report in bench.reports)


def test_a_task_that_stops_itself_loses_the_job(setting: Setting) -> None:
    """Every job ends once, also one that was not cancelled and says that it was."""
    with setting.bench(1, task=Quitting()) as bench:
        bench.until_all_there()
        bench.until_ended(bench.give(0, 2))
        bench.expect(0, "lost")
        bench.expect(1, "arrived")


def test_two_errors_have_their_own_words(setting: Setting) -> None:
    """Both are at the worker at once, so that the second is written while the first waits to be read."""
    faults = {job: Fault.RAISE if job % 2 else Fault.EXIT for job in range(20)}
    with setting.bench(1, faults) as bench:
        bench.until_all_there()
        bench.until_ended(bench.give(0, 20))
        words = {report.job: report.error.splitlines()[-1] for report in bench.reports if isinstance(report, Failed)}
        assert words == {
            job: "RuntimeError: worker 0 fails on purpose" if job % 2 else "SystemExit: worker 0 exits on purpose"
            for job in range(20)
        }


def shortest(task: Any, engine: Engine) -> list[float]:
    """The shortest of the ten jobs of each worker: a machine may make many of them longer, but none shorter."""
    run = asgd.train(task, asgd.minibatch_sgd(0.1), engine=engine, iterations=20, progress=False)
    assert np.bincount(run.trace.worker).tolist() == [10, 10]
    return [float(run.trace.duration[run.trace.worker == worker].min()) for worker in range(2)]


@pytest.mark.slow
def test_pretended_min_seconds() -> None:
    """A worker that is ten times slower takes at least three times as long on any machine."""
    fast, slow = shortest(Bowl(), processes(2, min_seconds=[0.01, 0.1]))
    assert slow > 3 * fast


@pytest.mark.slow
def test_pretended_slowdown() -> None:
    fast, slow = shortest(Spinning(), processes(2, slowdown={1: 30}))
    assert slow > 3 * fast


def test_the_task_may_have_processes_of_its_own(setting: Setting) -> None:
    """Loading it starts a process, whose end the fork server must not take for that of a worker."""
    from engines.tasks import Employer

    with setting.bench(2, task=Employer()) as bench:
        bench.until_all_there()
        bench.until_ended(bench.give(0, 3) + bench.give(1, 3))
        assert not any(isinstance(report, Died) for report in bench.reports)


def test_an_update_is_in_place(setting: Setting) -> None:
    """Large updates are handed over where they are: no copy of them is made on the way."""
    with setting.bench(1) as bench:
        bench.until_all_there()
        bench.until_ended(bench.give(0))
        [report] = [report for report in bench.reports if isinstance(report, Arrived)]
        assert not report.update.flags.owndata
