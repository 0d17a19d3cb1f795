"""Rows of torch data: from a Dataset or tensors to batches, and which worker holds which rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import GAMMA, MASK, below, output
from asyncsgd.tasks.data import DataSplit

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TensorRows:
    """Some rows of two tensors: no Python code runs per row."""

    inputs: Any
    targets: Any
    rows: Integers | None = None
    """The chosen rows of the tensors; None for all."""

    plain = True
    """Whether fetching a batch runs no code of the user."""

    def __len__(self) -> int:
        return len(self.inputs) if self.rows is None else len(self.rows)

    def batch(self, rows: Integers) -> tuple[Any, Any]:
        """(inputs, targets) of these rows."""
        import torch

        chosen = torch.from_numpy(rows if self.rows is None else self.rows[rows])
        return self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)

    def item(self, row: int) -> tuple[Any, Any]:
        """One (input, target)."""
        place = row if self.rows is None else int(self.rows[row])
        return self.inputs[place], self.targets[place]

    def take(self, rows: Integers) -> TensorRows:
        """Some of the rows."""
        return TensorRows(self.inputs, self.targets, rows if self.rows is None else self.rows[rows])

    def compact(self, seen: dict[int, Any]) -> TensorRows:
        """Return the same rows without unused memory, which pickling would store; ``seen`` is by address."""

        def alone(tensor: Any) -> Any:
            if tensor.untyped_storage().nbytes() == tensor.nbytes:
                return tensor
            return seen.setdefault(id(tensor), tensor.clone())

        return TensorRows(alone(self.inputs), alone(self.targets), self.rows)


@dataclass(frozen=True, eq=False)
class DatasetRows:
    """Any map-style Dataset of (input, target) pairs."""

    dataset: Any
    collate: Callable[[list[Any]], Any] | None = None

    plain = False

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, rows: Integers) -> tuple[Any, Any]:
        """(inputs, targets) of these rows, put together by ``collate``."""
        from torch.utils.data import default_collate

        numbers = rows.tolist()
        many = getattr(self.dataset, "__getitems__", None)  # the same shortcut as in a DataLoader
        items = many(numbers) if many else [self.dataset[row] for row in numbers]
        pair = (self.collate or default_collate)(items)
        _check_pair("data: a batch", pair)
        return pair[0], pair[1]

    def item(self, row: int) -> Any:
        """One (input, target)."""
        return self.dataset[row]

    def take(self, rows: Integers) -> DatasetRows:
        """Some of the rows."""
        from torch.utils.data import Subset

        return DatasetRows(Subset(self.dataset, rows.tolist()), self.collate)

    def compact(self, seen: dict[int, Any]) -> DatasetRows:
        """Return itself, because only the Dataset knows what it holds."""
        return self


Rows = TensorRows | DatasetRows


def as_rows(name: str, data: Any, dtype: Any, collate: Callable[[list[Any]], Any] | None = None) -> Rows:
    """Return the rows of a Dataset of pairs, or of a pair (inputs, targets) of tensors or arrays.

    A pair's floating-point numbers are converted to ``dtype``, the model's; a Dataset is taken as it is.
    """
    import torch
    from torch.utils.data import Subset, TensorDataset

    _refuse_loader(name, data)
    if is_pair(data):
        inputs, targets = (torch.as_tensor(part).detach().cpu() for part in data)
        inputs, targets = (part.to(dtype) if part.is_floating_point() else part for part in (inputs, targets))
        if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
            shapes = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
            raise BadParameter(name, shapes, "are not one target per input", "pass as many rows of each")
        data = TensorDataset(inputs, targets)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        fix = "pass a Dataset with __len__ and __getitem__, or a pair (inputs, targets) of tensors"
        raise BadParameter(name, type(data).__name__, "is not a dataset with a length", fix)
    if len(data) == 0:
        raise BadParameter(name, type(data).__name__, "has no rows", "pass datasets with at least one row")
    if type(data) is TensorDataset and len(data.tensors) == 2 and collate is None:
        return TensorRows(*(tensor.detach().cpu() for tensor in data.tensors))
    if type(data) is Subset and collate is None:
        inner = as_rows(name, data.dataset, dtype)
        if isinstance(inner, TensorRows):
            return inner.take(np.asarray(data.indices, np.int64))
    if collate is None:
        _check_pair(f"{name}[0]", data[0])
    return DatasetRows(data, collate)


def _refuse_loader(name: str, data: Any) -> None:
    """Raise for a DataLoader: it has its own batches, but a job is repeatable only if it draws its own rows.

    For training data the message also names the options that replace the loader's batch size and collate function.
    """
    from torch.utils.data import DataLoader, default_collate

    if isinstance(data, DataLoader) and name in ("test", "dataset"):
        problem = "has batches in place of rows"
        raise BadParameter(name, type(data).__name__, problem, "pass its dataset, loader.dataset")
    if isinstance(data, DataLoader):
        options = [f"batch_size={data.batch_size}"] if data.batch_size is not None else []
        if data.batch_sampler is not None and data.collate_fn is not default_collate:
            options.append("collate=loader.collate_fn")
        fix = ", with ".join(["pass its dataset, loader.dataset", *[" and ".join(options)] * bool(options)])
        problem = "draws its own batches, but a job draws its rows from its seed"
        raise BadParameter(name, type(data).__name__, problem, fix)


def is_pair(data: Any) -> bool:
    """Return whether this is (inputs, targets) as tensors or arrays."""
    import torch

    return (
        isinstance(data, tuple | list)
        and len(data) == 2
        and all(isinstance(part, torch.Tensor | np.ndarray) for part in data)
    )


def _check_pair(name: str, item: Any) -> None:
    if not isinstance(item, tuple | list) or len(item) != 2:
        shown = f"{type(item).__name__} of {len(item)}" if hasattr(item, "__len__") else type(item).__name__
        fix = "let the Dataset return (input, target); either may be a nest of tensors"
        raise BadParameter(name, shown, "is not a pair (input, target)", fix)


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
    """
    from torch.utils.data import Subset

    _refuse_loader("dataset", dataset)
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


