"""Any optimizer of ``torch.optim`` on the server, over one flat parameter, or its pieces if some do not decay."""

from __future__ import annotations

import ctypes
import inspect
import itertools
import threading
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.events import Arrival
from asyncsgd.core.layout import Layout, Ranges, check_patterns, excluded
from asyncsgd.core.optimizers import Optimizer, State, check_bound
from asyncsgd.core.vectors import Vector


def address(vector: Vector) -> int:
    """Return the address of the vector's first number."""
    place: int = vector.__array_interface__["data"][0]
    return place


def tensor_over(vector: Vector) -> Any:
    """Return a tensor on the memory of a vector. The tensor neither keeps the vector alive nor respects read-only.

    It goes by address, because ``torch.from_numpy`` warns of read-only vectors, and the server's vectors are read-only.
    """
    import torch

    memory = (ctypes.c_char * vector.nbytes).from_address(address(vector))
    return torch.frombuffer(memory, dtype=getattr(torch, vector.dtype.name))


def torch_optimizer(kind: Any, **options: Any) -> TorchOptimizer:
    """See `asyncsgd.optimizers.torch`."""
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.optimizers.torch", "PyTorch", "asyncsgd[torch]") from error
    if isinstance(kind, str):
        found = getattr(torch.optim, kind, None)
        if found is None:
            raise BadParameter("kind", kind, "is not an optimizer of torch.optim", 'pass a name such as "AdamW"')
        kind = found
    if not isinstance(kind, type) or not issubclass(kind, torch.optim.Optimizer) or kind is torch.optim.Optimizer:
        shown = kind.__name__ if isinstance(kind, type) else type(kind).__name__
        raise BadParameter("kind", shown, "is not an optimizer class", "pass a class such as torch.optim.AdamW")
    if kind.__name__ == "Muon":
        fix = "use asgd.optimizers.muon(), which knows the layout"
        raise BadParameter("kind", "Muon", "needs matrices, and the model is one vector here", fix)
    if "lr" in options:
        raise BadParameter("lr", options["lr"], "is the method's step", "pass it as the method's stepsize")
    exclude = check_patterns("exclude", options.pop("exclude", ()))
    known = inspect.signature(kind).parameters
    if exclude and "weight_decay" not in known:
        raise BadParameter("exclude", exclude, f"has no effect, as {kind.__name__} has no weight_decay", "leave it out")
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in known.values()):
        for name in options:
            if name not in list(known)[1:]:
                fix = f"pass some of {', '.join(list(known)[1:])}"
                raise BadParameter(name, options[name], f"is not an option of {kind.__name__}", fix)
    plain = {name: value.item() if isinstance(value, np.generic) else value for name, value in options.items()}
    names, long = _probe(kind, plain)
    return TorchOptimizer(kind, tuple(plain.items()), names, exclude, long=long)


