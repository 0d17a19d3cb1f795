"""Measured durations from files: CSV, Parquet, or the trace of a real run."""

from __future__ import annotations

import csv
import math
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Outcome
from asyncsgd.core.validate import count
from asyncsgd.simulation.durations.base import Durations
from asyncsgd.simulation.durations.columns import Floats
from asyncsgd.simulation.durations.distributions import from_groups, from_pairs
from asyncsgd.trace import Trace

LONG = ("worker", "duration")
LAYOUTS = "write one column per worker under a header, or rows under the header worker,duration"
POSITIVE = "pass positive finite seconds"


# ------------------------------------------------------------------------------------- CSV


def from_csv(path: str | PathLike[str]) -> Durations:
    r"""Read samples for ``measured`` from a CSV file, in one of two layouts.

    Layout 1 has one column per worker, under a header with a name for each; shorter columns end in empty cells. Layout
    2 has one row per job under the header ``worker,duration``; integer workers are sorted, others keep the order of
    their first row. docs/howto/durations.md has examples.

    Args:
        path: The CSV file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder, "durations.csv")
    ...     _ = path.write_text("fast,slow\n1.0,4.0\n2.0,\n")
    ...     print(from_csv(path).means)
    [1.5 4. ]
    """
    file = _existing(path)
    try:
        with file.open(newline="", encoding="utf-8-sig") as text:
            reader = csv.reader(text, strict=True)
            rows = ((reader.line_num, [cell.strip() for cell in row]) for row in reader if row)
            header = _header(file, next(rows, (1, []))[1])
            if set(header) == set(LONG):
                return _csv_rows(file, rows, header.index("worker"), header.index("duration"))
            return _csv_columns(file, rows, header)
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadParameter("path", str(file), f"is not readable as CSV ({error})", "save it as UTF-8 CSV") from None


def _header(file: Path, header: list[str]) -> list[str]:
    if not any(header):
        raise BadParameter("path", str(file), "is empty", LAYOUTS)
    where = f"{file}, line 1"
    if len(header) == 1 and re.search(r"[;\t|]", header[0]):
        raise BadParameter(where, header[0], "is one cell", "separate cells by commas")
    for column, name in enumerate(header, 1):
        if not name:
            fix = "name every column (if pandas wrote it, pass index=False there)"
            raise BadParameter(where, header, f"has no name for column {column}", fix)
        if not name.lstrip("+-").isdecimal() and _float(name) is not None:
            raise BadParameter(where, name, "is data, not a header", LAYOUTS)
    _check_names(where, header)
    numbered = [str(first + column) for first in (0, 1) for column in range(len(header))]
    if all(name.isdecimal() for name in header) and header not in (numbered[: len(header)], numbered[len(header) :]):
        problem = "holds numbers that are not 0, 1, 2, ...: durations instead of names"
        raise BadParameter(where, header, problem, LAYOUTS)
    return header


def _check_names(where: str, header: list[str]) -> None:
    seen: set[str] = set()
    for name in header:
        if name in seen:
            raise BadParameter(where, name, "names two columns", "give every column its own name")
        seen.add(name)
    known = set(LONG) & set(header)
    if known and set(header) != set(LONG):
        missing = [name for name in LONG if name not in header]
        problem = f"lacks the column {missing[0]!r}" if missing else "has more columns than worker and duration"
        raise BadParameter(where, header, problem, LAYOUTS)


def _csv_columns(file: Path, rows: Iterator[tuple[int, list[str]]], header: list[str]) -> Durations:
    columns: list[list[float]] = [[] for _ in header]
    ended = [0] * len(header)  # the line of a column's first empty cell
    for line, row in rows:
        if row == [""]:  # only blanks
            continue
        if len(row) != len(header):
            problem = f"has {len(row)} cells under {len(header)} names"
            more = len(row) > len(header)
            fix = "name every column in line 1" if more else "write all commas, also around empty cells"
            raise BadParameter(f"{file}, line {line}", row, problem, fix)
        for column, (name, cell) in enumerate(zip(header, row, strict=True)):
            if not cell:
                ended[column] = ended[column] or line
            elif ended[column]:
                problem = f"follows an empty cell (line {ended[column]})"
                fix = "leave cells empty only at the end of a column"
                raise BadParameter(f"{file}, line {line}, column {name!r}", cell, problem, fix)
            else:
                columns[column].append(_cell(file, line, name, cell))
    for name, samples in zip(header, columns, strict=True):
        if not samples:
            raise BadParameter("path", str(file), f"has no duration in column {name!r}", "give each worker a sample")
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(samples) for samples in columns])])
    return from_groups(np.array([value for samples in columns for value in samples]), bounds)


