"""Rows of torch data: from a Dataset or tensors to batches, and which worker holds which rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
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

    def batch(self, rows: Integers) -> Any:
        """(inputs, targets) of these rows."""
        import torch

        chosen = torch.from_numpy(rows if self.rows is None else self.rows[rows])
        return self.inputs.index_select(0, chosen), self.targets.index_select(0, chosen)

    def items(self, rows: Integers) -> list[Any]:
        """A list of (input, target)."""
        return list(zip(*self.batch(rows), strict=True))

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

    def untouched(self) -> TensorRows:
        """Return itself, as reading changes nothing."""
        return self


@dataclass(frozen=True, eq=False)
class DatasetRows:
    """Any map-style Dataset: its rows may be pairs, dicts or anything else that ``collate`` takes."""

    dataset: Any
    collate: Callable[[list[Any]], Any] | None = None

    plain = False

    def __len__(self) -> int:
        return len(self.dataset)

    def batch(self, rows: Integers) -> Any:
        """Return these rows, put together by ``collate``."""
        return self.collated(self.items(rows))

    def items(self, rows: Integers) -> list[Any]:
        """Return a list of these rows."""
        numbers = rows.tolist()
        many = getattr(self.dataset, "__getitems__", None)  # the same shortcut as in a DataLoader
        return list(many(numbers)) if many else [self.dataset[row] for row in numbers]

    def collated(self, items: list[Any]) -> Any:
        """Return one batch of these rows."""
        from torch.utils.data import default_collate

        return (self.collate or default_collate)(items)

    def take(self, rows: Integers) -> DatasetRows:
        """Some of the rows."""
        from torch.utils.data import Subset

        return DatasetRows(Subset(self.dataset, rows.tolist()), self.collate)

    def compact(self, seen: dict[int, Any]) -> DatasetRows:
        """Return itself, because only the Dataset knows what it holds."""
        return self

    def untouched(self) -> DatasetRows:
        """Return the rows of a shallow copy, to look at one before the task is sent to workers.

        A Dataset that opens its file when it is first read does so in the copy, and can still be sent.
        """
        return replace(self, dataset=_copied(self.dataset))


Rows = TensorRows | DatasetRows


@dataclass(frozen=True, eq=False)
class Stream:
    """A function ``f(worker, batch, seed)`` that returns whole batches."""

    function: Callable[[int, int, int], Any]

    plain = False

    def __post_init__(self) -> None:
        import inspect

        try:
            inspect.signature(self.function).bind(0, 0, 0)
        except TypeError as error:
            name = getattr(self.function, "__name__", type(self.function).__name__)
            fix = "define it as f(worker, batch, seed) and let it return a batch"
            raise BadParameter("data", name, f"does not take (worker, batch, seed): {error}", fix) from None
        except ValueError:  # a built-in function without a signature
            return


def is_stream(data: Any) -> bool:
    """Return whether this is a function that makes batches, not a dataset."""
    return callable(data) and not hasattr(data, "__getitem__") and not isinstance(data, type)


def as_rows(
    name: str, data: Any, dtype: Any, collate: Callable[[list[Any]], Any] | None = None, *, pairs: bool = True
) -> Rows:
    """Return the rows of a Dataset, or of a pair (inputs, targets) of tensors or arrays.

    A pair's floating-point numbers are converted to ``dtype``, the model's; a Dataset is taken as it is. ``pairs``
    says that a loss needs rows of the form (input, target).
    """
    import torch
    from torch.utils.data import Subset, TensorDataset

    refuse_loader(name, data)
    if is_pair(data):
        inputs, targets = (torch.as_tensor(part).detach().cpu() for part in data)
        inputs, targets = (part.to(dtype) if part.is_floating_point() else part for part in (inputs, targets))
        if not inputs.ndim or not targets.ndim or len(inputs) != len(targets):
            shapes = f"shapes {tuple(inputs.shape)} and {tuple(targets.shape)}"
            raise BadParameter(name, shapes, "are not one target per input", "pass as many rows of each")
        data = TensorDataset(inputs, targets)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__") or isinstance(data, Mapping):
        fix = (
            "pass a Dataset with __len__ and __getitem__, a pair (inputs, targets) of tensors, or for a stream a "
            "function f(worker, batch, seed)"
        )
        raise BadParameter(name, type(data).__name__, "is not a dataset with a length", fix)
    if len(data) == 0:
        raise BadParameter(name, type(data).__name__, "has no rows", "pass datasets with at least one row")
    if type(data) is TensorDataset and len(data.tensors) == 2 and collate is None:
        return TensorRows(*(tensor.detach().cpu() for tensor in data.tensors))
    if type(data) is Subset and collate is None:
        inner = as_rows(name, data.dataset, dtype, pairs=pairs)
        if isinstance(inner, TensorRows):
            return inner.take(np.asarray(data.indices, np.int64))
    if collate is None and pairs:
        from asyncsgd.tasks._torch.objective import pair

        pair(f"{name}[0]", _copied(data)[0])
    return DatasetRows(data, collate)


def _copied(dataset: Any) -> Any:
    """Return a shallow copy of a dataset, or the dataset itself if it cannot be copied."""
    from torch.utils.data import Subset

    try:
        if type(dataset) is Subset:
            return Subset(_copied(dataset.dataset), dataset.indices)
        return copy(dataset)
    except Exception:
        return dataset


def refuse_loader(name: str, data: Any) -> None:
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


def mixed_batch(parts: Sequence[Rows], places: Sequence[tuple[int, int]]) -> Any:
    """Return one batch of rows of several parts: ``places`` are (part, row)."""
    if len(parts) == 1:
        return parts[0].batch(np.array([row for _, row in places]))
    items = [parts[part].items(np.array([row]))[0] for part, row in places]
    collate = next((part.collate for part in parts if isinstance(part, DatasetRows) and part.collate), None)
    return DatasetRows((), collate).collated(items)


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
