"""The workers of a plan: how long their jobs take, read from files, traces or numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.dispatch import Batch
from asyncsgd.core.errors import BadParameter, TraceError, UsageError
from asyncsgd.simulation import durations as du
from asyncsgd.simulation.durations import Durations, Lowered
from asyncsgd.simulation.durations.base import FIXED, MEASURED, freeze
from asyncsgd.simulation.schedule import schedule
from asyncsgd.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Source: TypeAlias = Durations | Trace | str | PathLike[str] | Sequence[Any] | Mapping[Any, Sequence[float]]

PARQUET, LOG = b"PAR1", b"\xff\xff\xff\xff"
"""The first bytes of a Parquet file, and of the log of a run that still runs or was killed."""

GROUPS = ("fast", "typical", "slow", "straggling")
BORDERS = (0.5, 2.0, 8.0)
"""In medians: the middle worker of a fast group takes less than half, of a slow one more than twice, of a straggling
one more than 8 times as long."""
GAP = 1.5
"""Where the next slower worker takes this many times as long, one group ends and another begins."""
WIDE, NEAR = 4.0, 2**0.5
"""Workers without such a gap whose slowest takes more than ``WIDE`` times as long as their fastest are divided all the
same: at the widest gap within a factor ``NEAR`` of each border."""

CREDIBLE = (1e-12, 1e12)
"""The range of plausible mean seconds of a job."""


@dataclass(frozen=True, eq=False)
class MeasuredWorkers:
    """Workers and their measured durations."""

    name: str
    """Where the durations come from, for a headline."""
    durations: Durations
    typical: float | None = None
    """Seconds that a typical job takes, by which groups get their names; the median worker's mean unless given."""
    members: Ints | None = None
    """The group of each worker, if more workers than these have decided it."""

    @property
    def count(self) -> int:
        """The number of workers."""
        return self.durations.workers

    @cached_property
    def means(self) -> Floats:
        """Mean seconds per job of each worker, communication included."""
        low = self.durations.lowered
        return np.asarray(self.durations.means + low.down + low.up)

    @cached_property
    def samples(self) -> int | None:
        """The number of jobs that were measured; None if the durations are formulas."""
        return len(self.durations.lowered.samples) or None

    @cached_property
    def variability(self) -> Floats:
        """The squared coefficient of variation of each worker's durations: 0 if fixed, 1 if exponential."""
        return np.asarray(self._moments[0] / self.means**2)

    @property
    def shortest(self) -> Floats:
        """The shortest job of each worker that was measured."""
        return self._moments[1]

    @property
    def longest(self) -> Floats:
        """The longest job of each worker that was measured."""
        return self._moments[2]

    @cached_property
    def _moments(self) -> tuple[Floats, Floats, Floats]:
        """Variance, shortest and longest of each worker, from its samples, or from 100 random jobs without samples."""
        low = self.durations.lowered
        if (low.kind == FIXED).all():
            return np.zeros(self.count), self.means, self.means
        if (low.kind == MEASURED).all():
            values, starts, counts = low.samples, low.sample_bounds[:-1], np.diff(low.sample_bounds)
        else:
            rounds = 100
            plan = schedule(Batch(), self.durations, iterations=rounds * self.count)
            job = plan.arrival_job[np.argsort(plan.job_worker[plan.arrival_job], kind="stable")]
            took = np.empty(plan.jobs)
            took[plan.arrival_job] = plan.arrival_time - plan.job_time[plan.arrival_job]
            values, starts = took[job], np.arange(self.count) * rounds
            counts = np.full(self.count, rounds)
        centre = np.repeat(np.add.reduceat(values, starts) / counts, counts)
        variance = np.add.reduceat((values - centre) ** 2, starts) / counts
        more = low.down + low.up if values is low.samples else 0.0
        return variance, np.minimum.reduceat(values, starts) + more, np.maximum.reduceat(values, starts) + more

    @property
    def median(self) -> float:
        """Mean seconds per job of the typical worker."""
        return float(np.median(self.means)) if self.typical is None else self.typical

    @cached_property
    def group(self) -> Ints:
        """Per worker: the place of its group in ``GROUPS``. Groups are divided at gaps, never between like workers."""
        return _grouped(self.means / self.median) if self.members is None else self.members

    def fastest(self, workers: int) -> MeasuredWorkers:
        """Return only the ``workers`` workers with the shortest means."""
        if workers == self.count:
            return self
        chosen = self.order(workers)
        durations = subset(self.durations, chosen)
        return MeasuredWorkers(f"{workers} fastest of {self.name}", durations, self.median, self.group[chosen])

    def order(self, workers: int) -> Ints:
        """Return the numbers of the ``workers`` workers with the shortest means, in ascending order."""
        return np.sort(np.argsort(self.means, kind="stable")[:workers])


