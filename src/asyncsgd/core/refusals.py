"""The errors with which a server refuses an event that cannot happen: each names the job or worker, and the fix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from asyncsgd.core import errors
from asyncsgd.core.events import Outcome
from asyncsgd.core.validate import is_id


def unknown_event(event: Any) -> errors.BadEvent:
    """Return the error for something that is not an event."""
    return errors.BadEvent(f"{event!r} is not an event; pass Arrived, Lost, Joined, Left, Changed or Drain")


def unknown_job(job: Any, jobs: int) -> errors.UnknownJob:
    """Return the error for a job that was never assigned; ``jobs`` were."""
    return errors.UnknownJob(
        f"job {job!r} was never assigned, only {jobs} jobs from 0 on; answer with the id of an assigned job"
    )


def ended_job(job: int, outcome: Outcome) -> errors.WorkerError:
    """Return the error for a job that has ended already."""
    if outcome is Outcome.CANCELLED:
        return errors.CancelledJob(f"job {job} was cancelled; its update comes too late, drop it")
    kind = errors.RepeatedJob if outcome.arrived else errors.EndedJob
    fix = "report every job once" if outcome.arrived else "drop this update"
    return kind(f"job {job} has ended already as {outcome.name.lower()}; {fix}")


def wrong_worker(worker: Any, job: int, owner: int) -> errors.AsyncSGDError | None:
    """Return the error for a worker that answered a job of another one; None if ``worker`` is the owner after all."""
    if not is_id(worker):
        return errors.BadEvent(
            f"worker {worker!r} answered job {job}; pass the whole number that it joined with, or no worker"
        )
    if worker == owner:
        return None
    return errors.WrongWorker(
        f"worker {worker} answered job {job}, which belongs to worker {owner}; answer only jobs assigned to you"
    )


def out_of_order(worker: int, job: int, first: int) -> errors.OutOfOrder:
    """Return the error for a job that arrived before an earlier one of the same worker."""
    return errors.OutOfOrder(
        f"worker {worker} answered job {job} before job {first}; jobs of a worker run first in, "
        f"first out: report job {first} first, as arrived or lost"
    )


def torn(method: str, iteration: int) -> errors.TornServer:
    """Return the error for any use of a server that a part of its method left half changed."""
    return errors.TornServer(
        f"a part of {method} raised half-way at iteration {iteration}, so the server's state is "
        "not consistent; restore it with Server.restore from a state that was saved before"
    )


def absent(worker: Any, present: Sequence[int]) -> errors.BadEvent:
    """Return the error for a worker that leaves without having joined."""
    shown = ", ".join(map(str, present[:8])) or "none"
    if len(present) > 8:
        shown += f", … ({len(present)} in all)"
    return errors.BadEvent(
        f"worker {worker!r} left but is not present; report only workers that joined, present are {shown}"
    )


def other_parts(method: Any, saved: Sequence[str]) -> errors.BadParameter:
    """Return the error for a state that was saved with another method."""
    problem = f"has the parts {list(method.parts)}, the saved state {list(saved)}"
    fix = "restore with the method it was saved with (hyper-parameters may differ)"
    return errors.BadParameter("method", method.name, problem, fix)
