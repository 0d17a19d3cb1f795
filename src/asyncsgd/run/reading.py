"""Reading a run directory, also one that somebody writes to, or a damaged one: see `asyncsgd.run.directory`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadParameter, BadRunDirectory, NoRun, TraceError
from asyncsgd.trace import Trace

FORMAT = 1
NEEDED = {
    "metrics.jsonl": ("iteration", "time"),
    "journal.jsonl": ("event", "iteration", "seconds"),
    "noise.jsonl": ("iteration", "seed"),
}
"""What every line has."""
PARTS = (
    *("job.pkl", "checkpoints", "trace.log", "trace.parquet", "metrics.jsonl", "journal.jsonl", "fingerprints.bin"),
    *("last_finite.safetensors", "noise.jsonl", "releases.jsonl", "updates"),  # the last two: `asyncsgd.flower`
)
"""What a run writes beside run.json, which it writes first."""
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
        raise BadRunDirectory(f"{path} has format {config.get('format')!r}, this version reads {FORMAT}")
    return config


def read_trace(path: Path) -> Trace:
    """The trace, ended or still being written."""
    for name in ("trace.parquet", "trace.log"):
        if (path / name).exists():
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
    try:
        text = (path / name).read_bytes()
    except FileNotFoundError:
        return []
    rows = []
    for number, line in enumerate(text[: text.rfind(b"\n") + 1].splitlines(), 1):
        try:
            rows.append(json.loads(line))
            wrong = f"lacks one of {', '.join(NEEDED[name])}"
            sound = isinstance(rows[-1], dict) and rows[-1].keys() >= set(NEEDED[name])
        except ValueError as error:
            wrong, sound = f"is no JSON ({error})", False
        if not sound:
            raise BadRunDirectory(f"{path / name} is damaged: line {number} {wrong}; restore it from a backup")
    return rows


def read_metrics(path: Path) -> dict[str, list[Any]]:
    """The columns of metrics.jsonl."""
    rows = read_lines(path, "metrics.jsonl")
    return {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
