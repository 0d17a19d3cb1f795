"""Naive twins of the dispatch rules, from their descriptions: lists and loops; only the generator is shared.

``unwanted`` names the jobs in flight to cancel, ``next_workers`` who gets a job, given the workers of the jobs in
flight. The draws come from ``derive(seed, 0xD15)``.
"""

from asyncsgd.core.random import below, derive


class Rule:
    early = False

    def __init__(self, seed=0):
        self.random = derive(seed, 0xD15)
        self.workers = []

    def draw(self, n):
        self.random, k = below(self.random, n)
        return k

    def joined(self, worker):
        self.workers = [*self.workers, worker]

    def left(self, worker):
        self.workers = [other for other in self.workers if other != worker]

    def ended(self, worker, arrived):
        pass

    def unwanted(self, flight, version):
        return []


class AlwaysBusy(Rule):
    """Whoever is idle longest comes first, as long as fewer than ``concurrency`` jobs are in flight."""

    def __init__(self, seed=0, concurrency=None, restart=None, early=False):
        super().__init__(seed)
        self.concurrency, self.restart, self.early = concurrency, restart, early
        self.clock = 0
        self.idle_since = {}

    def note_idle(self, worker):
        self.clock += 1
        self.idle_since[worker] = self.clock

    def joined(self, worker):
        super().joined(worker)
        self.note_idle(worker)

    def left(self, worker):
        super().left(worker)
        self.idle_since.pop(worker, None)

    def ended(self, worker, arrived):
        self.note_idle(worker)

    def unwanted(self, flight, version):
        if self.restart is None:
            return []
        return [job.id for job in flight if version - job.version >= self.restart]

    def next_workers(self, busy):
        busy, picked = list(busy), []
        while len(busy) < (len(self.workers) if self.concurrency is None else self.concurrency):
            idle = [worker for worker in self.workers if worker not in busy]
            if not idle:
                break
            first = min(idle, key=lambda worker: self.idle_since[worker])
            busy.append(first)
            picked.append(first)
        return picked


class Batch(Rule):
    """Everybody present, in order of joining, once nothing is in flight."""

    def next_workers(self, busy):
        return [] if busy else list(self.workers)


class Uniform(Rule):
    """Keep ``concurrency`` jobs in flight, each for a worker drawn uniformly from all, busy or not."""

    def __init__(self, seed=0, concurrency=1, early=False):
        super().__init__(seed)
        self.concurrency, self.early = concurrency, early

    def next_workers(self, busy):
        picked = []
        while self.workers and len(busy) + len(picked) < self.concurrency:
            picked.append(self.workers[self.draw(len(self.workers))])
        return picked


class Shuffled(Rule):
    """Like Uniform, but along a random order of all workers; a fresh order when one is used up."""

    def __init__(self, seed=0, concurrency=1):
        super().__init__(seed)
        self.concurrency = concurrency
        self.order = []  # who is still to come in this order

    def left(self, worker):
        super().left(worker)
        self.order = [other for other in self.order if other != worker]

    def next_workers(self, busy):
        picked = []
        while self.workers and len(busy) + len(picked) < self.concurrency:
            if not self.order:
                self.order = shuffled(self.workers, self.draw)
            picked.append(self.order[0])
            self.order = self.order[1:]
        return picked


class FirstOf(Rule):
    """Rounds: ask ``ask`` workers without replacement, keep the first ``goal`` answers, cancel the rest."""

    def __init__(self, seed=0, goal=1, ask=None):
        super().__init__(seed)
        self.goal = goal
        self.ask = goal if ask is None else ask
        self.asked = []  # those asked in this round, in order
        self.unasked = []
        self.kept = 0

    def joined(self, worker):
        super().joined(worker)
        self.unasked = [*self.unasked, worker]

    def left(self, worker):
        super().left(worker)
        self.asked = [other for other in self.asked if other != worker]
        self.unasked = [other for other in self.unasked if other != worker]

    def ended(self, worker, arrived):
        if arrived:
            self.kept += 1

    def unwanted(self, flight, version):
        if self.kept < self.goal:
            return []
        self.kept = 0
        self.everybody_again()
        return [job.id for job in flight]

    def everybody_again(self):
        self.asked, self.unasked = [], self.asked + self.unasked

    def next_workers(self, busy):
        if not busy and not self.unasked:
            self.everybody_again()  # all were asked and it was not enough: the round asks once more
        picked = []
        while self.unasked and self.kept + len(busy) + len(picked) < self.ask:
            k = self.draw(len(self.unasked))
            picked.append(self.unasked[k])
            self.unasked[k] = self.unasked[0]  # Fisher and Yates: the first one takes the drawn one's place
            self.unasked = self.unasked[1:]
        self.asked = self.asked + picked
        return picked


def shuffled(workers, draw):
    """A random order: every place gets one of those not placed yet (Fisher and Yates, from the front)."""
    rest, order = list(workers), []
    while len(rest) > 1:
        k = draw(len(rest))
        order.append(rest[k])
        rest[k] = rest[0]
        rest = rest[1:]
    return order + rest
