"""What a job computes: ``initial() -> x``, ``update(x, worker, seed) -> vector``, ``evaluate(x) -> dict``."""

from asyncsgd.core.errors import BadTask
from asyncsgd.tasks.base import CompiledTask, Task, WritingTask, narrow_seed
from asyncsgd.tasks.builtin import BuiltIn
from asyncsgd.tasks.check import check_task
from asyncsgd.tasks.least_squares import LeastSquares, least_squares
from asyncsgd.tasks.logistic import Logistic, logistic
from asyncsgd.tasks.quadratic import Quadratic, paper_quadratic, quadratic
from asyncsgd.tasks.softmax import Softmax, digits, softmax
from asyncsgd.tasks.splits import DataSplit, dirichlet_split, iid_split, label_split, split
from asyncsgd.tasks.torch_recipe import torch
from asyncsgd.tasks.torch_rows import split_dataset
from asyncsgd.tasks.torch_task import TorchTask

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
    "check_task",
    "digits",
    "dirichlet_split",
    "iid_split",
    "label_split",
    "least_squares",
    "logistic",
    "narrow_seed",
    "paper_quadratic",
    "quadratic",
    "softmax",
    "split",
    "split_dataset",
    "torch",
]
