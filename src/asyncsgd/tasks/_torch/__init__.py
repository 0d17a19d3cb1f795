"""Make a task from an ordinary module, loss and dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.validate import count, integer, nearest
from asyncsgd.tasks._torch.batches import Sampling
from asyncsgd.tasks._torch.data import Rows, Stream, as_rows, check_split, is_pair, is_stream, share_out
from asyncsgd.tasks._torch.task import Data, TorchTask
from asyncsgd.tasks.data import DataSplit


def torch(
    model: Any,
    loss: Callable[[Any, Any], Any] | None = None,
    data: Any = None,
    *,
    step: Callable[[Any, Any], Any] | None = None,
    batch_size: int | Sequence[int] = 32,
    sampling: str = "replacement",
    sampling_seed: int = 0,
    accumulate: int = 1,
    precision: str = "float32",
    compile: bool = False,
    collate: Callable[[list[Any]], Any] | None = None,
    loaders: int = 0,
    split: DataSplit | None = None,
    test: Any | None = None,
    metrics: Mapping[str, Callable[[Any, Any], Any]] | None = None,
    derived: Mapping[str, Callable[[dict[str, float]], float]] | None = None,
    calibration: int = 1024,
) -> TorchTask:
    """Make a task from an ordinary ``nn.Module`` and data (extra ``torch``); see docs/guides/torch.md.

    Pass either ``loss``, for data of (input, target) pairs, or ``step``, for any other batch or a model that returns
    its own loss. A job computes one gradient; ``method.local(...)`` makes it several local steps.

    **Parameters.** Only those with ``requires_grad=True`` are trained and sent; tied ones count once.

    **Buffers.** Only parameters are trained by gradients. BatchNorm normalises a job by its own batch (with
    ``accumulate``, by its own micro-batch); its running statistics are recomputed from ``calibration`` rows of the
    training data whenever the model is evaluated or returned by `TorchTask.module`, so they are a function of x
    (docs/decisions/0012-buffers-of-torch-models.md). All other buffers are constants, restored before every job; so is
    a BatchNorm that was given in eval mode. `TorchTask.notes` lists what applies to a model.

    **Devices** belong to workers: ``asgd.engines.processes(devices=["cuda:0", "cuda:1"])``. The server evaluates on
    the CPU unless you call `TorchTask.use_device`. The whole model must fit on one device.

    Args:
        model: Any module in float32 or float64. The task copies it.
        loss: A function ``loss(outputs, targets)`` that returns the mean over a batch, such as
            ``nn.CrossEntropyLoss()``.
        data: A map-style Dataset, or a pair (inputs, targets) of tensors or arrays, that all workers share or that is
            split among them; or a list with one of these per worker; or, for a stream, a function
            ``f(worker, batch, seed)`` that returns a whole batch and depends on its arguments alone. A Dataset of the
            library ``datasets`` is map-style too. For a DataLoader pass ``loader.dataset``, because jobs draw their
            own batches.
        step: A function ``step(model, batch)`` that returns the mean loss of a batch, such as
            ``lambda model, batch: model(**batch).loss``.
        batch_size: The number of rows per gradient, or a list with one number per worker. A function decides itself.
        sampling: "replacement" draws the rows of a job from its seed. "epochs" goes through all rows in a new order
            before it repeats one, over all workers together, or over each worker's own data.
        sampling_seed: The seed of the orders of epochs.
        accumulate: The number of micro-batches in which a worker computes a batch, one after the other, to save memory.
            It must divide ``batch_size``. The gradient is that of the whole batch up to rounding.
        precision: "float32" computes as the model is; "bfloat16" and "float16" use autocast, with parameters and
            gradients in float32. With "float16" a job scales its loss, and scales it less if the gradient overflows.
            Evaluations do not use autocast.
        compile: Whether workers run the model through ``torch.compile``.
        collate: A function that makes a batch from a list of rows, like ``collate_fn`` of a DataLoader.
        loaders: The number of threads per worker that read rows of a Dataset in the background. They read the rows of
            a job in parallel, its next micro-batch while one is computed, and with epochs the next job's first rows if
            these can be guessed. The Dataset must not draw from global random generators then.
        split: How one dataset is split among the workers: ``asgd.tasks.split("dirichlet", workers=4, alpha=0.3)``.
            By default all workers share it, and there may be any number of them.
        test: Held-out data for ``evaluate``; a stream needs them. With ``step``, the loss is the mean of ``step`` over
            them in eval mode.
        metrics: Functions to evaluate besides the loss, by name: ``metric(outputs, targets)``, with ``step``
            ``metric(model, batch)``, a mean over rows. With ``loss`` the accuracy is added for classes.
        derived: Functions of all the metrics, by name: ``{"perplexity": lambda m: math.exp(m["loss"])}``.
        calibration: The number of training rows from which running statistics are computed.

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
    >>> mse = lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean()
    >>> rows = [{"x": np.float32([i]), "y": np.float32([2 * i])} for i in range(10)]
    >>> class Line:
    ...     def __len__(self):
    ...         return len(rows)
    ...
    ...     def __getitem__(self, row):
    ...         return rows[row]
    >>> task = torch(nn.Linear(1, 1), data=Line(), step=mse, batch_size=4, accumulate=2, sampling="epochs")
    >>> task.batches_per_epoch, task.update(task.initial(), worker=0, seed=1, batch=2).shape
    (3, (2,))
    """
    try:
        import torch as _  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.tasks.torch", "PyTorch", "asyncsgd[torch]") from error
    from asyncsgd.tasks._torch import checks
    from asyncsgd.tasks._torch.compute import Compute
    from asyncsgd.tasks._torch.objective import Objective

    dtype = checks.check_module(model)
    name, function = checks.objective_of(loss, step)
    count("accumulate", accumulate)
    sizes = checks.batch_sizes(batch_size, 1 if is_stream(data) else accumulate)
    count("calibration", calibration)
    integer("sampling_seed", sampling_seed)
    integer("loaders", loaders)
    if loaders < 0:
        raise BadParameter("loaders", loaders, "is negative", "pass 0, or the number of threads")
    if sampling not in ("replacement", "epochs"):
        raise BadParameter("sampling", sampling, "is not a way to draw rows", nearest(sampling, _SAMPLINGS))
    checks.check_precision(precision, dtype)
    checks.check_named("metrics", metrics or {}, (), "fn(outputs, targets) -> mean")
    checks.check_named("derived", derived or {}, list(metrics or {}), "lambda m: math.exp(m['loss'])")
    if compile:
        checks.check_compiler()
    plan = Sampling(sizes, sampling == "epochs", int(sampling_seed))
    pairs = name == "loss"
    held_out = None if test is None else as_rows("test", test, dtype, collate, pairs=pairs)
    if is_stream(data):
        size = None if plan.sizes == (32,) else batch_size
        options = {"split": split, "collate": collate, "loaders": loaders or None, "batch_size": size}
        given = _stream(data, held_out, plan, options, int(calibration))
    else:
        rows, workers = _rows(data, split, lambda name, part: as_rows(name, part, dtype, collate, pairs=pairs))
        _check_sizes(plan, len(rows), workers)
        given = Data(rows, workers, None, held_out, int(calibration))
    objective = Objective(name, function, metrics or {}, derived or {}).on_cpu()
    compute = Compute(int(accumulate), precision, bool(compile), int(loaders))
    task = TorchTask(model, objective, given, plan, compute)
    task.try_once()
    return task


_SAMPLINGS = ("replacement", "epochs")


def _rows(data: Any, split: DataSplit | None, read: Callable[[str, Any], Rows]) -> tuple[list[Rows], int | None]:
    """Return the rows of each worker, or those that all share; and the number of workers, None if any number."""
    if data is None:
        raise BadParameter("data", None, "is missing", "pass a Dataset, a pair of tensors, or f(worker, batch, seed)")
    if isinstance(data, list | tuple) and not is_pair(data):
        if not data:
            raise BadParameter("data", data, "is empty", "pass a dataset, or one per worker")
        if split is not None:
            raise BadParameter("split", split, "has nothing to split", "pass one dataset, or no split")
        return [read(f"data[{place}]", part) for place, part in enumerate(data)], len(data)
    whole = read("data", data)
    if split is None:
        return [whole], None
    check_split(split)
    parts = share_out(whole, split)
    return parts, len(parts)


def _stream(data: Any, test: Rows | None, plan: Sampling, options: Mapping[str, Any], calibration: int) -> Data:
    """Return the data of a stream; raise for options that only rows can have."""
    for name, value in options.items():
        if value is not None:
            problem = "does not apply: the function in data makes whole batches itself"
            raise BadParameter(name, value, problem, f"leave {name} out, or pass a Dataset")
    if plan.epochs:
        fix = 'pass a Dataset, or sampling="replacement", and iterations in place of epochs when you train'
        raise BadParameter(
            "sampling", "epochs", "needs data with a length, and a function is a stream without end", fix
        )
    if test is None:
        raise BadParameter("test", None, "is missing: a stream has no rows to evaluate on", "pass held-out data")
    return Data((), None, Stream(data), test, calibration)


def _check_sizes(plan: Sampling, parts: int, workers: int | None) -> None:
    """Raise for batch sizes per worker that do not fit the data."""
    several = len(plan.sizes)
    if several == 1:
        return
    if workers is not None and several != workers:
        problem = f"has {several} numbers for {workers} workers"
        raise BadParameter("batch_size", list(plan.sizes), problem, f"pass one number, or {workers}")
    if plan.epochs and parts == 1:
        fix = 'pass one batch_size, split the data with split=..., or pass sampling="replacement"'
        problem = "differs by worker, so that the place of a batch in an epoch of shared data would not be known"
        raise BadParameter("batch_size", list(plan.sizes), problem, fix)
