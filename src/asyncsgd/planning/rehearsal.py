"""One candidate on the simulated clock: no numbers of a model, only who finishes when."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asyncsgd.planning.candidates import ALGORITHM2, Candidate
from asyncsgd.planning.fleet import GROUPS, Fleet
from asyncsgd.simulation.lowering import weigh
from asyncsgd.simulation.schedule import Schedule, schedule
from asyncsgd.trace import Delays, Trace

Floats = NDArray[np.float64]

FEWEST, MOST = 50_000, 300_000
"""Gradients that are simulated: enough for 1 % and few enough for a second."""
ROUNDS = (30, 20_000)
BLOCKS = 20
WARM_UP = 5
"""The first so many of the blocks are not measured: queues build up in them."""
DRIFT = 0.03
"""Later blocks slower than earlier ones by more than this, and by more than chance explains: not settled."""


@dataclass(frozen=True)
class Group:
    """What becomes of the workers of one group."""

    name: str
    workers: int
    share: float
    """Of all gradients that reach the model, how many are theirs."""
    average_delay: float | None
    """None if no job of theirs ever arrives."""
    maximum_delay: int | None


@dataclass(frozen=True, eq=False)
class Rehearsal:
    """What a simulated run says about a candidate."""

    iterations: int
    seconds: float
    """Per gradient that reaches the model."""
    error: float
    """One standard error of that."""
    settled: bool
    """Whether later parts of the run were as fast as earlier ones and the slowest worker had its turns; if not, expect
    it to get slower still, and longer delays."""
    delays: Delays = field(repr=False)
    groups: tuple[Group, ...] = ()
    waits: Floats | None = field(default=None, repr=False)
    """For rounds: mean seconds until the first, second, ... answer of a round."""


def length(candidate: Candidate, fleet: Fleet) -> int:
    """How many gradients to simulate: whole rounds, or thirty turns of the slowest worker, if that is not too many."""
    jobs = candidate.concurrency
    if candidate.rounds:
        fewest, most = ROUNDS
        rounds = min(max(2 * FEWEST // candidate.batch, fewest), most, max(3, MOST // candidate.batch))
        return candidate.batch * rounds
    wanted = min(max(30 * turn(candidate, fleet), FEWEST), MOST)
    whole = BLOCKS * jobs if BLOCKS * jobs <= MOST else BLOCKS
    return whole * math.ceil(wanted / whole)


def turn(candidate: Candidate, fleet: Fleet) -> float:
    """About how many gradients arrive while the slowest worker computes one."""
    slowest = float(fleet.means.max())
    if candidate.method == ALGORITHM2:  # everybody gets as many jobs as everybody else
        return max(candidate.concurrency * slowest / float(fleet.means.mean()), fleet.workers)
    return candidate.concurrency * slowest * float((1 / fleet.means).mean())


def rehearse(candidate: Candidate, fleet: Fleet, seed: int) -> Rehearsal:
    """Simulate the candidate long enough for its speed and its delays; the delay identity is checked."""
    method = candidate.build()
    plan = schedule(method.dispatch, fleet.durations, iterations=length(candidate, fleet), seed=seed)
    weighed = weigh(plan.arrivals(), method)
    trace = plan.with_outcomes(weighed, weighed.weight, {"method": method.name})
    trace.check(early=False)
    settled, waits = True, None
    if candidate.rounds:
        seconds, error, waits = _by_rounds(plan, candidate.batch)
    else:
        seconds, error, settled = _by_blocks(plan)
        settled = settled and plan.iterations >= turn(candidate, fleet)
    return Rehearsal(
        iterations=plan.iterations,
        seconds=seconds,
        error=error,
        settled=settled,
        delays=trace.delays,
        groups=_groups(trace, fleet),
        waits=waits,
    )


def _by_rounds(plan: Schedule, batch: int) -> tuple[float, float, Floats]:
    """Rounds are alike and independent, so every one of them counts."""
    time = plan.arrival_time.reshape(-1, batch)
    begin = np.concatenate([[0.0], time[:-1, -1]])
    took = time[:, -1] - begin
    waits = (time - begin[:, None]).mean(axis=0)
    return float(took.mean() / batch), float(took.std() / math.sqrt(len(took)) / batch), waits


def _by_blocks(plan: Schedule) -> tuple[float, float, bool]:
    """Blocks of whole turns of all jobs in flight, so that equal durations, which arrive in bursts, give no error."""
    ends = plan.arrival_time[:: -(plan.iterations // BLOCKS)][::-1]
    blocks = np.diff(ends)[WARM_UP - 1 :] / (plan.iterations // BLOCKS)
    half = len(blocks) // 2
    early, late = blocks[:half].mean(), blocks[-half:].mean()
    error = float(blocks.std(ddof=1) / math.sqrt(len(blocks)))
    settled = bool(late - early <= max(DRIFT * early, 4 * error))
    return float(blocks.mean()), error, settled


def _groups(trace: Trace, fleet: Fleet) -> tuple[Group, ...]:
    jobs = trace.jobs
    counted = jobs.arrived | jobs.in_flight
    delay = np.where(jobs.in_flight, trace.iterations, jobs.ended_iteration) - jobs.assigned_iteration
    owner, member = fleet.group[jobs.worker], np.bincount(fleet.group, minlength=len(GROUPS))
    groups = []
    for place, name in enumerate(GROUPS):
        if member[place]:
            arrived = jobs.arrived & (owner == place)
            theirs = delay[counted & (owner == place)]
            some = bool(arrived.any())
            groups.append(
                Group(
                    name=name,
                    workers=int(member[place]),
                    share=int(arrived.sum()) / trace.iterations,
                    average_delay=float(theirs.mean()) if some else None,
                    maximum_delay=int(theirs.max()) if some else None,
                )
            )
    return tuple(groups)
