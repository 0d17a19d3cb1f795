"""How arrivals move the model: each arrival alone, K at a time, or through a memory of every worker.

An optimizer gets a direction that has the scale of one update, and a step that does not depend on how many updates the
direction is made of. Adam and similar optimizers divide by the scale of the direction: given (sum, η/K) in place of
(mean, η), they would move the model by η/K. That decides where each rule puts the weight:

- `Each`: (g, η·w). The weight shortens the step, as the delay-adaptive rules want it, under Adam too.
- `Buffer`: (1/K · Σ w_i g_i, η). Every update of the mean has a weight of its own, so weights are part of the mean.
- `Memory`: (mean_i G_i, η·w). The weight is that of the arrival that moves the model now; the mean is of all workers.
- `Calibrated`: (1/K · Σ w_i (g_i - h_i) + mean_i h_i, η). A weight shortens the correction, not the mean.

`asyncsgd.core.robust` has rules for buffers that bear hostile updates, `asyncsgd.core.weights` the weights by examples.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count, nonnegative
from asyncsgd.core.vectors import Vector, blocks

State = dict[str, Any]
NOISE = 0x4015E  # keeps the draws of noise apart from those of jobs and dispatch


@dataclass(frozen=True)
class Aggregation(ABC):
    """Base of the aggregation rules. A rule is a frozen value; its state is a dict of arrays and numbers."""

    balances: ClassVar[bool] = False
    """Whether every worker has the same weight, however often its updates arrive."""
    remembers: ClassVar[bool] = False
    """Whether the state holds a vector of every worker."""
    weighs: ClassVar[str | None] = "step"
    """What the relative weight of reported examples multiplies (`asyncsgd.core.weights`): the weight of the "step", or
    the "update" itself before it is remembered. None: the rule refuses such weights."""

    def bind(self, workers: int, iterations: int | None) -> Aggregation:
        """Return the rule for a run with this many workers and iterations; most rules depend on neither."""
        return self

    def init(self, x: Vector, seed: int) -> State:
        """Return the rule's state at the start of a run."""
        return {}

    def vectors(self, workers: int) -> int:
        """Return the number of vectors of the model's length that the state holds at most."""
        return sum(isinstance(value, np.ndarray) for value in self.init(np.zeros(1), 0).values())

    @abstractmethod
    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        """Return (direction, step) if the model moves now, else None.

        The direction has the scale of one update. It stays valid until the next call. The caller must not write to it.
        If ``add`` has a further argument ``kernels``, the server passes its `asyncsgd.core.kernels.Kernels`. ``g`` may
        be ``kernels.scratch(g)``, and so may the direction.
        """

    def reseed(self, state: State, seed: int) -> None:
        """Draw noise from this seed in all later calls. Most rules draw nothing."""
        return

    @abstractmethod
    def share(self, state: State, stepsize: float, weight: float) -> float:
        """Return the step that this arrival gets in the end, for the trace. The server calls it after `add`."""


@dataclass(frozen=True)
class Each(Aggregation):
    """Every arrival moves the model: direction g, step η·w."""

    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        return g, stepsize * weight

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight


@dataclass(frozen=True)
class Buffer(Aggregation):
    """After ``size`` = K arrivals the model moves: direction (Σ w_i g_i + noise) / K, step η. The buffer is then empty.

    The optimizer sees a mean, so that Adam at η = 0.001 moves by 0.001 whatever K is. The weights are part of the mean.

    ``noise`` is the standard deviation per coordinate of Gaussian noise on the *sum*: with updates clipped to norm G
    and weights at most 1, noise = z·G is the Gaussian mechanism with multiplier z. It is drawn from the seed and the
    version. A server that is restored to an older state therefore needs another seed (`reseed`); otherwise two sums
    would have the same noise.

    With ``by_examples`` the direction is Σ w_i u_i g_i / Σ u_i, where u = examples²/steps of the job: workers that used
    more data count more (Douillard et al. 2026). A job whose examples are unknown counts u = steps. If no job of the
    buffer used any example, the direction is 0.
    """

    size: int
    noise: float = 0.0
    by_examples: bool = False

    def __post_init__(self) -> None:
        count("buffer", self.size)
        nonnegative("noise", self.noise)
        if self.noise and self.by_examples:
            fix = "leave one of the two out"
            raise BadParameter("noise", self.noise, "protects no one where updates have weights of their own", fix)

    def init(self, x: Vector, seed: int) -> State:
        weights = {"weights": 0.0} if self.by_examples else {}
        return {"total": np.zeros_like(x), "held": 0, "seed": seed, **weights}

    def add(
        self,
        state: State,
        g: Vector,
        stepsize: float,
        weight: float,
        arrival: Arrival,
        kernels: Kernels | None = None,
    ) -> tuple[Vector, float] | None:
        total, kernels = state["total"], kernels or Kernels()
        own = self.own_weight(arrival)
        if own is not None:
            state["weights"] = own if state["held"] == 0 else state["weights"] + own
            weight = weight * own
        if state["held"] == 0:
            kernels.scale(g, weight, total)  # the first arrival overwrites the sum that was applied last
        else:
            kernels.subtract(total, -weight, g, total)
        state["held"] += 1
        if state["held"] < self.size:
            return None
        state["held"] = 0
        if self.noise:
            random = np.random.Generator(np.random.Philox(key=derive(state["seed"], NOISE, arrival.version)))
            for part in blocks(len(total)):  # the draws of all blocks are those of one long vector
                noise = self.noise * random.standard_normal(part.stop - part.start)
                total[part] += noise.astype(total.dtype)
        total /= self.size if own is None else (state["weights"] or 1.0)  # in place
        return total, stepsize

    def own_weight(self, arrival: Arrival) -> float | None:
        """Return u_i of a mean Σ w_i u_i g_i / Σ u_i; None for the plain mean."""
        return example_weight(arrival) if self.by_examples else None

    def reseed(self, state: State, seed: int) -> None:
        state["seed"] = seed

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight / self.size