def subset(durations: Durations, chosen: Ints) -> Durations:
    """Return the durations of some workers only."""
    low = durations.lowered
    columns: dict[str, Any] = {}
    for bounds, *owned in (("sample_bounds", "samples"), ("profile_bounds", "times", "speeds")):
        starts, ends = getattr(low, bounds)[:-1][chosen], getattr(low, bounds)[1:][chosen]
        columns[bounds] = np.concatenate([np.zeros(1, np.int64), np.cumsum(ends - starts)])
        places = [np.arange(start, end) for start, end in zip(starts, ends, strict=True)]
        for name in owned:
            columns[name] = getattr(low, name)[np.concatenate(places)]
    columns |= {name: getattr(low, name)[chosen] for name in Lowered._fields if name not in columns}
    return Durations(freeze(Lowered(**columns)))


def measured_workers(source: Source | MeasuredWorkers) -> MeasuredWorkers:
    """Return the workers of a file (CSV, Parquet, a trace or its log), of a trace, of durations, or of plain numbers.

    A flat list holds one duration per worker; a list of lists or a dict holds the measured ones of each.

    >>> measured_workers([1.0, 1.0, 9.0]).means
    array([1., 1., 9.])
    """
    name = "durations"
    if isinstance(source, MeasuredWorkers):
        return source
    if isinstance(source, str | PathLike):
        name, durations = Path(fspath(source)).name, _file(Path(source))
    elif isinstance(source, Trace):
        name, durations = "trace", du.from_trace(source)
    elif isinstance(source, Durations):
        durations = source
    elif isinstance(source, Mapping) or (np.ndim(_first(source)) > 0):
        durations = du.measured(source)  # type: ignore[arg-type]
    else:
        durations = du.fixed(source)
    found = MeasuredWorkers(name, durations)
    what, value = "durations", str(source) if isinstance(source, str | PathLike) else durations
    if found.count < 2:
        fix = "pass the durations of two or more workers: one column or one name in 'worker' for each"
        raise BadParameter(what, value, "has only one worker, so there is nothing to compare", fix)
    low, high = CREDIBLE
    good = (found.means >= low) & (found.means <= high)
    if not good.all():
        worker = int(np.argmin(good))
        fix = f"pass seconds whose mean lies between {low:g} and {high:g}"
        raise BadParameter(what, value, f"has mean {found.means[worker]:g} for worker {worker}", fix)
    return found


def _grouped(ratios: Floats) -> Ints:
    """Divide workers at gaps between their means (in medians); the middle worker names each group."""
    order = np.argsort(ratios, kind="stable")
    sizes = ratios[order]
    names = np.empty(len(sizes), dtype=np.int64)
    for part in np.split(np.arange(len(sizes)), np.flatnonzero(sizes[1:] >= GAP * sizes[:-1]) + 1):
        for piece in np.split(part, _cuts(sizes[part])):
            middle = np.median(sizes[piece])
            above = np.searchsorted(BORDERS[:1], middle, side="right") + np.searchsorted(BORDERS[1:], middle)
            names[order[piece]] = above
    return names


def _cuts(sizes: Floats) -> list[int]:
    """Return where to divide workers without a gap between them: nowhere, unless they spread widely."""
    found: set[int] = set()
    gaps, middles = sizes[1:] / sizes[:-1], np.sqrt(sizes[1:] * sizes[:-1])
    for border in BORDERS:
        if sizes[-1] > WIDE * sizes[0] and sizes[0] < border < sizes[-1]:
            close = np.maximum(middles / border, border / middles) <= NEAR
            found.add(1 + int(np.argmax(np.where(close, gaps, 0.0))))
    return sorted(found)


def _file(path: Path) -> Durations:
    """Read a file by its first bytes, whatever its name is."""
    head = b""
    try:
        if path.is_file():
            with path.open("rb") as file:
                head = file.read(4)
        if head == LOG:
            return du.from_trace(path)
        return du.from_parquet(path) if head == PARQUET or path.suffix in (".parquet", ".pq") else du.from_csv(path)
    except TraceError as error:  # the caller chose the file, so it is a usage error here
        raise UsageError(str(error)) from error
    except BadParameter as error:
        if error.name != "path":
            raise
        raise BadParameter("durations", error.value, error.problem, error.fix) from error
    except OSError as error:
        raise BadParameter("durations", str(path), f"cannot be read ({error.strerror})", "pass another file") from error


def _first(source: Any) -> Any:
    """Return the first entry if there is one; its type separates plain numbers from samples."""
    try:
        return source[0] if len(source) else 0.0
    except (TypeError, KeyError, IndexError):
        return 0.0
