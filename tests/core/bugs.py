"""Servers with one bug each, put in on purpose: the smallest change that makes the real one wrong."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import pytest

from asyncsgd.core import server as module
from asyncsgd.core import validate
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import STREAM, AlwaysBusy
from asyncsgd.core.events import Arrival, Arrived, Changed, Drain, Ended, Event, Job, Outcome, Reply
from asyncsgd.core.jobs import Batches
from asyncsgd.core.random import derive
from asyncsgd.core.server import Server
from asyncsgd.core.update import Points, Update
from asyncsgd.core.vectors import Vector

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks the code and returns the class of server to use; ``check`` names the check that sees it."""

    plant: Callable[[Patch], type[Server]]
    check: str
    method: str


# ------------------------------------------------------------------------------------------ the model


def aliasing(patch: Patch) -> type[Server]:
    """Points in flight share the live buffer, which is updated in place."""
    patch.setattr(Points, "target", lambda self, done: (self._current, self._buffers[self._current]))
    return Server


def overwrites_a_shared_point(patch: Patch) -> type[Server]:
    """A move overwrites the point of its arrival, though another job reads it too."""
    right = Points.target

    def target(self: Points, done: int | None = None) -> tuple[int, Vector]:
        return right(self) if done is None else (done, self._buffers[done])

    patch.setattr(Points, "target", target)
    return Server


def dispatch_before_applying(patch: Patch) -> type[Server]:
    """The next job leaves with the model as it was before the arrival, though the rule is not an early one."""
    inside = []
    patch.setattr(AlwaysBusy, "early", property(lambda self: bool(inside)))

    class Buggy(Server):
        def handle(self, event: Event) -> Reply:
            inside.append(event)
            try:
                return super().handle(event)
            finally:
                inside.pop()

    return Buggy


def applied_twice(patch: Patch) -> type[Server]:
    """The arrival moves the model twice."""
    once = Update.apply

    def twice(self: Update, arrival: Arrival, g: Vector, weight: float) -> tuple[Outcome, float]:
        once(self, arrival, g, weight)
        return once(self, arrival, g, weight)

    patch.setattr(Update, "apply", twice)
    return Server


def applied_with_twice_the_step(patch: Patch) -> type[Server]:
    """The arrival moves the model once, twice as far: no counter shows it."""
    once = Update.apply
    patch.setattr(Update, "apply", lambda self, arrival, g, weight: once(self, arrival, g, 2 * weight))
    return Server


def buffer_keeps_its_content(patch: Patch) -> type[Server]:
    """After a flush the sum goes on from where it was."""

    def add(self: Buffer, state: dict[str, Any], g: Vector, stepsize: float, weight: float, arrival: Arrival) -> Any:
        state["total"] += weight * g
        state["held"] += 1
        if state["held"] < self.size:
            return None
        state["held"] = 0
        return state["total"] / self.size, stepsize

    patch.setattr(Buffer, "add", add)
    return Server


# ------------------------------------------------------------------------------------------ counting


def _arrival(patch: Patch, change: Callable[[dict[str, Any]], None]) -> type[Server]:
    def make(*values: Any) -> Arrival:
        facts = dict(zip([field.name for field in fields(Arrival)], values, strict=True))
        change(facts)
        return Arrival(**facts)

    patch.setattr(module, "Arrival", make)
    return Server


def delay_off_by_one(patch: Patch) -> type[Server]:
    """τ = t - s + 1, as the paper's Remark 5 counts it."""
    return _arrival(patch, lambda facts: facts.update(delay=facts["delay"] + 1))


def assignment_off_by_one(patch: Patch) -> type[Server]:
    """A job is said to have been assigned one iteration later than it was."""

    def late(*values: Any) -> Job:
        job = Job(*values)
        return replace(job, iteration=job.iteration + 1, entered=job.entered + 1)

    patch.setattr(module, "Job", late)
    return Server


def staleness_in_iterations(patch: Patch) -> type[Server]:
    """Staleness counts arrivals instead of changes of the model."""
    return _arrival(patch, lambda facts: facts.update(staleness=facts["delay"]))


# ------------------------------------------------------------------------------------------ the life of a job


