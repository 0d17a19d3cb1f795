"""Callbacks that come with asyncsgd: early stopping, the best model, and loggers.

Pass them to `asyncsgd.train` or `asyncsgd.flower.AsyncStrategy`, beside your own, see `asyncsgd.Callback`::

    asgd.train(..., callbacks=[asgd.callbacks.EarlyStopping("loss"), asgd.callbacks.tensorboard("runs/a/tensorboard")])

``EarlyStopping`` stops a run that no longer improves, and ``SaveBest`` keeps its best model; both survive a resume.

``tensorboard``, ``mlflow`` and ``wandb`` log a run to TensorBoard, MLflow or Weights & Biases: the task's metrics over
iterations and wall time, delays, updates per second, the number of workers, the configuration, notes (a worker died, an
exception in your code), and a summary at the end. A resumed run continues under the same id, which is stored in
``loggers.json`` in its directory. A logger that fails warns once and stops logging; the run continues, and its
directory holds all the data.
"""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Any

from asyncsgd.core.errors import LoggerWarning
from asyncsgd.run.callbacks.base import Callback, Control, LiveView
from asyncsgd.run.callbacks.best import EarlyStopping, SaveBest
from asyncsgd.run.callbacks.logger import Logger

if TYPE_CHECKING:
    from asyncsgd.run.callbacks.trackers import MLflow, TensorBoard, WandB

__all__ = ["Callback", "Control", "EarlyStopping", "LiveView", "Logger", "LoggerWarning", "SaveBest"]
__all__ += ["mlflow", "tensorboard", "wandb"]


def tensorboard(directory: str | PathLike[str] | None = None, *, seconds: float = 1.0) -> TensorBoard:
    """Write event files for TensorBoard. Needs the extra ``tensorboard``.

    Iterations that a resumed run repeats replace the earlier ones.

    Args:
        directory: Folder for the event files, one per run; by default ``tensorboard`` in the run directory.
        seconds: Seconds between writes.

    See docs/users/engineer.md for other callbacks, and docs/howto/callback.md for one of your own.
    """
    from asyncsgd.run.callbacks.trackers import TensorBoard

    return TensorBoard(directory, seconds)


def mlflow(
    experiment: str = "asyncsgd", *, name: str | None = None, tracking_uri: str | None = None, seconds: float = 5.0
) -> MLflow:
    """Log to an MLflow store. Needs the extra ``mlflow``.

    MLflow sends usage data over the network; set ``MLFLOW_DISABLE_TELEMETRY=true`` to turn that off.

    Args:
        experiment: Name of the experiment; it is created if it does not exist.
        name: Name of the run; by default the names of the method and the directory.
        tracking_uri: The store, such as ``sqlite:///mlflow.db`` or ``http://localhost:5000``; by default MLflow's own
            choice: ``MLFLOW_TRACKING_URI``, or a local file.
        seconds: Seconds between writes.

    See docs/users/engineer.md for other callbacks, and docs/howto/callback.md for one of your own.
    """
    from asyncsgd.run.callbacks.trackers import MLflow

    return MLflow(experiment, name, tracking_uri, seconds)


def wandb(
    project: str = "asyncsgd",
    *,
    mode: str = "offline",
    name: str | None = None,
    directory: str | PathLike[str] | None = None,
    seconds: float = 1.0,
    **options: Any,
) -> WandB:
    """Log to Weights & Biases. Needs the extra ``wandb``.

    In offline mode, the run stays on this disk until ``wandb sync`` sends it.

    Args:
        project: Name of the project.
        mode: ``offline`` or ``online``.
        name: Name of the run; by default the names of the method and the directory.
        directory: Folder for the files; by default the run directory, or else the current one.
        seconds: Seconds between writes.
        **options: Further arguments of ``wandb.init``, such as ``entity``, ``tags``, ``group``.

    See docs/users/engineer.md for other callbacks, and docs/howto/callback.md for one of your own.
    """
    from asyncsgd.run.callbacks.trackers import WandB

    return WandB(project, mode, name, directory, seconds, options)
