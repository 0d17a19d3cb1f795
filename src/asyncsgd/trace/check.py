"""What `Trace.check` does: check every row, then the integer identity between delays and concurrency."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from asyncsgd.core.errors import IdentityViolation, TraceError
from asyncsgd.core.events import Outcome
from asyncsgd.trace.columns import ARRIVED, IN_FLIGHT, Floats, Ints, Jobs, Mask, active


def check_structure(jobs: Jobs, iterations: int, *, early: bool) -> None:
    """Raise ``TraceError`` for the first rule that a row breaks, naming its job, worker and values."""
    # Rules about a single row come first: a later rule would report another row for the same mistake.
    _identities(jobs)
    _in_flight(jobs)
    _steps(jobs)
    _work(jobs)
    _times(jobs)
    _spans(jobs, early)
    _arrivals(jobs, iterations)
    _order(jobs, iterations)
    _versions(jobs, iterations)


def _first(broken: Mask) -> int | None:
    row = int(np.argmax(broken)) if len(broken) else 0
    return row if len(broken) and broken[row] else None


def _complain(jobs: Jobs, row: int, sentence: str) -> NoReturn:
    raise TraceError(f"{jobs.name(row)}: {sentence}")


def _identities(jobs: Jobs) -> None:
    if (row := _first(jobs.job != np.arange(len(jobs)))) is not None:
        _complain(
            jobs,
            row,
            f"is in row {row}, where job {row} belongs; jobs are numbered 0, 1, 2, ... without gaps",
        )
    if (row := _first(jobs.outcome >= len(ARRIVED))) is not None:
        _complain(
            jobs,
            row,
            f"outcome code {jobs.outcome[row]} is unknown; the last known one is {len(ARRIVED) - 1}",
        )


def _in_flight(jobs: Jobs) -> None:
    for name, value in IN_FLIGHT.items():
        column = getattr(jobs, name)
        unset = np.isnan(column) if np.isnan(value) else column == value
        if (row := _first(jobs.in_flight & ~unset)) is not None:
            _complain(jobs, row, f"has {name} = {column[row]} although it has not ended; it should be {value}")


def _spans(jobs: Jobs, early: bool) -> None:
    assigned, entered, ended = jobs.assigned_iteration, jobs.entered, jobs.ended_iteration
    done = ~jobs.in_flight
    if (row := _first(assigned < 0)) is not None:
        _complain(jobs, row, f"was assigned x^({assigned[row]}); iterations count from 0")
    if (row := _first((entered != assigned) & (entered != assigned + early))) is not None:
        s = int(assigned[row])
        allowed = f"C_{s}" + (f", or C_{s + 1} if it was re-sampled early" if early else "")
        _complain(jobs, row, f"was assigned x^({s}) but entered C_{entered[row]}; it must enter {allowed}")
    if (row := _first(done & (ended < assigned))) is not None:
        sentence = f"ended at {ended[row]}, assigned x^({assigned[row]}): delay {ended[row] - assigned[row]} < 0"
        _complain(jobs, row, sentence)
    if (row := _first(done & (ended < entered))) is not None:
        _complain(jobs, row, f"ended at iteration {ended[row]}, before it entered C_{entered[row]}")
    if (row := _first(done & (jobs.workers < 0))) is not None:
        _complain(jobs, row, f"ended with {jobs.workers[row]} workers present; there cannot be fewer than 0")


def _arrivals(jobs: Jobs, iterations: int) -> None:
    rows = np.flatnonzero(jobs.arrived)
    at = jobs.ended_iteration[rows]
    times = np.bincount(np.minimum(at, iterations), minlength=iterations + 1)[:iterations]
    if (times == 1).all():
        return
    missing = f"(no row arrived at iteration {int(np.argmin(times))})"
    if (which := _first(at >= iterations)) is not None:
        sentence = f"arrived at iteration {at[which]}, but {iterations} arrivals end at {iterations - 1} {missing}"
        _complain(jobs, int(rows[which]), sentence)
    t = int(np.argmax(times))
    one, other = (int(row) for row in rows[at == t][:2])
    _complain(jobs, other, f"arrived at iteration {t}, and so did {jobs.name(one)} {missing}")


def _order(jobs: Jobs, iterations: int) -> None:
    for what, column in (("entered C_t at", jobs.entered), ("ended at", jobs.ended_iteration)):
        if (row := _first(column > iterations)) is not None:
            _complain(jobs, row, f"{what} iteration {column[row]}, but the run has only {iterations} arrivals")
    # Jobs are numbered in the order of assignment, and none of these columns ever decreases.
    for name in ("assigned_iteration", "entered", "assigned_version"):
        column = getattr(jobs, name)
        if (row := _first(np.diff(column) < 0)) is not None:
            earlier, later = f"{jobs.name(row)} before it has {column[row]}", row + 1
            _complain(jobs, later, f"has {name} {column[later]}, but {earlier}; one of the two rows is wrong")


def _versions(jobs: Jobs, iterations: int) -> None:
    row_of = np.empty(iterations, dtype=np.int64)
    row_of[jobs.ended_iteration[jobs.arrived]] = np.flatnonzero(jobs.arrived)
    version = jobs.ended_version[row_of]  # of x^(t), as arrival t saw it
    if (t := _first(np.diff(version) < 0)) is not None:
        earlier = f"{jobs.name(int(row_of[t]))} saw {version[t]} before"
        _complain(jobs, int(row_of[t + 1]), f"saw version {version[t + 1]}, but {earlier}; versions only grow")

    start, end = jobs.assigned_version, jobs.ended_version
    if (row := _first(~jobs.in_flight & (end < start))) is not None:
        _complain(jobs, row, f"saw version {start[row]}, then {end[row]}: staleness {end[row] - start[row]} < 0")

    # x^(s) is one point and has one version. So this also catches a delay that is off by one.
    newest = start[jobs.assigned_iteration == iterations]
    last = newest.max(initial=version.max(initial=0))
    expected = np.append(version, last)[jobs.assigned_iteration]
    if (row := _first(start != expected)) is not None:
        s = int(jobs.assigned_iteration[row])
        other = f"{jobs.name(int(row_of[s]))}, arriving then," if s < iterations else "another row"
        _complain(jobs, row, f"was assigned x^({s}) in version {start[row]}; {other} says {expected[row]}")

    # A job may be cancelled while the server handles arrival t, before or after the model changes. The version
    # after the last arrival is unknown.
    others = np.flatnonzero(~(jobs.in_flight | jobs.arrived))
    when, found = jobs.ended_iteration[others], end[others]
    least, most = np.append(0, version)[when], np.append(version, np.iinfo(np.int64).max)[when]
    if (which := _first((found < least) | (found > most))) is not None:
        allowed = f"{least[which]}..{most[which]}"
        _complain(jobs, int(others[which]), f"ended in version {found[which]}; the arrivals around it say {allowed}")


def _steps(jobs: Jobs) -> None:
    applied = jobs.outcome == Outcome.APPLIED
    if (row := _first(applied & ~(np.isfinite(jobs.step) & (jobs.step >= 0)))) is not None:
        _complain(jobs, row, f"was applied with step {jobs.step[row]}; a step is a finite number, 0 or larger")
    if (row := _first(~applied & ~jobs.in_flight & (jobs.step != 0))) is not None:
        _complain(jobs, row, f"was not applied, yet its step is {jobs.step[row]}; it should be 0")


def _work(jobs: Jobs) -> None:
    if (row := _first(jobs.steps < 1)) is not None:
        _complain(jobs, row, f"computes {jobs.steps[row]} mini-batches; a job computes at least 1")
    if (row := _first(jobs.batch < 0)) is not None:
        _complain(jobs, row, f"was assigned after {jobs.batch[row]} mini-batches; they count from 0")
    if (row := _first(jobs.examples < -1)) is not None:
        _complain(jobs, row, f"used {jobs.examples[row]} examples; pass 0 or more, or -1 if unknown")
    if (row := _first((jobs.seconds < 0) | np.isinf(jobs.seconds))) is not None:
        _complain(jobs, row, f"took {jobs.seconds[row]} seconds; pass 0 or more, or NaN if unknown")


def _times(jobs: Jobs) -> None:
    start, end = jobs.assigned_time, jobs.ended_time
    if np.isnan(start).all() and np.isnan(end).all():
        return  # the recorder had no clock
    done: Floats = np.where(jobs.in_flight, start, end)
    if (row := _first(~(np.isfinite(start) & np.isfinite(done)))) is not None:
        _complain(jobs, row, f"went from time {start[row]} to {end[row]}; times are finite, or NaN in every row")
    if (row := _first(done < start)) is not None:
        _complain(jobs, row, f"ended at time {end[row]}, before it was assigned at {start[row]}; use one clock")


SUSPECTS = 8
"""The largest number of rows that a message names."""


@dataclass(frozen=True)
class Identity:
    """Both sides of the identity; the left side is split by how the jobs ended."""

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
        """The left side: the sum over all jobs."""
        return self.delays + self.in_flight + self.others


def verify(jobs: Jobs, final_concurrency: int | None, *, early: bool = True) -> Identity:
    """Check the structure, then |C_t| for each t, then the two sums."""
    iterations = int(np.count_nonzero(jobs.arrived))
    check_structure(jobs, iterations, early=early)
    counted = active(jobs, iterations)
    found = counted.copy()  # what the server counted, C_T only if it is recorded
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
        others=int((in_sets[neither] - 1).sum()),  # each left before iteration ``ended_iteration``
        concurrency=int(found.sum()),
    )
    if identity.total != identity.concurrency:  # impossible after the check above, but promised
        raise IdentityViolation(f"the jobs add {identity.total}, the concurrency {identity.concurrency}: {identity}")
    return identity


def _explain(jobs: Jobs, iterations: int, counted: Ints, found: Ints) -> str:
    """Name the first t at which the counts differ, and the rows that could be wrong.

    One wrong end of one row shifts |C_t| by the same amount on one stretch of t, and that row begins or ends
    at one of the two borders. So the stretch is enough to find the suspect rows.
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
