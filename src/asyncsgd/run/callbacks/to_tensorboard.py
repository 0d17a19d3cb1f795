"""TensorBoard: event files, written without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.run.callbacks.logger import Logger, Row, finite, flat, needs

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun


def _imported() -> Any:
    import tensorboard.compat.proto.event_pb2
    import tensorboard.compat.proto.summary_pb2
    import tensorboard.plugins.histogram.summary_v2
    import tensorboard.plugins.text.summary_v2
    import tensorboard.summary.writer.event_file_writer

    return tensorboard


class TensorBoard(Logger):
    """See `asyncsgd.callbacks.tensorboard`."""

    kind = "tensorboard"

    def __init__(self, directory: str | PathLike[str] | None, every: float) -> None:
        super().__init__(every)
        self._tensorboard = needs(self.kind, _imported)
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
