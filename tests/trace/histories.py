"""Random but consistent histories, with a slow twin of every figure: lists and loops, straight from the paper."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from hypothesis import strategies as st

from asyncsgd.core.events import Assign, Cancel, Command, Ended, Job, Outcome
from asyncsgd.trace import Recorder, Trace

POINT = np.zeros(1)
Event = tuple[float, list[Command], list[Ended]]


@dataclass
class History:
    """A server that does as it is told. It keeps the sets C_0, ..., C_{T-1} as plain lists of job ids."""

    events: list[Event] = field(default_factory=list)
    jobs: list[Job] = field(default_factory=list)
    active: list[int] = field(default_factory=list)
    sets: list[list[int]] = field(default_factory=list)
    arrivals: list[tuple[int, int]] = field(default_factory=list)  # (job, delay) of iteration t
    version: int = 0

    def assign(self, workers, *, alone=True, point=None):
        t = len(self.sets)
        commands = []
        for worker in workers:
            s, version = (t, self.version) if point is None else point
            job = Job(len(self.jobs), worker, s, version, t, seed=len(self.jobs))
            self.jobs.append(job)
            self.active.append(job.id)
            commands.append(Assign(job, POINT, 0))
        if alone and commands:
            self.events.append((float(len(self.events)), commands, []))
        return commands

    def arrive(self, job, *, applied=True, moves=True, early=(), then=()):
        t, version = len(self.sets), self.version
        outcome, step = (Outcome.APPLIED, 0.5) if applied else (Outcome.DROPPED, 0.0)
        ended = Ended(self.jobs[job], outcome, t, version, step, len(self.active), 3)
        self.sets.append(list(self.active))
        self.arrivals.append((job, t - self.jobs[job].iteration))
        self.active.remove(job)
        commands = self.assign(early, alone=False, point=(t, version))
        self.version += applied and moves
        commands += self.assign(then, alone=False)
        self.events.append((float(len(self.events)), commands, [ended]))

    def fail(self, job, outcome=Outcome.LOST, then=()):
        ended = Ended(self.jobs[job], outcome, len(self.sets), self.version, 0.0, len(self.active), 2)
        self.active.remove(job)
        commands: list[Command] = [Cancel(self.jobs[job])] if outcome is Outcome.CANCELLED else []
        commands += self.assign(then, alone=False)
        self.events.append((float(len(self.events)), commands, [ended]))

    def recorder(self, **options) -> Recorder:
        recorder = Recorder(**options)
        for event in self.events:
            recorder.record(*event)
        return recorder

    def trace(self) -> Trace:
        return self.recorder(metadata={"seed": "7"}, capacity=1).trace(final_concurrency=len(self.active))


@dataclass
class Twin:
    """The paper's definitions (delays, concurrency, delay of a client), with τ = t - s."""

    average: float
    maximum: int
    concurrency: int
    mean_concurrency: float
    per_worker: dict[int, float]

    @classmethod
    def of(cls, history: History) -> Twin:
        T = len(history.sets)
        sets = [*history.sets, list(history.active)]
        without_last = sorted(history.active)[:-1]  # C_T without j_T
        delays = [tau for _, tau in history.arrivals] + [T - history.jobs[job].iteration for job in without_last]
        per_worker: dict[int, list[int]] = {}
        for job, tau in history.arrivals:
            per_worker.setdefault(history.jobs[job].worker, []).append(tau)
        for job in history.active:
            per_worker.setdefault(history.jobs[job].worker, []).append(T - history.jobs[job].iteration)
        if history.active:
            assert len(delays) == T + len(history.active) - 1
        return cls(
            average=sum(delays) / len(delays) if delays else math.nan,
            maximum=max(delays, default=0),
            concurrency=max(len(c) for c in sets),
            mean_concurrency=sum(len(c) for c in sets) / (T + 1),
            per_worker={worker: sum(own) / len(own) for worker, own in per_worker.items()},
        )


workers = st.lists(st.sampled_from([0, 1, 2, 5_000_000_000]), max_size=3)


@st.composite
def histories(draw, early=True, max_events=25) -> History:
    """Jobs that arrive, are dropped, lost, rejected, cancelled, given out early; some stay in flight."""
    history = History()
    history.assign(draw(workers))
    for _ in range(draw(st.integers(0, max_events))):
        kind = draw(st.sampled_from(["arrive"] * 4 + ["fail", "assign"]))
        if kind == "assign" or not history.active:
            history.assign(draw(workers))
            continue
        job = draw(st.sampled_from(history.active))
        if kind == "arrive":
            history.arrive(
                job,
                applied=draw(st.booleans()),
                moves=draw(st.booleans()),
                early=draw(workers) if early and draw(st.booleans()) else (),
                then=draw(workers),
            )
        else:
            outcome = draw(st.sampled_from([Outcome.LOST, Outcome.REJECTED, Outcome.CANCELLED]))
            history.fail(job, outcome, then=draw(workers))
    return history


def two_workers(slow: int, iterations: int) -> History:
    """Worker 1 needs ``slow`` times as long as worker 0; both always busy. Ties go to worker 0."""
    history = History()
    history.assign([0, 1])
    busy = {0: (1, 0), 1: (slow, 1)}  # worker -> (when it finishes, its job)
    while len(history.sets) < iterations:
        worker = min(busy, key=lambda w: (busy[w][0], w))
        time, job = busy[worker]
        history.arrive(job, then=[worker])
        busy[worker] = (time + (1, slow)[worker], len(history.jobs) - 1)
    return history


def endless(n: int, seed: int = 0, history: History | None = None) -> Iterator[Event]:
    """Yield the events of n always busy workers that finish in random order."""
    rng = np.random.default_rng(seed)
    history = History() if history is None else history
    history.assign(range(n))
    while True:
        yield history.events[-1]
        job = history.active[int(rng.integers(n))]
        history.arrive(job, then=[history.jobs[job].worker])


def busy_run(n: int, iterations: int, seed: int = 0) -> History:
    """The first events of ``endless``."""
    history = History()
    for _ in itertools.islice(endless(n, seed, history), iterations + 1):
        pass
    return history