def _csv_rows(file: Path, rows: Iterator[tuple[int, list[str]]], worker: int, duration: int) -> Durations:
    names: list[str] = []
    values: list[float] = []
    for line, row in rows:
        if not any(row):
            continue
        if len(row) != 2 or not all(row):
            fix = "write the worker and its seconds in every line"
            raise BadParameter(f"{file}, line {line}", row, "is not a worker and a duration", fix)
        names.append(row[worker])
        values.append(_cell(file, line, "duration", row[duration]))
    if not values:
        raise BadParameter("path", str(file), "has a header and nothing below", "add one line per measured job")
    whole = all(name.isdecimal() for name in names)
    return from_pairs(np.array([int(name) for name in names] if whole else names), np.array(values))


def _cell(file: Path, line: int, name: str, cell: str) -> float:
    where, value = f"{file}, line {line}, column {name!r}", _float(cell)
    if value is None:
        raise BadParameter(where, cell, "is not a number", POSITIVE)
    if not (math.isfinite(value) and value > 0):
        raise BadParameter(where, value, "is not a duration", POSITIVE)
    return value


def _float(cell: str) -> float | None:
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


# ------------------------------------------------------------------------------------- Parquet


def from_parquet(path: str | PathLike[str]) -> Durations:
    """Read samples for ``measured`` from a Parquet file: the layouts of ``from_csv``, or a trace of ``Trace.write``.

    Shorter columns end in nulls.

    Args:
        path: The Parquet file.

    >>> import tempfile
    >>> from asyncsgd.simulation import durations, simulate
    >>> from asyncsgd import methods, tasks
    >>> run = simulate(tasks.quadratic(workers=2), methods.async_sgd(0.1), durations.fixed([1, 3]), iterations=8)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     run.trace.write(f"{folder}/trace.parquet")
    ...     print(from_parquet(f"{folder}/trace.parquet").means)
    [1. 3.]

    See docs/howto/durations.md for how to measure durations and simulate with them.
    """
    file = _existing(path)
    with _parquet(file) as parquet:
        schema = parquet.schema_arrow
        if b"asyncsgd.trace" in (schema.metadata or {}):
            return from_trace(file)
        names = [name for name in schema.names if not re.fullmatch(r"__index_level_\d+__", name)]  # pandas' index
        if not names:
            raise BadParameter("path", str(file), "has no column", LAYOUTS)
        _check_names(str(file), names)
        table = parquet.read(names)
    columns = {name: table.column(name).combine_chunks() for name in names}
    if set(names) == set(LONG):
        return _parquet_rows(file, columns["worker"], columns["duration"])
    samples = [_seconds(file, name, columns[name]) for name in names]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum([len(values) for values in samples])])
    return from_groups(np.concatenate(samples), bounds)


@contextmanager
def _parquet(file: Path) -> Iterator[Any]:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(file) as opened:
            yield opened
    except (pyarrow.ArrowException, OSError) as error:
        problem = "is empty" if not file.stat().st_size else f"is not readable as Parquet ({error})"
        raise BadParameter("path", str(file), problem, "write it again, or use from_csv for CSV") from None


def _parquet_rows(file: Path, workers: Any, durations: Any) -> Durations:
    from pyarrow import types

    kind = workers.type.value_type if types.is_dictionary(workers.type) else workers.type
    if not (types.is_integer(kind) or types.is_string(kind) or types.is_large_string(kind)):
        fix = "number or name the workers"
        raise BadParameter(f"{file}, column 'worker'", str(workers.type), "does not name workers", fix)
    for name, column in zip(LONG, (workers, durations), strict=True):
        if column.null_count:
            row = int(np.argmin(column.is_valid().to_numpy(zero_copy_only=False)))
            raise BadParameter(f"{file}, row {row}, column {name!r}", None, "is missing", "fill it or drop the row")
    values = _seconds(file, "duration", durations)
    keys = workers.to_numpy(zero_copy_only=False)
    return from_pairs(keys.astype(np.str_) if keys.dtype == object else keys, values)


