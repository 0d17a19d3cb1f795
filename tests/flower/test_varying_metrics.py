"""An ``evaluate_fn`` with other metrics from round to round: the run keeps what it returned, and every reader copes."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.serving import ARRAYS, Ear, clients
from flwr.app import ArrayRecord, MetricRecord
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd.cli.application import app
from asyncsgd.core.errors import BadParameter
from asyncsgd.flower import AsyncStrategy
from asyncsgd.run.live import Watcher
from asyncsgd.run.read import read_lines
from asyncsgd.run.verify import verify

METHOD = asgd.federated_async_sgd(0.3, concurrency=2)


def rounds(found: Any, number: int = 6, **options: Any) -> Any:
    """Flower's result of a run in which round r returns ``found[r]``, or the last one."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
        values = found[min(server_round, len(found) - 1)]
        return None if values is None else MetricRecord(values)

    strategy = AsyncStrategy(METHOD, **{"progress": False, "evaluate_every": 1, "fraction_evaluate": 0.0, **options})
    return strategy.start(clients(1.0, 2.0), ARRAYS, num_rounds=number, evaluate_fn=evaluate)


VARYING = [
    {"loss": 4.0},
    {"loss": 3.0, "accuracy": 0.25},
    {},
    {"accuracy": 0.5, "per class": [0.5, 1.0]},
    None,
    {"loss": 2.0},
    {"f1": 0.5},
]


def test_a_record_without_metrics_is_none() -> None:
    ear = Ear()
    result = rounds([{}, {"loss": 1.0}, {}, None, {"loss": 0.5}], 4, callbacks=[ear])
    assert result.evaluate_metrics_serverapp == {1: MetricRecord({"loss": 1.0}), 4: MetricRecord({"loss": 0.5})}
    assert result.run.metrics["iteration"].tolist() == [2, 8]
    assert not [text for text in ear.notes if "metrics" in text]


def test_other_metrics_than_before_are_kept_and_noted_once(tmp_path: Path) -> None:
    ear = Ear()
    result = rounds(VARYING, directory=tmp_path, callbacks=[ear])
    assert result.evaluate_metrics_serverapp == {
        number: MetricRecord(values) for number, values in enumerate(VARYING) if values
    }
    assert [text for text in ear.notes if "metrics" in text] == [
        "evaluate_fn returned other metrics than at first: accuracy is new; "
        "every round keeps those that it returned (said once)"
    ]
    rows = read_lines(tmp_path, "metrics.jsonl")
    assert [row.keys() - {"iteration", "time"} for row in rows] == [
        {"loss"},
        {"loss", "accuracy"},
        {"accuracy", "per class.0", "per class.1"},
        {"loss"},
        {"f1"},
    ]
    nan = math.nan
    assert verify(tmp_path) == []
    for run in (result.run, asgd.TrainingRun.read(tmp_path)):
        assert run.metrics["iteration"].tolist() == [0, 2, 6, 10, 12]
        np.testing.assert_array_equal(run.metrics["loss"], [4.0, 3.0, nan, 2.0, nan])
        np.testing.assert_array_equal(run.metrics["accuracy"], [nan, 0.25, 0.5, nan, nan])
        assert "loss 2," in repr(run)
    assert [row for row in read_lines(tmp_path, "journal.jsonl") if row["event"] == "metrics_differ"]


def test_missing_metrics_are_named_too() -> None:
    ear = Ear()
    names = dict.fromkeys("abcdefg", 1.0)
    rounds([names, {"a": 1.0, "new": 1.0}], 2, callbacks=[ear])
    rounds([names, names, {"a": 1.0}], 2, callbacks=[ear])  # the last evaluation, after the last update
    told = [text.split(": ")[1].split(";")[0] for text in ear.notes if "metrics" in text]
    assert told == [
        "new is new, b is missing, c is missing, d is missing and 3 more",
        "b is missing, c is missing, d is missing and 3 more",
    ]


def test_every_reader_copes_with_a_metric_that_is_missing(tmp_path: Path) -> None:
    directory = tmp_path / "run"
    run = rounds(VARYING, directory=directory).run
    assert len(run.to_pandas()) == 5
    assert not run.diagnosis.problems or "grew" not in " ".join(run.diagnosis.problems)
    for metric in ("loss", "accuracy", "f1"):
        run.plot(metric)
    for subject in (run, directory):
        text = asgd.report(subject, tmp_path / "page.html").read_text("utf-8")
        assert "NaN" not in text.split("<body", 1)[1].split("<script", 1)[0]
        for name in ("loss", "accuracy", "f1"):
            assert f'"name":"{name}"' in text
    with Watcher(directory) as watcher:
        last = watcher.look().headline()["metrics"]
    assert (last["loss"], last["accuracy"], last["f1"]) == (2.0, 0.5, 0.5)
    timeline = str(tmp_path / "t.json")
    for words in (["watch", "--once"], ["watch", "--once", "--json"], ["export", "--chrome", timeline]):
        done = CliRunner().invoke(app, [words[0], str(directory), *words[1:]])
        assert done.exit_code == 0, done.output
    json.loads((tmp_path / "t.json").read_text("utf-8"))


def test_a_resume_goes_on_with_other_metrics(tmp_path: Path) -> None:
    rounds(VARYING, 3, directory=tmp_path, until="loss <= 0.5")
    again = rounds(VARYING, directory=tmp_path, resume=True, until="loss <= 0.5")
    assert again.run.metrics["iteration"].tolist() == [0, 2, 6, 10, 12]
    assert again.evaluate_metrics_serverapp[0] == MetricRecord({"loss": 4.0})
    assert again.evaluate_metrics_serverapp[5] == MetricRecord(VARYING[5])
    assert not again.run.reached
    done = rounds(VARYING, directory=tmp_path, resume=True, until="loss <= 0.5")
    assert done.run.metrics["iteration"].tolist() == [0, 2, 6, 10, 12]


def test_a_target_waits_for_its_metric() -> None:
    result = rounds([{"loss": 1.0}, {"f1": 0.0}, {"f1": 9.0}, {"loss": 0.0}], until="loss <= 0.5")
    assert result.run.reached
    assert result.run.metrics["iteration"][-1] == 6


def test_callbacks_leave_out_evaluations_without_their_metric(tmp_path: Path) -> None:
    stop = asgd.callbacks.EarlyStopping("loss", patience=2)
    keep = asgd.callbacks.SaveBest("loss", path=tmp_path / "best.safetensors")
    found = [{"loss": 1.0}, {"f1": 1.0}, {"loss": 0.5}, {"f1": 1.0}, {"f1": 1.0}, {"f1": 1.0}, {"loss": 0.75}]
    result = rounds(found, 6, callbacks=[stop, keep])
    assert result.run.stopped_early is None
    assert (stop.best, stop.waited, keep.best, keep.iteration) == (0.5, 1, 0.5, 4)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"callbacks": [asgd.callbacks.EarlyStopping("los", mode="min")]}, "did you mean loss"),
        ({"until": "los <= 0.5"}, "did you mean loss"),
    ],
)
def test_a_metric_that_the_first_evaluation_lacks_is_an_error(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        rounds([{"loss": 1.0}], **options)
