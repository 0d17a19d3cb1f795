"""Who finishes when: the dispatch rules of the core on a compiled clock. Integers and times only, no vectors.

It repeats `asyncsgd.simulate.clock.play` for the rules of `asyncsgd.core.dispatch`, draw by draw and tie by tie;
the tests hold the two against each other. What it writes, it writes in order: jobs as they are assigned, arrivals
as they come.

What is in flight stands at the leaves of a tournament: every node holds the earlier of the two below it, so the next
arrival is at the root, and a new job in the freed place replays one path. Which nodes that touches is known beforehand
and no branch depends on who wins, so neither the cache nor the processor has to guess, as it has with a heap.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncsgd.compiled.jit import borrowing
from asyncsgd.compiled.random import below
from asyncsgd.simulate.durations.base import FIXED
from asyncsgd.simulate.durations.kernels import draw, finish

ALWAYS_BUSY, BATCH, UNIFORM, SHUFFLED, FIRST_OF = range(5)

NEVER = int(np.array([np.inf]).view(np.int64)[0])  # the bit pattern of infinity
ONE = np.uint64(1)
NOBODY = 1 << 62  # the job of an empty place, after all others

# A worker's row, one cache line.
FREE_AT, STARTED, DOWN, UP, KIND, SECONDS = range(6)


@borrowing
def _place(tree: Any, place_job: Any, place: Any, time: Any) -> Any:
    """The arrival at this place is now at ``time``, of job ``place_job[place]``; play its matches up to the root.

    ``time`` is the bit pattern of the float, an integer: times are not negative, so it is in the same order, and the
    processor selects between integers without a branch.
    """
    node = np.uint64(tree.shape[0] // 2 + place)  # unsigned, which spares a check for negative indices
    winner = place
    tree[node, 0] = time
    tree[node, 1] = winner
    while node > ONE:
        other_time = tree[node ^ ONE, 0]
        other = tree[node ^ ONE, 1]
        loses = other_time < time
        if other_time == time:
            loses = place_job[other] < place_job[winner]
        time = other_time if loses else time
        winner = other if loses else winner
        node >>= ONE
        tree[node, 0] = time
        tree[node, 1] = winner


@borrowing
def run(
    rule: Any,
    limit: Any,  # jobs in flight at most; for FIRST_OF how many a round asks
    goal: Any,
    early: Any,
    lowered: Any,
    iterations: Any,
    seed: Any,
    state: Any,  # of the random stream of dispatch
    number: Any,  # one float, and its bit pattern
    bits: Any,
    tree: Any,  # (2 · leaves, 2): bits of the time and place; the root is node 1, the leaves are the second half
    place_job: Any,  # per leaf: whose arrival it is, or NOBODY
    free: Any,  # per leaf: a stack of empty places
    rows: Any,  # per worker: FREE_AT, STARTED, ...
    order: Any,  # per worker: idle ones as a ring, or the present shuffle, or who was asked in this round
    job_worker: Any,
    job_iteration: Any,
    job_time: Any,
    job_cancelled: Any,  # iteration at which it was cancelled, or -1; empty for rules that never cancel
    arrival_job: Any,
    arrival_time: Any,
    arrival_concurrency: Any,
) -> Any:
    """(jobs, arrivals, in flight, jobs of the first hand-out); fewer arrivals than asked for if nobody comes."""
    n = rows.shape[0]
    jobs = 0
    leaves = place_job.shape[0]
    in_flight = 0
    vacant = -1  # the place of the job that has just arrived
    first_idle, idle = 0, n  # ALWAYS_BUSY
    turn = n  # BATCH and SHUFFLED: the next one of the order
    asked, kept = 0, 0  # FIRST_OF
    initial = 0
    now = 0.0
    t = 0
    while True:
        # Hand out. The first new job takes the place of the one that has just arrived.
        point = t - 1 if early and t > 0 else t
        if rule == FIRST_OF:
            full = kept >= goal
            if full or (in_flight == 0 and asked == n):
                asked = 0
            if full:
                kept = 0
                for place in range(leaves):
                    job = place_job[place]
                    if job != NOBODY and place != vacant:
                        job_cancelled[job] = t
                        rows[job_worker[job], FREE_AT] = now
                    place_job[place] = NOBODY
                    free[place] = leaves - 1 - place
                for node in range(tree.shape[0]):
                    tree[node, 0] = NEVER
                in_flight = 0
                vacant = -1
        while True:
            if rule == ALWAYS_BUSY:
                if in_flight >= limit or idle == 0:
                    break
                worker = np.int64(order[first_idle])
                first_idle = first_idle + 1 if first_idle + 1 < n else 0
                idle -= 1
            elif rule == BATCH:
                # `turn` runs through the workers while a batch is being handed out
                if turn == n:
                    if in_flight > 0:
                        break
                    turn = 0
                worker = turn
                turn += 1
            elif rule == UNIFORM:
                if in_flight >= limit:
                    break
                state, worker = below(state, n)
            elif rule == SHUFFLED:
                if in_flight >= limit:
                    break
                if turn == n:
                    for k in range(n):
                        order[k] = k
                    for k in range(n - 1):
                        state, far = below(state, n - k)
                        order[k], order[k + far] = order[k + far], order[k]
                    turn = 0
                worker = np.int64(order[turn])
                turn += 1
            else:
                if kept + in_flight >= limit or asked == n:
                    break
                state, far = below(state, n - asked)
                order[asked], order[asked + far] = order[asked + far], order[asked]
                worker = np.int64(order[asked])
                asked += 1
            work = rows[worker, SECONDS]
            if rows[worker, KIND] != FIXED:
                work = draw(lowered, worker, np.int64(rows[worker, STARTED]), seed)
            end = finish(lowered, worker, max(now + rows[worker, DOWN], rows[worker, FREE_AT]), work)
            rows[worker, FREE_AT] = end
            rows[worker, STARTED] += 1.0
            job_worker[jobs] = worker
            job_iteration[jobs] = point
            job_time[jobs] = now
            if vacant >= 0:
                place = vacant
                vacant = -1
            else:
                place = free[leaves - 1 - in_flight]
            place_job[place] = jobs
            number[0] = end + rows[worker, UP]
            _place(tree, place_job, place, bits[0])
            jobs += 1
            in_flight += 1
        if vacant >= 0:
            place_job[vacant] = NOBODY
            _place(tree, place_job, vacant, NEVER)
            free[leaves - 1 - in_flight] = vacant
            vacant = -1
        if t == 0:
            initial = jobs
        # The next arrival.
        if t == iterations or tree[1, 0] == NEVER:
            return jobs, t, in_flight, initial
        bits[0] = tree[1, 0]
        now = number[0]
        vacant = tree[1, 1]
        job = place_job[vacant]
        arrival_job[t] = job
        arrival_time[t] = now
        arrival_concurrency[t] = in_flight
        in_flight -= 1
        if rule == ALWAYS_BUSY:
            last = first_idle + idle
            order[last if last < n else last - n] = job_worker[job]
            idle += 1
        elif rule == FIRST_OF:
            kept += 1
        t += 1
