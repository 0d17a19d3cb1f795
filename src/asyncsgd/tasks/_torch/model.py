"""A torch module whose trained parameters are one flat vector and whose every job starts from the same state.

`hollow` is the module without the values of these parameters: a run stores those once, beside the pickled task.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks._torch.devices import Staging, generators
from asyncsgd.torch_optimizers import address, tensor_over


def notes(module: nn.Module, calibration: int) -> tuple[str, ...]:
    """Return sentences about what is not trained by gradients."""
    probe = deepcopy(module)
    modes = job_modes(probe)
    norms = calibrated_norms(modes)
    says = []
    if not module.training:
        says.append("The model came in eval mode; jobs run it in train mode.")
    if norms:
        kinds = "/".join(dict.fromkeys(type(norm).__name__ for norm in norms))
        says.append(
            f"{kinds}: a job normalises by its own batch; running statistics are recomputed from "
            f"{calibration} rows of the training data when the model is evaluated or returned."
        )
    theirs = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
    constants = [name for name, buffer in probe.named_buffers() if id(buffer) not in theirs]
    if constants:
        shown = ", ".join(constants[:3]) + (", ..." if len(constants) > 3 else "")
        says.append(f"Constants, restored before every job: {len(constants)} buffers ({shown}).")
    frozen = sum(not parameter.requires_grad for parameter in probe.parameters())
    if frozen:
        says.append(f"Not trained: {frozen} parameters with requires_grad=False.")
    names = Counter(id(parameter) for _, parameter in probe.named_parameters(remove_duplicate=False))
    tied = sum(number > 1 for number in names.values())
    if tied:
        who = "1 parameter has" if tied == 1 else f"{tied} parameters have"
        says.append(f"Tied: {who} several names; the vector holds each parameter once.")
    return tuple(says)


ALIGNMENT = 64
"""Alignment in bytes. Kernels may round differently on memory with another alignment, so x is used in
place only if it is aligned like torch's own memory; any other x is copied to aligned memory first."""

WORTH_BORROWING = 20_000
"""Numbers per parameter tensor above which copying x costs more than pointing the parameters at it."""

MOST_VIEWS = 64
"""The number of addresses whose views are cached: an engine reuses a few buffers."""


