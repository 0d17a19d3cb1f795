"""When each job waited and was computed, and a trace as Chrome's trace events (ui.perfetto.dev, chrome://tracing).

::

    server    one slice per version of the model; counters: jobs in flight, delay, metrics
    worker 0  one slice per job while it is computed; time in a queue is a slice beside it
    worker 1  ...
    arrows    from the version that a job read to the job, and on to the version that its update made
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncsgd._files import replacing
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Outcome
from asyncsgd.trace.columns import DTYPES, WHEN, Floats, Ints, Mask
from asyncsgd.trace.labels import PLAIN
from asyncsgd.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Spans:
    """One row per job: assigned, then computed from ``begin`` to ``end``; in seconds, or in iterations without a clock.

    A worker does its jobs first in, first out. It began a job when the job was assigned, or when the jobs before it had
    ended if that was later. A job in flight lasts until the ``horizon``; one that never began has ``begin == end``.
    """

    assigned: Floats
    begin: Floats
    end: Floats
    horizon: float
    """The end of the record."""
    timed: bool
    """Whether the unit is seconds; otherwise it is iterations."""

    @property
    def waited(self) -> Mask:
        """Whether each job waited in a queue."""
        mask: Mask = self.begin > self.assigned
        return mask


def spans(trace: Trace, horizon: float | None = None) -> Spans:
    """Return when each job waited and was computed; ``horizon`` is the end of the record, by default its last event.

    Worker 0 gets two jobs at once and so begins the second when the first has ended:

    >>> found = spans(Trace.from_history(workers=[0, 0, 1], assigned=[0, 0, 0], arrived=[0, 2, 1]))
    >>> found.begin, found.end, found.timed
    (array([0., 1., 0.]), array([1., 3., 2.]), False)
    """
    jobs = trace.jobs
    timed = bool(len(jobs)) and bool(np.isfinite(jobs.assigned_time).all())
    if timed:
        assigned, ended = jobs.assigned_time, jobs.ended_time
    else:  # arrival t takes the time from t to t + 1
        assigned = jobs.assigned_iteration.astype(float)
        ended = np.where(jobs.in_flight, np.nan, jobs.ended_iteration + jobs.arrived)
    if horizon is None:
        known = ended[~jobs.in_flight]
        horizon = float(max(assigned.max(initial=0.0), known.max(initial=0.0)))
    end = np.where(jobs.in_flight, max(horizon, float(assigned.max(initial=0.0))), ended)
    if not len(jobs):
        return Spans(assigned, assigned, end, horizon, timed)

    # For each row, the latest end among the earlier jobs of its worker: a running maximum that restarts with every
    # worker. It runs over whole numbers made of (worker, rank of the end), so one pass serves all workers.
    worker = np.unique(jobs.worker, return_inverse=True)[1]
    order = np.lexsort((jobs.job, worker))
    ranked = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[ranked] = np.arange(len(end))
    latest = np.maximum.accumulate((worker * len(end) + rank)[order])
    again = np.flatnonzero(worker[order[1:]] == worker[order[:-1]]) + 1  # rows whose worker had a job before
    free = np.full(len(end), -np.inf)
    free[order[again]] = end[ranked[latest[again - 1] % len(end)]]
    begin = np.minimum(np.maximum(assigned, free), end)
    return Spans(assigned, begin, end, float(horizon), timed)


SERVER, WORKERS = 1, 2
"""Process ids in the picture. They start at 1, because viewers reserve 0 for the kernel."""
FIRST_ROW = 2
"""The first row id of workers: the server's row is 1, and row ids are unique over all processes."""

Event = dict[str, Any]
Metrics = Mapping[str, ArrayLike]


def write(
    trace: Trace,
    path: str | PathLike[str],
    metrics: Metrics | None = None,
    *,
    flows: bool = True,
    label: Callable[[int], str] = PLAIN,
) -> Path:
    """Write the file, whole or not at all, and compressed if its name ends in ``.gz``; ``label`` names the workers."""
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as file:
            if target.suffix == ".gz":
                with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as packed:
                    _dump(trace, metrics, flows, label, packed)
            else:
                _dump(trace, metrics, flows, label, file)
    except OSError as error:
        raise BadParameter("path", str(path), f"cannot be written ({error.strerror})", "pass another path") from error
    return target


def _dump(trace: Trace, metrics: Metrics | None, flows: bool, label: Callable[[int], str], file: Any) -> None:
    about = {**trace.metadata, "clock": "seconds" if spans(trace).timed else "a millisecond is an iteration"}
    head = f'{{"displayTimeUnit": "ms", "otherData": {json.dumps(about)}, "traceEvents": [\n'
    file.write(head.encode())
    encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode
    found = map(encode, events(trace, metrics, flows=flows, label=label))
    comma = ""
    while lines := list(islice(found, 10_000)):
        file.write((comma + ",\n".join(lines)).encode())
        comma = ",\n"
    file.write(b"\n]}\n")


def events(
    trace: Trace, metrics: Metrics | None = None, *, flows: bool = True, label: Callable[[int], str] = PLAIN
) -> Iterator[Event]:
    """Yield the events. Times are whole microseconds, because fractions would make slices overlap by rounding.

    >>> trace = Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1])
    >>> [event["name"] for event in events(trace) if event["ph"] == "X" and event["pid"] == WORKERS]
    ['job 0', 'job 1', 'job 2 in flight']
    """
    found = spans(trace)
    scale = 1e6 if found.timed else 1e3
    workers, row = np.unique(trace.jobs.worker, return_inverse=True)
    names = [label(int(worker)) for worker in workers]
    yield from _names(names)
    yield from _versions(trace, found, scale)
    yield from _jobs(trace, found, scale, row, names, flows)
    yield from _counters(trace, found, scale, metrics or {})


