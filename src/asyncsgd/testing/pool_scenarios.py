"""Scenarios that use a pool directly. The first line of each docstring is what the scenario checks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from asyncsgd.core.compression import BFloat16, Int4
from asyncsgd.core.errors import BadEngine
from asyncsgd.core.events import Arrived, Joined, Left
from asyncsgd.core.work import Encoded, LocalSteps
from asyncsgd.engines.base import Died, Failed, Report
from asyncsgd.optimizers import adamw
from asyncsgd.testing.bench import Bench, Bowl, Setting, WritingBowl
from asyncsgd.testing.faults import Fault

USE = 0.002
"""Seconds for which the server is busy with an update, which no worker may overwrite meanwhile."""
TRIES = 5
"""Consecutive jobs that a worker may lose to a time-out because the machine is busy."""


def joining(setting: Setting) -> None:
    """Every worker joins; a job assigned before is dropped, and nothing is reported if nothing happened."""
    with setting.bench(3) as bench:
        early = bench.give(0)
        bench.until_all_there()
        if bench.poll(0):
            raise BadEngine(f"reported {bench.reports[-1]} although there was no job")
        bench.until_ended([job for worker in range(3) for job in bench.give(worker)])
        bench.expect(early[0], "assigned to an absent worker")


def order(setting: Setting) -> None:
    """A worker's jobs end first in, first out, each once, with exactly the bits that the task computes."""
    for kind, dtype, dim in ((Bowl, np.float64, 1), (WritingBowl, np.float32, 20_000)):
        with setting.bench(3, task=kind(dim, dtype)) as bench:
            bench.until_all_there()
            jobs = [job for worker in (0, 1, 2, 0, 0) for job in bench.give(worker, 4)]
            bench.until_ended(jobs)
            for job in jobs:
                bench.expect(job, "arrived")


def updates_stay(setting: Setting) -> None:
    """An update does not change until the next poll, however the jobs behind it end."""
    rounds, pattern = 12, (None, Fault.RAISE, None, None, Fault.NAN, None, Fault.RAISE, Fault.NAN)
    faults = {job: fault for job in range(rounds * len(pattern)) if (fault := pattern[job % len(pattern)])}
    for task in (Bowl(5_000), WritingBowl(5_000)):
        with setting.bench(1, faults, task) as bench:
            bench.until_all_there()
            for _ in range(rounds):
                jobs = bench.give(0, len(pattern))
                bench.until(partial(_busy, bench, jobs), f"jobs {jobs} to be reported")


def _busy(bench: Bench, jobs: Sequence[int]) -> bool:
    """Poll, and be busy for a moment if an update came. Return whether all of these jobs have ended."""
    if any(isinstance(report, Arrived) for report in bench.poll()):
        threading.Event().wait(USE)
    return all(job in bench.ledger.ended for job in jobs)


def exceptions(setting: Setting) -> None:
    """An exception in the user's code is reported with its traceback, and the worker continues."""
    with setting.bench(2, {1: Fault.RAISE, 2: Fault.RAISE, 5: Fault.EXIT}) as bench:
        bench.until_all_there()
        first, second = bench.give(0, 3), bench.give(1, 2)
        bench.until_ended([*first, *second])
        for job in (1, 2):
            bench.expect(job, "failed")
        for report in [report for report in bench.reports if isinstance(report, Failed)]:
            if "RuntimeError: worker 0 fails on purpose" not in report.error or "Traceback" not in report.error:
                raise BadEngine(f"job {report.job} failed, but its traceback is not in {report.error!r}")
        [leaves] = bench.give(1)
        bench.until_ended([leaves])
        bench.expect(leaves, "failed", "lost with its worker")
        bench.until_all_there()
        bench.until_ended(bench.give(1))


def rejection(setting: Setting) -> None:
    """NaN, infinity, and vectors of another length or dtype are refused, and the worker continues."""
    bad = (Fault.NAN, Fault.SHORT, Fault.INFINITE, Fault.DTYPE, Fault.NOTHING)
    for dtype in (np.float32, np.float64):
        with setting.bench(1, dict(enumerate(bad)), Bowl(dtype=dtype)) as bench:
            bench.until_all_there()
            jobs = bench.give(0, len(bad) + 1)
            bench.until_ended(jobs)
            for job in jobs[:-1]:
                # It may also arrive: the ledger has made sure that `checked` is False, so the server refuses it.
                bench.expect(job, "rejected", "arrived")
            bench.expect(jobs[-1], "arrived")


