"""Reading a run directory, also one that somebody writes to, or a damaged one: see `asyncsgd.run.directory`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadParameter, BadRunDirectory, Damage, NoRun, TraceError
from asyncsgd.trace import Trace
from asyncsgd.trace.log import REPAIR
from asyncsgd.trace.sealed import blocks, lines

FORMAT = 2
"""Of run directories. Goes up when an older asyncsgd would misunderstand one."""
NEEDED: dict[str, dict[str, type]] = {
    "metrics.jsonl": {"iteration": int, "time": float},
    "journal.jsonl": {"event": str, "iteration": int, "seconds": float},
    "noise.jsonl": {"iteration": int, "seed": int},
}
"""The fields that every line of a file has, and their types."""
PARTS = (
    *("job.pkl", "checkpoints", "trace.log", "trace.parquet", "metrics.jsonl", "journal.jsonl", "fingerprints.bin"),
    *("initial.safetensors", "last_finite.safetensors", "noise.jsonl"),
    *("releases.jsonl", "updates"),  # of `asyncsgd.flower`
)
"""What a run writes beside run.json, which it writes first."""
READ = ("trace.log", "trace.parquet", "metrics.jsonl", "journal.jsonl")
"""What those read who only look at a run."""
STARTING = ".starting"
"""An empty file that is there from the start of a run until its first checkpoint is."""


def as_path(directory: Any) -> Path:
    """The path of a directory that a user gave."""
    try:
        return Path(directory)
    except TypeError as error:
        raise BadParameter("directory", directory, "is no path", 'pass one such as "runs/first"') from error


def held(path: Path) -> list[str]:
    """Return the parts of a run that a directory holds, without those that are empty."""
    return [name for name in PARTS if _holds(path / name)]


def _holds(path: Path) -> bool:
    if path.is_dir():  # of kept updates those with a number: the first file is there before the run is
        return any(path.glob("[0-9]*"))
    return path.exists() and path.stat().st_size > 0


def check_complete(path: Path) -> None:
    """Refuse a directory that holds parts of a run, but not run.json."""
    parts = held(path)
    if parts and not (path / "run.json").exists():
        fix = "restore run.json from a backup, or start a run in another directory"
        raise BadRunDirectory(f"{path} holds {', '.join(parts)} of a run, but no run.json; {fix}")


def check_resumable(path: Path) -> None:
    """Refuse a run that has lost its checkpoints.

    Every run writes one before it hands out a job. What has none and is still marked as STARTING is a start that was
    killed before, with nothing but the first evaluation in its files. Anything else has lost its checkpoints.
    """
    if not (path / STARTING).exists() and not any((path / "checkpoints").glob("*.safetensors")):
        parts = ", ".join(["run.json", *held(path)])
        fix = "restore checkpoints/ from a backup, or start a run in another directory"
        raise BadRunDirectory(f"{path} holds {parts} of a run, but no checkpoint to resume it from; {fix}")


def read_config(path: Path) -> dict[str, Any]:
    """run.json."""
    check_complete(path)
    if not (path / "run.json").exists():
        raise NoRun(f"{path} holds no run (no run.json); pass the directory given to asgd.train")
    try:
        config: dict[str, Any] = json.loads(read_bytes(path, "run.json"))
    except ValueError as error:
        raise BadRunDirectory(f"{path / 'run.json'} is damaged ({error}); restore it from a backup") from error
    if not isinstance(config, dict):
        raise BadRunDirectory(f"{path / 'run.json'} is damaged (it is no object); restore it from a backup")
    if config.get("format") != FORMAT:
        wrote = (config.get("versions") or {}).get("asyncsgd") if isinstance(config.get("versions"), dict) else None
        fix = f"use asyncsgd {wrote or 'of the version that wrote it'}, or train again in another directory"
        found = config.get("format")
        raise BadRunDirectory(f"{path} has run format {found!r}, and this asyncsgd reads format {FORMAT}; {fix}")
    claimed = config.pop("sha256", None)
    if config_checksum(config) != claimed:
        raise BadRunDirectory(
            f"{path / 'run.json'} is damaged (it does not match its checksum); restore it from a backup"
        )
    return config


def config_checksum(config: Mapping[str, Any]) -> str:
    """SHA-256 of what run.json says, however it is written down."""
    text = json.dumps(config, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def config_text(config: Mapping[str, Any]) -> str:
    """run.json, with its checksum."""
    plain = json.loads(json.dumps({"format": FORMAT, **config}))  # tuples become lists, numbers as keys become words
    return json.dumps({**plain, "sha256": config_checksum(plain)}, indent=2) + "\n"


def read_trace(path: Path) -> Trace:
    """The trace, ended or still being written."""
    from asyncsgd.run.checksums import Whole, check_listed

    listed = check_listed(path, only=READ)
    for name in ("trace.parquet", "trace.log"):
        if (path / name).exists():
            wanted = listed.whole.get(name)  # first, as what damaged Parquet does to its reader nobody knows
            if wanted is not None and Whole.of((path / name).read_bytes()) != wanted:
                if check_listed(path, only=READ).whole.get(name) != wanted:
                    return read_trace(path)  # a run that goes on has just replaced it
                raise BadRunDirectory(f"{path / name} is damaged (it does not match checksums.json); {REPAIR}")
            return Trace.read(path / name)
    raise TraceError(f"{path} has no trace (neither trace.parquet nor trace.log); restore it from a backup")


def sound_trace(path: Path, *, early: bool) -> Trace:
    """The same, if it does not contradict itself; ``early`` as for `Trace.check`."""
    trace = read_trace(path)
    try:
        trace.check(early=early)
    except TraceError as error:
        raise BadRunDirectory(f"the trace of {path} is damaged ({error}); restore it from a backup") from error
    return trace


def read_bytes(path: Path, name: str) -> bytes:
    """A file that every run has."""
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise BadRunDirectory(f"{path / name} cannot be read ({error.strerror}); restore it from a backup") from error


def read_lines(path: Path, name: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl or journal.jsonl; a last one that a kill tore is left out."""
    while True:
        listed = _listed_size(path, name)  # first, as a run that goes on lists no more than it has written
        try:
            text = (path / name).read_bytes()
        except FileNotFoundError:
            text = b""
        try:
            found = list(lines(text))
        except (Damage, ValueError) as error:
            raise BadRunDirectory(f"{path / name} is damaged: {error}; {REPAIR}") from error
        if listed <= (found[-1][1].size if found else 0):
            break
        if listed == _listed_size(path, name):  # else a resume has shortened it meanwhile
            raise BadRunDirectory(f"{path / name} is damaged: its last lines are gone; {REPAIR}")
    rows = [row for row, _ in found]
    for number, row in enumerate(rows, 1):
        if not all(_fits(row.get(key), kind) for key, kind in NEEDED[name].items()):
            wrong = f"line {number} lacks one of {', '.join(NEEDED[name])}"
            raise BadRunDirectory(f"{path / name} is damaged: {wrong}; {REPAIR}")
    return rows


def _fits(value: Any, kind: type) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) if kind is float else isinstance(value, kind)


def _listed_size(path: Path, name: str) -> int:
    """How long checksums.json says that a file is; 0 if it does not say so."""
    from asyncsgd.run.checksums import Checksums

    try:
        return Checksums.read(path).marks[name].size
    except (BadRunDirectory, KeyError):  # `check_listed` says what is wrong with it
        return 0


def read_blocks(path: Path, name: str) -> bytes:
    """What the blocks of fingerprints.bin hold; a last one that a kill tore is left out."""
    try:
        return b"".join(bytes(payload) for payload, _ in blocks(read_bytes(path, name)))
    except Damage as error:
        raise BadRunDirectory(f"{path / name} is damaged: {error}; {REPAIR}") from error


def read_metrics(path: Path) -> dict[str, list[Any]]:
    """The columns of metrics.jsonl."""
    rows = read_lines(path, "metrics.jsonl")
    return {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
