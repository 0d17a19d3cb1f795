"""Weights & Biases: log to the local disk or, with ``mode="online"``, to the server."""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.run.callbacks.logger import Logger, Row, finite, needs, title

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun

MODES = ("offline", "online")
BARS = 64


def _imported() -> Any:
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
        every: float,
        options: Mapping[str, Any],
    ) -> None:
        super().__init__(every)
        if mode not in MODES:
            raise BadParameter("mode", mode, "is unknown", f"pass one of {', '.join(MODES)}")
        self._wandb = needs(self.kind, _imported)
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