def _names(workers: list[str]) -> Iterator[Event]:
    for process, name in ((SERVER, "server"), (WORKERS, "workers")):
        yield {"ph": "M", "pid": process, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process, "name": "process_sort_index", "args": {"sort_index": process}}
    yield {"ph": "M", "pid": SERVER, "tid": 1, "name": "thread_name", "args": {"name": "version of the model"}}
    for place, worker in enumerate(workers):
        common = {"ph": "M", "pid": WORKERS, "tid": FIRST_ROW + place}
        yield {**common, "name": "thread_name", "args": {"name": worker}}
        yield {**common, "name": "thread_sort_index", "args": {"sort_index": place}}


def _ticks(times: ArrayLike, scale: float) -> Ints:
    return np.rint(np.asarray(times, float) * scale).astype(np.int64)


def _arrivals(trace: Trace, found: Spans) -> NDArray[np.float64]:
    """Return the time of each arrival t."""
    times: NDArray[np.float64] = found.end[trace.job]
    return times


def _versions(trace: Trace, found: Spans, scale: float) -> Iterator[Event]:
    """Yield a slice per version of the model, from the arrival that made it to the one that made the next."""
    jobs, version = trace.jobs, trace.version
    # The version that the last arrival made is only known if a job has read it.
    newest = max(int(jobs.assigned_version.max(initial=0)), int(version.max(initial=0)))
    after = np.append(version[1:], newest)[: len(version)]
    made = np.flatnonzero(after > version)
    begin = float(found.assigned.min(initial=found.horizon))
    numbers = [int(version[0]) if len(version) else newest, *after[made].tolist()]
    bounds = _ticks([begin, *_arrivals(trace, found)[made], max(found.horizon, begin)], scale).tolist()
    for place, number in enumerate(numbers):
        args = {"version": number, "after_iteration": None if place == 0 else int(made[place - 1])}
        span = {"ts": bounds[place], "dur": bounds[place + 1] - bounds[place]}
        yield {"ph": "X", "pid": SERVER, "tid": 1, "cat": "version", "name": f"version {number}", **span, "args": args}


def _jobs(trace: Trace, found: Spans, scale: float, rows: Ints, names: list[str], flows: bool) -> Iterator[Event]:
    jobs, now, row = trace.jobs, trace.iterations, rows.tolist()
    column = {name: getattr(jobs, name).tolist() for name in DTYPES}
    assigned, begin, end = (_ticks(times, scale).tolist() for times in (found.assigned, found.begin, found.end))
    waited = found.waited.tolist()
    began = ((found.begin < found.end) | jobs.arrived | (jobs.in_flight & ~found.waited)).tolist()
    for job in range(len(jobs)):
        outcome = Outcome(column["outcome"][job])
        word = outcome.name.lower().replace("_", " ")
        arrived, flying = outcome.arrived, outcome is Outcome.IN_FLIGHT
        read, ended = column["assigned_iteration"][job], column["ended_iteration"][job]
        version = column["assigned_version"][job]
        args = {
            "job": job,
            "worker": column["worker"][job],
            "outcome": word,
            "iteration": ended if arrived else None,
            "read_iteration": read,
            "version": version,
            "delay": ended - read if arrived else now - read if flying else None,
            "staleness": column["ended_version"][job] - version if arrived else None,
            "step": column["step"][job] if arrived else None,
        }
        here: Event = {"pid": WORKERS, "tid": FIRST_ROW + row[job]}
        name = f"job {job}" if outcome is Outcome.APPLIED else f"job {job} {word}"  # viewers choose colours by the name
        if waited[job]:
            queue = {**here, "cat": "waiting", "name": f"{names[row[job]]} waiting", "id": job}
            yield {"ph": "b", **queue, "ts": assigned[job], "args": {"job": job}}
            yield {"ph": "e", **queue, "ts": begin[job]}
        if not began[job]:
            yield {
                "ph": "i",
                "s": "t",
                **here,
                "cat": word,
                "name": f"{name}, never started",
                "ts": end[job],
                "args": args,
            }
            continue
        duration = end[job] - begin[job]
        yield {"ph": "X", **here, "cat": word, "name": name, "ts": begin[job], "dur": duration, "args": args}
        if flows:
            arrow = {"cat": "model", "name": "model", "id": job}
            server = {"pid": SERVER, "tid": 1}
            yield {"ph": "s", **server, **arrow, "ts": assigned[job]}
            yield {"ph": "t" if arrived else "f", "bp": "e", **here, **arrow, "ts": begin[job]}
            if arrived:
                yield {"ph": "f", "bp": "e", **server, **arrow, "ts": end[job]}


def _counters(trace: Trace, found: Spans, scale: float, metrics: Metrics) -> Iterator[Event]:
    arrivals = _arrivals(trace, found)
    columns: dict[str, tuple[Any, Any]] = {
        "jobs in flight": (arrivals, trace.concurrency),
        "delay": (arrivals, trace.delay),
    }
    clock = metrics.get("time" if found.timed else "iteration", ())
    columns |= {name: (clock, values) for name, values in metrics.items() if name not in WHEN}
    for name, (times, values) in columns.items():
        for tick, value in zip(_ticks(times, scale).tolist(), np.asarray(values).tolist(), strict=True):
            if value is not None and np.isfinite(value):
                yield {"ph": "C", "pid": SERVER, "tid": 1, "name": name, "ts": tick, "args": {name: value}}
