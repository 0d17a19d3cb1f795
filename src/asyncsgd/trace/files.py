"""Traces on disk: Parquet, and reading back either kind of file. pyarrow is loaded only when this is used."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from asyncsgd.core.errors import BadTraceFile
from asyncsgd.core.events import Outcome
from asyncsgd.trace.atomic import replacing
from asyncsgd.trace.columns import DTYPES, Jobs
from asyncsgd.trace.trace import Trace

FORMAT = b"1"
"""Goes up when an older reader would misunderstand the file."""

PARQUET, STREAM = b"PAR1", b"\xff\xff\xff\xff"
"""The first bytes of a Parquet file, and of an Arrow IPC stream."""

WORDS = [outcome.name.lower() for outcome in Outcome]

# Counters grow slowly from row to row. Storing the differences makes the file three times smaller, and faster.
COUNTING = {
    name: "DELTA_BINARY_PACKED"
    for name in ("job", "assigned_iteration", "assigned_version", "entered", "ended_iteration", "ended_version")
}
REPEATING = ["outcome", "worker", "step", "concurrency", "workers"]


def to_arrow(trace: Trace) -> pa.Table:
    """Return the jobs as a table: outcomes as dictionary-encoded words, the facts as metadata."""
    columns: dict[str, Any] = {name: pa.array(getattr(trace.jobs, name)) for name in DTYPES}
    codes = pa.array(trace.jobs.outcome.astype(np.int8))
    columns["outcome"] = pa.DictionaryArray.from_arrays(codes, pa.array(WORDS))
    return pa.table(columns).replace_schema_metadata(_facts(trace.metadata, trace.final_concurrency, trace.truncated))


def log_schema(metadata: Mapping[str, str]) -> pa.Schema:
    """Return the header of a log; there outcomes are codes, because words would need a dictionary batch."""
    return pa.schema([(name, pa.from_numpy_dtype(dtype)) for name, dtype in DTYPES.items()], _facts(metadata))


def write(trace: Trace, path: str | PathLike[str]) -> None:
    """Write Parquet, whole or not at all."""
    from pyarrow import parquet

    if Path(path).suffix.lower() not in ("", ".parquet", ".pq"):
        raise BadTraceFile(f"{path} would hold Parquet, whatever its name says; name it {Path(path).stem}.parquet")
    table = to_arrow(trace)
    with replacing(Path(path)) as file:
        parquet.write_table(table, file, compression="zstd", use_dictionary=REPEATING, column_encoding=COUNTING)


def read(path: str | PathLike[str]) -> Trace:
    """Read a trace from Parquet or from a log."""
    path = Path(path)
    if path.is_dir():
        raise BadTraceFile(f"{path} is a directory; pass the trace file inside it")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == PARQUET:
        return _read_parquet(path)
    if magic == STREAM:
        return _read_log(path)
    if len(magic) < 4 and STREAM.startswith(magic):
        raise BadTraceFile(
            f"{path} is {'torn' if magic else 'empty'}: the run ended before its first flush; start anew"
        )
    raise BadTraceFile(f"{path} begins with {magic!r}, so it is neither Parquet nor a log; pass a file of trace.write")


# ------------------------------------------------------------------------------------- the facts


def _facts(metadata: Mapping[str, str], final: int | None = None, truncated: bool = False) -> dict[bytes, bytes]:
    return {
        b"asyncsgd.trace": FORMAT,
        b"asyncsgd.metadata": json.dumps(dict(metadata)).encode(),
        b"asyncsgd.final_concurrency": json.dumps(final).encode(),
        b"asyncsgd.truncated": json.dumps(truncated).encode(),
    }


def _check_format(path: Path, schema: pa.Schema) -> dict[bytes, bytes]:
    facts: dict[bytes, bytes] = schema.metadata or {}
    version = facts.get(b"asyncsgd.trace")
    if version is None:
        raise BadTraceFile(f"{path} was not written by asyncsgd (its schema has no 'asyncsgd.trace'); use trace.write")
    if version != FORMAT:
        found, known = version.decode(errors="replace"), FORMAT.decode()
        raise BadTraceFile(
            f"{path} has trace format {found}, this asyncsgd reads {known}; use the asyncsgd that wrote it"
        )
    missing = [name for name in DTYPES if name not in schema.names]
    if missing:
        raise BadTraceFile(f"{path} lacks the columns {missing}; write it again with trace.write, unchanged")
    for name, dtype in DTYPES.items():
        found, wanted = schema.field(name).type, pa.from_numpy_dtype(dtype)
        words = name == "outcome" and pa.types.is_dictionary(found) and pa.types.is_string(found.value_type)
        if found != wanted and not words:
            raise BadTraceFile(f"{path}: column {name!r} is {found}, not {wanted}; write it again with trace.write")
    return facts


def _build(path: Path, facts: dict[bytes, bytes], columns: dict[str, Any], *, truncated: bool) -> Trace:
    try:
        metadata = json.loads(facts[b"asyncsgd.metadata"])
        final = json.loads(facts[b"asyncsgd.final_concurrency"])
        truncated = truncated or json.loads(facts[b"asyncsgd.truncated"])
        return Trace(Jobs(**columns), metadata, final, truncated)
    except (KeyError, ValueError) as error:
        raise BadTraceFile(f"{path}: its metadata is damaged ({error}); write it again with trace.write") from error


# ------------------------------------------------------------------------------------- the two kinds


def _read_parquet(path: Path) -> Trace:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            facts = _check_format(path, file.schema_arrow)
            table = file.read(list(DTYPES))
    except (pa.ArrowException, OSError) as error:
        raise BadTraceFile(f"{path} is a damaged Parquet file ({error}); restore it, or read the run's log") from error
    columns = {}
    for name in DTYPES:
        column = table.column(name).combine_chunks()
        if column.null_count:
            raise BadTraceFile(f"{path}: column {name!r} has {column.null_count} nulls; a trace has none")
        if name == "outcome" and pa.types.is_dictionary(column.type):
            column = _codes(path, column)
        columns[name] = column.to_numpy(zero_copy_only=False)
    if not np.array_equal(columns["job"], np.arange(len(table))):
        raise BadTraceFile(f"{path}: its jobs are not 0, 1, 2, ... in order; sort it by 'job' and keep every row")
    return _build(path, facts, columns, truncated=False)


def _codes(path: Path, column: Any) -> Any:
    words = column.dictionary.to_pylist()
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise BadTraceFile(f"{path}: unknown outcomes {unknown}; the known ones are {WORDS}")
    code_of = np.array([WORDS.index(word) for word in words], dtype=np.uint8)
    return pa.array(code_of[column.indices.to_numpy(zero_copy_only=False)] if words else code_of)


def _read_log(path: Path) -> Trace:
    data = path.read_bytes()
    source = pa.BufferReader(data)
    try:
        schema = pa.ipc.read_schema(pa.ipc.read_message(source))
    except (pa.ArrowException, OSError, EOFError) as error:
        raise BadTraceFile(f"{path} has no complete header: the run ended in its first flush; start anew") from error
    facts = _check_format(path, schema)
    batches, whole = [], source.tell()
    while True:
        try:
            batch = pa.ipc.read_record_batch(pa.ipc.read_message(source), schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, EOFError):
            break  # the end, or a batch that the kill has torn
        batches.append(batch)
        whole = source.tell()
    rest = data[whole:]
    table = pa.Table.from_batches(batches, schema)
    job = table.column("job").to_numpy()
    # Numbers are checked before they are used as places: a file is not to be trusted with our memory.
    size = int(job.max(initial=-1)) + 1
    if size > len(job) or job.min(initial=0) < 0 or (np.bincount(job, minlength=size) == 0).any():
        raise BadTraceFile(f"{path}: its jobs are not numbered 0, 1, 2, ... without gaps; it is damaged")
    columns = {}
    for name, dtype in DTYPES.items():
        columns[name] = np.empty(size, dtype)
        columns[name][job] = table.column(name).to_numpy()  # of several rows of a job the last one stays
    return _build(path, facts, columns, truncated=bool(rest) and rest != STREAM + bytes(4))
