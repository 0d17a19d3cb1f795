"""TensorBoard: what its own reader finds in the event files."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import numpy as np
import pytest
from loggers.common import Seen, live, train
from run.tasks import Failing

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.run import Control, WorkersFailed

pytest.importorskip("tensorboard", reason="pip install 'asyncsgd[tensorboard]'")


def read(directory: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(directory), size_guidance={"scalars": 0, "tensors": 0})
    found.Reload()
    return found


def scalars(directory: Path, name: str) -> dict[int, float]:
    return {event.step: event.value for event in read(directory).Scalars(name)}


def texts(directory: Path, name: str) -> list[str]:
    return [event.tensor_proto.string_val[0].decode() for event in read(directory).Tensors(name)]


def float32(values: Any) -> list[float]:
    """TensorBoard keeps no more."""
    return [float(value) for value in np.asarray(values, np.float32)]


@pytest.mark.slow
@pytest.mark.processes
def test_the_numbers_come_back(tmp_path: Path) -> None:
    seen = Seen()
    run = train(tmp_path / "run", asgd.callbacks.tensorboard(tmp_path / "board", seconds=1e-9), others=[seen])
    for name in ("loss", "gradient_norm"):
        found = scalars(tmp_path / "board", name)
        assert list(found) == run.metrics["iteration"].tolist()
        assert list(found.values()) == float32(run.metrics[name])
    speeds = read(tmp_path / "board").Scalars("run/updates_per_second")
    assert [event.step for event in speeds] == [status.iteration for status in seen.statuses]
    assert [event.value for event in speeds] == float32([status.updates_per_second for status in seen.statuses])
    averages = read(tmp_path / "board").Scalars("delay/average")
    assert [event.value for event in averages] == float32([status.average_delay for status in seen.statuses])
    times = [event.wall_time for event in read(tmp_path / "board").Scalars("loss")]
    assert times == sorted(times)


@pytest.mark.slow
@pytest.mark.processes
def test_words_come_back(tmp_path: Path) -> None:
    run = train(tmp_path, asgd.callbacks.tensorboard())
    board = tmp_path / "tensorboard"
    [config] = texts(board, "config")
    assert "| method_name | async_sgd |" in config
    assert "| engine.workers | 2 |" in config
    [summary] = texts(board, "summary")
    assert f"| average_delay | {run.trace.delays.average} |" in summary
    [diagnosis] = texts(board, "diagnosis")
    assert all(f"- {fact}" in diagnosis for fact in run.diagnosis.facts)
    from tensorboard.util.tensor_util import make_ndarray

    [bars] = [make_ndarray(event.tensor_proto) for event in read(board).Tensors("delay/histogram")]
    assert bars[:, 2].sum() == len(run.trace.delays.values)


@pytest.mark.processes
def test_notes_come_back_and_a_failed_run_is_kept(tmp_path: Path) -> None:
    seen = Seen()
    with pytest.raises(WorkersFailed):
        train(tmp_path, asgd.callbacks.tensorboard(), task=Failing(after=10), others=[seen])
    found = texts(tmp_path / "tensorboard", "notes")
    assert [dedent(note) for note in found] == seen.notes
    assert any("an exception in your code" in note for note in found)


def test_a_resumed_run_takes_the_place_of_what_it_repeats(tmp_path: Path) -> None:
    board = tmp_path / "board"
    logger = asgd.callbacks.tensorboard(board)
    logger.on_start(live(directory=tmp_path))
    for iteration in (0, 10, 20, 30):
        logger.on_evaluation(live(iteration, 0.1 * iteration), {"loss": 100.0 + iteration}, Control())
    logger.close()  # killed, and the last checkpoint was at 20
    again = asgd.callbacks.tensorboard(board)
    again.on_start(live(directory=tmp_path, resumed_at=20))
    again.on_evaluation(live(30, 3.0), {"loss": 7.0}, Control())
    again.close()
    assert scalars(board, "loss") == {0: 100.0, 10: 110.0, 20: 120.0, 30: 7.0}


@pytest.mark.slow
@pytest.mark.processes
def test_a_real_resume(tmp_path: Path) -> None:
    train(tmp_path, asgd.callbacks.tensorboard(), iterations=40)
    run = train(tmp_path, asgd.callbacks.tensorboard(), iterations=80, resume=True)
    found = scalars(tmp_path / "tensorboard", "loss")
    assert list(found) == run.metrics["iteration"].tolist()
    assert list(found.values()) == float32(run.metrics["loss"])


def test_nowhere_to_write() -> None:
    with pytest.raises(BadParameter, match=r"leaves no place for event files; pass one to asgd.callbacks"):
        asgd.callbacks.tensorboard().on_start(live())