def example_weight(arrival: Arrival) -> float:
    """Return the weight of an update by its data: examples times examples per step, or the steps alone."""
    if arrival.examples is None:
        return float(arrival.steps)
    return arrival.examples * (arrival.examples / arrival.steps)


@dataclass(frozen=True)
class Memory(Aggregation):
    """Keep the last update G_i of every worker; each arrival moves the model: direction mean_i G_i, step η·w (MIFA).

    The model does not move until one update of every present worker has arrived. The memory keeps the update of a
    worker that left, because it represents data that are unreachable for a while. An arrival changes the sum by the
    difference to the worker's previous update, so it costs O(d) and not O(n d).
    """

    balances: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    weighs: ClassVar[str | None] = "update"

    def init(self, x: Vector, seed: int) -> State:
        return {"last": {}, "total": np.zeros_like(x), "started": False}

    def vectors(self, workers: int) -> int:
        return 1 + workers

    def add(
        self,
        state: State,
        g: Vector,
        stepsize: float,
        weight: float,
        arrival: Arrival,
        kernels: Kernels | None = None,
    ) -> tuple[Vector, float] | None:
        last, total = state["last"], state["total"]
        known = last.get(arrival.worker)
        if known is None:
            last[arrival.worker] = g.copy()
            total += g
        else:
            for part in blocks(len(g)):
                total[part] += g[part] - known[part]
            known[:] = g
        if not state["started"] and len(last) >= arrival.workers:
            state["started"] = arrival.present is None or all(worker in last for worker in arrival.present)
        if not state["started"]:
            return None
        mean = (kernels or Kernels()).scratch(total)
        np.divide(total, len(last), out=mean)
        return mean, stepsize * weight

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight / len(state["last"]) if state["started"] else 0.0


@dataclass(frozen=True)
class Calibrated(Aggregation):
    """A buffer of ``size`` = K arrivals, corrected by the last update h_i of every worker (CA²FL; Wang et al. 2024).

    An arrival of worker i adds w (g - h_i) to D, and h_i becomes g. After K arrivals the direction is D/K + h, the step
    η, and then D = 0 and h = (1/n) Σ h_i. h is the mean over all n workers as of the last move, so that workers which
    are missing in a buffer still count; h_i = 0 for a worker that was not heard yet. A worker that arrives twice in a
    buffer is compared with its own first update the second time. The memory keeps h_i of a worker that left.

    n is the number of workers present or the number of workers heard so far, whichever is larger. Memory: n + 3
    vectors.
    """

    size: int
    balances: ClassVar[bool] = True
    remembers: ClassVar[bool] = True
    weighs: ClassVar[str | None] = "update"

    def __post_init__(self) -> None:
        count("buffer", self.size)

    def init(self, x: Vector, seed: int) -> State:
        vectors = {name: np.zeros_like(x) for name in ("differences", "total", "mean")}
        return {"last": {}, "held": 0, **vectors}

    def vectors(self, workers: int) -> int:
        return 3 + workers

    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        last, differences, total, mean = (state[name] for name in ("last", "differences", "total", "mean"))
        known = last.get(arrival.worker)
        for part in blocks(len(g)):
            change = g[part] if known is None else g[part] - known[part]
            total[part] += change
            if state["held"] == 0:
                np.multiply(change, float(weight), out=differences[part])  # over what was applied last
            else:
                differences[part] += float(weight) * change
        if known is None:
            last[arrival.worker] = g.copy()
        else:
            known[:] = g
        state["held"] += 1
        if state["held"] < self.size:
            return None
        state["held"] = 0
        differences /= self.size
        differences += mean
        np.divide(total, max(arrival.workers, len(last)), out=mean)
        return differences, stepsize

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight / self.size


@dataclass(frozen=True)
class Softsync(Aggregation):
    """A `Buffer` of ⌊n / splits⌋ arrivals, where n is the number of workers at the start (Zhang et al. 2016).

    `asyncsgd.Method.bind` replaces it by that buffer when a run starts. ``by_examples`` is the buffer's, which then
    holds at least one arrival, whatever n is.
    """

    splits: int
    by_examples: bool = False

    def __post_init__(self) -> None:
        count("splits", self.splits)

    def bind(self, workers: int, iterations: int | None) -> Aggregation:
        if self.splits > workers and not self.by_examples:
            problem = f"leaves no arrival to wait for with {workers} workers"
            raise BadParameter("splits", self.splits, problem, f"pass splits <= {workers}")
        return Buffer(max(1, workers // self.splits), by_examples=self.by_examples)

    def init(self, x: Vector, seed: int) -> State:
        fix = "give the server method.bind(workers, iterations)"
        raise BadParameter("splits", self.splits, "needs the number of workers", fix)

    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        raise NotImplementedError  # never called, because `init` raises

    def share(self, state: State, stepsize: float, weight: float) -> float:
        raise NotImplementedError
