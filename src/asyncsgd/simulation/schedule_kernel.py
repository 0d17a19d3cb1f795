"""Which worker finishes when: the core's dispatch rules on a compiled clock, with integers and times only.

It repeats `asyncsgd.simulation.clock.play` for the rules of `asyncsgd.core.dispatch`, draw by draw and tie by tie;
the tests compare the two. It writes jobs in the order of assignment and arrivals in the order of time.

The next arrivals are the leaves of a tournament tree: every node holds the earlier of the two below it, so the next
arrival is at the root, and a new job in the freed leaf updates one path to the root. The nodes on that path are known
beforehand and no branch depends on the times, so the processor predicts every branch, unlike with a heap.

With many in flight the tournament would not fit the cache. Then only arrivals up to a time ``soon`` are in it. Those up
to ``later`` are unsorted in one list and the rest in another, and both move to the tree when their time comes.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from asyncsgd.compiled.jit import borrowing
from asyncsgd.compiled.random import below, derive, output
from asyncsgd.simulation.durations.base import FIXED, MEASURED
from asyncsgd.simulation.durations.kernels import STREAM, at_random, draw, finish
from asyncsgd.simulation.lowering import ALWAYS_BUSY, BATCH, FIRST_OF, SHUFFLED, UNIFORM

NEVER = int(np.array([np.inf]).view(np.int64)[0])  # the bit pattern of infinity
ONE = np.uint64(1)
SMALL = 4096  # up to this many arrivals, all are in the tournament
SAMPLE = 256
NO_JOB = 1 << 62  # the job of an empty place, after all others

JOB, WORKER = range(2)  # the columns of a place

# A worker's row, one cache line.
FREE_AT, STARTED, DOWN, UP, KIND, SECONDS, SECOND, STEPS = range(8)


@borrowing
def _place(tree: Any, places: Any, leaves: Any, place: Any, time: Any) -> Any:
    """Set the arrival at this place to ``time``, of job ``places[place, JOB]``, and update its path to the root.

    ``time`` is the bit pattern of the float, an integer: times are not negative, so it is in the same order, and the
    processor selects between integers without a branch.
    """
    node = np.uint64(leaves + place)  # unsigned, which avoids a check for negative indices
    winner = place
    tree[node, 0] = time
    tree[node, 1] = winner
    while node > ONE:
        other_time = tree[node ^ ONE, 0]
        other = tree[node ^ ONE, 1]
        loses = other_time < time
        if other_time == time:
            loses = places[other, JOB] < places[winner, JOB]
        time = other_time if loses else time
        winner = other if loses else winner
        node >>= ONE
        tree[node, 0] = time
        tree[node, 1] = winner


@borrowing
def _build(tree: Any, places: Any, leaves: Any) -> Any:
    """Compute all inner nodes of a tournament whose leaves are set."""
    for node in range(leaves - 1, 0, -1):
        first, second = 2 * node, 2 * node + 1
        wins = tree[first, 0] < tree[second, 0]
        if tree[first, 0] == tree[second, 0]:
            wins = places[tree[first, 1], JOB] < places[tree[second, 1], JOB]
        best = first if wins else second
        tree[node, 0] = tree[best, 0]
        tree[node, 1] = tree[best, 1]


@borrowing
def _grow(tree: Any, places: Any, free: Any, leaves: Any) -> Any:
    """Double the number of leaves. All old leaves are in use."""
    for place in range(leaves):
        tree[2 * leaves + place, 0] = tree[leaves + place, 0]
        tree[2 * leaves + place, 1] = place
    for place in range(leaves, 2 * leaves):
        _clear(tree, places, 2 * leaves, place)
        free[place - leaves] = 3 * leaves - 1 - place
    _build(tree, places, 2 * leaves)
    return 2 * leaves


@borrowing
def _clear(tree: Any, places: Any, leaves: Any, place: Any) -> Any:
    places[place, JOB] = NO_JOB
    tree[leaves + place, 0] = NEVER
    tree[leaves + place, 1] = place


@borrowing
def _quantile(times: Any, size: Any, share: Any, sample: Any) -> Any:
    """Return a time that about one in ``share`` times do not exceed; if there are few times, the largest."""
    if size <= SMALL:
        return NEVER
    stride = size // SAMPLE
    for i in range(SAMPLE):
        time = times[i * stride]
        k = i
        while k > 0 and sample[k - 1] > time:
            sample[k] = sample[k - 1]
            k -= 1
        sample[k] = time
    return sample[SAMPLE // share - 1]


@borrowing
def _refill(
    tree: Any,
    places: Any,
    free: Any,
    waiting: Any,  # times: row 0 of those up to `later`, row 1 of the others
    who: Any,  # their jobs and workers
    sizes: Any,
    later: Any,
    rows: Any,
    sample: Any,
) -> Any:
    """Build a new tournament of the next arrivals; return (its size, leaves, soon, later).

    It also reads the rows of those workers one after the other, only to bring them into the cache before their jobs
    arrive: many reads at once cost hardly more than one.
    """
    if sizes[0] == 0:
        later = _quantile(waiting[1], sizes[1], 16, sample)
        i = 0
        while i < sizes[1]:
            if waiting[1, i] <= later:
                end = sizes[0]
                waiting[0, end] = waiting[1, i]
                who[0, end, JOB] = who[1, i, JOB]
                who[0, end, WORKER] = who[1, i, WORKER]
                sizes[0] += 1
                sizes[1] -= 1
                last = sizes[1]
                waiting[1, i] = waiting[1, last]
                who[1, i, JOB] = who[1, last, JOB]
                who[1, i, WORKER] = who[1, last, WORKER]
            else:
                i += 1
    soon = later if sizes[0] <= SMALL else _quantile(waiting[0], sizes[0], 8, sample)
    due = 0
    for i in range(sizes[0]):
        due += waiting[0, i] <= soon
    leaves = 1
    while leaves < due:
        leaves *= 2
    near, i, touched = 0, 0, 0.0
    while i < sizes[0]:
        if waiting[0, i] <= soon:
            places[near, JOB] = who[0, i, JOB]
            places[near, WORKER] = who[0, i, WORKER]
            tree[leaves + near, 0] = waiting[0, i]
            tree[leaves + near, 1] = near
            touched += rows[who[0, i, WORKER], KIND]
            near += 1
            sizes[0] -= 1
            last = sizes[0]
            waiting[0, i] = waiting[0, last]
            who[0, i, JOB] = who[0, last, JOB]
            who[0, i, WORKER] = who[0, last, WORKER]
        else:
            i += 1
    for place in range(near, leaves):
        _clear(tree, places, leaves, place)
        free[place - near] = leaves - 1 - (place - near)
    _build(tree, places, leaves)
    sample[0] = np.int64(touched)  # so that the compiler does not remove the reads
    return near, leaves, soon, later


class Given(NamedTuple):
    """The input of a schedule, which the kernel only reads."""

    rule: int
    limit: int
    """The most jobs in flight; for FIRST_OF the number of workers that a round asks."""
    goal: int
    early: bool
    keeps: bool
    """Whether a worker keeps state, so that its next job is sent only after the update before has arrived."""
    iterations: int
    seed: np.uint64
    stream: np.uint64
    """The state of the random stream of dispatch."""
    durations: Any
    """`asyncsgd.simulation.durations.base.Lowered`."""


class Room(NamedTuple):
    """The arrays that a schedule writes to. The kernel allocates nothing; `asyncsgd.simulation.schedule` makes them."""

    number: Any
    """One float."""
    bits: Any
    """The bit pattern of that float: the same eight bytes."""
    tree: Any
    """(2 · leaves, 2): bits of the time and place; the root is node 1, the leaves are the second half."""
    places: Any
    """(leaves, 2): the job that arrives, or NO_JOB for an empty place, and its worker."""
    free: Any
    """Per leaf: a stack of empty places."""
    waiting: Any
    """For `_refill`, like the next three."""
    who: Any
    sizes: Any
    sample: Any
    rows: Any
    """Per worker: FREE_AT, STARTED, ..."""
    order: Any
    """Per worker: the idle ones as a ring, or the present shuffle, or the workers asked in this round."""
    job_worker: Any
    job_iteration: Any
    job_time: Any
    job_seconds: Any
    """How long the worker computes, from the beginning of the job to its end."""
    job_cancelled: Any
    """The iteration at which the job was cancelled, or -1; empty for rules that never cancel."""
    arrival_job: Any
    arrival_time: Any
    arrival_concurrency: Any


@borrowing
def run(given: Any, room: Any) -> Any:
    """Return (jobs, arrivals, in flight, jobs assigned first); there are fewer arrivals if all workers have stopped."""
    # Fields become locals, and helpers get single arrays, because passing a tuple of arrays copies it every time.
    rule, limit, goal, early, keeps = given.rule, given.limit, given.goal, given.early, given.keeps
    lowered, iterations, seed, state = given.durations, given.iterations, given.seed, given.stream
    number, bits, tree, places, free = room.number, room.bits, room.tree, room.places, room.free
    waiting, who, sizes, sample = room.waiting, room.who, room.sizes, room.sample
    rows, order = room.rows, room.order
    job_worker, job_iteration, job_time = room.job_worker, room.job_iteration, room.job_time
    job_seconds, job_cancelled = room.job_seconds, room.job_cancelled
    arrival_job, arrival_time, arrival_concurrency = room.arrival_job, room.arrival_time, room.arrival_concurrency
    n = rows.shape[0]
    jobs = 0
    leaves, near, spare = 1, 0, 1  # of the tournament: its size, how many are in it, how many places are free
    _clear(tree, places, 1, 0)
    free[0] = 0
    soon, later = (NEVER, NEVER) if limit <= SMALL else (-1, -1)
    in_flight = 0
    vacant = -1  # the place of the job that has just arrived
    root = derive(seed, STREAM)
    first_idle, idle = 0, n  # ALWAYS_BUSY
    turn = n  # BATCH and SHUFFLED: the next place in the order
    asked, kept = 0, 0  # FIRST_OF
    initial = 0
    now = 0.0
    t = 0
    while True:
        # Assign jobs. The first new job takes the place of the one that has just arrived.
        point = t - 1 if early and t > 0 else t
        if rule == FIRST_OF:
            full = kept >= goal
            if full or (in_flight == 0 and asked == n):
                asked = 0
            if full:
                kept = 0
                for place in range(leaves):
                    job = places[place, JOB]
                    if job != NO_JOB and place != vacant:
                        job_cancelled[job] = t
                        rows[places[place, WORKER], FREE_AT] = now
                    _clear(tree, places, leaves, place)
                    free[place] = leaves - 1 - place
                _build(tree, places, leaves)
                for k in range(2):
                    for i in range(sizes[k]):
                        job_cancelled[who[k, i, JOB]] = t
                        rows[who[k, i, WORKER], FREE_AT] = now
                    sizes[k] = 0
                in_flight, near, spare = 0, 0, leaves
                vacant = -1
        while True:
            if rule == ALWAYS_BUSY:
                if in_flight >= limit or idle == 0:
                    break
                worker = np.int64(order[first_idle])
                first_idle = first_idle + 1 if first_idle + 1 < n else 0
                idle -= 1
            elif rule == BATCH:
                # `turn` runs through the workers while a batch is assigned
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
            if rows[worker, KIND] == MEASURED:
                work = draw(lowered, worker, np.int64(rows[worker, STARTED]), seed)
            elif rows[worker, KIND] != FIXED:  # the same as `draw`, from the row alone
                stream = output(output(root, worker), np.int64(rows[worker, STARTED]))
                kind = np.int64(rows[worker, KIND])
                work = at_random(kind, work, rows[worker, SECOND], lowered.samples, 0, 0, stream)
            begin = max(now + rows[worker, DOWN], rows[worker, FREE_AT])
            end = finish(lowered, worker, begin, work * rows[worker, STEPS])
            # A worker that keeps state gets its next job after the arrival of this one, and that job has to travel.
            rows[worker, FREE_AT] = end + rows[worker, UP] + rows[worker, DOWN] if keeps else end
            rows[worker, STARTED] += 1.0
            job_worker[jobs] = worker
            job_iteration[jobs] = point
            job_time[jobs] = now
            job_seconds[jobs] = end - begin
            number[0] = end + rows[worker, UP]
            arrival = bits[0]
            if arrival > soon:
                k = 1 if arrival > later else 0
                waiting[k, sizes[k]] = arrival
                who[k, sizes[k], JOB] = jobs
                who[k, sizes[k], WORKER] = worker
                sizes[k] += 1
            else:
                if vacant >= 0:
                    place = vacant
                    vacant = -1
                else:
                    if spare == 0:
                        spare = leaves
                        leaves = _grow(tree, places, free, leaves)
                    spare -= 1
                    place = free[spare]
                places[place, JOB] = jobs
                places[place, WORKER] = worker
                _place(tree, places, leaves, place, arrival)
                near += 1
            jobs += 1
            in_flight += 1
        if vacant >= 0:
            places[vacant, JOB] = NO_JOB
            _place(tree, places, leaves, vacant, NEVER)
            free[spare] = vacant
            spare += 1
            vacant = -1
        if near == 0 and in_flight > 0:
            near, leaves, soon, later = _refill(tree, places, free, waiting, who, sizes, later, rows, sample)
            spare = leaves - near
        if t == 0:
            initial = jobs
        # The next arrival.
        if t == iterations or tree[1, 0] == NEVER:
            return jobs, t, in_flight, initial
        bits[0] = tree[1, 0]
        now = number[0]
        vacant = tree[1, 1]
        arrival_job[t] = places[vacant, JOB]
        arrival_time[t] = now
        arrival_concurrency[t] = in_flight
        in_flight -= 1
        near -= 1
        if rule == ALWAYS_BUSY:
            last = first_idle + idle
            order[last if last < n else last - n] = places[vacant, WORKER]
            idle += 1
        elif rule == FIRST_OF:
            kept += 1
        t += 1
