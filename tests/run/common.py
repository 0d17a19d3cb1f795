"""Short runs, and what must be true of every one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from engines.inline import Inline

import asyncsgd as asgd
from asyncsgd.core.method import Method
from asyncsgd.run import Callback, TrainingRun
from asyncsgd.run.configuration import journal
from asyncsgd.run.repair import listing
from asyncsgd.testing.bench import Bowl
from asyncsgd.trace.sealed import line

METHOD = asgd.async_sgd(0.05)


def train(directory: Path | None, iterations: int = 60, method: Method = METHOD, **options: Any) -> TrainingRun:
    """Without an engine of its own: one that starts no process, as most of what is tested here needs none."""
    given = {"engine": Inline(2), "progress": False, "every": 10, "checkpoints": asgd.Checkpoints(every=20), **options}
    return asgd.train(given.pop("task", Bowl()), method, iterations=iterations, directory=directory, **given)


def sound(run: TrainingRun, iterations: int) -> None:
    """The delays add up, no job was used twice, and a replay gives the same bits."""
    assert run.trace.iterations == iterations
    run.trace.check(early=run.method.dispatch.early)
    assert len(np.unique(run.trace.job)) == iterations
    assert run.directory is not None
    again = asgd.replay(run.directory)
    assert again.compared == iterations
    assert again.model_compared
    assert again.x.tobytes() == run.x.tobytes()


def events(directory: Path, name: str) -> list[dict[str, Any]]:
    return [row for row in journal(directory) if row["event"] == name]


def sealed(*rows: Any) -> bytes:
    """Rows as a run writes them."""
    data, chain = b"", 0
    for row in rows:
        text, chain = line(row, chain)
        data += text
    return data


def reseal(directory: Path, **lines: list[dict[str, Any]]) -> None:
    """Let checksums.json say what is there now, after a test has changed files; ``journal=rows`` and the like first."""
    for name, rows in lines.items():
        (directory / f"{name}.jsonl").write_bytes(sealed(*rows))
    listing(directory).write(directory)


class Notes(Callback):
    """Remembers everything."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def on_start(self, view: Any) -> None:
        self.calls.append(("started", view))

    def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
        self.calls.append(("measured", view.iteration))

    def on_progress(self, view: Any) -> None:
        self.calls.append(("progressed", view))

    def on_note(self, text: str) -> None:
        self.calls.append(("noted", text))

    def on_end(self, run: Any) -> None:
        self.calls.append(("ended", run))

    def of(self, kind: str) -> list[Any]:
        return [what for name, what in self.calls if name == kind]
