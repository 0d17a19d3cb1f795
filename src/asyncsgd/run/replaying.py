"""Recompute a run in one process, gradient by gradient along its trace, and compare it bit for bit."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np

from asyncsgd.core.errors import BadParameter, ReplayDiffers
from asyncsgd.core.events import Arrival, Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.random import derive, output
from asyncsgd.core.server import JOB
from asyncsgd.core.vectors import Vector
from asyncsgd.engines.base import limited
from asyncsgd.run import checkpoints as checkpoints
from asyncsgd.run import configuration, stored
from asyncsgd.run.checksums import JOB as MAY_LACK
from asyncsgd.run.checksums import UNKNOWN, check_listed, fingerprint, marks
from asyncsgd.run.journal import JOINED, LEFT, RESUMED, STARTED, STEP_CHANGED
from asyncsgd.run.noise_log import NOISE, noise_seeds
from asyncsgd.run.read import as_path, read_blocks, read_lines, sound_trace
from asyncsgd.tasks.base import Task, batches_of
from asyncsgd.trace import Trace
from asyncsgd.trace.replay import Surroundings, replay_core


@dataclass(frozen=True, eq=False, repr=False)
class Replay:
    """The result of a replay, up to the end of the run or to the requested iteration."""

    x: Vector
    """The method's output after `iterations` arrivals."""
    iterations: int
    trace: Trace
    compared: int
    """Number of updates that match those of the run."""
    model_compared: bool
    """Whether the whole model was compared with a checkpoint, bit for bit."""
    arrival: Arrival | None = None
    """With ``stop``: the arrival of that iteration, with the model before it (``x``) and its ``point``."""
    update: Vector | None = None
    """With ``stop`` or ``job``: the update; a rejected one may hold NaN."""
    point: Vector | None = None
    """With ``stop`` or ``job``: the model at which the update was computed."""

    def __repr__(self) -> str:
        whole = ", the model bit for bit" if self.model_compared else ""
        return f"<Replay: {self.iterations} arrivals, {self.compared} updates as in the run{whole}>"


def replay(
    directory: str | Path,
    *,
    stop: int | None = None,
    job: int | None = None,
    task: Task | None = None,
    method: Method | None = None,
    look: Callable[[Arrival, Vector], None] | None = None,
    progress: bool = False,
    trust: bool = False,
) -> Replay:
    """Recompute a run in one process from its trace; raise `ReplayDiffers` at the first job that differs.

    Args:
        directory: The run directory, as passed to `asyncsgd.train`.
        stop: Stop at this iteration, and return its update before it is applied, for instance to look at a gradient
            that made the model diverge.
        job: Stop at this job instead. If the job never arrived (it was rejected, lost or cancelled), its update is
            computed at the model that the worker read.
        task: The task, if the one of the directory cannot be loaded.
        method: The method, if the one of the directory cannot be loaded.
        look: Function that is called with every arrival and its update before it is applied; copy what you keep. Use
            it to estimate L and σ² from gradients with `asyncsgd.theory.estimate_from_gradients`.
        progress: Whether to show a progress bar on the terminal.
        trust: Allow loading job.pkl of a directory that another user owns. A pickle can run any code when it is loaded,
            so pass True only if you trust that user. Your own directories do not need it, nor do runs whose task
            was given as ``module:task``.

    >>> import tempfile
    >>> import asyncsgd as asgd
    >>> task, engine = asgd.tasks.quadratic(workers=2), asgd.engines.processes(workers=2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = asgd.train(task, asgd.async_sgd(0.1), engine, iterations=20, directory=f"{folder}/run", progress=False)
    ...     print(asgd.replay(f"{folder}/run").compared)
    20

    See docs/users/engineer.md for what to do with a replay.
    """
    path = as_path(directory)
    config = configuration.read(path)
    check_listed(path, but=MAY_LACK)
    if task is None or method is None:
        kept = stored.unpackage(path, trust=trust)
        task = kept[0] if task is None else task
        method = kept[1] if method is None else method
    if "bound" in config:  # a method that the caller passes may leave numbers to the run
        method = method.bind(**config["bound"], counted=batches_of(task))
    trace = sound_trace(path, early=method.dispatch.early)
    total = trace.iterations
    absent = False  # whether the requested job never arrived
    arrivals = trace.arrivals()
    if job is not None:
        _check_job(trace, job, stop)
        absent = not Outcome(trace.jobs.outcome[job]).arrived
        stop = None if absent else int(trace.jobs.ended_iteration[job])
    elif stop is not None:
        _check_stop(stop, total)
    if job is not None and absent:
        arrivals = arrivals.first(_arrived_before(trace, job, method.job.keeps))
    known = marks(read_blocks(path, "fingerprints.bin"))
    journal = read_lines(path, "journal.jsonl")
    afresh = _Afresh(journal)
    length = len(arrivals) if stop is None else stop + 1
    with _Threads(journal, arrivals.worker) as threads, _bar(progress, length) as advance:
        watch = _Watch(known, stop, look, advance, threads)
        if job is not None and absent:
            watch.wanted = int(trace.jobs.assigned_iteration[job])
        around = Surroundings(
            watch=watch,
            present=_Membership(journal),
            afresh=afresh,
            noise=noise_seeds(read_lines(path, NOISE)),
            factors=_factors(journal),
        )
        update, _, _, broken, workers = replay_core(arrivals, task, method, seed=int(config["seed"]), around=around)
    if broken is not None:
        job = int(arrivals.job[broken])
        raise ReplayDiffers(f"job {job} (iteration {broken}) is not finite here; it was in the run", job, broken)
    reached = len(arrivals) if stop is None else stop
    x = update.output.copy()
    compared = False
    if stop is None and reached == total:
        compared = _compare_model(path, reached, update.points.current)
    arrival, g = watch.arrival, watch.update
    point = None if arrival is None else arrival.point
    if job is not None and absent:
        point = update.points.current.copy() if watch.model is None else watch.model
        rows, worker = trace.jobs, int(trace.jobs.worker[job])
        for gone in afresh(reached, before=float(rows.assigned_time[job])):
            workers.forget(gone)
        with threads.of(worker):
            seed = output(derive(int(config["seed"]), JOB), job)
            state = workers.of(worker)
            g = state.compute(task, state.start(point), worker, seed, int(rows.steps[job]), int(rows.batch[job]))
    return Replay(x, reached, trace, watch.compared, compared, arrival, g, point)


