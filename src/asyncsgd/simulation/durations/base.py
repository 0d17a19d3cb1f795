"""The class `Durations`, and the arrays that compiled code reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count
from asyncsgd.simulation.durations.columns import Floats, Ints, broadcast, nonnegative, positive

KINDS = ("fixed", "exponential", "gamma", "lognormal", "uniform", "truncated normal", "Pareto", "measured")
FIXED, EXPONENTIAL, GAMMA, LOGNORMAL, UNIFORM, TRUNCATED_NORMAL, PARETO, MEASURED = range(len(KINDS))


class Lowered(NamedTuple):
    """Durations as read-only arrays. Worker w owns ``samples[sample_bounds[w]:sample_bounds[w + 1]]``, and so on."""

    kind: Ints
    p: Floats
    """(n, 3): the parameters of the kind, in the order of its constructor."""
    down: Floats
    up: Floats
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
    """Seconds per job for each worker. ``asgd.durations.fixed`` and similar functions make it; it never changes.

    A job assigned to worker w at time a is ready at ``a + down[w]``, begins when the worker is free, takes
    ``draw(w, k, seed)`` seconds of work if it is the worker's k-th, ends at ``finish(w, begin, work)`` and arrives
    ``up[w]`` later.
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
        """Expected seconds of work of a job, per worker: exact, without communication and changes of speed.

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
        if low.down.any() or low.up.any():
            parts.append("communication")
        changing = np.count_nonzero(np.diff(low.profile_bounds))
        if changing:
            parts.append(f"{changing} changing speed{'s' if changing > 1 else ''}")
        return f"<Durations: {', '.join(parts)}>"

    def __reduce__(self) -> tuple[Any, ...]:  # a pickled array is no longer read-only
        return _restore, tuple(self.lowered)

    # ------------------------------------------------------------------------ for the simulated clock

    def draw(self, worker: int, k: int, seed: int) -> float:
        """Return the seconds of work of the worker's k-th job; ``kernels.draw`` gives the same number."""
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
        return Durations(freeze(self.lowered._replace(down=columns[0], up=columns[1])))

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
        from asyncsgd.simulation.durations import profiles

        return profiles.with_speeds(self, worker, times, speeds, period)

    def offline(self, worker: int | Sequence[int], windows: Sequence[tuple[float, float]]) -> Durations:
        """Stop a worker (or several) in each window (begin, end); work begun before resumes afterwards.

        A worker with an end of ``inf`` never comes back.

        >>> from asyncsgd.simulation.durations import fixed
        >>> fixed([4.0]).offline(0, [(1.0, 3.0)]).finish(0, begin=0.0, work=4.0)
        6.0
        """
        from asyncsgd.simulation.durations import profiles

        return profiles.offline(self, worker, windows)

    def with_outages(self, every: Any, lasting: Any, until: float, seed: int = 0) -> Durations:
        """Stop every worker at random times before time ``until``.

        The time between two outages is exponential with mean ``every``, their length exponential with mean ``lasting``.
        Pass one number, or one per worker. Each worker has its own random stream.
        """
        from asyncsgd.simulation.durations import profiles

        means = broadcast(self.workers, every=positive("every", every), lasting=positive("lasting", lasting))
        return profiles.with_outages(self, means[0], means[1], until, seed)


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
        samples=np.zeros(0) if samples is None else samples,
        sample_bounds=np.zeros(n + 1, np.int64) if bounds is None else bounds,
        times=np.zeros(0),
        speeds=np.zeros(0),
        profile_bounds=np.zeros(n + 1, np.int64),
        period=np.zeros(n),
    )
    return Durations(freeze(lowered))
