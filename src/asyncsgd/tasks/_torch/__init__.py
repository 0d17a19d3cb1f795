"""Make a task from an ordinary module, loss and dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.validate import count
from asyncsgd.tasks._torch.data import as_rows, check_split, is_pair, share_out
from asyncsgd.tasks._torch.task import TorchTask
from asyncsgd.tasks.data import DataSplit


def torch(
    model: Any,
    loss: Callable[[Any, Any], Any],
    data: Any,
    *,
    batch_size: int = 32,
    collate: Callable[[list[Any]], Any] | None = None,
    split: DataSplit | None = None,
    test: Any | None = None,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    calibration: int = 1024,
) -> TorchTask:
    """Make a task from an ordinary ``nn.Module``, loss and dataset (extra ``torch``); see docs/howto/task.md.

    **Buffers.** Only parameters are trained by gradients. BatchNorm normalises a job by its own batch; its running
    statistics are recomputed from ``calibration`` rows of the training data whenever the model is evaluated or returned
    by `TorchTask.module`, so they are a function of x (docs/decisions/0012-buffers-of-torch-models.md). All other
    buffers are constants, restored before every job; so is a BatchNorm that was given in eval mode. `TorchTask.notes`
    lists what applies to a model.

    Args:
        model: Any module whose output the loss accepts, in float32 or float64. The task copies it.
        loss: A function ``loss(outputs, targets)`` that returns the mean over a batch, such as
            ``nn.CrossEntropyLoss()``.
        data: A Dataset of (input, target) pairs, or a pair (inputs, targets) of tensors or arrays, that all workers
            share or that is split among them; or a list with one of these per worker. For a DataLoader pass
            ``loader.dataset``, because jobs draw their own batches.
        batch_size: The number of rows per gradient, drawn with replacement.
        collate: A function that makes a batch (inputs, targets) from a list of rows, like ``collate_fn`` of a
            DataLoader.
        split: How one dataset is split among the workers: ``asgd.tasks.split("dirichlet", workers=4, alpha=0.3)``.
            By default all workers share it, and there may be any number of them.
        test: Held-out data for ``evaluate``.
        metrics: Functions to evaluate besides the loss, by name: ``metric(outputs, targets)``, a mean over rows. The
            accuracy is added for classes.
        calibration: The number of training rows from which running statistics are computed.

    A job computes one gradient; ``method.local(...)`` makes it several local steps.

    >>> from torch import nn
    >>> import numpy as np
    >>> from asyncsgd.tasks import split as split_among
    >>> inputs, targets = np.random.default_rng(0).normal(size=(100, 5)), np.arange(100) % 2
    >>> torch(nn.Linear(5, 2), nn.CrossEntropyLoss(), (inputs, targets))
    <TorchTask: Linear of 12 parameters, any number of workers, shared data>
    >>> task = torch(nn.Linear(5, 2), nn.CrossEntropyLoss(), (inputs, targets), split=split_among("label", workers=4))
    >>> task
    <TorchTask: Linear of 12 parameters, 4 workers, own data>
    >>> sorted(task.evaluate(task.initial()))
    ['accuracy', 'loss']
    """
    try:
        import torch as _  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.tasks.torch", "PyTorch", "asyncsgd[torch]") from error
    from asyncsgd.tasks._torch.model import check_function, check_module

    count("batch_size", batch_size)
    count("calibration", calibration)
    dtype = check_module(model)
    check_function("loss", loss, "nn.CrossEntropyLoss()")
    for name, metric in (metrics or {}).items():
        if name in ("loss", "iteration", "time"):
            raise BadParameter("metrics", name, "is already in use", "choose another name")
        check_function(f"metrics[{name!r}]", metric, "fn(outputs, targets) -> mean")
    several = isinstance(data, list | tuple) and not is_pair(data)
    if several and not data:
        raise BadParameter("data", data, "is empty", "pass a dataset, or one per worker")
    if several:
        if split is not None:
            raise BadParameter("split", split, "has nothing to split", "pass one dataset, or no split")
        rows = [as_rows(f"data[{place}]", part, dtype, collate) for place, part in enumerate(data)]
    else:
        whole = as_rows("data", data, dtype, collate)
        if split is not None:
            check_split(split)
        rows = [whole] if split is None else share_out(whole, split)
    return TorchTask(
        model,
        loss,
        rows,
        batch_size=int(batch_size),
        workers=len(rows) if several or split is not None else None,
        test=None if test is None else as_rows("test", test, dtype, collate),
        metrics=metrics or {},
        calibration=calibration,
    )
