"""Which worker holds which rows of torch data."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.tasks._torch.data import Rows, TensorRows, refuse_loader
from asyncsgd.tasks.data import DataSplit


def split_dataset(dataset: Any, split: DataSplit) -> list[Any]:
    """Split a dataset of PyTorch into one ``Subset`` per worker.

    Args:
        dataset: A Dataset of (input, target) pairs.
        split: The split, made by `asyncsgd.tasks.split`.

    Labels are taken from the targets: those of a TensorDataset, the attribute ``targets``, or each row's in turn.

    >>> import torch
    >>> rows = torch.utils.data.TensorDataset(torch.zeros(6, 2), torch.tensor([1, 0, 1, 0, 1, 0]))
    >>> from asyncsgd.tasks import split
    >>> [part.indices for part in split_dataset(rows, split("label", workers=2))]
    [[1, 3, 5], [0, 2, 4]]

    See docs/users/federated.md for training on data that differ between workers.
    """
    from torch.utils.data import Subset

    refuse_loader("dataset", dataset)
    check_split(split)
    parts = split.parts(len(dataset), labels_of(dataset) if split.by_label else None)
    return [Subset(dataset, part.tolist()) for part in parts]


def share_out(rows: Rows, split: DataSplit) -> list[Rows]:
    """Return the rows of each worker."""
    labels = labels_of(rows if isinstance(rows, TensorRows) else rows.dataset) if split.by_label else None
    return [rows.take(part) for part in split.parts(len(rows), labels)]


def check_split(split: Any) -> None:
    """Raise unless `asyncsgd.tasks.split` made this."""
    if not isinstance(split, DataSplit):
        fix = 'pass asgd.tasks.split("iid", workers=4) or another split'
        raise BadParameter("split", split, f"is a {type(split).__name__}", fix)


def labels_of(dataset: Any) -> NDArray[Any]:
    """Return the target of every row, one number each."""
    from torch.utils.data import Subset, TensorDataset

    if isinstance(dataset, TensorRows):
        targets = dataset.targets if dataset.rows is None else dataset.targets[dataset.rows]
    elif type(dataset) is Subset:
        return labels_of(dataset.dataset)[np.asarray(dataset.indices, np.int64)]
    elif type(dataset) is TensorDataset:
        targets = dataset.tensors[-1]
    elif hasattr(dataset, "targets") and len(dataset.targets) == len(dataset):
        targets = dataset.targets
    else:
        targets = [dataset[row][1] for row in range(len(dataset))]
    labels = np.asarray([np.asarray(target) for target in targets] if isinstance(targets, list) else targets)
    if labels.ndim != 1 or labels.dtype.kind not in "iub":
        fix = 'split by "iid", or give one list of row numbers per worker'
        shown = f"{type(dataset).__name__} with targets of {labels.dtype}{list(labels.shape)}"
        raise BadParameter("data", shown, "has no labels", fix)
    return labels