@contextmanager
def _bar(progress: bool, total: int) -> Iterator[Callable[[], None]]:
    """Give the function that advances the progress bar by one arrival; without ``progress`` it does nothing."""
    if not isinstance(progress, bool):
        raise BadParameter("progress", progress, "is not True or False", "pass progress=True to see a progress bar")
    if not progress:
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("replaying", total=total)
        yield lambda: bar.advance(line)


def _factors(journal: list[dict[str, Any]]) -> dict[int, list[float]]:
    """Return the factors that callbacks multiplied the step size by, by the iteration that they were first used at."""
    found: dict[int, list[float]] = {}
    for row in journal:
        if row["event"] == STEP_CHANGED:
            found.setdefault(row["iteration"], []).append(float(row["factor"]))
    return found


def _check_stop(stop: int, total: int) -> None:
    if isinstance(stop, bool) or not isinstance(stop, int | np.integer) or stop < 0:
        raise BadParameter("stop", stop, "is not an iteration", f"pass 0..{total - 1}")
    if stop >= total:
        raise BadParameter("stop", stop, f"is beyond the {total} arrivals of the run", f"pass 0..{total - 1}")


def _check_job(trace: Trace, job: int, stop: int | None) -> None:
    if stop is not None:
        raise BadParameter("job", job, f"and stop = {stop} were both given", "pass one of them")
    if isinstance(job, bool) or not isinstance(job, int | np.integer) or not 0 <= job < len(trace):
        raise BadParameter("job", job, f"is not one of the {len(trace)} jobs of the run", f"pass 0..{len(trace) - 1}")


def _arrived_before(trace: Trace, job: int, keeps: bool) -> int:
    """Return the number of arrivals that decide what a job computes which never arrived itself.

    They decide the model that it read and, if workers keep state, what its worker had kept when the job began: earlier
    jobs of that worker may have arrived after this one was assigned, while it waited.
    """
    rows = trace.jobs
    found = int(rows.assigned_iteration[job])
    if keeps:
        arrived = (rows.outcome == Outcome.APPLIED) | (rows.outcome == Outcome.DROPPED)
        before = arrived & (rows.worker == rows.worker[job]) & (np.arange(len(rows.worker)) < job)
        if before.any():
            found = max(found, int(rows.ended_iteration[before].max()) + 1)
    return found


