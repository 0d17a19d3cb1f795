"""The trace: an immutable, columnar record of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import TraceError
from asyncsgd.core.events import Outcome
from asyncsgd.trace.check import Identity, verify
from asyncsgd.trace.columns import (
    DTYPES,
    IN_FLIGHT,
    Codes,
    Delays,
    Floats,
    Ints,
    Jobs,
    Remark5,
    active,
    batches_before,
    remark5,
    summarise,
)
from asyncsgd.trace.replay import Arrivals, Weighed

if TYPE_CHECKING:
    import pyarrow

Column = TypeVar("Column", bound=NDArray[Any])


@dataclass(frozen=True, eq=False)
class Trace:
    """What happened in a run. ``trace.jobs`` has one row per job; the columns below have one row per arrival.

    Row t of ``trace.delay``, ``trace.worker``, ... is the arrival of iteration t (applied or dropped):
    τ_t = ``trace.delay[t]`` = t - ``trace.assigned_iteration[t]``. All columns are read-only.

    >>> trace = Trace.from_history(workers=[0, 1, 1, 1], assigned=[0, 0, 1, 2], arrived=[2, 0, 1, -1])
    >>> trace.worker, trace.delay
    (array([1, 1, 0]), array([0, 0, 2]))
    >>> trace.iterations, len(trace), trace.counts[Outcome.IN_FLIGHT]
    (3, 4, 1)
    """

    jobs: Jobs
    metadata: dict[str, str] = field(default_factory=dict)
    """Facts about the run as text, stored in the file."""
    final_concurrency: int | None = None
    """|C_T| as the server counted it at the end; None if it was not recorded, for example after a crash."""
    truncated: bool = False
    """Whether a kill tore the last block of the log; the rows before it are whole."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "metadata", dict(self.metadata))

    def __len__(self) -> int:
        return len(self.jobs)

    def __repr__(self) -> str:
        counts = ", ".join(f"{n} {o.name.lower().replace('_', ' ')}" for o, n in self.counts.items() if n)
        return f"<Trace: {len(self)} jobs, {self.iterations} iterations{counts and ': ' + counts}>"

    def __eq__(self, other: object) -> bool:
        """Return whether all cells and facts are the same; NaN equals NaN."""
        if not isinstance(other, Trace):
            return NotImplemented
        facts = [(t.metadata, t.final_concurrency, t.truncated) for t in (self, other)]
        columns = ((getattr(self.jobs, name), getattr(other.jobs, name)) for name in DTYPES)
        return facts[0] == facts[1] and all(
            np.array_equal(mine, theirs, equal_nan=mine.dtype.kind == "f") for mine, theirs in columns
        )

    def __reduce__(self) -> tuple[Any, ...]:  # without the cached columns
        return Trace, (self.jobs, self.metadata, self.final_concurrency, self.truncated)

    # ------------------------------------------------------------------------ one row per arrival

    @cached_property
    def _rows(self) -> Ints:
        rows = np.flatnonzero(self.jobs.arrived)
        return rows[np.argsort(self.jobs.ended_iteration[rows], kind="stable")]

    def _ints(self, column: str) -> Ints:
        values: Ints = getattr(self.jobs, column)[self._rows]
        return _read_only(values)

    def _floats(self, column: str) -> Floats:
        values: Floats = getattr(self.jobs, column)[self._rows]
        return _read_only(values)

    @cached_property
    def job(self) -> Ints:
        """The job that arrived."""
        return self._ints("job")

    @cached_property
    def worker(self) -> Ints:
        """The worker that computed it: j_t."""
        return self._ints("worker")

    @cached_property
    def delay(self) -> Ints:
        """τ_t = t - s, in iterations."""
        return _read_only(self._ints("ended_iteration") - self.assigned_iteration)

    @cached_property
    def staleness(self) -> Ints:
        """The delay in versions: the number of changes of the model while the job was computed."""
        return _read_only(self.version - self.assigned_version)

    @cached_property
    def time(self) -> Floats:
        """The time of the arrival in seconds, on the recorder's clock."""
        return self._floats("ended_time")

    @cached_property
    def duration(self) -> Floats:
        """Seconds from assignment to arrival, queueing included."""
        return _read_only(self.time - self.assigned_time)

    @cached_property
    def step(self) -> Floats:
        """η_t: the step that the arrival got; its share η·w/K in a buffer of K; 0 if it was dropped."""
        return self._floats("step")

    @cached_property
    def outcome(self) -> Codes:
        """``Outcome.APPLIED`` or ``Outcome.DROPPED``."""
        return _read_only(self.jobs.outcome[self._rows])

    @cached_property
    def version(self) -> Ints:
        """The model's version just before the arrival."""
        return self._ints("ended_version")

    @cached_property
    def concurrency(self) -> Ints:
        """|C_t| as the server counted it just before iteration t."""
        return self._ints("concurrency")

    @cached_property
    def workers(self) -> Ints:
        """The number of workers present."""
        return self._ints("workers")

    @cached_property
    def assigned_iteration(self) -> Ints:
        """The s of x^(s), the point at which the update was computed."""
        return self._ints("assigned_iteration")

    @cached_property
    def assigned_version(self) -> Ints:
        """The version of that point."""
        return self._ints("assigned_version")

    @cached_property
    def assigned_time(self) -> Floats:
        """The time at which the job was assigned."""
        return self._floats("assigned_time")

    # ------------------------------------------------------------------------ what follows from it

    @cached_property
    def iterations(self) -> int:
        """T, the number of arrivals."""
        return int(np.count_nonzero(self.jobs.arrived))

    @cached_property
    def counts(self) -> dict[Outcome, int]:
        """The number of jobs with each outcome."""
        return {outcome: int(np.count_nonzero(self.jobs.outcome == outcome)) for outcome in Outcome}

    @cached_property
    def active(self) -> Ints:
        """|C_t| for t = 0, ..., T, counted from the rows (``concurrency`` is the server's own count).

        >>> Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1]).active
        array([2, 2, 1])
        """
        return _read_only(active(self.jobs, self.iterations))

    @cached_property
    def delays(self) -> Delays:
        """τ_avg, τ_max, τ_C, τ̄_C and τ^i_avg; see ``Delays`` for the formulas."""
        return summarise(self.jobs, self.iterations, self.active)

    def remark5(self) -> Remark5:
        """Compare the paper's Remark 5, (T + 1) / (T + |C_T| - 1) · τ̄_C, with the exact τ_avg.

        >>> sequential = Trace.from_history(workers=[0, 0, 0], assigned=[0, 1, 2], arrived=[0, 1, -1])
        >>> sequential.remark5()
        Remark5(paper=1.5, exact=0.0)
        """
        return remark5(self.delays, self.iterations, int(self.active[-1]))

    def check(self, *, early: bool = True) -> Identity:
        """Check that every row is consistent and that the delays add up to the concurrency, in integers.

        Σ_{t<T} (τ_t + 1) + Σ_{in flight} (T - s_i + 1) + Σ_{others} #{t : job in C_t} = Σ_{t=0..T} |C_t|, and a job
        assigned by early re-sampling counts one less. The left side comes from the rows, the right side from what the
        server counted. If they differ, this raises ``TraceError`` or ``IdentityViolation`` and names the job. Pass
        ``early=False`` if the method never re-samples early. A delay that is one too large is then found too.

        >>> Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1]).check()
        Identity(delays=3, in_flight=2, others=0, concurrency=5)
        """
        return verify(self.jobs, self.final_concurrency, early=early)

    def rewind(self, jobs: int, in_flight: Iterable[int]) -> Trace:
        """Return the trace as it was when ``jobs`` jobs had been assigned and these were in flight.

        A server restored from a checkpoint continues from this trace if the log is newer than the checkpoint.

        >>> trace = Trace.from_history(workers=[0, 0, 0], assigned=[0, 1, 2], arrived=[0, 1, 2])
        >>> trace.rewind(jobs=2, in_flight=[1])
        <Trace: 2 jobs, 1 iterations: 1 in flight, 1 applied>
        """
        flying = np.fromiter(in_flight, dtype=np.int64)
        if not 0 <= jobs <= len(self):
            raise TraceError(f"cannot rewind to {jobs} jobs, the trace has {len(self)}; was the log flushed before?")
        if len(flying) and not (flying.min() >= 0 and flying.max() < jobs):
            raise TraceError(f"in flight are {sorted(flying.tolist())}, but only jobs below {jobs} were assigned")
        columns = {name: getattr(self.jobs, name)[:jobs].copy() for name in DTYPES}
        unended = np.setdiff1d(np.flatnonzero(columns["outcome"] == Outcome.IN_FLIGHT), flying)
        if len(unended):
            raise TraceError(f"job {unended[0]} has ended by then, but the trace does not know how; flush earlier")
        for name, value in IN_FLIGHT.items():
            columns[name][flying] = value
        return Trace(Jobs(**columns), self.metadata)

    def until(self, iterations: int) -> Trace:
        """Return the trace as if the run had ended after ``iterations`` arrivals.

        >>> Trace.from_history(workers=[0, 0, 0], assigned=[0, 1, 2], arrived=[0, 1, 2]).until(1)
        <Trace: 2 jobs, 1 iterations: 1 in flight, 1 applied>
        """
        jobs = self.jobs
        handed_out = int(np.count_nonzero(jobs.entered <= iterations))
        ends_later = jobs.in_flight | (jobs.ended_iteration + jobs.arrived > iterations)
        flying = np.flatnonzero(ends_later[:handed_out])
        return replace(self.rewind(handed_out, flying), final_concurrency=len(flying))

    def arrivals(self) -> Arrivals:
        """Return the arrivals that a replay follows."""
        work = self.jobs.steps[self.job], self.jobs.batch[self.job], self.jobs.examples[self.job]
        return Arrivals(
            self.job, self.worker, self.assigned_iteration, self.time, self.concurrency, self.workers, *work
        )

    def with_batches(self, steps: int | Ints, counted: str) -> Trace:
        """Return the same jobs with other numbers of mini-batches, counted over all workers or for each worker.

        Args:
            steps: The number of mini-batches of every job, or one number per job.
            counted: "all" or "worker", as for `asyncsgd.core.server.Server`.
        """
        columns = {name: getattr(self.jobs, name) for name in DTYPES}
        columns["steps"] = np.array(np.broadcast_to(np.asarray(steps, np.int64), (len(self),)))
        columns["batch"] = batches_before(columns["worker"], columns["steps"], counted)
        return replace(self, jobs=Jobs(**columns))

    def with_examples(self, examples: Ints) -> Trace:
        """Return the same trace with the number of rows that each arrival used, in order of arrival; -1 if unknown."""
        columns = {name: getattr(self.jobs, name) for name in DTYPES}
        columns["examples"] = columns["examples"].copy()
        columns["examples"][self.job] = examples
        return replace(self, jobs=Jobs(**columns))

    def with_outcomes(self, weighed: Weighed, steps: Floats, metadata: Mapping[str, str]) -> Trace:
        """Return the same jobs at the same times, with the outcomes and steps of another method."""
        columns = {name: getattr(self.jobs, name).copy() for name in DTYPES}
        columns["assigned_version"] = weighed.version[columns["assigned_iteration"]]
        ended = columns["ended_iteration"] >= 0
        columns["ended_version"][ended] = weighed.version[columns["ended_iteration"][ended]]
        columns["outcome"][self.job], columns["step"][self.job] = weighed.outcome, steps
        return Trace(Jobs(**columns), {**self.metadata, **metadata}, self.final_concurrency)

    # ------------------------------------------------------------------------ in and out

    @classmethod
    def from_history(
        cls,
        workers: Sequence[int],
        assigned: Sequence[int],
        arrived: Sequence[int],
        metadata: Mapping[str, str] | None = None,
    ) -> Trace:
        """Build a trace from the worker of each job, the s of its x^(s), and the t at which it arrived (-1: not yet).

        The rest is filled in as in plain SGD: every arrival is applied with step 1, versions are iterations.
        """
        who, s, t = _whole_numbers(workers=workers, assigned=assigned, arrived=arrived)
        flying, nothing = t < 0, np.full(len(t), np.nan)
        size = int(np.count_nonzero(~flying))
        columns: dict[str, Any] = {
            "job": np.arange(len(t)),
            "worker": who,
            "assigned_iteration": s,
            "assigned_version": s,
            "entered": s,
            "assigned_time": nothing,
            "outcome": np.where(flying, Outcome.IN_FLIGHT, Outcome.APPLIED).astype(np.uint8),
            "ended_iteration": t,
            "ended_version": t,
            "ended_time": nothing,
            "step": np.where(flying, np.nan, 1.0),
            "concurrency": t,
            "workers": np.where(flying, -1, len(np.unique(who))),
        }
        counted = active(Jobs(**columns), size)
        columns["concurrency"] = np.where(flying, -1, counted[np.clip(t, 0, size)])
        return cls(Jobs(**columns), dict(metadata or {}))

    def write(self, path: str | PathLike[str]) -> None:
        """Write one Parquet file, whole or not at all. pandas and polars can open it."""
        from asyncsgd.trace.files import write

        write(self, path)

    @classmethod
    def read(cls, path: str | PathLike[str]) -> Trace:
        """Read a Parquet file, or a log up to its last complete flush. The first bytes decide which it is."""
        from asyncsgd.trace.files import read

        return read(path)

    def to_arrow(self) -> pyarrow.Table:
        """Return the jobs as an Arrow table, with the outcomes as text."""
        from asyncsgd.trace.files import to_arrow

        return to_arrow(self)

    def to_pandas(self) -> Any:
        """Return the jobs as a pandas DataFrame, with the outcomes as text."""
        return self.to_arrow().to_pandas()

    def write_timeline(self, path: str | PathLike[str], metrics: Mapping[str, Any] | None = None) -> None:
        """Write Chrome's trace events, for ui.perfetto.dev. ``metrics``, such as those of a run, become counters."""
        from asyncsgd.trace.timeline import write

        write(self, path, metrics)


def _read_only(column: Column) -> Column:
    column.flags.writeable = False
    return column


def _whole_numbers(**columns: Any) -> list[Ints]:
    """Return each column as integers. Refuse 0.5 and True, which NumPy would turn into 0 and 1."""
    found = []
    for name, given in columns.items():
        try:
            column = np.asarray(given)
        except ValueError:  # rows of different lengths
            column = np.empty((0, 0))
        if column.ndim != 1 or (column.size and column.dtype.kind not in "iu"):
            raise TraceError(f"{name} = {given!r} is not a list of whole numbers; pass one whole number per job")
        found.append(column.astype(np.int64))
    return found
