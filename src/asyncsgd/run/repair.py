"""`repair`: rebuild what can be rebuilt of a damaged run directory, and move the rest aside."""

from __future__ import annotations

import json
import shutil
import zlib
from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from os import PathLike
from pathlib import Path

from asyncsgd._files import make_folder, write_bytes
from asyncsgd.core.errors import BadCheckpoint, Damage
from asyncsgd.run import checkpoints as checkpoints
from asyncsgd.run.checkpoints import Checkpoint
from asyncsgd.run.checksums import MARK, NAME, UNKNOWN, VOLATILE, Checksums, Whole
from asyncsgd.run.directory import APPENDED, FINGERPRINTS, INITIAL, LAST_FINITE, RunDirectory
from asyncsgd.run.noise_log import NOISE_LOGS, RELEASES
from asyncsgd.run.read import as_path, read_config
from asyncsgd.run.verify import LOG, PARQUET, PICKLE, Finding, ends, verify
from asyncsgd.trace import Trace
from asyncsgd.trace.files import write as write_parquet
from asyncsgd.trace.log import header, records
from asyncsgd.trace.log import read as read_log
from asyncsgd.trace.sealed import SUM, Mark, block, blocks, line

WHOLE = ("run.json", PICKLE, PARQUET, LAST_FINITE, INITIAL)
Places = Callable[[Mark], Mark | None]
"""Maps an old mark of a file to the same place in the repaired file; None if that place is lost."""


def repair(directory: str | PathLike[str]) -> list[str]:
    """Rebuild what can be rebuilt of a damaged run directory; return what was done, one sentence per file.

    Nothing is deleted: the original of every changed or removed file moves to a folder ``damaged-1`` (or -2, ...).

    - trace.parquet is rebuilt from trace.log, or trace.log from trace.parquet.
    - metrics.jsonl, journal.jsonl and noise.jsonl lose only their damaged lines.
    - Without trace.parquet, trace.log keeps everything before the damage. So does fingerprints.bin; a replay then
      compares fewer updates.
    - A checkpoint that is damaged, or that needs more data than the files still hold, is moved aside. A resume uses an
      older one.
    - checksums.json is rebuilt. run.json cannot be rebuilt: without it, the directory is refused and left unchanged.

    Args:
        directory: The run directory, as passed to `asyncsgd.train`. No process may be training in it.

    >>> import tempfile
    >>> import asyncsgd as asgd
    >>> from asyncsgd.testing.bench import Bowl
    >>> run = asgd.train(
    ...     Bowl(),
    ...     asgd.async_sgd(0.1),
    ...     engine=asgd.engines.processes(1),
    ...     iterations=9,
    ...     directory=tempfile.mkdtemp(),
    ...     progress=False,
    ... )
    >>> _ = (run.directory / "trace.parquet").write_bytes(b"PAR1 and no more")
    >>> for sentence in repair(run.directory):
    ...     print(sentence)
    trace.parquet is rebuilt from trace.log; the damaged file is in damaged-1
    checksums.json is rebuilt
    """
    path = as_path(directory)
    found = [finding for finding in verify(path) if finding.damage]
    if not found:
        return []
    read_config(path)  # refuses a directory without a sound run.json
    lock = RunDirectory(path)
    try:
        return _Repair(path, found).done
    finally:
        lock.close()