def _seconds(file: Path, name: str, column: Any) -> Floats:
    from pyarrow import types

    if not (types.is_floating(column.type) or types.is_integer(column.type)):
        raise BadParameter(f"{file}, column {name!r}", str(column.type), "does not hold seconds", LAYOUTS)
    size = len(column) - column.null_count
    valid = column.is_valid().to_numpy(zero_copy_only=False)
    if not valid[:size].all():
        row = int(np.argmin(valid[:size]))
        fix = "leave cells empty only at the end of a column"
        raise BadParameter(f"{file}, row {row}, column {name!r}", None, "is empty before the end", fix)
    if not size:
        raise BadParameter("path", str(file), f"has no duration in column {name!r}", "give each worker a sample")
    values: Floats = column.slice(0, size).to_numpy(zero_copy_only=False).astype(np.float64)
    good = np.isfinite(values) & (values > 0)
    if not good.all():
        row = int(np.argmin(good))
        raise BadParameter(f"{file}, row {row}, column {name!r}", float(values[row]), "is not a duration", POSITIVE)
    return values


# ------------------------------------------------------------------------------------- traces


def from_trace(trace: Trace | str | PathLike[str], *, skip: int = 0) -> Durations:
    """Take each worker's computing times from the trace of a run (or a file of it), as samples for ``measured``.

    A worker does its jobs first in, first out. It began a job when the job was assigned, or when its previous job had
    ended if that was later. Communication is part of the time. The time of a job with several local steps is divided by
    their number, because durations are seconds per mini-batch. Only jobs that arrived count. The workers with such jobs
    are numbered 0, 1, 2, ... in sorted order; a warning names the workers that are left out.

    Args:
        trace: The trace of a real or simulated run, or the path of its file.
        skip: How many updates of each worker to leave out, from its first on: a worker that still loads code and data
            takes longer. A worker with no more than these is left out.

    >>> from asyncsgd.simulation import durations, simulate
    >>> from asyncsgd import methods, tasks
    >>> run = simulate(tasks.quadratic(workers=2), methods.async_sgd(0.1), durations.fixed([1, 3]), iterations=8)
    >>> from_trace(run.trace).means
    array([1., 3.])

    See docs/howto/durations.md for how to measure durations and simulate with them.
    """
    if not isinstance(trace, Trace):
        trace = Trace.read(_existing(trace))
    jobs = trace.jobs
    ended = np.flatnonzero(jobs.outcome != Outcome.IN_FLIGHT)
    ended = ended[np.lexsort((ended, jobs.ended_time[ended], jobs.worker[ended]))]
    worker, begin, end = jobs.worker[ended], jobs.assigned_time[ended].copy(), jobs.ended_time[ended]
    again = np.flatnonzero(worker[1:] == worker[:-1]) + 1  # rows whose worker had a job before
    begin[again] = np.maximum(begin[again], end[again - 1])
    arrived = jobs.arrived[ended]
    worker, took, rows = worker[arrived], (end - begin)[arrived], ended[arrived]
    if skip:
        count("skip", skip)
        begun = np.searchsorted(worker, worker)  # of the rows of the same worker, which are in the order of time
        late = np.arange(len(worker)) - begun >= skip
        worker, took, rows = worker[late], took[late], rows[late]
    if not len(took):
        raise BadParameter("trace", trace, "has no arrival to measure", "pass the trace of a longer run")
    good = np.isfinite(took) & (took > 0)
    if not good.all():
        first = int(np.argmin(good))
        fix = "record both times in seconds, on one clock that is fine enough"
        raise BadParameter("trace", jobs.name(int(rows[first])), f"took {took[first]} seconds", fix)
    silent = np.setdiff1d(jobs.worker, worker)
    if len(silent):
        names = ", ".join(map(str, silent[:5].tolist())) + (", ..." if len(silent) > 5 else "")
        what = "update after those skipped" if skip else "update"
        warnings.warn(
            f"{len(silent)} workers of the trace ({names}) sent no {what} and are left out; "
            "add durations for them with concatenate",
            stacklevel=2,
        )
    return from_pairs(worker, took / jobs.steps[rows])


def _existing(path: str | PathLike[str]) -> Path:
    try:
        file = Path(path)
    except TypeError:
        raise BadParameter("path", path, "is not a path", "pass the name of a file") from None
    if not file.is_file():
        problem = "is a directory" if file.is_dir() else "does not exist"
        raise BadParameter("path", str(file), problem, "check the path")
    return file
