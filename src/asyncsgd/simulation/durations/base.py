"""The class `Durations`, and the arrays that compiled code reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from asyncsgd.core import validate
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count
from asyncsgd.format import ends
from asyncsgd.simulation.durations.columns import Floats, Ints, broadcast, nonnegative, numbers, positive

# --------------------------------------------------------------------------------------------------------------
# Speeds that change over time: a worker's profile is a step function, and profiles multiply.


MOST = 10**8
"""The largest number of random outages of all workers together; more would not fit into memory."""


def with_speeds(
    durations: Durations, worker: int | Sequence[int], times: Any, speeds: Any, period: float | None
) -> Durations:
    """See ``Durations.with_speeds``."""
    workers = _workers(durations, worker)
    when, speed = np.atleast_1d(nonnegative("times", times)), np.atleast_1d(nonnegative("speeds", speeds))
    if len(when) != len(speed):
        fix = "pass one speed for each time, which holds from then on"
        raise BadParameter("speeds", ends(speed), f"has {len(speed)} values, but times has {len(when)}", fix)
    if not len(when):
        raise BadParameter("times", [], "is empty", "pass at least one time and a speed for it")
    later = np.diff(when) > 0
    if not later.all():
        place = int(np.argmin(later)) + 1
        raise BadParameter(f"times[{place}]", float(when[place]), "is not after the one before", "sort the times")
    if period is not None:
        validate.positive("period", period)
        if when[-1] >= period:
            fix = f"keep all times below period = {period}"
            raise BadParameter(f"times[{len(when) - 1}]", float(when[-1]), "lies outside the period", fix)
    return _apply(durations, workers, when, speed, 0.0 if period is None else float(period))


def offline(durations: Durations, worker: int | Sequence[int], windows: Sequence[tuple[float, float]]) -> Durations:
    """See ``Durations.offline``."""
    workers = _workers(durations, worker)
    fix = "pass a list of (begin, end) with 0 <= begin < end, such as [(10.0, 20.0)]"
    if not isinstance(windows, list | tuple | np.ndarray) or not len(windows):
        raise BadParameter("windows", windows, "is not a list of windows", fix)
    pairs: list[tuple[float, float]] = []
    for place, window in enumerate(windows):
        name = f"windows[{place}]"
        pair = numbers(name, window)
        if pair.shape != (2,) or not (0 <= pair[0] < pair[1] and math.isfinite(pair[0])):
            raise BadParameter(name, window, "is not a window", fix)
        pairs.append((float(pair[0]), float(pair[1])))
    pairs.sort()
    joined = [pairs[0]]
    for begin, end in pairs[1:]:
        if begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    edges = [edge for window in joined for edge in window if math.isfinite(edge)]
    speeds = np.zeros(len(edges))
    speeds[1::2] = 1.0
    return _apply(durations, workers, np.array(edges), speeds, 0.0)


def with_outages(durations: Durations, every: Floats, lasting: Floats, until: float, seed: int) -> Durations:
    """See ``Durations.with_outages``."""
    from asyncsgd.simulation.durations import kernels

    validate.positive("until", until)
    validate.integer("seed", seed)
    expected = float(np.sum(until / (every + lasting)))
    if expected > MOST:
        fix = "choose an earlier `until` or a larger `every`"
        raise BadParameter("until", until, f"would make about {expected:.1e} outages", fix)
    bounds, word = np.zeros(durations.workers + 1, np.int64), np.uint64(seed % 2**64)
    total = kernels.outages(every, lasting, float(until), word, bounds, np.zeros(0), False)
    times = np.zeros(total)
    kernels.outages(every, lasting, float(until), word, bounds, times, True)
    speeds = np.zeros(total)
    speeds[1::2] = 1.0
    return _multiply(durations, times, speeds, bounds, np.zeros(durations.workers))


# ------------------------------------------------------------------------------------- inside


def _workers(durations: Durations, worker: Any) -> Ints:
    chosen = np.atleast_1d(np.asarray(worker))
    fix = f"pass one of 0..{durations.workers - 1}, or a list of them"
    if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
        raise BadParameter("worker", worker, "is not a worker", fix)
    for bad in chosen[(chosen < 0) | (chosen >= durations.workers)].tolist():
        raise BadParameter("worker", bad, "does not exist", fix)
    if len(np.unique(chosen)) != len(chosen):
        raise BadParameter("worker", ends(chosen), "names a worker twice", "name each worker once")
    return chosen.astype(np.int64)


def _apply(durations: Durations, workers: Ints, times: Floats, speeds: Floats, period: float) -> Durations:
    """Give the same profile to some workers."""
    counts, periods = np.zeros(durations.workers, np.int64), np.zeros(durations.workers)
    counts[workers], periods[workers] = len(times), period
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return _multiply(durations, np.tile(times, len(workers)), np.tile(speeds, len(workers)), bounds, periods)


def _multiply(durations: Durations, times: Floats, speeds: Floats, bounds: Ints, period: Floats) -> Durations:
    old = durations.lowered
    had, gets = np.diff(old.profile_bounds) > 0, np.diff(bounds) > 0
    for worker in np.flatnonzero(had & gets & (old.period != period)).tolist():
        one, two = (f"repeat every {p:g} s" if p else "do not repeat" for p in (old.period[worker], period[worker]))
        fix = "write the repetitions out as times and speeds, without a period"
        problem = f"has speeds that {one}, which cannot be multiplied with speeds that {two}"
        raise BadParameter("worker", worker, problem, fix)
    if had.any():
        from asyncsgd.simulation.durations import kernels

        times, speeds, bounds = kernels.multiply(old.times, old.speeds, old.profile_bounds, times, speeds, bounds)
    period = np.where(gets, period, old.period)
    return Durations(freeze(old._replace(times=times, speeds=speeds, profile_bounds=bounds, period=period)))


KINDS = ("fixed", "exponential", "gamma", "lognormal", "uniform", "truncated normal", "Pareto", "measured")
FIXED, EXPONENTIAL, GAMMA, LOGNORMAL, UNIFORM, TRUNCATED_NORMAL, PARETO, MEASURED = range(len(KINDS))


class Lowered(NamedTuple):
    """Durations as read-only arrays. Worker w owns ``samples[sample_bounds[w]:sample_bounds[w + 1]]``, and so on."""

    kind: Ints
    p: Floats
    """(n, 3): the parameters of the kind, in the order of its constructor."""
    down: Floats
    up: Floats
    bandwidth: Floats
    """Bits per second, inf if the size of a message does not matter; ``down`` and ``up`` are then the latency."""
    samples: Floats
    sample_bounds: Ints
    times: Floats
    speeds: Floats
    profile_bounds: Ints
    period: Floats
    """The period in seconds after which the speeds repeat; 0 if they do not."""


def freeze(lowered: Lowered) -> Lowered:
    """Make every array contiguous, so that compiled code sees one type, and read-only."""
    arrays: list[Any] = [np.ascontiguousarray(array) for array in lowered]
    for array in arrays:
        array.flags.writeable = False
    return Lowered(*arrays)


@dataclass(frozen=True, eq=False, repr=False)
class Durations:
    """Seconds per mini-batch for each worker. ``asgd.durations.fixed`` and similar functions make it; it never changes.

    A job assigned to worker w at time a is ready at ``a + down[w]``, begins when the worker is free, takes
    ``H * draw(w, k, seed)`` seconds of work if it has H local steps and is the worker's k-th, ends at
    ``finish(w, begin, work)`` and arrives ``up[w]`` later. A worker that keeps state from job to job gets a job only
    when the one before has arrived.

    >>> import asyncsgd as asgd
    >>> speeds = asgd.durations.fixed([1.0, 3.0]).with_network(8e6)
    >>> speeds.workers, speeds.draw(1, 0, seed=0)
    (2, 3.0)

    See docs/howto/durations.md for networks, changing speeds and outages.
    """

    lowered: Lowered
    """The arrays that compiled code reads."""

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.lowered.kind)

    @cached_property
    def deterministic(self) -> bool:
        """Whether nothing is random, so that every seed gives the same times."""
        return bool((self.lowered.kind == FIXED).all())

    @cached_property
    def means(self) -> Floats:
        """Expected seconds of work of a mini-batch, per worker: exact, without communication and changes of speed.

        >>> from asyncsgd.simulation.durations import pareto
        >>> pareto(scale=1.0, shape=[3.0, 1.0]).means
        array([1.5, inf])
        """
        from asyncsgd.simulation.durations.distributions import means

        return means(self.lowered)

    def __repr__(self) -> str:
        low = self.lowered
        counts = np.bincount(low.kind, minlength=len(KINDS))
        kinds = [(KINDS[kind], int(counts[kind])) for kind in np.argsort(-counts, kind="stable") if counts[kind]]
        workers = f"{self.workers} worker{'s' if self.workers > 1 else ''}"
        if len(kinds) == 1:
            parts = [f"{workers}, {kinds[0][0]}"]
        else:
            parts = [f"{workers} ({', '.join(f'{n} {name}' for name, n in kinds)})"]
        if not self.networked and (low.down.any() or low.up.any()):
            parts.append("communication")
        if self.networked:
            parts.append("network")
        changing = np.count_nonzero(np.diff(low.profile_bounds))
        if changing:
            parts.append(f"{changing} changing speed{'s' if changing > 1 else ''}")
        return f"<Durations: {', '.join(parts)}>"

    def __reduce__(self) -> tuple[Any, ...]:  # a pickled array is no longer read-only
        return _restore, tuple(self.lowered)

    # ------------------------------------------------------------------------ for the simulated clock

    def draw(self, worker: int, k: int, seed: int) -> float:
        """Return the seconds of each mini-batch of the worker's k-th job; ``kernels.draw`` gives the same number."""
        from asyncsgd.simulation.durations import kernels

        self._check_worker(worker)
        return float(kernels.draw(self.lowered, worker, k, np.uint64(seed % 2**64)))

    def finish(self, worker: int, begin: float, work: float) -> float:
        """Return when ``work`` seconds begun at ``begin`` are done; inf if never. Compiled: ``kernels.finish``."""
        from asyncsgd.simulation.durations import kernels

        self._check_worker(worker)
        return float(kernels.finish(self.lowered, worker, begin, work))

    def _check_worker(self, worker: int) -> None:
        if not 0 <= worker < self.workers:
            raise BadParameter("worker", worker, "does not exist", f"pass one of 0..{self.workers - 1}")

    # ------------------------------------------------------------------------ modifiers

    def with_communication(self, down: Any = 0.0, up: Any = 0.0) -> Durations:
        """Let a job take ``down`` seconds to reach its worker and its update ``up`` seconds to come back.

        Pass one number, or one per worker. A worker computes one job while others travel. This replaces earlier values.

        >>> from asyncsgd.simulation.durations import fixed
        >>> fixed([1.0, 2.0]).with_communication(up=[0.5, 0.1]).lowered.up
        array([0.5, 0.1])
        """
        columns = broadcast(self.workers, down=nonnegative("down", down), up=nonnegative("up", up))
        fast = np.full(self.workers, np.inf)
        return Durations(freeze(self.lowered._replace(down=columns[0], up=columns[1], bandwidth=fast)))

    def with_network(self, bandwidth: Any, *, latency: Any = 0.0) -> Durations:
        """Let every message take ``latency`` seconds, and the time that its bytes need at this bandwidth.

        The method decides how many bytes a message has: when a simulation, a sweep, a comparison or a plan starts, this
        becomes ``with_communication(down=latency + 8 * bytes_down / bandwidth, up=latency + 8 * bytes_up /
        bandwidth)``, with the bytes of ``method.message_bytes``. This replaces earlier communication.

        Args:
            bandwidth: Bits per second between a worker and the server, each way: one number, or one per worker.
            latency: Seconds from the first bit sent to the first received: one number, or one per worker.

        >>> from asyncsgd.simulation.durations import fixed
        >>> fleet = fixed([1.0, 2.0]).with_network([100e6, 10e6], latency=0.1)
        >>> fleet.for_messages(up=1_000_000, down=2_000_000).lowered.down
        array([0.26, 1.7 ])
        """
        given = {"bandwidth": positive("bandwidth", bandwidth), "latency": nonnegative("latency", latency)}
        speed, late = broadcast(self.workers, **given)
        return Durations(freeze(self.lowered._replace(down=late, up=late, bandwidth=speed)))

    @property
    def networked(self) -> bool:
        """Whether the time of a message depends on its bytes."""
        return bool(np.isfinite(self.lowered.bandwidth).any())

    def for_messages(self, *, up: int, down: int) -> Durations:
        """Return the durations for messages of this many bytes; the same ones without a network."""
        if not self.networked:
            return self
        low = self.lowered
        seconds = {"down": low.down + 8 * down / low.bandwidth, "up": low.up + 8 * up / low.bandwidth}
        return self.with_communication(**seconds)

    def check_known(self) -> None:
        """Raise if a network makes times depend on the bytes of a message, which no method has given."""
        if self.networked:
            problem = "have a network, so they need the bytes of a message, and no method is known here"
            fix = "pass them to asgd.simulate, sweep, compare or plan, or use with_communication(down=..., up=...)"
            raise BadParameter("durations", self, problem, fix)

    def with_speeds(
        self, worker: int | Sequence[int], times: Any, speeds: Any, period: float | None = None
    ) -> Durations:
        """Let a worker (or several) run at relative speed ``speeds[k]`` from time ``times[k]`` on; speed 0 stops it.

        Before ``times[0]`` its speed is 1. With a ``period`` the speeds on [0, period) repeat for ever, including the
        beginning at speed 1. Speeds set earlier are multiplied with these.

        >>> from asyncsgd.simulation.durations import fixed
        >>> half = fixed([4.0]).with_speeds(0, times=[2.0], speeds=[0.5])
        >>> half.finish(0, begin=0.0, work=4.0)
        6.0
        """
        from asyncsgd.simulation.durations import base

        return base.with_speeds(self, worker, times, speeds, period)

    def offline(self, worker: int | Sequence[int], windows: Sequence[tuple[float, float]]) -> Durations:
        """Stop a worker (or several) in each window (begin, end); work begun before resumes afterwards.

        A worker with an end of ``inf`` never comes back.

        >>> from asyncsgd.simulation.durations import fixed
        >>> fixed([4.0]).offline(0, [(1.0, 3.0)]).finish(0, begin=0.0, work=4.0)
        6.0
        """
        from asyncsgd.simulation.durations import base

        return base.offline(self, worker, windows)

    def with_outages(self, every: Any, lasting: Any, until: float, seed: int = 0) -> Durations:
        """Stop every worker at random times before time ``until``.

        The time between two outages is exponential with mean ``every``, their length exponential with mean ``lasting``.
        Pass one number, or one per worker. Each worker has its own random stream.
        """
        from asyncsgd.simulation.durations import base

        means = broadcast(self.workers, every=positive("every", every), lasting=positive("lasting", lasting))
        return base.with_outages(self, means[0], means[1], until, seed)


def _restore(*arrays: Any) -> Durations:
    return Durations(freeze(Lowered(*arrays)))


def build(kind: int, *parameters: Floats, samples: Floats | None = None, bounds: Ints | None = None) -> Durations:
    """Return durations of one kind, without communication and changes of speed."""
    n = len(parameters[0]) if bounds is None else len(bounds) - 1
    count("workers", n)
    p = np.zeros((n, 3))
    for column, values in enumerate(parameters):
        p[:, column] = values
    lowered = Lowered(
        kind=np.full(n, kind, np.int64),
        p=p,
        down=np.zeros(n),
        up=np.zeros(n),
        bandwidth=np.full(n, np.inf),
        samples=np.zeros(0) if samples is None else samples,
        sample_bounds=np.zeros(n + 1, np.int64) if bounds is None else bounds,
        times=np.zeros(0),
        speeds=np.zeros(0),
        profile_bounds=np.zeros(n + 1, np.int64),
        period=np.zeros(n),
    )
    return Durations(freeze(lowered))