def lost_job_stays(patch: Patch) -> type[Server]:
    """A lost job is recorded as lost and remains in C_t."""

    class Buggy(Server):
        def _end(self, job: Job, outcome: Outcome) -> Ended:
            kept, lent = self._active[job.id], self._update.points._current
            ended = super()._end(job, outcome)
            if outcome is Outcome.LOST:
                self._active[job.id] = kept
                self._update.points._readers[lent] += 1
            return ended

    return Buggy


def lost_job_counts_once_more(patch: Patch) -> type[Server]:
    """A lost job is said to have left C_t one iteration later than it did."""

    class Buggy(Server):
        def _end(self, job: Job, outcome: Outcome) -> Ended:
            e = super()._end(job, outcome)
            return Ended(e.job, e.outcome, e.iteration + 1, e.version, e.step, e.concurrency, e.workers)

    return Buggy


def last_in_first_out(patch: Patch) -> type[Server]:
    """A new job goes to the front of its worker's queue."""

    class Stack(deque[int]):
        def append(self, job: int) -> None:
            self.appendleft(job)

    patch.setattr(module, "deque", Stack)
    return Server


def any_order(patch: Patch) -> type[Server]:
    """A worker's later job is taken before an earlier one."""
    patch.setattr(Server, "_check_order", lambda self, job: None)
    return Server


# ------------------------------------------------------------------------------------------ draining, batches, steps


def drain_forgotten(patch: Patch) -> type[Server]:
    """The server says that it drains, and still hands out jobs."""

    class Buggy(Server):
        def _assign_next(self, *arguments: Any, **options: Any) -> None:
            left, self._batches.left = self._batches.left, None
            super()._assign_next(*arguments, **options)
            self._batches.left = left

    return Buggy


def picked_and_forgotten(patch: Patch) -> type[Server]:
    """A worker that was picked when no mini-batch was left is never idle again."""
    ended = AlwaysBusy.ended

    class Buggy(Server):
        def _drain(self, event: Drain) -> Reply:
            patch.setattr(AlwaysBusy, "ended", lambda *arguments: None)
            try:
                return super()._drain(event)
            finally:
                patch.setattr(AlwaysBusy, "ended", ended)

        def _joined(self, event: Any) -> Reply:
            patch.setattr(AlwaysBusy, "ended", lambda *arguments: None)
            try:
                return super()._joined(event)
            finally:
                patch.setattr(AlwaysBusy, "ended", ended)

    return Buggy


def drain_not_saved(patch: Patch) -> type[Server]:
    """A restored server hands out jobs again."""

    class Buggy(Server):
        def state(self) -> dict[str, Any]:
            state = super().state()
            state["batches"]["left"] = None
            return state

    return Buggy


def batch_counts_jobs(patch: Patch) -> type[Server]:
    """A job of three steps hands out one mini-batch only, so the next job computes two of them again."""
    once = Batches.take

    def take(self: Batches, worker: int) -> tuple[int, int]:
        steps, batch = once(self, worker)
        return steps, batch // self.steps

    patch.setattr(Batches, "take", take)
    return Server


def batches_of_a_worker_that_left(patch: Patch) -> type[Server]:
    """A worker that comes back begins its data from the start."""

    class Buggy(Server):
        def _left(self, event: Any) -> Reply:
            if self._batches.by_worker is not None:
                self._batches.by_worker.pop(event.worker, None)
            return super()._left(event)

    return Buggy


def step_factor_ignored(patch: Patch) -> type[Server]:
    """The server remembers the factor and does not use it."""
    once = Update.apply

    def apply(self: Update, arrival: Arrival, g: Vector, weight: float) -> tuple[Outcome, float]:
        factor, self.factor = self.factor, 1.0
        try:
            return once(self, arrival, g, weight)
        finally:
            self.factor = factor

    patch.setattr(Update, "apply", apply)
    return Server


def step_factor_replaced(patch: Patch) -> type[Server]:
    """A second factor takes the place of the first one."""

    class Buggy(Server):
        def _changed(self, event: Changed) -> Reply:
            self._update.factor = 1.0
            return super()._changed(event)

    return Buggy


def step_factor_not_saved(patch: Patch) -> type[Server]:
    """A restored server takes the steps of the method again."""

    class Buggy(Server):
        def state(self) -> dict[str, Any]:
            state = super().state()
            state["update"]["factor"] = 1.0
            return state

    return Buggy


# ------------------------------------------------------------------------------------------ errors and files


