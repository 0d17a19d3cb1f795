"""A PyTorch model as a task: from one flat vector to one flat gradient."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from itertools import accumulate as running_sums
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks._torch.batches import Loader, Sampling, checked_batch, part_of, pieces, rows_in
from asyncsgd.tasks._torch.data import Integers, Rows, Stream, mixed_batch
from asyncsgd.tasks.base import Copies, check_job

if TYPE_CHECKING:
    from asyncsgd.tasks._torch.compute import Compute
    from asyncsgd.tasks._torch.model import FlatModel
    from asyncsgd.tasks._torch.objective import Objective

EVALUATED_AT_ONCE = 256
"""Rows of a batch in `TorchTask.evaluate` and in calibration, unless ``accumulate`` asks for smaller ones."""


@dataclass(frozen=True, eq=False)
class Data:
    """The data of a task: rows that all workers share, rows of each worker, or a stream; and held-out rows."""

    rows: Sequence[Rows]
    workers: int | None
    """The number of workers, if each has its own rows."""
    stream: Stream | None = None
    test: Rows | None = None
    calibration: int = 1024


@dataclass(eq=False)
class InUse:
    """What one process sets up when it first uses a task."""

    process: int
    model: FlatModel
    objective: Objective
    loader: Loader
    last: dict[int, int]
    """The last batch of each worker in this process."""
    write_gradient: Callable[..., None]
    seeded: Callable[..., AbstractContextManager[None]]


class TorchTask:
    """Mini-batch gradients of a model's loss, on data that all workers share or on a part per worker.

    Everything depends on (x, worker, seed), with epochs and streams also on the job's ``batch``, and on nothing else:
    rows follow from them, torch's own generator is set from the seed, so that dropout can be repeated, and buffers are
    restored before every job. (To the bit it depends on the number of torch's threads too, and on a GPU on
    ``torch.use_deterministic_algorithms``.) The given model is copied, never changed. `notes` describes its buffers.

    Each process sets up the model on its device when it first uses it.

    See docs/guides/torch.md for what is trained, and on what data.
    """

    copies = Copies(server=2, shared=2, worker=1)
    """The given module, and the model of an evaluation while it runs; its pickle and the module; x, if not in place."""

    def __init__(self, module: Any, objective: Objective, data: Data, sampling: Sampling, compute: Compute) -> None:
        from asyncsgd.tasks._torch.checks import copied
        from asyncsgd.tasks._torch.model import notes, trained

        self.workers = data.workers
        self.heterogeneous = len(data.rows) > 1
        self.device = "cpu"
        """The name of the device that this process computes on; see `use_device`."""
        self._module = copied(module).cpu()
        self._objective, self._data, self._sampling, self._compute = objective, data, sampling, compute
        self._dtype = trained(self._module)[0].detach().numpy().dtype
        self.dimension = sum(parameter.numel() for parameter in trained(self._module))
        """The number of trained parameters."""
        self.uses_batch = sampling.epochs or data.stream is not None
        """Whether the rows of a job follow from its ``batch``, so that engines must pass it to `update`."""
        lengths = [len(part) for part in data.rows]
        self.batches_per_epoch = sampling.batches(lengths)
        """The number of jobs in which all workers together see every row once; None without epochs."""
        self.epoch_rows = sum(lengths) if sampling.epochs else None
        """The number of rows of an epoch; None without epochs."""
        self.sampling_seed = sampling.seed
        """The seed of the orders of epochs."""
        tests = [] if data.test is None else [data.test]
        self._plain = data.stream is None and all(part.plain for part in (*data.rows, *tests))
        rows = min(data.calibration, sum(lengths)) if lengths else data.calibration
        self.notes = notes(self._module, rows)
        """Sentences about the model's buffers and modes."""
        self._used: InUse | None = None

    def __repr__(self) -> str:
        kind, data = type(self._module).__name__, "own data" if self.heterogeneous else "shared data"
        workers = "any number of" if self.workers is None else self.workers
        data = data if self._data.stream is None else "a stream"
        return f"<TorchTask: {kind} of {self.dimension:,} parameters, {workers} workers, {data}>"

    def __getstate__(self) -> dict[str, Any]:
        seen: dict[int, Any] = {}
        rows = [part.compact(seen) for part in self._data.rows]
        test = None if self._data.test is None else self._data.test.compact(seen)
        # The device is a matter of each process: the server may evaluate on the CPU while workers have a GPU each.
        return {**self.__dict__, "_data": replace(self._data, rows=rows, test=test), "_used": None, "device": "cpu"}

    def __copy__(self) -> TorchTask:
        """Return a task that sets up its own model, on the same device: two threads may use the two tasks."""
        copy = object.__new__(type(self))
        copy.__dict__.update(self.__dict__, _used=None)
        return copy

    def without_parameters(self) -> TorchTask | None:
        """Return this task without the values of `initial`, to be stored beside them; None if that is impossible."""
        from asyncsgd.tasks._torch.model import hollow

        module, task = hollow(self._module), copy(self)
        task._module = module
        return None if module is None else task

    def with_parameters(self, x: Vector) -> TorchTask:
        """Return this task, which `without_parameters` made, with the values that it left out."""
        from asyncsgd.tasks._torch.model import fill

        task = copy(self)
        task._module = deepcopy(self._module)
        fill(task._module, x)
        return task

    @property
    def fixed_options(self) -> dict[str, Any]:
        """Arguments of `asyncsgd.tasks.torch` that decide about the bits of a job; a resume may not change them."""
        compute, rows = self._compute, {"data": [len(part) for part in self._data.rows], **self._sampling.options}
        found = {"data": "a stream"} if self._data.stream is not None else rows
        return {**found, "accumulate": compute.accumulate, "precision": compute.precision, "compile": compute.compile}

    @property
    def sent(self) -> dict[str, Any]:
        """What is sent to workers, by the names of the arguments of `asyncsgd.tasks.torch`, to explain errors."""
        data = [getattr(part, "dataset", part) for part in self._data.rows]
        found = {"model": self._module, self._objective.name: self._objective.function}
        if self._data.stream is not None:
            found["data"] = self._data.stream.function
        elif data:
            found["data"] = data[0] if len(data) == 1 else data
            found["collate"] = getattr(self._data.rows[0], "collate", None)
        found["test"] = getattr(self._data.test, "dataset", self._data.test)
        return {**found, "metrics": self._objective.metrics, "derived": self._objective.derived}

    # ---------------------------------------------------------------------------------------------- this process

    def use_device(self, device: str) -> None:
        """Compute on this device in this process; engines call it in each worker before its first job.

        Args:
            device: "cpu", "cuda", "cuda:1" or "mps". An error names a device that this process does not have.
        """
        from asyncsgd.tasks._torch.devices import resolve

        found = resolve(device)
        if found.type == "mps" and self._dtype != np.float32:
            raise BadParameter("device", device, "has no float64", "convert the model with model.float()")
        if str(found) != self.device:
            self.device, self._used = str(found), None

    def _ready(self) -> InUse:
        """Return what this process has set up; a forked process sets up its own."""
        process = os.getpid()
        if self._used is None or self._used.process != process:
            from asyncsgd.tasks._torch.compute import write_gradient
            from asyncsgd.tasks._torch.devices import resolve
            from asyncsgd.tasks._torch.model import FlatModel, seeded

            device = resolve(self.device)
            model = FlatModel(self._module, device, compile=self._compute.compile)
            objective, loader = self._objective.on(device), Loader(self._compute.loaders)
            self._used = InUse(process, model, objective, loader, {}, write_gradient, seeded)
        return self._used

    # ---------------------------------------------------------------------------------------------- a job

    def initial(self) -> Vector:
        """Return the parameters of the given model."""
        from asyncsgd.tasks._torch.model import trained

        start: Vector = np.concatenate([p.detach().numpy().reshape(-1) for p in trained(self._module)])
        return start

    def layout(self) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
        """Return (name, offset, shape) of each trained parameter in the flat vector; a tied one under its first name.

        >>> from torch import nn
        >>> from asyncsgd import tasks
        >>> data = (np.zeros((2, 3)), np.array([0, 1]))
        >>> tasks.torch(nn.Linear(3, 2), nn.CrossEntropyLoss(), data).layout()
        (('weight', 0, (2, 3)), ('bias', 6, (2,)))
        """
        named = [(name, p) for name, p in self._module.named_parameters() if p.requires_grad]
        offsets = running_sums((p.numel() for _, p in named), initial=0)
        return tuple((name, offset, tuple(p.shape)) for (name, p), offset in zip(named, offsets, strict=False))

    def update(self, x: Vector, worker: int, seed: int, batch: int | None = None) -> Vector:
        """Return the gradient of the mean loss of a mini-batch of this worker's data.

        Args:
            x: The parameters, as one vector.
            worker: The number of the worker.
            seed: The seed of the job.
            batch: The number of mini-batches before this one; needed if `uses_batch`.
        """
        out = np.empty(self.dimension, self._dtype)
        self.update_into(x, worker, seed, out, batch)
        return out

    def update_into(self, x: Vector, worker: int, seed: int, out: Vector, batch: int | None = None) -> None:
        """Write into ``out`` what `update` returns.

        If x starts at a multiple of 64 bytes it may be used in place, so it must not change during the call.
        """
        check_job(worker, seed, self.workers)
        seed = int(seed)  # NumPy's integers would overflow
        used = self._ready()
        destination = used.model.destination(out)
        batches = self._micro_batches(used, int(worker), seed, batch)
        plain = self._data.stream is None and self._part(worker).plain
        used.model.load(x)
        with used.seeded(seed, used.model.device, everything=not plain):
            used.write_gradient(used.model, used.objective, batches, self._compute.precision, destination)
        used.model.deliver(out)

    def examples(self, worker: int, seed: int, batch: int | None = None) -> int | None:
        """Return the number of rows of a mini-batch; None for a stream, where only the batch itself shows it."""
        if self._data.stream is not None:
            return None
        size = self._sampling.size(worker)
        if not self._sampling.epochs:
            return size
        rows = len(self._part(worker))
        return min(size, rows - checked_batch(batch) % -(-rows // size) * size)

    def _part(self, worker: int) -> Rows:
        return self._data.rows[worker if self.heterogeneous else 0]

    def _micro_batches(self, used: InUse, worker: int, seed: int, batch: int | None) -> Iterator[tuple[float, Any]]:
        """Return (its share of the rows, the micro-batch) of each micro-batch of a job."""
        number = self._compute.accumulate
        if self._data.stream is not None:
            return self._streamed(self._data.stream, worker, checked_batch(batch), seed)
        part = self._part(worker)
        chosen = self._sampling.rows(len(part), worker, self.heterogeneous, seed, batch)
        if number == 1 and not self._compute.loaders:
            return ((1.0, part.batch(rows)) for rows in (chosen,))  # read when it is asked for
        cuts = [slice(0, len(chosen))] if number == 1 else self._cuts(len(chosen), worker)
        shares = [(cut.stop - cut.start) / len(chosen) for cut in cuts]
        then = self._guess(used, part, worker, batch)
        return zip(shares, used.loader.batches(part, [chosen[cut] for cut in cuts], then), strict=True)

    def _cuts(self, rows: int, worker: int) -> list[slice]:
        """Return the micro-batches of this many rows: at most as large as those of a full batch."""
        size = self._sampling.size(worker) // self._compute.accumulate
        return [slice(begin, min(begin + size, rows)) for begin in range(0, rows, size)]

    def _guess(self, used: InUse, part: Rows, worker: int, batch: int | None) -> Integers | None:
        """Return the rows of the first micro-batch of the job that this worker probably gets next, to read them ahead.

        The next job is taken to be as far from this one as this one was from the last: exact for a worker with its
        own data, and likely for workers that are equally fast. Rows drawn with replacement cannot be known.
        """
        if not self._compute.loaders or not self._sampling.epochs or part.plain:
            return None
        now = checked_batch(batch)
        before = used.last.get(worker)
        used.last[worker] = now
        if before is None or before >= now:
            return None
        rows = self._sampling.rows(len(part), worker, self.heterogeneous, 0, 2 * now - before)
        return rows[self._cuts(len(rows), worker)[0]]

    def _streamed(self, stream: Stream, worker: int, batch: int, seed: int) -> Iterator[tuple[float, Any]]:
        whole = stream.function(worker, batch, seed)
        rows = rows_in(whole) if self._compute.accumulate > 1 else None
        if not rows:
            yield 1.0, whole
            return
        for cut in pieces(rows, self._compute.accumulate):
            yield (cut.stop - cut.start) / rows, part_of(whole, cut, rows)

    # ---------------------------------------------------------------------------------------------- the model

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return the mean loss and metrics on the held-out data, or else the mean over workers on their own data."""
        import torch

        used = self._ready()
        parts = self._data.rows if self._data.test is None else [self._data.test]
        with torch.no_grad(), used.seeded(0, used.model.device, everything=not self._plain):
            used.model.load(x)
            used.model.start_evaluation(self._calibration_batches, used.objective.run)
            try:
                values = [self._measure(used, part) for part in parts]
            finally:
                used.model.release()
        means = {name: sum(value[name] for value in values) / len(values) for name in values[0]}
        return self._objective.complete(means)

    def _measure(self, used: InUse, rows: Rows) -> dict[str, float]:
        from asyncsgd.tasks._torch.devices import moved

        totals: dict[str, float] = {}
        size = self._at_once()
        wanted = [np.arange(begin, min(begin + size, len(rows))) for begin in range(0, len(rows), size)]
        for chosen, batch in zip(wanted, used.loader.batches(rows, wanted), strict=True):
            for name, value in used.objective.measure(used.model.module, moved(batch, used.model.device)).items():
                totals[name] = totals.get(name, 0.0) + value * len(chosen)
        return {name: total / len(rows) for name, total in totals.items()}

    def _at_once(self) -> int:
        """Return the rows to evaluate at once. Who accumulates has told how many fit into memory."""
        if self._compute.accumulate == 1:
            return EVALUATED_AT_ONCE
        return min(EVALUATED_AT_ONCE, max(self._sampling.sizes) // self._compute.accumulate)

    def module(self, x: Vector) -> Any:
        """Return a new copy of the model with parameters x and calibrated buffers, in eval mode on the CPU."""
        import torch

        from asyncsgd.tasks._torch.model import trained

        # With a model of its own: another thread may be evaluating with the one of `_ready`.
        made, used = deepcopy(self._module), copy(self)._ready()
        with torch.no_grad(), used.seeded(0, used.model.device, everything=not self._plain):
            used.model.load(x, copy=True)
            used.model.start_evaluation(self._calibration_batches, used.objective.run)
            torch._foreach_copy_(trained(made), used.model.parameters)
            for mine, computed in zip(made.buffers(), used.model.module.buffers(), strict=True):
                mine.copy_(computed)
        return made.eval()

    def _calibration_batches(self) -> Iterator[Any]:
        """Yield batches spread evenly over the data of all workers, or the first ones of a stream; always the same."""
        from asyncsgd.tasks._torch.devices import moved

        device = self._ready().model.device
        wanted, stream = self._data.calibration, self._data.stream
        if stream is not None:
            seen = batch = 0
            while seen < wanted:
                whole = stream.function(0, batch, derive(0, batch))
                seen, batch = seen + (rows_in(whole) or wanted), batch + 1
                yield moved(whole, device)
            return
        rows = self._data.rows
        each = -(-wanted // len(rows))
        places = [
            (part, int(row))
            for part, some in enumerate(rows)
            for row in np.linspace(0, len(some) - 1, min(each, len(some))).astype(np.int64)
        ]
        order = np.random.Generator(np.random.Philox(key=derive(0))).permutation(len(places))
        for chosen in np.array_split(order, -(-len(places) // EVALUATED_AT_ONCE)):
            yield moved(mixed_batch(rows, [places[place] for place in chosen]), device)

    def try_once(self) -> None:
        """Run the model on two rows, forwards and back, and raise if the loss or step is not a scalar with a gradient.

        Other exceptions are left to the workers: this machine may lack what a worker has, such as a GPU.
        """
        import torch

        from asyncsgd.tasks._torch.model import job_modes, seeded, trained

        probe = deepcopy(self._module)
        job_modes(probe)
        try:
            with seeded(0, torch.device("cpu"), everything=True), torch.enable_grad():
                if self._data.stream is not None:
                    batch = self._data.stream.function(0, 0, 0)
                else:
                    rows = self._data.rows[0].untouched()
                    batch = rows.batch(np.arange(2) % len(rows))
                value = self._objective.value(probe, batch)
                gradients = torch.autograd.grad(value, trained(probe), allow_unused=True)
            if all(gradient is None for gradient in gradients):
                problem, fix = "does not depend on the parameters of the model", "use the model that is passed to it"
                raise BadParameter(self._objective.name, value.item(), problem, fix)
        except BadParameter:
            raise
        except Exception:
            return
