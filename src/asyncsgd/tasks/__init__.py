"""Tasks, which compute updates: ``initial() -> x``, ``update(x, worker, seed) -> vector``, ``evaluate(x) -> dict``.

docs/howto/task.md shows how to write your own.
"""

from asyncsgd.core.errors import BadTask
from asyncsgd.tasks._torch import torch
from asyncsgd.tasks._torch.data import split_dataset
from asyncsgd.tasks._torch.task import TorchTask
from asyncsgd.tasks.base import BuiltIn, CompiledTask, Task, WritingTask, narrow_seed
from asyncsgd.tasks.check import check_task
from asyncsgd.tasks.data import DataSplit, dirichlet_split, iid_split, label_split, split
from asyncsgd.tasks.epochs import batches_per_epoch, epoch_rows, rows_of_batch
from asyncsgd.tasks.linear_models import LeastSquares, Logistic, least_squares, logistic
from asyncsgd.tasks.quadratics import Quadratic, paper_quadratic, quadratic
from asyncsgd.tasks.softmax_model import Softmax, digits, softmax

__all__ = [
    "BadTask",
    "BuiltIn",
    "CompiledTask",
    "DataSplit",
    "LeastSquares",
    "Logistic",
    "Quadratic",
    "Softmax",
    "Task",
    "TorchTask",
    "WritingTask",
    "batches_per_epoch",
    "check_task",
    "digits",
    "dirichlet_split",
    "epoch_rows",
    "iid_split",
    "label_split",
    "least_squares",
    "logistic",
    "narrow_seed",
    "paper_quadratic",
    "quadratic",
    "rows_of_batch",
    "softmax",
    "split",
    "split_dataset",
    "torch",
]
