"""Callbacks that asyncsgd brings: a run's numbers and notes for TensorBoard, MLflow or Weights & Biases.

Pass them to `asyncsgd.train` or `asyncsgd.flower.serve`, beside your own, see `asyncsgd.Callback`::

    asgd.train(..., callbacks=[asgd.callbacks.tensorboard("runs/a/tensorboard"), asgd.callbacks.mlflow("digits")])

Each logs the task's metrics over iterations and wall time, delays, updates per second, workers alive, the
configuration, notes (a worker died, an exception in your code), and a summary at the end. A run that is resumed
continues under the same name: the ids are kept in ``loggers.json`` in its directory. A logger that fails warns and is
silent from then on; the run continues, and its directory holds everything anyway.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from asyncsgd.core.errors import LoggerWarning
from asyncsgd.run.callbacks.base import Callback, Control, LiveView
from asyncsgd.run.callbacks.logger import Logger

if TYPE_CHECKING:
    from asyncsgd.run.callbacks.to_mlflow import MLflow
    from asyncsgd.run.callbacks.to_tensorboard import TensorBoard
    from asyncsgd.run.callbacks.to_wandb import WandB

__all__ = ["Callback", "Control", "LiveView", "Logger", "LoggerWarning", "mlflow", "tensorboard", "wandb"]


def tensorboard(directory: str | PathLike[str] | None = None, *, every: float = 1.0) -> TensorBoard:
    """Event files for TensorBoard. Needs the extra ``tensorboard``.

    What a resumed run computes again takes the place of what was logged before.

    Args:
        directory: Where they go, one directory per run; by default ``tensorboard`` in the run's own.
        every: Seconds between writes.
    """
    from asyncsgd.run.callbacks.to_tensorboard import TensorBoard

    return TensorBoard(directory, every)


def mlflow(
    experiment: str = "asyncsgd", *, name: str | None = None, tracking_uri: str | None = None, every: float = 5.0
) -> MLflow:
    """A run in an MLflow store. Needs the extra ``mlflow``.

    MLflow itself reports how it is used over the network; ``MLFLOW_DISABLE_TELEMETRY=true`` keeps it from that.

    Args:
        experiment: Its name; made if there is none.
        name: Of the run; by default the method's, with the directory's.
        tracking_uri: The store, such as ``sqlite:///mlflow.db`` or ``http://localhost:5000``; by default MLflow's own
            choice: ``MLFLOW_TRACKING_URI``, or a local file.
        every: Seconds between writes.
    """
    from asyncsgd.run.callbacks.to_mlflow import MLflow

    return MLflow(experiment, name, tracking_uri, every)


def wandb(
    project: str = "asyncsgd",
    *,
    mode: str = "offline",
    name: str | None = None,
    directory: str | PathLike[str] | None = None,
    every: float = 1.0,
    **options: Any,
) -> WandB:
    """A run of Weights & Biases. Needs the extra ``wandb``.

    Offline, the run stays on this disk until ``wandb sync`` sends it.

    Args:
        project: Its name.
        mode: ``offline`` or ``online``.
        name: Of the run; by default the method's, with the directory's.
        directory: Where its files go; by default the run's own directory, or else the current one.
        every: Seconds between writes.
        **options: More for ``wandb.init``, such as ``entity``, ``tags``, ``group``.
    """
    from asyncsgd.run.callbacks.to_wandb import WandB

    return WandB(project, mode, name, directory, every, options)