class FlatModel:
    """A copy of a module on its device, fed with flat vectors.

    Args:
        module: The user's module, which is copied.
        device: The device to compute on.
        compile: Whether jobs run the module through ``torch.compile``.
        staging: Memory for the way to the device and back; tests pass their own.
    """

    def __init__(
        self, module: nn.Module, device: torch.device, *, compile: bool = False, staging: Staging | None = None
    ) -> None:
        self.module = deepcopy(module).to(device)
        self.device = device
        self.parameters = trained(self.module)
        self._sizes = [p.numel() for p in self.parameters]
        self._shapes = [p.shape for p in self.parameters]
        self._staging = staging or Staging(device, sum(self._sizes), self.parameters[0].dtype)
        self._like = (self._staging.host_numpy.shape, self._staging.host_numpy.dtype)
        self._own = self._split(self._staging.flat)
        self._gradient = None if self._staging.gradient is None else self._split(self._staging.gradient)
        self._bound: list[Any] | None = None
        self._views: dict[int, list[Any]] = {}
        self._lender: Vector | None = None
        self.called: Any = compiled(self.module) if compile else self.module
        """What jobs call: the module, or its compiled form. Evaluations call the module."""
        self._borrows = (
            not self._staging.apart
            and not compile  # compiled code relies on how the memory was aligned when it was made
            and len(self._staging.host) > WORTH_BORROWING * len(self._sizes)
            and never_writes_parameters(self.module)
        )
        self._modes = job_modes(self.module)
        self._norms = calibrated_norms(self._modes)
        self._in_job = False
        owned = [(owner, name, value) for owner in self.module.modules() for name, value in owner._buffers.items()]
        self._buffers = owned
        self._values = [value for _, _, value in owned if value is not None]
        self._constants = [value.clone() for value in self._values]
        self._bind(self._own)

    def _split(self, flat: Any) -> list[Any]:
        return [part.view(shape) for part, shape in zip(flat.split(self._sizes), self._shapes, strict=True)]

    def views(self, vector: Vector) -> list[Any]:
        """Return views of a vector in the shapes of the parameters; they are valid as long as the vector exists."""
        if (vector.shape, vector.dtype) != self._like or not vector.flags.c_contiguous:
            shown = f"{vector.dtype}{list(vector.shape)}"
            fix = f"pass a contiguous vector of {self._like[0][0]} {self._like[1]}"
            raise BadParameter("out", shown, "does not fit the model", fix)
        place = address(vector)
        found = self._views.get(place)
        if found is None:
            if len(self._views) == MOST_VIEWS:
                self._views.clear()
            found = self._views[place] = self._split(tensor_over(vector))
        return found

    def load(self, x: Vector, *, copy: bool = False) -> None:
        """Set the parameters to x. Without ``copy``, they may use x's own memory until the next call."""
        if x.shape != self._like[0]:
            raise BadParameter(
                "x", f"shape {x.shape}", "does not fit the model", f"pass a vector of {self._like[0][0]}"
            )
        usable = x.dtype == self._like[1] and x.flags.c_contiguous and address(x) % ALIGNMENT == 0
        if self._borrows and usable and not copy:
            self._lender = x  # keeps the memory alive
            self._bind(self.views(x))
            return
        self._staging.send(x)
        self._bind(self._own)
        self._lender = None

    def release(self) -> None:
        """Free the memory of the parameters until the next `load`: a server evaluates rarely."""
        if not self._staging.apart:
            self._staging = Staging(self.device, sum(self._sizes), self._staging.host.dtype)
            self._own = self._split(self._staging.flat)
        self._bind(self._own)
        self._lender = None

    def destination(self, out: Vector) -> list[Any]:
        """Return where a job puts its gradient: views of ``out``, or of a vector on the device, for `deliver`."""
        views = self.views(out)
        if not out.flags.writeable:
            raise BadParameter("out", "a read-only vector", "cannot be written into", "pass one that is writeable")
        return views if self._gradient is None else self._gradient

    def deliver(self, out: Vector) -> None:
        """Copy the gradient off the device into ``out``."""
        self._staging.fetch(out)

    def _bind(self, values: list[Any]) -> None:
        if self._bound is not values:
            self._bound = None  # an exception may come at any time: an engine stops a job by a signal
            for parameter, value in zip(self.parameters, values, strict=True):
                parameter.data = value
            self._bound = values

    def start_job(self) -> None:
        """Set train mode and restore every buffer, so that no job sees what another job left behind."""
        if not self._in_job:
            for part, training in self._modes:
                part.training = training
            self._in_job = True
        self._restore()

    def _restore(self) -> None:
        if self._buffers:
            for owner, name, value in self._buffers:
                owner._buffers[name] = value
            with torch.no_grad():
                torch._foreach_copy_(self._values, self._constants)

    def start_evaluation(self, calibration: Callable[[], Iterable[Any]], run: Callable[[Any, Any], None]) -> None:
        """Set eval mode, with running statistics recomputed from some batches; call it under ``no_grad``.

        Args:
            calibration: Returns the batches.
            run: Runs the module on a batch.
        """
        self._in_job = False
        self._restore()
        self.module.eval()
        if not self._norms:
            return
        usual = [norm.momentum for norm in self._norms]
        try:
            for norm in self._norms:
                norm.reset_running_stats()
                norm.train()
            for k, batch in enumerate(calibration()):
                for norm in self._norms:
                    norm.momentum = 1 / (k + 1)  # the plain average of the batches
                run(self.module, batch)
        finally:
            for norm, momentum in zip(self._norms, usual, strict=True):
                norm.momentum = momentum
                norm.eval()


def trained(module: nn.Module) -> list[Any]:
    """Return the parameters that a run trains, in the order of the flat vector."""
    return [parameter for parameter in module.parameters() if parameter.requires_grad]


