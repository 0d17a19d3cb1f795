"""How an arrival moves the model: line 5 of Algorithm 1, for every method.

This half of the server knows vectors but not workers. A replay runs it alone, along any trace.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np

from asyncsgd.core.aggregation import Aggregation, Buffer, Each
from asyncsgd.core.dispatch import Batch, FirstOf
from asyncsgd.core.errors import BadParameter, BadStep, WorkerError
from asyncsgd.core.events import Arrival, Outcome
from asyncsgd.core.kernels import Kernels, with_kernels
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Adam, Momentum
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.transforms import Clip, Interpolate
from asyncsgd.core.vectors import Vector
from asyncsgd.core.weights import Reports, WeightedRound


class Points:
    """The model's versions in buffers with reader counts: the newest, and older ones while a job reads them.

    An update writes into ``target()``: the current buffer itself if no job reads it (in place), else a free buffer.
    Either way the update passes over x once, copies nothing, and no worker sees its point change. ``allocate`` lets an
    engine put the buffers in shared memory.
    """

    def __init__(self, x: Vector, allocate: Callable[[int], Vector] | None = None) -> None:
        dtype = x.dtype
        self._allocate = allocate or (lambda n: np.empty(n, dtype=dtype))
        self._buffers: list[Vector] = []
        self._views: list[Vector] = []
        self._readers: list[int] = []
        self._free: list[int] = []
        self._current = self._new(x.shape[0])
        self._buffers[self._current][:] = x

    def _new(self, n: int) -> int:
        buffer = self._allocate(n)
        view = buffer.view()
        view.flags.writeable = False
        self._buffers.append(buffer)
        self._views.append(view)
        self._readers.append(0)
        return len(self._buffers) - 1

    @property
    def current(self) -> Vector:
        """A read-only view of the newest version. The next update may overwrite it: copy it to keep it."""
        return self._views[self._current]

    @property
    def slots(self) -> int:
        """The number of buffers: at most one more than the largest number of versions in flight (two under early).

        Early re-sampling lends x^(t) before the arrival gives its point back, so one more is held for a moment. If
        every update names its arrival's slot as ``done``, there are never more buffers than jobs in flight.
        """
        return len(self._buffers)

    def __getitem__(self, slot: int) -> Vector:
        return self._views[slot]

    def lend(self) -> int:
        """Add a reader to the newest version and return its slot."""
        self._readers[self._current] += 1
        return self._current

    def give_back(self, slot: int) -> None:
        """Remove one reader from this slot."""
        self._readers[slot] -= 1
        if self._readers[slot] == 0 and slot != self._current:
            self._free.append(slot)

    def target(self, done: int | None = None) -> tuple[int, Vector]:
        """Return the (slot, buffer) to write the next version into; the caller then calls `commit` with the slot.

        ``done`` names a slot with one reader that has finished but not called `give_back` yet. If that is the only
        reader, the slot is reused, which saves a buffer.
        """
        if self._readers[self._current] == (done == self._current):
            slot = self._current
        elif done is not None and self._readers[done] == 1:
            slot = done
        elif self._free:
            slot = self._free[-1]
        else:
            slot = self._new(self.current.shape[0])
            self._free.append(slot)
        return slot, self._buffers[slot]

    def commit(self, slot: int) -> None:
        """Make this slot the newest version."""
        if slot != self._current:
            if self._readers[slot] == 0:  # else its only reader has finished and calls `give_back` next
                self._free.remove(slot)
            self._current = slot

    def state(self, *, in_flight: bool = True) -> dict[str, Any]:
        """Return the versions in use as arrays and integers, without buffers that have no reader.

        Without ``in_flight``, the newest version alone, for a restore after which no job reads the others.
        """
        readers = self._readers if in_flight else ()
        live = {*(slot for slot, count in enumerate(readers) if count), self._current}
        return {
            "current": self._current,
            "slots": len(self._buffers),
            "live": {slot: self._buffers[slot].copy() for slot in sorted(live)},
            "readers": list(self._readers),
            "free": list(self._free),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        n = self.current.shape[0]
        while len(self._buffers) < state["slots"]:
            self._new(n)
        for slot, values in state["live"].items():
            self._buffers[slot][:] = values
        self._readers[:] = state["readers"]
        self._free[:] = state["free"]
        self._current = state["current"]


APPLIED, DROPPED = Outcome.APPLIED, Outcome.DROPPED  # looked up once, because every arrival needs them


class Update:
    """The model, its version, and the state of the method's parts.

    ``kernels`` are the passes over vectors that the parts use, such as compiled ones; by default those of NumPy. They
    belong to this object alone.
    """

    def __init__(
        self,
        method: Method,
        x: Vector,
        seed: int = 0,
        allocate: Callable[[int], Vector] | None = None,
        kernels: Kernels | None = None,
    ) -> None:
        method.step.size(0)  # raises if a schedule has no end yet
        self.method = method
        self.points = Points(x, allocate)
        self.version = 0
        self.factor = 1.0
        """Multiplies the step size of every arrival; callbacks change it during a run."""
        kernels = kernels or Kernels()
        self._subtract = kernels.subtract if kernels.never_raises and _is_plain(method) else None
        self._overwrites = kernels.never_raises and overwrites_points(method)
        self._transforms = [with_kernels(transform.apply, kernels) for transform in method.transforms]
        self._aggregation = aggregation_of(method)
        self._mixes = type(method.aggregation) is Each and any(type(t) is Interpolate for t in method.transforms)
        self._add = with_kernels(self._aggregation.add, kernels)
        self._step = with_kernels(method.optimizer.step, kernels)
        self._average, self._kernels = kernels.average, kernels
        self._memory: dict[str, Any] = {
            "transforms": [transform.init(x) for transform in method.transforms],
            "aggregation": self._aggregation.init(x, seed),
            "optimizer": method.optimizer.init(x),
            "average": x.copy() if method.average else None,
            "weights": {} if method.weights is None else {"last": {}},
        }
        self._reports: Reports | None = None
        self._count_reports()

    @property
    def output(self) -> Vector:
        """The method's result so far: the newest version, or the average if the method averages (read-only)."""
        if self.method.average:
            return _read_only(self._memory["average"])
        x = self.points.current
        found = self.method.optimizer.output(self._memory["optimizer"], x)
        return x if found is x else _read_only(found)

    def reseed(self, seed: int) -> None:
        """Draw all later noise from this seed."""
        self._aggregation.reseed(self._memory["aggregation"], seed)

    def weigh(self, arrival: Arrival) -> float:
        """Return the step rule's weight for this arrival, without changing anything.

        This is also where a schedule is checked, because an error in `apply` would come half-way.
        """
        try:
            given = self.method.step.weight(arrival)
        except WorkerError as error:  # the caller would blame the worker, although its update passed every check
            rule, kind = type(self.method.step).__name__, type(error).__name__
            fix = "raise another error, because this one is for updates that workers send"
            raise BadStep(f"the step rule {rule} raised {kind} for job {arrival.job} ({error}); {fix}") from error
        try:
            weight = float(given)
        except (TypeError, ValueError, OverflowError):
            weight = math.nan
        if not (math.isfinite(weight) and weight >= 0):
            raise BadStep(
                f"the step rule {type(self.method.step).__name__} gave weight {given!r} to job {arrival.job} "
                f"(delay {arrival.delay}, staleness {arrival.staleness}); return a finite number >= 0"
            )
        if isinstance(self.method.step.stepsize, Schedule):
            size = self.method.step.size(arrival.iteration)
            if not (math.isfinite(size) and size >= 0):
                where = f"the schedule {self.method.step.stepsize!r} gave the step size {size!r} at iteration"
                raise BadStep(f"{where} {arrival.iteration}; let it give finite numbers >= 0")
        return weight

    def apply(self, arrival: Arrival, g: Vector, weight: float) -> tuple[Outcome, float]:
        """Use one update and return (outcome, its step)."""
        if weight == 0:
            return DROPPED, 0.0
        memory = self._memory
        stepsize = self.method.step.size(arrival.iteration) * self.factor
        if self._reports is not None:
            return APPLIED, self._apply_weighted(arrival, g, stepsize, weight)
        if self._subtract is not None:
            return APPLIED, self._descend(g, stepsize * weight, arrival.slot)
        self._gather(arrival, g, stepsize, weight)
        return APPLIED, self._aggregation.share(memory["aggregation"], stepsize, weight)

    def _gather(self, arrival: Arrival, g: Vector, stepsize: float, weight: float, scale: float = 1.0) -> None:
        """Transform the update, multiply it by ``scale``, pass it to the aggregation and move the model if it is due.

        A change that has begun cannot be undone, so an overflow must not raise (np.seterr, warnings as errors). The
        model becomes infinite instead, and the server refuses the updates computed there as not finite.
        """
        memory = self._memory
        with np.errstate(all="ignore"):
            for apply, state in zip(self._transforms, memory["transforms"], strict=True):
                g = apply(state, g, arrival)
            if scale != 1.0:
                scaled = self._kernels.scratch(g)
                self._kernels.scale(g, scale, scaled)
                g = scaled
            move = self._add(memory["aggregation"], g, stepsize, weight, arrival)
            if move is not None:
                direction, step = move
                self._move(direction, step, arrival)

    def _apply_weighted(self, arrival: Arrival, g: Vector, stepsize: float, weight: float) -> float:
        """Use one update of a method with weights by examples, and return its step; see `asyncsgd.core.weights`."""
        assert self._reports is not None
        counted, relative = self._reports.take(arrival.worker, arrival.examples)
        own = weight * relative
        if isinstance(self._aggregation, WeightedRound):  # the round divides by its own examples
            self._gather(replace(arrival, examples=counted), g, stepsize, weight)
        elif self._aggregation.weighs == "update":
            self._gather(arrival, g, stepsize, weight, relative)
        else:
            if self._mixes and stepsize * own > 1:  # a share of more than 1 would go past the worker's model
                own = 1 / stepsize
            self._gather(arrival, g, stepsize, own)
        return self._aggregation.share(self._memory["aggregation"], stepsize, own)

    def _count_reports(self) -> None:
        weights = self.method.weights
        if weights is not None:
            self._reports = Reports(weights.limit, self._memory["weights"]["last"])

    def _descend(self, g: Vector, step: float, done: int | None) -> float:
        """Do what `Each` and `SGD` do, x ← x - η g, in compiled code.

        Nothing here can raise, so it may overwrite the arrival's point. That needs fewer buffers, which stay in the
        cache.
        """
        assert self._subtract is not None
        points = self.points
        slot, out = points.target(done)
        self._subtract(points.current, step, g, out)
        points.commit(slot)
        self.version += 1
        return step

    def _move(self, direction: Vector, step: float, arrival: Arrival) -> None:
        slot, out = self.points.target(arrival.slot if self._overwrites else None)
        self._step(self._memory["optimizer"], self.points.current, direction, step, out, arrival)
        self.points.commit(slot)
        self.version += 1
        if self.method.average:
            self._average(self._memory["average"], self.points.current, self.version)

    def state(self, *, in_flight: bool = True) -> dict[str, Any]:
        """Return the whole state as arrays and numbers (copies); see `Points.state` for ``in_flight``."""
        return {
            "version": self.version,
            "factor": self.factor,
            "points": self.points.state(in_flight=in_flight),
            "memory": deepcopy(self._memory),
        }

    def check_memory(self, state: dict[str, Any]) -> None:
        """Raise if the parts of a saved state hold other arrays, as with Adam restored as AMSGrad."""
        mine, saved = _remembered(self._memory), _remembered(state["memory"])
        if mine != saved:
            raise BadParameter(
                "method",
                self.method.name,
                f"remembers {mine}, the saved state {saved}",
                "restore with the options it was saved with",
            )
        held, size = state["memory"]["aggregation"].get("held", 0), getattr(self.method.aggregation, "size", None)
        if size is not None and held >= size:
            fix = f"restore with a buffer of more than {held}"
            raise BadParameter("buffer", size, f"is too small for the {held} updates that the saved one holds", fix)

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        self.version, self.factor = state["version"], state["factor"]
        self.points.load(state["points"])
        self._memory = deepcopy(state["memory"])
        self._memory.setdefault("weights", {})  # states of older versions have none
        self._count_reports()