class _Repair:
    """One repair. The order matters: first the trace, then the other files, then the checkpoints that rely on them."""

    def __init__(self, path: Path, found: list[Finding]) -> None:
        self._path = path
        self._bad = {finding.file for finding in found}
        number = 1
        while (path / f"damaged-{number}").exists():
            number += 1
        self._aside = path / f"damaged-{number}"
        self.done: list[str] = []
        self._iterations = 0  # of the readable part of the trace
        good = self._checkpoints()
        places: dict[str, Places] = {LOG: self._trace(good)}
        for name in (*APPENDED, *NOISE_LOGS):
            if (path / name).exists() or name in self._bad:
                places[name] = self._appended(name, good)
        for name in sorted(self._bad - {LOG, PARQUET, NAME, *APPENDED, *NOISE_LOGS}):
            if (path / name).exists():
                self._set_aside(name)
                self.done.append(f"{name} is damaged; it is now in {self._aside.name}")
            elif not any(name in sentence for sentence in self.done):
                self.done.append(f"{name} is missing and cannot be rebuilt")
        self._match(good, places)
        self._set_aside(NAME)
        listing(path).write(path)
        self.done.append(f"{NAME} is rebuilt")

    def _set_aside(self, name: str) -> None:
        """Move a file to the folder for damaged files."""
        if (self._path / name).exists():
            target = self._aside / name
            make_folder(target.parent)
            shutil.move(self._path / name, target)

    def _replace(self, name: str, data: bytes, sentence: str) -> None:
        was = (self._path / name).exists()
        self._set_aside(name)
        write_bytes(self._path / name, data, private=True)
        self.done.append(f"{name} {sentence}" + (f"; the damaged file is in {self._aside.name}" if was else ""))

    # ------------------------------------------------------------------------------------------ checkpoints

    def _checkpoints(self) -> dict[str, Checkpoint]:
        """Return the readable checkpoints, newest first."""
        good = {}
        for file in checkpoints.listed(self._path / "checkpoints"):
            try:
                good[file.name] = checkpoints.read(file)
            except BadCheckpoint:
                self._bad.add(f"checkpoints/{file.name}")
        return good

    def _match(self, good: dict[str, Checkpoint], places: dict[str, Places]) -> None:
        """Adapt the marks of every checkpoint to the repaired files; move aside checkpoints that need lost data."""
        for name, checkpoint in good.items():
            marks = {file: places[file](mark) if file in places else None for file, mark in checkpoint.marks.items()}
            lacking = [file for file, mark in marks.items() if mark is None]
            now = {file: mark for file, mark in marks.items() if mark is not None}
            if lacking:
                self._set_aside(f"checkpoints/{name}")
                needs = f"needs more of {', '.join(lacking)} than is left"
                self.done.append(f"checkpoints/{name} {needs}; it is now in {self._aside.name}")
            elif now != checkpoint.marks:
                self._set_aside(f"checkpoints/{name}")
                checkpoints.write(self._path / "checkpoints", replace(checkpoint, marks=now))
                self.done.append(f"checkpoints/{name} is rewritten to fit the repaired files")

    # ------------------------------------------------------------------------------------------ the trace

    def _trace(self, good: dict[str, Checkpoint]) -> Places:
        path = self._path / LOG
        if LOG in self._bad:
            whole = PARQUET not in self._bad and (self._path / PARQUET).exists()
            return self._log_from_parquet(Trace.read(self._path / PARQUET), good) if whole else self._log_prefix()
        trace, _ = read_log(path)
        self._iterations = trace.iterations
        if PARQUET in self._bad:
            self._rebuild_parquet(trace, good)
        marks = set(ends(LOG, path.read_bytes()))
        return lambda mark: mark if mark in marks else None

    def _rebuild_parquet(self, trace: Trace, good: dict[str, Checkpoint]) -> None:
        counted = [len(one.state["active"]) for one in good.values() if one.iteration == trace.iterations]
        was = (self._path / PARQUET).exists()
        self._set_aside(PARQUET)
        whole = replace(trace, final_concurrency=counted[0] if counted else None, truncated=False)
        write_parquet(whole, self._path / PARQUET, private=True)
        where = f"; the damaged file is in {self._aside.name}" if was else ""
        self.done.append(f"{PARQUET} is rebuilt from {LOG}{where}")

    def _log_from_parquet(self, trace: Trace, good: dict[str, Checkpoint]) -> Places:
        """Rebuild trace.log, with one block per checkpoint, so that each of them can be resumed."""
        self._iterations = trace.iterations
        data, chain = header(trace.metadata)
        stops, places = [], {}
        for checkpoint in sorted(good.values(), key=lambda one: one.iteration):
            flying = [int(row[0]) for row in checkpoint.state["active"]]
            stops.append((checkpoint.marks[LOG], trace.rewind(checkpoint.state["outcomes"]["jobs"], flying)))
        stops.append((Mark(), trace))
        for mark, then in stops:
            payload, chain = block(records(then.jobs).tobytes(), chain)
            data += payload
            places[mark] = Mark(len(data), chain)
        data += block(b"", chain)[0]
        self._replace(LOG, data, f"is rebuilt from {PARQUET}")
        return places.get

    def _log_prefix(self) -> Places:
        """Keep trace.log up to the damage, and move a damaged trace.parquet aside."""
        data = _read(self._path / LOG)
        marks = _whole(LOG, data)
        if len(marks) < 1:
            self._set_aside(LOG)
            self.done.append(f"{LOG} cannot be read; it is now in {self._aside.name}, and the run cannot be resumed")
            return lambda mark: None
        last = marks[-1]
        self._iterations = _iterations(self._path / LOG, last)
        self._replace(LOG, data[: last.size], f"keeps its first {last.size:,} of {len(data):,} bytes")
        if (self._path / PARQUET).exists():
            self._set_aside(PARQUET)
            self.done.append(f"{PARQUET} is damaged; it is now in {self._aside.name}")
        return lambda mark: mark if mark in marks else None

    # ------------------------------------------------------------------------------------------ other files that grow

    def _appended(self, name: str, good: dict[str, Checkpoint]) -> Places:
        data = _read(self._path / name)
        if name not in self._bad:
            marks = {Mark(), *ends(name, data)}
            return lambda mark: mark if mark in marks else None
        if name == RELEASES:  # without a line, the privacy spent would seem smaller than it is
            self._set_aside(name)
            self.done.append(
                f"{name} cannot be rebuilt; it is now in {self._aside.name}, and the privacy spent (ε) is unknown"
            )
            return lambda mark: None
        return self._fingerprints(data, good) if name == FINGERPRINTS else self._lines(name, data)

    def _fingerprints(self, data: bytes, good: dict[str, Checkpoint]) -> Places:
        """Keep the fingerprints before the damage. The others become `UNKNOWN`, which a replay skips."""
        known = b"".join(bytes(payload) for payload in _payloads(data))
        lost = self._iterations - len(known) // MARK.size
        known = known.ljust(MARK.size * self._iterations, MARK.pack(UNKNOWN)[:1])
        stops = {MARK.size * one.iteration: one.marks[FINGERPRINTS] for one in good.values()}
        places, written, chain, done = {Mark(): Mark()}, b"", 0, 0
        for stop in sorted({*stops, len(known)} - {0}):
            payload, chain = block(known[done:stop], chain)
            written, done = written + payload, stop
            if stop in stops and len(known) >= stop:
                places[stops[stop]] = Mark(len(written), chain)
        self._replace(FINGERPRINTS, written, f"has lost {lost:,} of {self._iterations:,} fingerprints")
        return places.get

    def _lines(self, name: str, data: bytes) -> Places:
        """Keep every line that matches its own checksum, which is chained to that of the line before."""
        kept, chain, claimed, lost, place = b"", 0, 0, 0, 0
        sizes, marks = [0], [Mark()]
        after_loss = False
        for text in data.split(b"\n")[:-1]:
            end = SUM.search(text)
            body = b"" if end is None else text[: end.start()] + b"}"
            sound = end is not None and zlib.crc32(body, claimed) == int(end[1], 16)
            # After a damaged line, the chain of the next one is unknown: accept it if it is valid JSON.
            sound = sound or (after_loss and _is_row(body))
            after_loss = not sound
            if sound:
                row, chain = line(json.loads(body), chain)
                kept += row
            lost += not sound
            claimed = int(end[1], 16) if end is not None else claimed
            place += len(text) + 1
            sizes.append(place)
            marks.append(Mark(len(kept), chain))
        gone = "" if lost else "has lost its end"
        self._replace(name, kept, gone or f"has lost {lost} line{'s' * (lost != 1)}")
        return lambda mark: marks[bisect_right(sizes, mark.size) - 1]