def job_modes(module: nn.Module) -> list[tuple[nn.Module, bool]]:
    """Return (part, whether it is in train mode in a job) for every part, and leave the module in train mode.

    As any training loop does, a job calls ``train()``; but parts that were given in eval mode inside a model in
    train mode, such as a frozen BatchNorm, stay in eval mode.
    """
    given = {part: part.training for part in module.modules()}
    keep = module.training
    module.train()  # a module may override it to keep parts of itself in eval mode
    modes = [(part, part.training and (given[part] or not keep)) for part in module.modules()]
    for part, training in modes:
        part.training = training
    return modes


def calibrated_norms(modes: Sequence[tuple[nn.Module, bool]]) -> list[Any]:
    """Return the normalisation layers that keep running statistics and are in train mode in a job."""
    return [m for m, training in modes if training and isinstance(m, _NormBase) and m.running_mean is not None]


def never_writes_parameters(module: nn.Module) -> bool:
    """Return whether the forward pass certainly leaves the parameters alone: torch's own layers, no hooks."""
    return all(
        type(part).__module__.startswith("torch.nn.modules.")
        and getattr(part, "max_norm", None) is None  # embeddings that renormalise their rows in place
        and not part._forward_pre_hooks
        and not part._forward_hooks
        for part in module.modules()
    )


def compiled(module: nn.Module) -> Any:
    """Return the module compiled by torch, within this process: its helpers would outlive a worker that is killed."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    return torch.compile(module)


@contextmanager
def seeded(seed: int, device: torch.device, *, everything: bool) -> Iterator[None]:
    """Draw torch's random numbers from ``seed``; with ``everything`` those of NumPy and Python too.

    Afterwards the generators are as they were. (``torch.random.fork_rng`` does the same in a hundred times the time.)
    """
    drawn = generators(device)
    states = [generator.get_state() for generator in drawn]
    # NumPy's old generator too, because data transforms use it.
    others = (random.getstate(), np.random.get_state()) if everything else None  # noqa: NPY002
    try:
        for generator in drawn:
            generator.manual_seed(seed & (2**63 - 1))
        if everything:
            random.seed(seed)
            np.random.seed(seed & (2**32 - 1))  # noqa: NPY002
        yield
    finally:
        for generator, state in zip(drawn, states, strict=True):
            generator.set_state(state)
        if others is not None:
            random.setstate(others[0])
            np.random.set_state(others[1])  # noqa: NPY002


def hollow(module: nn.Module) -> nn.Module | None:
    """Return a copy whose trained parameters have shapes but no values; None if that would lose something.

    Each of them points at a single number. Everything else (buffers, frozen parameters) is copied. Parameters of
    other kinds or layouts, or with memory that another tensor uses too, cannot be restored from values alone.
    """
    parameters = trained(module)
    others = [
        tensor for tensor in (*module.parameters(), *module.buffers()) if all(tensor is not p for p in parameters)
    ]
    places = [tensor.untyped_storage().data_ptr() for tensor in (*parameters, *others) if tensor.numel()]
    plain = all(type(p) is nn.Parameter and p.is_contiguous() for p in parameters)
    if not plain or len(set(places)) < len(places):
        return None
    empty: dict[int, Any] = {}
    for parameter in parameters:
        stand_in = nn.Parameter(torch.zeros((), dtype=parameter.dtype).expand(parameter.shape))
        stand_in.__dict__.update(parameter.__dict__)
        empty[id(parameter)] = stand_in
    stand_ins = list(empty.values())
    try:
        copy = deepcopy(module, empty)
    except Exception:  # a module may copy itself in any way
        return None
    found = trained(copy)
    same = len(found) == len(stand_ins) and all(a is b for a, b in zip(found, stand_ins, strict=True))
    return copy if same else None


def fill(module: nn.Module, x: Vector) -> None:
    """Give the trained parameters of a `hollow` module these values; each gets memory of its own."""
    parameters = trained(module)
    parts = torch.from_numpy(x).split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.data = part.clone().view(parameter.shape)
