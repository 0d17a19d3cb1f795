"""MLflow: what its own client finds in a local store."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from loggers.common import Seen, live, train
from run.tasks import Exploding, Failing

import asyncsgd as asgd
from asyncsgd.run import Control, TrainingRun, WorkersFailed

# importorskip would import MLflow, which takes over a second, in every process that only collects these tests.
MISSING = find_spec("mlflow") is None or find_spec("sqlalchemy") is None

# MLflow asks SQLAlchemy for something that it is giving up.
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MISSING, reason="pip install 'asyncsgd[mlflow]'"),
    pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """One for all: making its tables takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow')}/mlflow.db"


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")


def runs(store: str, experiment: str) -> list[Any]:
    from mlflow import MlflowClient

    client = MlflowClient(tracking_uri=store)
    found = client.get_experiment_by_name(experiment)
    return client.search_runs([found.experiment_id], order_by=["attributes.start_time"])


def history(store: str, run: Any, name: str) -> list[tuple[int, float]]:
    from mlflow import MlflowClient

    found = MlflowClient(tracking_uri=store).get_metric_history(run.info.run_id, name)
    return [(metric.step, metric.value) for metric in found]


def artifact(run: Any, name: str) -> Path:
    from mlflow.artifacts import download_artifacts

    return Path(download_artifacts(artifact_uri=f"{run.info.artifact_uri}/{name}"))


def pairs(run: TrainingRun, name: str) -> list[tuple[int, float]]:
    return list(zip(run.metrics["iteration"].tolist(), run.metrics[name].tolist(), strict=True))


@pytest.mark.slow
@pytest.mark.processes
def test_the_numbers_come_back(store: str, tmp_path: Path) -> None:
    seen = Seen()
    logger = asgd.callbacks.mlflow("numbers", tracking_uri=store, seconds=1e-9)
    run = train(tmp_path / "first", logger, others=[seen])
    [found] = runs(store, "numbers")
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "async_sgd first"
    assert history(store, found, "loss") == pairs(run, "loss")
    expected = [(status.iteration, status.updates_per_second) for status in seen.statuses]
    assert sorted(history(store, found, "run/updates_per_second")) == sorted(expected)
    expected = [(status.iteration, float(status.maximum_delay)) for status in seen.statuses]
    assert sorted(history(store, found, "delay/maximum")) == sorted(expected)
    assert found.data.metrics["final/average_delay"] == run.trace.delays.average
    assert found.data.metrics["final/seconds"] == run.seconds
    assert found.data.params["method_name"] == "async_sgd"
    assert found.data.params["engine.workers"] == "2"
    delays, summary = (json.loads(artifact(found, f"{name}.json").read_text("utf-8")) for name in ("delays", "summary"))
    assert delays["jobs"] == run.trace.delays.histogram().tolist()
    assert summary["facts"] == list(run.diagnosis.facts)
    # Nothing lies about in the current directory: files are beside the database.
    assert Path(store.removeprefix("sqlite:///")).parent in artifact(found, "summary.json").parents


@pytest.mark.slow
@pytest.mark.processes
def test_a_resumed_run_is_the_same_run(store: str, tmp_path: Path) -> None:
    train(tmp_path, asgd.callbacks.mlflow("resumed", tracking_uri=store), iterations=40)
    [before] = runs(store, "resumed")
    run = train(tmp_path, asgd.callbacks.mlflow("resumed", tracking_uri=store), iterations=80, resume=True)
    [after] = runs(store, "resumed")
    assert after.info.run_id == before.info.run_id
    assert after.info.status == "FINISHED"
    assert history(store, after, "loss") == pairs(run, "loss")
    assert (after.data.params["iterations"], after.data.tags["resumed.iterations"]) == ("40", "80")
    assert after.data.tags["resumed_at"] == "40"


@pytest.mark.slow
@pytest.mark.processes
def test_a_run_that_fails(store: str, tmp_path: Path) -> None:
    seen = Seen()
    logger = asgd.callbacks.mlflow("fails", tracking_uri=store)
    with pytest.raises(WorkersFailed):
        train(tmp_path, logger, task=Failing(after=10), others=[seen])
    [found] = runs(store, "fails")
    assert found.info.status == "FAILED"
    notes = sorted(artifact(found, "notes").iterdir())
    assert [path.read_text("utf-8") for path in notes] == [f"{note}\n" for note in seen.notes]
    assert seen.notes


@pytest.mark.processes
def test_a_run_that_diverges(store: str) -> None:
    train(None, asgd.callbacks.mlflow("diverges", tracking_uri=store), task=Exploding(at=25.0), iterations=10**5)
    [found] = runs(store, "diverges")
    assert found.info.status == "FAILED"
    assert "directory" not in found.data.params


@pytest.mark.slow
def test_names_that_mlflow_does_not_take(store: str) -> None:
    logger = asgd.callbacks.mlflow("names", name="mine", tracking_uri=store)
    logger.on_start(live(method="x" * 10_000))
    logger.on_evaluation(live(3, 0.5), {"loss (train)": 0.25}, Control())
    logger.close()
    [found] = runs(store, "names")
    assert found.info.run_name == "mine"
    assert history(store, found, "loss _train_") == [(3, 0.25)]
    assert len(found.data.params["method"]) == 6000


@pytest.mark.slow
def test_the_store_of_the_environment(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    logger = asgd.callbacks.mlflow("environment")
    logger.on_start(live())
    logger.close()
    assert len(runs(store, "environment")) == 1
