"""What all loggers do alike."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from loggers.common import live, train
from run.tasks import Failing

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.run import BadRunDirectory, Callback, TrainingRun, WorkersFailed
from asyncsgd.run.callbacks import Control, Logger, LoggerWarning
from asyncsgd.run.callbacks.logger import Row


class Fake(Logger):
    """Remembers; fails where it is told to."""

    kind = "fake"

    def __init__(self, seconds: float = 1.0, fails: str = "") -> None:
        super().__init__(seconds)
        self.fails = fails
        self.said: list[tuple[str, Any]] = []

    def _do(self, what: str, value: Any) -> None:
        if what == self.fails:
            raise OSError("the disk is full")
        self.said.append((what, value))

    def _open(self, config: Mapping[str, Any], known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        self._do("open", known)
        return {"id": len(self.said)} if known is None else known

    def _write(self, rows: list[Row]) -> None:
        self._do("write", [(row.iteration, dict(row.values)) for row in rows])

    def _say(self, note: str, iteration: int) -> None:
        self._do("say", (note, iteration))

    def _finish(self, run: TrainingRun, summary: Mapping[str, Any]) -> None:
        self._do("finish", summary)

    def _close(self, run: TrainingRun | None) -> None:
        self._do("close", run)

    def of(self, what: str) -> list[Any]:
        return [value for name, value in self.said if name == what]


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_in_order() -> None:
    logger = Fake()
    run = train(None, logger)
    assert logger.said[0][0] == "open"
    assert [name for name, _ in logger.said][-2:] == ["finish", "close"]
    rows = [row for rows in logger.of("write") for row in rows]
    losses = {iteration: values["loss"] for iteration, values in rows if "loss" in values}
    assert losses == dict(zip(run.metrics["iteration"], run.metrics["loss"], strict=True))
    [summary] = logger.of("finish")
    assert summary["average_delay"] == run.trace.delays.average
    assert logger.of("close") == [run]


def test_rows_are_written_now_and_then() -> None:
    logger = Fake(seconds=2.0)
    logger.on_start(live())
    logger.on_evaluation(live(), {"loss": 4.0}, Control())
    for tick, seconds in enumerate((0.2, 0.4, 2.1, 2.3, 4.4)):
        logger.on_evaluation(live(tick, seconds), {"loss": 1.0}, Control())
        logger.on_progress(live(tick, seconds))
    logger.close()
    sizes = [[(iteration, sorted(values)) for iteration, values in rows] for rows in logger.of("write")]
    loss = ["loss", "run/seconds"]
    progress = ["delay/average", "delay/maximum", "run/seconds", "run/updates_per_second", "run/workers"]
    assert sizes == [
        [(0, loss), (0, loss), (0, progress)],
        [(1, loss), (2, loss), (3, loss), (3, progress)],
        [(4, loss), (4, progress)],
    ]


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize("fails", ["write", "say", "finish", "close"])
def test_a_logger_that_fails_is_silent_and_the_run_goes_on(fails: str) -> None:
    logger = Fake(fails=fails)
    words = "logging to fake has ended: OSError: the disk is full; the run continues"
    with pytest.warns(LoggerWarning, match=words) as warned:
        run = train(None, logger, others=[Interjects(logger)])
    assert run.trace.iterations == 40
    assert len(warned) == 1
    if fails in ("write", "say"):
        assert not logger.of("finish")


class Interjects(Callback):
    """Has a logger say something while the run goes on."""

    def __init__(self, logger: Logger) -> None:
        self.logger = logger

    def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
        if view.iteration == 20:
            self.logger.on_note("half of it")


# ---------------------------------------------------------------------------------------------- ids


@pytest.mark.slow
@pytest.mark.processes
def test_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    first = Fake()
    train(tmp_path, first)
    assert first.of("open") == [None]
    assert json.loads((tmp_path / "loggers.json").read_text("utf-8")) == {"fake": {"id": 1}}
    second = Fake()
    train(tmp_path, second, iterations=60, resume=True)
    assert second.of("open") == [{"id": 1}]


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_that_begins_anew_does_not(tmp_path: Path) -> None:
    """The directory is one in which a run was begun and never came to a checkpoint."""
    (tmp_path / "loggers.json").write_text('{"fake": {"id": 77}, "other": {"id": 3}}', "utf-8")
    logger = Fake()
    train(tmp_path, logger)
    assert logger.of("open") == [None]
    ids = json.loads((tmp_path / "loggers.json").read_text("utf-8"))
    assert ids == {"fake": {"id": 1}, "other": {"id": 3}}


@pytest.mark.parametrize("text", ["{", "[]"])
def test_ids_that_are_damaged(tmp_path: Path, text: str) -> None:
    (tmp_path / "loggers.json").write_text(text, "utf-8")
    with pytest.raises(BadRunDirectory, match=r"loggers\.json is damaged .*; remove it to log under new ids"):
        Fake().on_start(live(directory=tmp_path, resumed_at=20))


@pytest.mark.processes
def test_a_run_that_fails_is_closed_as_such(tmp_path: Path) -> None:
    logger = Fake()
    with pytest.raises(WorkersFailed):
        train(tmp_path, logger, task=Failing(after=10))
    assert not logger.of("finish")
    assert logger.of("close") == [None]
    assert any("an exception in your code" in note for note, _ in logger.of("say"))


# ---------------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("kind", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow"), ("wandb", "wandb")]
)
def test_an_extra_that_is_not_there(monkeypatch: pytest.MonkeyPatch, kind: str, package: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    for name in [name for name in sys.modules if name.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UsageError, match=rf"asgd.callbacks.{kind} needs {package}; .*pip install 'asyncsgd\[{kind}\]'"):
        getattr(asgd.callbacks, kind)()


def test_seconds_must_be_positive() -> None:
    with pytest.raises(BadParameter, match="seconds"):
        Fake(seconds=0.0)