def check_after_mutate(patch: Patch) -> type[Server]:
    """The iteration has been counted when the update turns out to be unusable."""

    class Buggy(Server):
        def _arrived(self, event: Arrived) -> Reply:
            job, _ = self._find(event.job, event.worker)
            self._check_order(job)
            self.iteration += 1
            validate.check_update(event.update, self.x, job.worker, job.id)
            self.iteration -= 1
            return super()._arrived(event)

    return Buggy


def arrival_ends_last(patch: Patch) -> type[Server]:
    """The reply names the jobs that an arrival cancelled before the job that arrived."""

    class Buggy(Server):
        def handle(self, event: Event) -> Reply:
            reply = super().handle(event)
            return replace(reply, ended=reply.ended[::-1])

    return Buggy


def random_state_not_saved(patch: Patch) -> type[Server]:
    """A restored server draws again what was drawn at the start."""

    class Buggy(Server):
        def state(self) -> dict[str, Any]:
            state = super().state()
            state["dispatch"]["random"] = derive(self.seed, STREAM)
            return state

    return Buggy


def buffer_not_saved(patch: Patch) -> type[Server]:
    """A restored server has lost what lay in the buffer."""

    class Buggy(Server):
        def state(self) -> dict[str, Any]:
            state = super().state()
            state["update"]["memory"]["aggregation"] |= {"held": 0, "total": np.zeros_like(self.x)}
            return state

    return Buggy


def nan_taken(patch: Patch) -> type[Server]:
    """NaN passes the check."""
    patch.setattr(validate, "is_finite", lambda g: True)
    return Server


def repeated_taken(patch: Patch) -> type[Server]:
    """The update of a job that has ended is taken for that of the oldest job in flight."""

    class Buggy(Server):
        def handle(self, event: Event) -> Reply:
            if isinstance(event, Arrived) and event.job not in self._active and self._active:
                event = Arrived(next(iter(self._active)), event.update)
            return super().handle(event)

    return Buggy


BUGS = {
    "aliasing": Bug(aliasing, "points", "plain"),
    "overwrites_a_shared_point": Bug(overwrites_a_shared_point, "points", "compiled"),
    "dispatch_before_applying": Bug(dispatch_before_applying, "assigned", "plain"),
    "applied_twice": Bug(applied_twice, "version", "plain"),
    "applied_with_twice_the_step": Bug(applied_with_twice_the_step, "model", "plain"),
    "buffer_keeps_its_content": Bug(buffer_keeps_its_content, "model", "buffer"),
    "delay_off_by_one": Bug(delay_off_by_one, "delay", "plain"),
    "assignment_off_by_one": Bug(assignment_off_by_one, "assigned", "uniform"),
    "staleness_in_iterations": Bug(staleness_in_iterations, "staleness", "buffer"),
    "lost_job_stays": Bug(lost_job_stays, "(in flight|record)", "uniform"),
    "lost_job_counts_once_more": Bug(lost_job_counts_once_more, "record", "uniform"),
    "last_in_first_out": Bug(last_in_first_out, "FIFO", "uniform"),
    "any_order": Bug(any_order, "errors", "uniform"),
    "drain_forgotten": Bug(drain_forgotten, "drain", "uniform"),
    "picked_and_forgotten": Bug(picked_and_forgotten, "concurrency", "plain"),
    "drain_not_saved": Bug(drain_not_saved, "restore", "plain"),
    "batch_counts_jobs": Bug(batch_counts_jobs, "batch", "local"),
    "batches_of_a_worker_that_left": Bug(batches_of_a_worker_that_left, "batch", "local"),
    "step_factor_ignored": Bug(step_factor_ignored, "(step|model)", "buffer"),
    "step_factor_replaced": Bug(step_factor_replaced, "(step|model)", "plain"),
    "step_factor_not_saved": Bug(step_factor_not_saved, "restore", "plain"),
    "check_after_mutate": Bug(check_after_mutate, "refusal", "plain"),
    "arrival_ends_last": Bug(arrival_ends_last, "once", "cancels"),
    "random_state_not_saved": Bug(random_state_not_saved, "restore", "uniform"),
    "buffer_not_saved": Bug(buffer_not_saved, "restore", "buffer"),
    "nan_taken": Bug(nan_taken, "errors", "plain"),
    "repeated_taken": Bug(repeated_taken, "errors", "uniform"),
}