def cancelling(setting: Setting) -> None:
    """Cancelled jobs are not reported, whether they wait, run or have ended; the jobs behind them are."""
    with setting.bench(2, dict.fromkeys((0, 7, 8, 9), Fault.WAIT)) as bench:
        bench.until_all_there()
        bench.give(0, 5)  # 0 runs, 1 to 4 wait
        bench.until_begun(0)
        bench.cancel(2)
        bench.cancel(0)
        _let_go(setting, bench, 0)
        bench.until_ended([1, 3, 4])
        bench.cancel(4)
        bench.until_ended(bench.give(1) + bench.give(0))  # 5, 6
        for job in (7, 8, 9):  # repeatedly, as when the model runs ahead of a slow worker
            bench.give(0)
            bench.until_begun(job)
            bench.cancel(job)
            _let_go(setting, bench, job)
        last = bench.give(0)
        bench.until_ended(last)
        for job in (0, 2, 7, 8, 9):
            bench.expect(job, "cancelled")
        for job in (1, 3, 4, *last):
            bench.expect(job, "arrived")


def _let_go(setting: Setting, bench: Bench, job: int) -> None:
    if not setting.abilities.stops:
        bench.open(job)


def killed(setting: Setting) -> None:
    """A worker that is killed leaves, its jobs are dropped, and it is replaced."""
    with setting.bench(2, {1: Fault.KILL, 8: Fault.KILL}) as bench:
        bench.until_all_there()
        bench.give(0, 4)  # 0 arrives, 1 kills, 2 and 3 go with it
        bench.give(1, 2)
        bench.until_left(0)
        [void] = bench.give(0)  # 6: assigned before the replacement joined
        _is_replaced(bench, 0)
        bench.until_ended(bench.give(0))  # 7
        bench.reports.clear()
        bench.give(0)  # 8 kills again
        bench.until_left(0)
        _is_replaced(bench, 0)
        bench.until_ended(bench.give(0, 3) + bench.give(1))
        bench.expect(void, "assigned to an absent worker")
        for job in (1, 2, 3, 8):
            bench.expect(job, "lost with its worker")
        bench.expect(0, "arrived", "lost with its worker")
        for job in (4, 5, 7, 9, 10, 11, 12):
            bench.expect(job, "arrived")


def _is_replaced(bench: Bench, worker: int) -> None:
    bench.until(lambda: worker in bench.ledger.present, f"worker {worker} to be replaced")
    kinds = [r for r in bench.reports if _is_about(r, worker)][-3:]
    if [type(kind) for kind in kinds] != [Died, Left, Joined] or not isinstance(kinds[0], Died) or not kinds[0].reason:
        raise BadEngine(f"after a death it reported {kinds}, not Died with a reason, Left, and then Joined")


def _is_about(report: Report, worker: int) -> bool:
    """Return whether a report is about this worker's joining, leaving or death."""
    match report:
        case Joined(workers=workers):
            return worker in workers
        case Died(worker=other) | Left(worker=other):
            return other == worker
    return False


def kept_state(setting: Setting) -> None:
    """A worker computes with what its applied jobs left, whatever became of the others, and afresh after a death."""
    work = Encoded(LocalSteps(3, 0.05, optimizer=adamw(), state="kept"), up=Int4(), down=BFloat16())
    able = setting.abilities
    faults = {3: Fault.RAISE, 6: Fault.NAN, 9: Fault.SHORT}
    if able.other_processes:
        faults[20] = Fault.WAIT
    if able.replaces:
        faults[23] = Fault.KILL
    with setting.bench(2, faults, Bowl(300, np.float32), work) as bench:
        bench.until_all_there()
        bench.until_ended(bench.give(0, 8) + bench.give(1, 4) + bench.give(0, 8))
        bench.give(0, 3)  # 20 runs, 21 and 22 wait
        if able.other_processes:
            bench.until_begun(20)
        bench.cancel(21)
        bench.cancel(20)
        if able.other_processes:
            _let_go(setting, bench, 20)
        bench.until_ended([22])
        bench.give(0, 3)  # 23 kills, 24 and 25 go with it
        bench.until_ended([23, 24, 25])
        bench.until_all_there()
        bench.until_ended(bench.give(0, 5) + bench.give(1, 2))
        for job, how in ((3, "failed"), (6, "rejected"), (9, "rejected"), (22, "arrived"), (30, "arrived")):
            bench.expect(job, how)
        for job in (20, 21):
            bench.expect(job, "cancelled")


