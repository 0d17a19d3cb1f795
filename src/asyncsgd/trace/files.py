"""Traces on disk: write Parquet, and read Parquet or a log. Only this module loads pyarrow, and only when used."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from asyncsgd._files import replacing
from asyncsgd.core.errors import BadTraceFile
from asyncsgd.core.events import Outcome
from asyncsgd.trace import log
from asyncsgd.trace.columns import DTYPES, Jobs
from asyncsgd.trace.trace import Trace

PARQUET, STREAM = b"PAR1", b"\xff\xff\xff\xff"
"""The first bytes of a Parquet file, and of a log of format 1."""

WORDS = [outcome.name.lower() for outcome in Outcome]

# Counters grow slowly from row to row. Storing the differences makes the file three times smaller, and faster.
COUNTING = {
    name: "DELTA_BINARY_PACKED"
    for name in (
        "job",
        "assigned_iteration",
        "assigned_version",
        "entered",
        "ended_iteration",
        "ended_version",
        "batch",
    )
}
REPEATING = ["outcome", "worker", "step", "concurrency", "workers", "steps", "examples"]


def to_arrow(trace: Trace) -> pa.Table:
    """Return the jobs as a table: outcomes as dictionary-encoded text, the facts as metadata."""
    columns: dict[str, Any] = {name: pa.array(getattr(trace.jobs, name)) for name in DTYPES}
    codes = pa.array(trace.jobs.outcome.astype(np.int8))
    columns["outcome"] = pa.DictionaryArray.from_arrays(codes, pa.array(WORDS))
    return pa.table(columns).replace_schema_metadata(_facts(trace))


def write(trace: Trace, path: str | PathLike[str], *, private: bool = False) -> None:
    """Write Parquet, whole or not at all. Only the owner may read a ``private`` file."""
    from pyarrow import parquet

    if Path(path).suffix.lower() not in ("", ".parquet", ".pq"):
        raise BadTraceFile(f"{path} would hold Parquet in spite of its name; name it {Path(path).stem}.parquet")
    table = to_arrow(trace)
    with replacing(Path(path), private=private) as file:
        parquet.write_table(table, file, compression="zstd", use_dictionary=REPEATING, column_encoding=COUNTING)


def read(path: str | PathLike[str]) -> Trace:
    """Read a trace from Parquet or from a log."""
    path = Path(path)
    if path.is_dir():
        raise BadTraceFile(f"{path} is a directory; pass the trace file inside it")
    with path.open("rb") as file:
        magic = file.read(len(log.MAGIC))
    if magic.startswith(PARQUET):
        return _read_parquet(path)
    if log.MAGIC.startswith(magic):
        return log.read(path)[0]
    if magic.startswith(STREAM):
        raise BadTraceFile(f"{path} has trace format 1, and this asyncsgd reads {log.FORMAT}; {OLD}")
    raise BadTraceFile(f"{path} begins with {magic!r}, so it is neither Parquet nor a log; pass a file of trace.write")


# ------------------------------------------------------------------------------------- the facts


OLD = "use the asyncsgd that wrote it"


def _facts(trace: Trace) -> dict[bytes, bytes]:
    facts = {
        b"asyncsgd.trace": str(log.FORMAT).encode(),
        b"asyncsgd.metadata": json.dumps(dict(trace.metadata)).encode(),
        b"asyncsgd.final_concurrency": json.dumps(trace.final_concurrency).encode(),
        b"asyncsgd.truncated": json.dumps(trace.truncated).encode(),
    }
    return {**facts, b"asyncsgd.sha256": _checksum(facts, trace.jobs)}


def _checksum(facts: Mapping[bytes, bytes], jobs: Jobs) -> bytes:
    """Return a checksum of everything read from a file. Parquet has its own checksums, but not of everything."""
    digest = hashlib.sha256(repr(sorted(facts.items())).encode())
    for name, dtype in DTYPES.items():
        digest.update(np.ascontiguousarray(getattr(jobs, name), dtype.newbyteorder("<")).tobytes())
    return digest.hexdigest().encode()


def _check_format(path: Path, schema: pa.Schema) -> dict[bytes, bytes]:
    facts: dict[bytes, bytes] = schema.metadata or {}
    version = facts.get(b"asyncsgd.trace")
    if version is None:
        raise BadTraceFile(f"{path} was not written by asyncsgd (its schema has no 'asyncsgd.trace'); use trace.write")
    if version != str(log.FORMAT).encode():
        found = version.decode(errors="replace")
        raise BadTraceFile(f"{path} has trace format {found}, and this asyncsgd reads {log.FORMAT}; {OLD}")
    missing = [name for name in DTYPES if name not in schema.names]
    if missing:
        raise BadTraceFile(f"{path} lacks the columns {missing}; write it again with trace.write, unchanged")
    for name, dtype in DTYPES.items():
        found, wanted = schema.field(name).type, pa.from_numpy_dtype(dtype)
        words = name == "outcome" and pa.types.is_dictionary(found) and pa.types.is_string(found.value_type)
        if found != wanted and not words:
            raise BadTraceFile(f"{path}: column {name!r} is {found}, not {wanted}; write it again with trace.write")
    return facts


def _build(path: Path, facts: dict[bytes, bytes], columns: dict[str, Any]) -> Trace:
    jobs = Jobs(**columns)
    ours = {key: value for key, value in facts.items() if key.startswith(b"asyncsgd.") and key != b"asyncsgd.sha256"}
    if _checksum(ours, jobs) != facts.get(b"asyncsgd.sha256"):
        raise BadTraceFile(f"{path} is damaged (it does not match its checksum); restore it, or read the run's log")
    try:
        metadata = json.loads(facts[b"asyncsgd.metadata"])
        final = json.loads(facts[b"asyncsgd.final_concurrency"])
        return Trace(jobs, metadata, final, json.loads(facts[b"asyncsgd.truncated"]))
    except (KeyError, ValueError) as error:
        raise BadTraceFile(f"{path}: its metadata is damaged ({error}); write it again with trace.write") from error


def _read_parquet(path: Path) -> Trace:
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            facts = _check_format(path, file.schema_arrow)
            table = file.read(list(DTYPES))
    except BadTraceFile:
        raise
    except Exception as error:  # damaged bytes make pyarrow raise almost anything
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
    return _build(path, facts, columns)


def _codes(path: Path, column: Any) -> Any:
    words = column.dictionary.to_pylist()
    unknown = [word for word in words if word not in WORDS]
    if unknown:
        raise BadTraceFile(f"{path}: unknown outcomes {unknown}; the known ones are {WORDS}")
    code_of = np.array([WORDS.index(word) for word in words], dtype=np.uint8)
    return pa.array(code_of[column.indices.to_numpy(zero_copy_only=False)] if words else code_of)
