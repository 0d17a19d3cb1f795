"""From an ordinary module, loss and dataset to a task."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncsgd.core.check import count, positive
from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.tasks.torch_rows import as_rows, is_pair, share_out
from asyncsgd.tasks.torch_task import TorchTask


def torch(
    model: Any,
    loss: Callable[[Any, Any], Any],
    data: Any,
    *,
    batch_size: int = 32,
    local_steps: int = 1,
    local_stepsize: float | None = None,
    workers: int | None = None,
    split: str | Sequence[Any] = "shared",
    alpha: float = 0.3,
    split_seed: int = 0,
    test: Any | None = None,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    calibration: int = 1024,
    device: Any = "cpu",
) -> TorchTask:
    """A task from an ordinary ``nn.Module``, loss and dataset (extra ``torch``).

    **Buffers.** Only parameters are trained by gradients. BatchNorm normalises a job by its own batch; its running
    statistics are recomputed from ``calibration`` rows of the training data whenever the model is evaluated or
    handed out by `TorchTask.module`, so they are a function of x (docs/decisions/0012). All other buffers are
    constants, restored before every job; so is a BatchNorm that was given in eval mode. `TorchTask.notes` says what
    applies.

    Args:
        model: Any module whose output the loss takes; it is copied. float32 or float64.
        loss: ``loss(outputs, targets)``, the mean over a batch, as ``nn.CrossEntropyLoss()``.
        data: A Dataset of (input, target) pairs, or a pair (inputs, targets) of tensors or arrays, that all workers
            share or that is split among them; or a list with one of these per worker. Of a DataLoader pass
            ``loader.dataset``, as jobs draw their own batches.
        batch_size: Rows of a gradient, drawn with replacement.
        local_steps: Q > 1: a job takes Q local SGD steps y ← y - ``local_stepsize`` · g, and its update is
            (x - y)/``local_stepsize``, which has the scale of a sum of Q gradients.
        local_stepsize: See ``local_steps``; of no effect where there is one.
        workers: How many there are, where a dataset is split among them. Data that all share are for any number, and
            a list of data is for as many as it has.
        split: "shared", or how to part one dataset among the workers: see `asyncsgd.tasks.split_dataset`.
        alpha: For ``split="dirichlet"``.
        split_seed: Draws the split.
        test: Held-out data for ``evaluate``.
        metrics: What to evaluate besides the loss: ``metric(outputs, targets)``, a mean over rows, by name. The
            accuracy comes by itself where there are classes.
        collate: Makes a batch (inputs, targets) of a list of rows, as ``collate_fn`` of a DataLoader.
        calibration: Rows of training data that running statistics are computed from.
        device: Where to compute, as "cpu" or "cuda".

    >>> from torch import nn
    >>> import numpy as np
    >>> inputs, targets = np.random.default_rng(0).normal(size=(100, 5)), np.arange(100) % 2
    >>> task = torch(nn.Linear(5, 2), nn.CrossEntropyLoss(), (inputs, targets), workers=4, split="label")
    >>> task
    <TorchTask: Linear of 12 parameters, 4 workers, own data>
    >>> sorted(task.evaluate(task.initial()))
    ['accuracy', 'loss']
    """
    try:
        import torch as _  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.tasks.torch", "PyTorch", "asyncsgd[torch]") from error
    from asyncsgd.tasks.torch_check import check_device, check_function, check_module

    for name, value in (
        ("batch_size", batch_size),
        ("local_steps", local_steps),
        ("calibration", calibration),
    ):
        count(name, value)
    if workers is not None:
        count("workers", workers)
    if local_steps > 1 and local_stepsize is None:
        raise BadParameter("local_stepsize", None, f"is missing for {local_steps} local steps", "pass one such as 0.1")
    if local_stepsize is not None:
        positive("local_stepsize", local_stepsize)
    dtype = check_module(model)
    check_function("loss", loss, "nn.CrossEntropyLoss()")
    for name, metric in (metrics or {}).items():
        if name in ("loss", "iteration", "time"):
            raise BadParameter("metrics", name, "is the name of something else", "call it differently")
        check_function(f"metrics[{name!r}]", metric, "fn(outputs, targets) -> mean")
    several = isinstance(data, list | tuple) and not is_pair(data)
    if several and not data:
        raise BadParameter("data", data, "is empty", "pass a dataset, or one per worker")
    if several and split != "shared":
        raise BadParameter("split", split, "has nothing to part", "pass one dataset, or no split")
    if several and workers not in (None, len(data)):
        raise BadParameter("workers", workers, f"is not the number of datasets, {len(data)}", "leave it out")
    if several:
        rows = [as_rows(f"data[{place}]", part, dtype, collate) for place, part in enumerate(data)]
    else:
        if workers is None and split != "shared":
            raise BadParameter("workers", None, f"is missing to split the data ({split!r})", "say among how many")
        rows = share_out(as_rows("data", data, dtype, collate), workers or 1, split, alpha, split_seed)
    return TorchTask(
        model,
        loss,
        rows,
        batch_size=int(batch_size),
        local_steps=int(local_steps),
        local_stepsize=None if local_stepsize is None or local_steps == 1 else float(local_stepsize),
        workers=len(rows) if several else workers,
        test=None if test is None else as_rows("test", test, dtype, collate),
        metrics=metrics or {},
        calibration=calibration,
        device=check_device(device),
    )
