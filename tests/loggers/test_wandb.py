"""Weights & Biases, offline: what is on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from loggers.common import Seen, live, train
from loggers.wandb_file import offline
from run.tasks import Failing

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.run import Control, WorkersFailed

pytest.importorskip("wandb", reason="pip install 'asyncsgd[wandb]'")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")


@pytest.mark.slow
@pytest.mark.processes
def test_the_numbers_come_back(tmp_path: Path) -> None:
    seen = Seen()
    run = train(tmp_path, asgd.callbacks.wandb("digits", seconds=1e-9, tags=["mine"]), others=[seen])
    [found] = offline(tmp_path)
    assert (found.project, found.name) == ("digits", f"async_sgd {tmp_path.name}")
    pairs = list(zip(run.metrics["iteration"].tolist(), run.metrics["loss"].tolist(), strict=True))
    assert found.of("loss") == pairs
    expected = [(status.iteration, status.updates_per_second) for status in seen.statuses]
    assert found.of("run/updates_per_second") == expected
    assert found.of("run/workers") == [(status.iteration, status.workers) for status in seen.statuses]
    assert found.of("delay/average") == [(status.iteration, status.average_delay) for status in seen.statuses]
    assert found.config["method_name"] == "async_sgd"
    assert found.config["engine"]["workers"] == 2
    assert found.summary["final/average_delay"] == run.trace.delays.average
    assert found.summary["final/facts"] == list(run.diagnosis.facts)
    [(at, bars)] = found.of("delay/histogram/values")
    assert at == run.trace.iterations
    assert bars == run.trace.delays.histogram().tolist()
    assert found.code == 0


@pytest.mark.slow
@pytest.mark.processes
def test_a_resumed_run_has_the_same_id(tmp_path: Path) -> None:
    train(tmp_path, asgd.callbacks.wandb(), iterations=40)
    run = train(tmp_path, asgd.callbacks.wandb(), iterations=80, resume=True)
    first, second = offline(tmp_path)
    assert first.id == second.id
    pairs = list(zip(run.metrics["iteration"].tolist(), run.metrics["loss"].tolist(), strict=True))
    assert first.of("loss") + second.of("loss") == pairs


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_that_fails(tmp_path: Path) -> None:
    seen = Seen()
    logger = asgd.callbacks.wandb(directory=tmp_path / "elsewhere")
    with pytest.raises(WorkersFailed):
        train(tmp_path, logger, task=Failing(after=10), others=[seen])
    [found] = offline(tmp_path / "elsewhere")
    assert [note for _, note in found.of("note")] == seen.notes
    assert seen.notes
    assert found.code == 1


@pytest.mark.slow
def test_a_second_run_beside_an_open_one(tmp_path: Path) -> None:
    one, other = (asgd.callbacks.wandb(directory=tmp_path, name=name) for name in ("one", "other"))
    one.on_start(live())
    other.on_start(live())
    one.on_evaluation(live(1, 0.1), {"loss": 1.0}, Control())
    other.on_evaluation(live(2, 0.2), {"loss": 2.0}, Control())
    other.close()
    one.close()
    found = {run.name: run.of("loss") for run in offline(tmp_path)}
    assert found == {"one": [(1, 1.0)], "other": [(2, 2.0)]}


def test_a_mode_that_is_unknown() -> None:
    with pytest.raises(BadParameter, match=r"mode = 'disabled' is unknown; pass one of offline, online"):
        asgd.callbacks.wandb(mode="disabled")
