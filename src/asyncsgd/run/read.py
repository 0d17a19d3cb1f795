"""Read a run directory, even while a process writes to it, and refuse a damaged one; see `asyncsgd.run.directory`."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter, BadRunDirectory, Damage, NoRun, TraceError
from asyncsgd.trace import Trace
from asyncsgd.trace.log import REPAIR
from asyncsgd.trace.sealed import blocks, lines

FORMAT = 2
"""Version of run directories. Raise it when an older asyncsgd would misread a directory."""
NEEDED: dict[str, dict[str, type]] = {
    "metrics.jsonl": {"iteration": int, "time": float},
    "journal.jsonl": {"event": str, "iteration": int, "seconds": float},
    "noise.jsonl": {"iteration": int, "seed": int},
}
"""The fields that every line of a file has, and their types."""
PARTS = (
    *("job.pkl", "checkpoints", "trace.log", "trace.parquet", "metrics.jsonl", "journal.jsonl", "fingerprints.bin"),
    *("initial.safetensors", "last_finite.safetensors", "best.safetensors", "noise.jsonl"),
    *("checksums.json", "damaged-1"),
    *("releases.jsonl", "updates", "clients.json", "client_metrics.jsonl", "carried.safetensors"),  # `asyncsgd.flower`
)
"""The files that a run writes after run.json."""
READ = ("trace.log", "trace.parquet", "metrics.jsonl", "journal.jsonl")
"""The files that a view of a run needs."""
STARTING = ".starting"
"""An empty file that exists from the start of a run to its first checkpoint."""


def as_path(directory: Any) -> Path:
    """Return the path of a directory that a user passed."""
    try:
        return Path(directory)
    except TypeError as error:
        raise BadParameter("directory", directory, "is not a path", 'pass one such as "runs/first"') from error


def held(path: Path) -> list[str]:
    """Return the parts of a run that a directory holds, without those that are empty."""
    return [name for name in PARTS if _holds(path / name)]


def _holds(path: Path) -> bool:
    if path.is_dir():  # kept updates have a number; another file is there before the run starts
        return any(path.glob("*" if path.name.startswith("damaged") else "[0-9]*"))
    return path.exists() and path.stat().st_size > 0


def check_complete(path: Path) -> None:
    """Refuse a directory that holds parts of a run, but not run.json."""
    parts = held(path)
    if parts and not (path / "run.json").exists():
        fix = "restore run.json from a backup, or start a run in another directory"
        raise BadRunDirectory(f"{path} holds {', '.join(parts)} of a run, but no run.json; {fix}")


def check_resumable(path: Path) -> None:
    """Refuse a run that has lost its checkpoints.

    Every run writes a checkpoint before it hands out a job. A directory without one that still has the STARTING file
    was killed before that, and holds nothing but the first evaluation. Any other one has lost its checkpoints.
    """
    if not (path / STARTING).exists() and not any((path / "checkpoints").glob("*.safetensors")):
        parts = ", ".join(["run.json", *held(path)])
        fix = "restore checkpoints/ from a backup, or start a run in another directory"
        raise BadRunDirectory(f"{path} holds {parts} of a run, but no checkpoint to resume it from; {fix}")


def read_config(path: Path) -> dict[str, Any]:
    """Return run.json, checked against its checksum."""
    check_complete(path)
    if not (path / "run.json").exists():
        raise NoRun(f"{path} holds no run (no run.json); pass a run directory, such as runs/task-1")
    try:
        config: dict[str, Any] = json.loads(read_bytes(path, "run.json"))
    except ValueError as error:
        raise BadRunDirectory(f"{path / 'run.json'} is damaged ({error}); restore it from a backup") from error
    if not isinstance(config, dict):
        raise BadRunDirectory(f"{path / 'run.json'} is damaged (not a JSON object); restore it from a backup")
    if config.get("format") != FORMAT:
        found, fix = config.get("format"), "use the asyncsgd that wrote it, or train again in another directory"
        raise BadRunDirectory(f"{path} has run format {found!r}, and this asyncsgd reads format {FORMAT}; {fix}")
    claimed = config.pop("sha256", None)
    if config_checksum(config) != claimed:
        raise BadRunDirectory(
            f"{path / 'run.json'} is damaged (it does not match its checksum); restore it from a backup"
        )
    return config


def config_checksum(config: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the contents of run.json, independent of its layout."""
    text = json.dumps(config, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def config_text(config: Mapping[str, Any]) -> str:
    """Return the text of run.json, with its checksum."""
    plain = json.loads(
        json.dumps({"format": FORMAT, **config})
    )  # tuples become lists, and keys that are numbers become text
    return json.dumps({**plain, "sha256": config_checksum(plain)}, indent=2) + "\n"


def read_trace(path: Path) -> Trace:
    """Return the trace of a run that has ended or is still training."""
    from asyncsgd.run.checksums import Whole, check_listed

    listed = check_listed(path, only=READ)
    for name in ("trace.parquet", "trace.log"):
        if (path / name).exists():
            wanted = listed.whole.get(name)  # check first: reading damaged Parquet can do anything, even crash
            if wanted is not None and Whole.of_file(path / name) != wanted:
                if check_listed(path, only=READ).whole.get(name) != wanted:
                    return read_trace(path)  # a run that is training has just replaced it
                raise BadRunDirectory(f"{path / name} is damaged (it does not match checksums.json); {REPAIR}")
            return Trace.read(path / name)
    raise TraceError(f"{path} has no trace (neither trace.parquet nor trace.log); restore it from a backup")


def sound_trace(path: Path, *, early: bool) -> Trace:
    """Return the trace, checked to be consistent; ``early`` as for `Trace.check`."""
    trace = read_trace(path)
    try:
        trace.check(early=early)
    except TraceError as error:
        raise BadRunDirectory(f"the trace of {path} is damaged ({error}); restore it from a backup") from error
    return trace


def read_bytes(path: Path, name: str) -> bytes:
    """Return the bytes of a file that every run has."""
    try:
        return (path / name).read_bytes()
    except OSError as error:
        raise BadRunDirectory(f"{path / name} cannot be read ({error.strerror}); restore it from a backup") from error


def read_lines(path: Path, name: str) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl or journal.jsonl, without an incomplete last one that a kill left."""
    while True:
        listed = _listed_size(path, name)  # before the file: a run that is training lists only what it has written
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
        if listed == _listed_size(path, name):  # else a resume has just shortened it
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
    """Return the length of a file by checksums.json; 0 if it is not listed."""
    from asyncsgd.run.checksums import Checksums

    try:
        return Checksums.read(path).marks[name].size
    except (BadRunDirectory, KeyError):  # `check_listed` reports that
        return 0


def read_blocks(path: Path, name: str) -> bytes:
    """Return the contents of fingerprints.bin, without an incomplete last block that a kill left."""
    try:
        return b"".join(bytes(payload) for payload, _ in blocks(read_bytes(path, name)))
    except Damage as error:
        raise BadRunDirectory(f"{path / name} is damaged: {error}; {REPAIR}") from error


def read_metrics(path: Path) -> dict[str, NDArray[Any]]:
    """Return the columns of metrics.jsonl."""
    return columns(read_lines(path, "metrics.jsonl"))


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, NDArray[Any]]:
    """Return rows of metrics as one array per name; NaN where an evaluation did not measure a metric.

    >>> columns([{"iteration": 0, "loss": 2.0}, {"iteration": 5, "loss": 1.0, "accuracy": 0.5}])
    {'iteration': array([0, 5]), 'loss': array([2., 1.]), 'accuracy': array([nan, 0.5])}
    """
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: np.array([row.get(name, math.nan) for row in rows]) for name in names}