class _Watch:
    """Compares every update with its fingerprint, and keeps the requested one."""

    def __init__(
        self,
        known: Any,
        stop: int | None,
        look: Callable[[Arrival, Vector], None] | None,
        advance: Callable[[], None],
        threads: _Threads,
    ) -> None:
        self._known, self._stop, self._look, self._advance = known, stop, look, advance
        self._threads = threads
        self.wanted = -1
        """The iteration whose model is to be kept in ``model``."""
        self.model: Vector | None = None
        self.compared = 0
        self.arrival: Arrival | None = None
        self.update: Vector | None = None

    def __call__(self, arrival: Arrival, g: Vector) -> bool:
        t = arrival.iteration
        if t == self.wanted:
            self.model = arrival.x.copy()
        if t < len(self._known) and self._known[t] != UNKNOWN:
            if marks(fingerprint(g))[0] != self._known[t]:
                raise ReplayDiffers(
                    f"job {arrival.job} of worker {arrival.worker} (iteration {t}) differs from the "
                    "run; are the task, its data, the libraries and the processor the same?",
                    arrival.job,
                    t,
                )
            self.compared += 1
        if self._look is not None:
            self._look(arrival, g)
        self._advance()
        self._threads.set(t + 1)
        if t == self._stop:
            self.arrival, self.update = _kept(arrival), g.copy()
            return True
        return False


def _kept(arrival: Arrival) -> Arrival:
    """Return a copy that later updates do not overwrite."""
    values = {name: getattr(arrival, name) for name in Arrival.__slots__}
    return Arrival(**{**values, "x": arrival.x.copy(), "point": arrival.point.copy()})


class _Threads:
    """Sets the number of threads that each worker had, which can change at a resume (all jobs end there)."""

    def __init__(self, journal: list[dict[str, Any]], workers: Any) -> None:
        starts = [row for row in journal if row["event"] in (STARTED, RESUMED)]
        self._since = {row["iteration"]: row["threads"] for row in starts}
        self._workers = workers
        self._threads_each: Any = None
        self._number: int | None = None
        self._limit = ExitStack()

    def __enter__(self) -> Self:
        self.set(0)
        return self

    def set(self, iteration: int) -> None:
        """Use the threads of the worker whose update arrives at this iteration."""
        self._threads_each = self._since.get(iteration, self._threads_each)
        number = self._threads_each
        if isinstance(number, list) and iteration < len(self._workers):
            number = number[self._workers[iteration]]
        if number != self._number and not isinstance(number, list):
            self._limit.close()
            self._limit.enter_context(limited(number))
            self._number = number

    def of(self, worker: int) -> AbstractContextManager[None]:
        """Return a context with the threads that this worker had last."""
        number = self._threads_each[worker] if isinstance(self._threads_each, list) else self._threads_each
        return limited(number)

    def __exit__(self, *error: object) -> None:
        self._limit.close()


class _Afresh:
    """The workers that start afresh, from the journal: those that left, and all of them at a resume."""

    def __init__(self, journal: list[dict[str, Any]]) -> None:
        self._rows = [row for row in journal if row["event"] in (RESUMED, LEFT)]
        self._next = 0

    def __call__(self, iteration: int, before: float = math.inf) -> list[int | None]:
        """Return those since the last call, up to this iteration and to this many seconds of the run."""
        found: list[int | None] = []
        while self._next < len(self._rows) and self._rows[self._next]["iteration"] <= iteration:
            row = self._rows[self._next]
            if row["seconds"] > before:
                break
            found.append(row["worker"] if row["event"] == LEFT else None)
            self._next += 1
        return found


class _Membership:
    """The workers that were present at an iteration, from the journal."""

    def __init__(self, journal: list[dict[str, Any]]) -> None:
        self._changes = [row for row in journal if row["event"] in (JOINED, LEFT)]
        self._next = 0
        self._present: dict[int, None] = {}

    def __call__(self, iteration: int) -> Any:
        while self._next < len(self._changes) and self._changes[self._next]["iteration"] <= iteration:
            row = self._changes[self._next]
            if row["event"] == JOINED:
                self._present[row["worker"]] = None
            else:
                self._present.pop(row["worker"], None)
            self._next += 1
        return self._present.keys()


def _compare_model(path: Path, iteration: int, x: Vector) -> bool:
    """Compare the final model with the last checkpoint; return whether there was one."""
    for file in checkpoints.listed(path / "checkpoints"):
        if int(file.stem) == iteration:
            points = checkpoints.read(file).state["update"]["points"]
            saved = points["live"][points["current"]]
            if saved.tobytes() != x.tobytes():
                place = int(np.flatnonzero(saved.view(np.uint8) != x.view(np.uint8))[0]) // x.itemsize
                raise ReplayDiffers(
                    f"all updates match, but the models differ: first at coordinate {place}, {x[place]!r} here and "
                    f"{saved[place]!r} in the run; are the method and the libraries the same?"
                )
            return True
    return False
