"""Loggers for experiment trackers: TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import re
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.run.callbacks.logger import Logger, Row, finite, flat, needs, title
from asyncsgd.run.ending import BAD, End, ending_of_run

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun


# --------------------------------------------------------------------------------------------------------------
# MLflow: log to a local store or a server through the client, which leaves the user's active run alone.


LOCAL = "sqlite:///"
METRICS, PARAMS, LENGTH = 1000, 100, 6000
"""MLflow's limits: metrics per call, parameters per call, characters per parameter."""


class MLflow(Logger):
    """See `asyncsgd.callbacks.mlflow`."""

    kind = "mlflow"

    def __init__(self, experiment: str, name: str | None, tracking_uri: str | None, seconds: float) -> None:
        super().__init__(seconds)
        self._mlflow = needs(self.kind, _import_mlflow)
        self._experiment, self._name = experiment, name
        self._uri: str = self._mlflow.get_tracking_uri() if tracking_uri is None else tracking_uri
        if self._uri.startswith(LOCAL):
            needs(self.kind, _import_database)

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


def _import_mlflow() -> Any:
    import mlflow
    import mlflow.entities

    return mlflow


def _import_database() -> Any:
    import alembic  # noqa: F401
    import sqlalchemy

    return sqlalchemy


def _key(name: str) -> str:
    """Return a name that MLflow accepts.

    >>> _key("loss (train)"), _key("delay/average")
    ('loss _train_', 'delay/average')
    """
    return re.sub(r"[^\w\-. /:]", "_", name)


# --------------------------------------------------------------------------------------------------------------
# Weights & Biases: log to the local disk or, with ``mode="online"``, to the server.


MODES = ("offline", "online")
BARS = 64


def _import_wandb() -> Any:
    import wandb

    return wandb


class WandB(Logger):
    """See `asyncsgd.callbacks.wandb`."""

    kind = "wandb"

    def __init__(
        self,
        project: str,
        mode: str,
        name: str | None,
        directory: str | PathLike[str] | None,
        seconds: float,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(seconds)
        if mode not in MODES:
            raise BadParameter("mode", mode, "is unknown", f"pass one of {', '.join(MODES)}")
        self._wandb = needs(self.kind, _import_wandb)
        self._project, self._mode, self._name = project, mode, name
        self._directory, self._options = directory, dict(options)

    def _open(self, config: Mapping[str, Any], known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        directory = Path(self._directory or config["directory"] or ".")
        directory.mkdir(parents=True, exist_ok=True)
        given: dict[str, Any] = {
            "project": self._project,
            "mode": self._mode,
            "name": self._name or title(config),
            "dir": str(directory),
            "config": {name: value for name, value in config.items() if name != "resumed_at"},
            "reinit": "create_new",  # leave other runs of this process alone
            # Do not capture the terminal.
            "settings": self._wandb.Settings(console="off"),
        }
        if known is not None:
            given["id"] = known["id"]
            if self._mode == "online":
                given["resume"] = "allow"
        self._logged = self._wandb.init(**{**given, **self._options})
        # The step of W&B may not go back, but a resumed run does: so log iterations as a metric.
        self._logged.define_metric("iteration")
        self._logged.define_metric("*", step_metric="iteration")
        return {"id": self._logged.id, "project": self._project}

    def _write(self, rows: list[Row]) -> None:
        for row in rows:
            self._logged.log({**row.values, "iteration": row.iteration})

    def _say(self, note: str, iteration: int) -> None:
        self._logged.log({"note": note, "iteration": iteration})

    def _finish(self, run: TrainingRun, summary: Mapping[str, Any]) -> None:
        delays = run.trace.delays.values
        if len(delays):
            after = int(delays.max()) + 1
            bars = np.histogram(delays, bins=min(BARS, after), range=(0, after))
            histogram = self._wandb.Histogram(np_histogram=bars)
            self._logged.log({"delay/histogram": histogram, "iteration": run.trace.iterations})
        texts = {name: summary[name] for name in ("state", "sentence", "facts", "problems")}
        self._logged.summary.update({f"final/{name}": value for name, value in {**texts, **finite(summary)}.items()})

    def _close(self, run: TrainingRun | None) -> None:
        self._logged.finish(exit_code=0 if run is not None and run.diverged is None else 1)


def _import_tensorboard() -> Any:
    import tensorboard.compat.proto.event_pb2
    import tensorboard.compat.proto.summary_pb2
    import tensorboard.plugins.histogram.summary_v2
    import tensorboard.plugins.text.summary_v2
    import tensorboard.summary.writer.event_file_writer

    return tensorboard


class TensorBoard(Logger):
    """See `asyncsgd.callbacks.tensorboard`."""

    kind = "tensorboard"

    def __init__(self, directory: str | PathLike[str] | None, seconds: float) -> None:
        super().__init__(seconds)
        self._tensorboard = needs(self.kind, _import_tensorboard)
        self._directory = None if directory is None else Path(directory)

    def _open(self, config: Mapping[str, Any], known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        directory = self._directory
        if directory is None:
            if config["directory"] is None:
                fix = "pass one to asgd.callbacks.tensorboard, or a directory to asgd.train"
                raise BadParameter("directory", None, "leaves no place for event files", fix)
            directory = Path(config["directory"]) / "tensorboard"
        self._writer = self._tensorboard.summary.writer.event_file_writer.EventFileWriter(str(directory))
        if config["resumed_at"] is not None:
            # Tells TensorBoard to discard these iterations of earlier files.
            log = self._tensorboard.compat.proto.event_pb2.SessionLog
            self._event(config["resumed_at"] + 1, session_log=log(status=log.START))
        self._text("config", _table(dict(flat(config))), config["resumed_at"] or 0)
        self._writer.flush()
        return {"directory": str(directory.absolute())}

    def _event(self, iteration: int, stamp: float | None = None, **what: Any) -> None:
        event = self._tensorboard.compat.proto.event_pb2.Event
        self._writer.add_event(event(wall_time=self.now() if stamp is None else stamp, step=iteration, **what))

    def _text(self, name: str, markdown: str, iteration: int) -> None:
        self._event(iteration, summary=self._tensorboard.plugins.text.summary_v2.text_pb(name, markdown))

    def _write(self, rows: list[Row]) -> None:
        summary = self._tensorboard.compat.proto.summary_pb2.Summary
        for row in rows:
            values = [summary.Value(tag=name, simple_value=value) for name, value in row.values.items()]
            self._event(row.iteration, row.stamp, summary=summary(value=values))
        self._writer.flush()

    def _say(self, note: str, iteration: int) -> None:
        self._text("notes", indent(note, "    "), iteration)  # indented: Markdown shows it verbatim
        self._writer.flush()

    def _finish(self, run: TrainingRun, summary: Mapping[str, Any]) -> None:
        last = run.trace.iterations
        self._text("summary", _table(finite(summary)), last)
        sentences = [*run.diagnosis.problems, *run.diagnosis.facts]
        if sentences:
            self._text("diagnosis", "\n".join(f"- {sentence}" for sentence in sentences), last)
        histogram = self._tensorboard.plugins.histogram.summary_v2.histogram_pb
        self._event(last, summary=histogram("delay/histogram", run.trace.delays.values))

    def _close(self, run: TrainingRun | None) -> None:
        self._writer.close()


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {name} | {str(value).replace('|', '&#124;')} |" for name, value in rows.items()]
    return "\n".join(["| name | value |", "|---|---|", *lines])