def hung(setting: Setting) -> None:
    """A worker that hangs is given up after its time-out, leaves, and is replaced; no other worker is."""
    with setting.bench(2, {0: Fault.HANG}, job_timeout=2.0) as bench:
        bench.until_all_there()
        given = bench.give(0, 2) + bench.give(1)
        bench.until_left(0)
        _is_replaced(bench, 0)
        for worker in (0, 1):
            given += _one_arrives(bench, worker)
        for job in (0, 1):
            bench.expect(job, "lost with its worker")
        gone = {job for job in given if bench.ledger.ended[job] == "lost with its worker"}
        deaths = sum(isinstance(report, Died) for report in bench.reports)
        if deaths > len(gone - {1}):
            raise BadEngine(f"{deaths} workers died, but only jobs {sorted(gone)} were lost with them: one died idle")


def _one_arrives(bench: Bench, worker: int) -> list[int]:
    """Assign jobs until one arrives: on a busy machine a worker that waits for a processor may time out too."""
    jobs: list[int] = []
    for _ in range(TRIES):
        bench.until_all_there()
        [job] = bench.give(worker)
        jobs.append(job)
        bench.until_ended([job])
        bench.expect(job, "arrived", "lost with its worker")
        if bench.ledger.ended[job] == "arrived":
            return jobs
    raise BadEngine(f"jobs {jobs} of worker {worker} were lost with it, one after another")


def retiring(setting: Setting) -> None:
    """A retired worker is never reported again, and gets no jobs."""
    waits = {0: Fault.WAIT} if setting.abilities.other_processes else {}
    with setting.bench(2, waits) as bench:
        bench.until_all_there()
        bench.give(0, 3)
        if waits:
            bench.until_begun(0)
        bench.pool.retire(0)
        bench.give(0)
        bench.until_ended(bench.give(1, 2))
        if waits:
            bench.open(0)  # in case its process is still alive
        for _ in range(5):
            bench.until_ended(bench.give(1))
        if bench.ledger.present != {1}:
            raise BadEngine(f"worker 0 is retired, but present are {sorted(bench.ledger.present)}")


def closing(setting: Setting) -> None:
    """``close`` in the middle of jobs leaves no process, thread or descriptor behind."""
    left = 0, 0
    for attempt in range(3):  # the first attempt may load libraries that stay
        folder = setting.folder / str(attempt)
        folder.mkdir()
        here = Setting(setting.make, setting.abilities, setting.patience, folder)
        with here.bench(2, {0: Fault.WAIT}) as bench:
            bench.until_all_there()
            bench.give(0, 3)
            bench.give(1, 3)
            bench.until_begun(0)
            bench.pool.close()
            bench.pool.close()
            _are_gone(bench.task.processes, setting.patience)
        del bench
        before, left = left, _held()
    deadline = time.monotonic() + setting.patience
    while any(now > then for now, then in zip(left, before, strict=True)):  # a dead worker's connection closes later
        if time.monotonic() > deadline:
            raise BadEngine(f"(descriptors, threads) were {before} after one pool and {left} after the next")
        threading.Event().wait(0.01)
        left = _held()


def _held() -> tuple[int, int]:
    """Return the numbers of descriptors and threads of this process."""
    folder = Path("/proc/self/fd")
    return len(list(folder.iterdir())) if folder.exists() else 0, threading.active_count()


def _are_gone(processes: set[int], patience: float) -> None:
    if not processes:
        raise BadEngine("no other process has computed a job, so there is nothing to check")
    deadline = time.monotonic() + patience
    for process in processes:
        while _exists(process):
            if time.monotonic() > deadline:
                raise BadEngine(f"process {process} is still alive after close")
            threading.Event().wait(0.01)


def _exists(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True
