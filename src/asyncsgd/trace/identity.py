"""The integer identity: the delays must add up to the concurrency, in every run and method."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncsgd.core.errors import IdentityViolation
from asyncsgd.trace.columns import Ints, Jobs, active
from asyncsgd.trace.structure import check_structure

SUSPECTS = 8
"""How many rows a message names at most."""


@dataclass(frozen=True)
class Identity:
    """Both sides of the identity; the left one is split by what became of the jobs."""

    delays: int
    """Σ (τ_t + 1) over the arrivals; a job re-sampled early counts τ_t."""
    in_flight: int
    """Σ (T - s_i + 1) over the jobs in flight at T; likewise."""
    others: int
    """The iterations that lost, rejected and cancelled jobs spent in C_t."""
    concurrency: int
    """Σ_{t=0..T} |C_t| as the server counted."""

    @property
    def total(self) -> int:
        """The left side: what all jobs add."""
        return self.delays + self.in_flight + self.others


def verify(jobs: Jobs, final_concurrency: int | None, *, early: bool = True) -> Identity:
    """Check the structure, then |C_t| for each t, then the two sums."""
    iterations = int(np.count_nonzero(jobs.arrived))
    check_structure(jobs, iterations, early=early)
    counted = active(jobs, iterations)
    found = counted.copy()  # what the server counted; C_T only if it was asked
    found[jobs.ended_iteration[jobs.arrived]] = jobs.concurrency[jobs.arrived]
    if final_concurrency is not None:
        found[-1] = final_concurrency
    if (counted != found).any():
        raise IdentityViolation(_explain(jobs, iterations, counted, found))

    until = np.where(jobs.in_flight, iterations, jobs.ended_iteration)
    delay = until - jobs.assigned_iteration
    in_sets = delay + 1 - (jobs.entered - jobs.assigned_iteration)
    neither = ~(jobs.arrived | jobs.in_flight)
    identity = Identity(
        delays=int(in_sets[jobs.arrived].sum()),
        in_flight=int(in_sets[jobs.in_flight].sum()),
        others=int((in_sets[neither] - 1).sum()),  # it left before iteration ``ended_iteration``
        concurrency=int(found.sum()),
    )
    if identity.total != identity.concurrency:  # cannot be, after the check above; the sums are what is promised
        raise IdentityViolation(f"the jobs add {identity.total}, the concurrency {identity.concurrency}: {identity}")
    return identity


def _explain(jobs: Jobs, iterations: int, counted: Ints, found: Ints) -> str:
    """Name the first t that does not add up, and the rows that could be to blame.

    One wrong end of one row shifts |C_t| by the same amount on one stretch of t, and that row begins or ends
    at one of the two borders. So the stretch is enough to find the suspects.
    """
    excess = counted - found
    first = int(np.argmax(excess != 0))
    stop = first + int(np.argmax(np.append(excess[first:], 0) != excess[first]))
    too_many = excess[first] > 0
    starts, ends = (first, stop) if too_many else (stop, first)

    suspects = []
    if stop == first + 1 and first < iterations:
        row = int(np.flatnonzero(jobs.arrived & (jobs.ended_iteration == first))[0])
        suspects.append(f"{jobs.name(row)} arrived at iteration {first} and recorded |C_{first}| = {found[first]}")
    leaves = ~jobs.arrived & ~jobs.in_flight & (jobs.ended_iteration == ends)
    suspects += [f"{jobs.name(int(row))} left before C_{ends}" for row in np.flatnonzero(leaves)]
    suspects += [f"{jobs.name(int(row))} entered C_{starts}" for row in np.flatnonzero(jobs.entered == starts)]
    if not too_many:
        suspects.append("a job is missing")
    more = f"; and {len(suspects) - SUSPECTS} more" if len(suspects) > SUSPECTS else ""
    where = f"t = {first}" if stop == first + 1 else f"t = {first}..{stop - 1}"
    return (
        f"iteration {first}: by the delays C_{first} holds {counted[first]} jobs,"
        f" the server counted {found[first]} (the difference is the same for {where}). Suspect: "
        + "; ".join(suspects[:SUSPECTS])
        + more
    )