@dataclass(frozen=True, repr=False)
class TorchOptimizer(Optimizer):
    """See `torch_optimizer`, which makes and checks it."""

    kind: type
    options: tuple[tuple[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    """The names of the entries in torch's state."""
    exclude: tuple[str, ...] = ()
    ranges: Ranges | None = None
    """The ranges of the flat model that get ``weight_decay=0``, once `bind_layout` has found them."""
    long: int = 0
    """The number of entries in torch's state that are as long as the parameter."""
    _last: threading.local = field(default_factory=threading.local, init=False, compare=False)
    """The torch object last used by this thread: a cache; everything that matters is in the state."""

    def __repr__(self) -> str:
        options = "".join(f", {name}={value!r}" for name, value in self.options)
        excluded = f", exclude={self.exclude!r}" if self.exclude else ""
        return f"torch({self.kind.__name__}{options}{excluded}{'' if self.ranges is None else f', {self.ranges!r}'})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, self.options, self.names, self.exclude, self.ranges, self.long)

    def bind_layout(self, layout: Layout | None) -> Optimizer:
        ranges = excluded(self.exclude, self.ranges, layout)
        return self if ranges == self.ranges else replace(self, ranges=ranges)

    def init(self, x: Vector) -> State:
        """Return the number of steps under the optimizer's name, and None for what torch makes at the first step."""
        check_bound(self.exclude, self.ranges, len(x))
        names = (_key(name, place) for place in range(len(self.pieces(len(x)))) for name in self.names)
        return {self.kind.__name__: 0, **dict.fromkeys(names)}

    def vectors(self) -> int:
        return self.long

    @property
    def adaptive(self) -> bool:
        return "adam" in self.kind.__name__.lower()

    def pieces(self, n: int) -> list[tuple[slice, bool]]:
        """Return the pieces of a model of length n, each with whether it decays: one parameter of torch each."""
        if not self.ranges:
            return [(slice(0, n), True)]
        bounds = [0, *(bound for both in self.ranges for bound in both), n]
        found = [(slice(*pair), place % 2 == 0) for place, pair in enumerate(itertools.pairwise(bounds))]
        return [(piece, decays) for piece, decays in found if piece.stop > piece.start]

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        if address(x) != address(out):
            np.copyto(out, x)
        bound = getattr(self._last, "bound", None)
        if bound is None or not bound.belongs_to(state, out):
            bound = self._last.bound = _Bound(self, state, out)
        bound.step(state, np.ascontiguousarray(d, out.dtype), step, out)


def _key(name: str, place: int) -> str:
    """Return the key in our state of an entry in torch's state for one piece of the model."""
    return name if place == 0 else f"{name}.{place}"


class _Bound:
    """A torch optimizer whose memory is that of one state: its tensors lie over the state's arrays."""

    def __init__(self, part: TorchOptimizer, state: State, out: Vector) -> None:
        import torch

        self.name = part.kind.__name__
        self.like = (out.shape, out.dtype)
        self.pieces = part.pieces(len(out))
        self.parameters = [torch.nn.Parameter(tensor_over(out[piece])) for piece, _ in self.pieces]
        groups: list[dict[str, Any]] = []
        for wanted, options in ((True, {}), (False, {"weight_decay": 0.0})):
            some = [p for p, (_, decays) in zip(self.parameters, self.pieces, strict=True) if decays is wanted]
            if some:
                groups.append({"params": some, **options})
        self.optimizer = part.kind(groups, **dict(part.options))
        self.memories: list[dict[str, Any]] = [self.optimizer.state[parameter] for parameter in self.parameters]
        self.arrays: dict[str, Any] = {_key(n, place): None for place in range(len(self.pieces)) for n in part.names}
        self.tensors: dict[str, Any] = {}
        if state[self.name]:  # otherwise torch makes its memory at the first step, or has made it just now
            for place, memory in enumerate(self.memories):
                memory.clear()
                for name in part.names:
                    if state[_key(name, place)] is not None:
                        memory[name] = self._adopt(state, _key(name, place))
        # foreach may use the gradient's memory for itself, and so may optimizers that we do not know.
        foreach = any(group.get("foreach") for group in self.optimizer.param_groups)
        self.copies = foreach or not part.kind.__module__.startswith("torch.optim.")

    def _adopt(self, state: State, key: str) -> Any:
        from torch import from_numpy

        value = self.arrays[key] = state[key]
        self.tensors[key] = from_numpy(value) if isinstance(value, np.ndarray) else value
        return self.tensors[key]

    def belongs_to(self, state: State, out: Vector) -> bool:
        """Return whether the tensors belong to this state; after a restore or for another run they do not."""
        if not state[self.name] or (out.shape, out.dtype) != self.like:
            return False
        return all(state[key] is value for key, value in self.arrays.items())

    def step(self, state: State, d: Vector, step: float, out: Vector) -> None:
        """Do one step of torch, in place in ``out``."""
        for parameter, (piece, _) in zip(self.parameters, self.pieces, strict=True):
            parameter.data = tensor_over(out[piece])
            gradient = tensor_over(d[piece])
            parameter.grad = gradient.clone() if self.copies else gradient
        for group in self.optimizer.param_groups:
            group["lr"] = step
        self.optimizer.step()
        for place, (parameter, memory) in enumerate(zip(self.parameters, self.memories, strict=True)):
            parameter.grad = None
            for name, value in memory.items():
                key = _key(name, place)
                if value is not self.tensors.get(key):
                    if key not in self.arrays:
                        problem = f"has begun to remember {name!r} in the middle of a run"
                        raise BadParameter("optimizer", self.name, problem, "use one of torch.optim")
                    self.tensors[key] = value
                    self.arrays[key] = state[key] = value.detach().numpy() if hasattr(value, "detach") else value
        state[self.name] += 1


def _probe(kind: Any, options: dict[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return the names of the optimizer's state, and how many entries are as long as the parameter.

    They are found by two steps of a small model. Raise if the optimizer cannot be used.
    """
    import torch

    parameter = torch.nn.Parameter(torch.tensor([0.5, -0.25]))
    try:
        optimizer = kind([parameter], **options)
        group = optimizer.param_groups[0]
        before = {name: value for name, value in group.items() if name not in ("params", "lr")}
        for lr in (0.1, 0.0):
            start = parameter.detach().clone()
            group["lr"] = lr
            parameter.grad = torch.tensor([1.0, -2.0])
            optimizer.step()
    except (TypeError, ValueError, RuntimeError) as error:
        fix = "use one that takes dense gradients and no closure, such as AdamW, with options that it takes"
        raise BadParameter("kind", kind.__name__, f"cannot be used on the server: {error}", fix) from error
    memory = optimizer.state[parameter]
    strange = [name for name, value in memory.items() if not isinstance(value, torch.Tensor | int | float)]
    for trouble, problem in (
        (not torch.equal(parameter.detach(), start), "moves the model at lr = 0, so no rule can scale its step"),
        (before != {name: group[name] for name in before}, "keeps counts among its options, which are not saved"),
        (strange, f"remembers {', '.join(strange)}, which is neither a tensor nor a number"),
    ):
        if trouble:
            raise BadParameter("kind", kind.__name__, problem, "use one such as AdamW")
    long = sum(isinstance(value, torch.Tensor) and value.shape == parameter.shape for value in memory.values())
    return tuple(memory), long
