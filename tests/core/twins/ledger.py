"""The naive ledger: it is told who joins, leaves, loses and answers, and counts everything on its own.

It keeps the whole history: every point that was ever assigned (as a list of numbers), every |C_t|, every version.
A twin of a method derives from `Twin` and says in `receive` how one update moves the model.
"""

import math
from types import SimpleNamespace

from asyncsgd.core.random import derive


class Twin:
    """One server, slowly. ``number`` is the type all coordinates have: float, or numpy.float32."""

    steps = 1  # mini-batches of a job
    own_data = False  # whether every worker has data of its own

    def __init__(self, x, dispatch, seed=0, number=float, **options):
        for name, value in options.items():  # the method's own numbers: eta, K, ...
            setattr(self, name, value)
        self.number = number
        self.x = [number(value) for value in x]
        self.dispatch = dispatch
        self.seed = seed
        self.t = 0  # arrivals so far
        self.version = 0
        self.versions = [list(self.x)]  # every version there ever was
        self.sizes = []  # |C_t| for t = 0, 1, ...
        self.present = []  # workers, in order of joining
        self.jobs = []  # every job ever handed out
        self.flight = []  # ids of those in flight, oldest first
        self.commands = []  # what the last event made the server say
        self.ended = []  # what the last event ended
        self.factors = []  # of the steps
        self.limit = None  # mini-batches that may be handed out in all
        self.first = {name: options[name] for name in ("eta", "alpha") if name in options}
        self.start()

    # ------------------------------------------------------------------------------ what a method gives

    def start(self):
        """What the method remembers."""

    def receive(self, g, a):
        """Use update ``g`` of arrival ``a``; return the step it gets, or None to drop it."""
        raise NotImplementedError

    @property
    def output(self):
        return self.x

    # ------------------------------------------------------------------------------ what methods share

    def become(self, x):
        """The model changes: that is a new version."""
        self.x = x
        self.version += 1
        self.versions.append(list(x))

    def descend(self, step, d):
        """x ← x - step · d."""
        step = self.number(step)
        self.become([x - step * d for x, d in zip(self.x, d, strict=True)])

    # ------------------------------------------------------------------------------ events

    def joined(self, workers):
        self._begin()
        for worker in workers:
            self.present.append(worker)
            self.dispatch.joined(worker)
        self._hand_out(self.t)

    def left(self, worker):
        self._begin()
        for job in list(self.flight):
            if self.jobs[job].worker == worker:
                self._end(job, "LOST")
        self.present.remove(worker)
        self.dispatch.left(worker)
        self._hand_out(self.t)

    def lost(self, job, outcome):
        self._begin()
        self._end(job, outcome)
        self.dispatch.ended(self.jobs[job].worker, False)
        self._hand_out(self.t)

    def arrived(self, job, g, examples=None):
        self._begin()
        g = [self.number(value) for value in g]
        record = self.jobs[job]
        self.sizes.append(len(self.flight))
        a = SimpleNamespace(
            t=self.t,
            worker=record.worker,
            s=record.iteration,  # the s of x^(s)
            tau=self.t - record.iteration,
            staleness=self.version - record.version,
            concurrency=len(self.flight),
            tau_c=max(self.sizes),
            n=len(self.present),
            present=list(self.present),
            version=self.version,
            assigned_version=record.version,
            point=list(record.point),
            steps=record.steps,
            examples=examples,
        )
        self.flight.remove(job)
        self.t += 1
        if self.dispatch.early:  # the next job leaves before line 5, at the point of before
            self.dispatch.ended(record.worker, True)
            self._hand_out(a.t)
        step = self.receive(g, a)
        outcome = "DROPPED" if step is None else "APPLIED"
        self.ended.insert(0, (job, outcome, a.t, a.version, step or 0.0, a.concurrency, a.n))
        if not self.dispatch.early:
            self.dispatch.ended(record.worker, True)
        self._hand_out(self.t)

    def changed(self, factor):
        self._begin()
        self.factors.append(factor)
        product = 1.0
        for factor in self.factors:
            product = product * factor
        for name, value in self.first.items():
            setattr(self, name, value * product)

    def drain(self, after):
        self._begin()
        self.limit = None if after is None else self.batches() + after
        self._hand_out(self.t)

    def batches(self, worker=None):
        """Mini-batches handed out so far, counted anew from all jobs there ever were."""
        return sum(job.steps for job in self.jobs if worker is None or job.worker == worker)

    # ------------------------------------------------------------------------------ inside

    def _begin(self):
        self.commands, self.ended = [], []

    def _end(self, job, outcome):
        self.ended.append((job, outcome, self.t, self.version, 0.0, len(self.flight), len(self.present)))
        self.flight.remove(job)

    def _hand_out(self, iteration):
        for job in self.dispatch.unwanted([self.jobs[job] for job in self.flight], self.version):
            self._end(job, "CANCELLED")
            self.dispatch.ended(self.jobs[job].worker, False)
            self.commands.append(("cancel", job))
        if self.limit is not None and self.batches() >= self.limit:
            return
        for worker in self.dispatch.next_workers([self.jobs[job].worker for job in self.flight]):
            left = math.inf if self.limit is None else self.limit - self.batches()
            if left == 0:
                self.dispatch.ended(worker, False)  # picked, but there is no work for it
                continue
            job = SimpleNamespace(
                id=len(self.jobs),
                worker=worker,
                iteration=iteration,
                version=self.version,
                entered=self.t,
                seed=derive(self.seed, 0x10B, len(self.jobs)),
                point=list(self.x),
                steps=min(self.steps, left),
                batch=self.batches(worker if self.own_data else None),
            )
            self.jobs.append(job)
            self.flight.append(job.id)
            self.commands.append(("assign", job))


def norm(g):
    """√Σ g², the sum in the order of `asyncsgd.core.vectors.norm`: 1024 lanes, folded in halves."""
    lanes = [0.0] * 1024
    for i, value in enumerate(g):
        lanes[i % 1024] = lanes[i % 1024] + float(value) * float(value)
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = [lanes[i] + lanes[i + half] for i in range(half)]
    return math.sqrt(lanes[0])