def mixed_batch(parts: Sequence[Rows], places: Sequence[tuple[int, int]]) -> tuple[Any, Any]:
    """Return (inputs, targets) of rows of several parts: ``places`` are (part, row)."""
    from torch.utils.data import default_collate

    if len(parts) == 1:
        return parts[0].batch(np.array([row for _, row in places]))
    collate = next((part.collate for part in parts if isinstance(part, DatasetRows) and part.collate), default_collate)
    pair = collate([parts[part].item(row) for part, row in places])
    _check_pair("data: a batch", pair)
    return pair[0], pair[1]


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


@lru_cache(maxsize=16)
def _places(size: int) -> NDArray[np.uint64]:
    return np.arange(1, size + 1, dtype=np.uint64) * GAMMAS


GAMMAS, FIRST, SECOND = np.uint64(GAMMA), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BY_27, BY_30, BY_31, BY_32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def _mix(z: NDArray[np.uint64]) -> None:
    """`asyncsgd.core.random.mix` of each, in place."""
    z ^= z >> BY_30
    z *= FIRST
    z ^= z >> BY_27
    z *= SECOND
    z ^= z >> BY_31


def draw_rows(seed: int, size: int, n_rows: int) -> Integers:
    """Draw ``size`` rows of 0..n_rows-1 with replacement: row k is ``below(output(seed, k), n_rows)``, all at once.

    >>> from asyncsgd.core.random import below, output
    >>> draw_rows(7, 3, 100).tolist() == [below(output(7, k), 100)[1] for k in range(3)]
    True
    """
    z = _places(size) + np.uint64(seed & MASK)
    _mix(z)  # output(seed, k)
    z += GAMMAS
    _mix(z)
    z >>= BY_32
    z *= np.uint64(n_rows)
    rows = (z >> BY_32).astype(np.int64)
    z &= LOW
    for k in np.flatnonzero(z < n_rows):  # these may have to be drawn again; rare
        rows[k] = below(output(seed, int(k)), n_rows)[1]
    return rows
