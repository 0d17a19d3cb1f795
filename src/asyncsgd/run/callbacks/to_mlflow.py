"""MLflow: log to a local store or a server through the client, which leaves the user's active run alone."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncsgd.run.callbacks.logger import Logger, Row, finite, flat, needs, title
from asyncsgd.run.ending import BAD, End, ending_of_run

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun

LOCAL = "sqlite:///"
METRICS, PARAMS, LENGTH = 1000, 100, 6000
"""MLflow's limits: metrics per call, parameters per call, characters per parameter."""


class MLflow(Logger):
    """See `asyncsgd.callbacks.mlflow`."""

    kind = "mlflow"

    def __init__(self, experiment: str, name: str | None, tracking_uri: str | None, every: float) -> None:
        super().__init__(every)
        self._mlflow = needs(self.kind, _imported)
        self._experiment, self._name = experiment, name
        self._uri: str = self._mlflow.get_tracking_uri() if tracking_uri is None else tracking_uri
        if self._uri.startswith(LOCAL):
            needs(self.kind, _imported_database)

    def _open(self, config: Mapping[str, Any], known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        self._client = self._mlflow.MlflowClient(tracking_uri=self._uri)
        self._notes = 0
        if known is not None and known.get("tracking_uri") == self._uri:
            self._id = str(known["run_id"])
            self._client.update_run(self._id, status="RUNNING")
            self._client.set_tag(self._id, "resumed_at", config["resumed_at"])
        else:
            name = self._name or title(config)
            self._id = self._client.create_run(self._experiment_id(), run_name=name).info.run_id
        self._log_config(config)
        return {"run_id": self._id, "tracking_uri": self._uri}

    def _experiment_id(self) -> str:
        found = self._client.get_experiment_by_name(self._experiment)
        if found is not None:
            return str(found.experiment_id)
        where = None
        if self._uri.startswith(LOCAL):  # beside the database; by default MLflow uses the current directory
            where = (Path(self._uri.removeprefix(LOCAL)).absolute().parent / "mlruns").as_uri()
        return str(self._client.create_experiment(self._experiment, artifact_location=where))

    def _log_config(self, config: Mapping[str, Any]) -> None:
        """Log the configuration. Parameters can be written only once, so values that a resume changed become tags."""
        before = self._client.get_run(self._id).data.params
        values = {_key(name): str(value)[:LENGTH] for name, value in flat(config) if name != "resumed_at"}
        param = self._mlflow.entities.Param
        new = [param(name, value) for name, value in values.items() if name not in before]
        for start in range(0, len(new), PARAMS):
            self._client.log_batch(self._id, params=new[start : start + PARAMS])
        for name, value in values.items():
            if before.get(name, value) != value:
                self._client.set_tag(self._id, f"resumed.{name}", value)

    def _write(self, rows: list[Row]) -> None:
        metric = self._mlflow.entities.Metric
        metrics = [
            metric(_key(name), value, round(1000 * row.stamp), row.iteration)
            for row in rows
            for name, value in row.values.items()
        ]
        for start in range(0, len(metrics), METRICS):
            self._client.log_batch(self._id, metrics=metrics[start : start + METRICS])

    def _say(self, note: str, iteration: int) -> None:
        # One file per note: a store cannot append, and notes are rare. The time avoids a clash after a resume.
        self._notes += 1
        name = f"notes/{round(1000 * self.now())}-{self._notes}-iteration-{iteration}.txt"
        self._client.log_text(self._id, note + "\n", name)

    def _finish(self, run: TrainingRun, summary: Mapping[str, Any]) -> None:
        stamp, last = round(1000 * self.now()), run.trace.iterations
        metric = self._mlflow.entities.Metric
        final = [metric(_key(f"final/{name}"), value, stamp, last) for name, value in finite(summary).items()]
        self._client.log_batch(self._id, metrics=final)
        self._client.log_dict(self._id, dict(summary), "summary.json")
        self._client.log_dict(self._id, {"jobs": run.trace.delays.histogram().tolist()}, "delays.json")

    def _close(self, run: TrainingRun | None) -> None:
        kind = End.STOPPED if run is None else ending_of_run(run).kind
        status = "FAILED" if kind in BAD else "KILLED" if kind is End.INTERRUPTED else "FINISHED"
        self._client.set_terminated(self._id, status=status)


def _imported() -> Any:
    import mlflow
    import mlflow.entities

    return mlflow


def _imported_database() -> Any:
    import alembic  # noqa: F401
    import sqlalchemy

    return sqlalchemy


def _key(name: str) -> str:
    """Return a name that MLflow accepts.

    >>> _key("loss (train)"), _key("delay/average")
    ('loss _train_', 'delay/average')
    """
    return re.sub(r"[^\w\-. /:]", "_", name)