def _read_only(vector: Vector) -> Vector:
    view = vector.view()
    view.flags.writeable = False
    return view


def overwrites_points(method: Method) -> bool:
    """Return whether a move may overwrite the point of its arrival, given kernels that never raise.

    The built-in parts listed here do not read that point once the optimizer has begun, and cannot raise after that.
    """
    return (
        all(type(transform) is Clip for transform in method.transforms)
        and type(method.aggregation) in (Each, Buffer)
        and type(method.optimizer) in (SGD, Momentum, Adam)
    )


def aggregation_of(method: Method) -> Aggregation:
    """Return the aggregation that a server runs: a method with weights that works in rounds needs another buffer."""
    rounds = isinstance(method.dispatch, Batch | FirstOf)
    if method.weights is not None and rounds and type(method.aggregation) is Buffer:
        return WeightedRound(method.aggregation.size)
    return method.aggregation


def _is_plain(method: Method) -> bool:
    """Return whether an arrival moves the model by x ← x - η g and nothing else."""
    return (
        not method.transforms
        and method.weights is None
        and type(method.aggregation) is Each
        and type(method.optimizer) is SGD
        and not method.average
    )


def _remembered(memory: dict[str, Any]) -> list[list[str]]:
    """Return the names of what each part holds in its state."""
    parts = (*memory["transforms"], memory["aggregation"], memory["optimizer"], memory.get("weights", {}))
    return [sorted(part) for part in parts]