def listing(path: Path) -> Checksums:
    """Return the list for checksums.json of the files that exist now."""
    listed = Checksums(present=[name for name in VOLATILE if (path / name).exists()])
    names = [name for name in WHOLE if (path / name).exists()]
    names += [f"checkpoints/{file.name}" for file in checkpoints.listed(path / "checkpoints")]
    for name in names:
        listed.whole[name] = Whole.of_file(path / name)
    for name in (LOG, *APPENDED, *NOISE_LOGS):
        if (path / name).exists():
            marks = list(ends(name, (path / name).read_bytes()))
            listed.marks[name] = marks[-1] if marks else Mark()
    return listed


def _read(path: Path) -> bytes:
    return path.read_bytes() if path.exists() else b""


def _whole(name: str, data: bytes) -> list[Mark]:
    """Return the ends of the blocks before the damage."""
    found: list[Mark] = []
    with suppress(Damage):
        for mark in ends(name, data):
            found.append(mark)  # noqa: PERF402 - keeps those before the damage
    return found


def _payloads(data: bytes) -> Iterator[memoryview]:
    """Yield the blocks before the damage."""
    with suppress(Damage):
        for payload, _ in blocks(data):
            yield payload


def _iterations(log: Path, mark: Mark) -> int:
    return read_log(log, mark)[0].iterations


def _is_row(body: bytes) -> bool:
    try:
        return isinstance(json.loads(body), dict)
    except ValueError:
        return False
