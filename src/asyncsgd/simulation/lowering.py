"""Translate a method and a task into what the compiled simulator runs, or give the reason why that is impossible.

`lower` is the only place that knows which parts of a method, and which tasks, have a compiled form. It looks at the
exact type of every part, because a subclass may do anything. It does not load numba.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from asyncsgd.core.aggregation import Buffer, Each
from asyncsgd.core.dispatch import AlwaysBusy, Batch, Dispatch, FirstOf, Shuffled, Uniform
from asyncsgd.core.errors import BadStep
from asyncsgd.core.events import Arrival
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Momentum
from asyncsgd.core.parts import Reason
from asyncsgd.core.transforms import Clip, Interpolate
from asyncsgd.core.work import SPEED, Gradient, LocalSteps
from asyncsgd.tasks.base import BuiltIn, Task
from asyncsgd.trace.columns import Floats
from asyncsgd.trace.replay import Arrivals, Weighed

ALWAYS_BUSY, BATCH, UNIFORM, SHUFFLED, FIRST_OF = range(5)
"""Codes of the dispatch rules. After an edit here, delete numba's cache (``*.nb?``), which does not notice it."""


class Rule(NamedTuple):
    """The parts of a method that the compiled replay follows, as numbers."""

    buffer: int = 0
    clip: float = 0.0
    """0 for none."""
    momentum: int = 0
    """0 none, 1 heavy ball, 2 Nesterov."""
    beta: float = 0.0
    local_steps: int = 0
    """0: one gradient; otherwise the number of local steps."""
    local_stepsize: float = 1.0
    scaled: int = 0
    proximal: float = 0.0
    interpolate: int = 0


@dataclass(frozen=True)
class ScheduleRule:
    """A dispatch rule that the compiled schedule follows."""

    code: int
    dispatch: Dispatch

    @property
    def random(self) -> bool:
        """Whether the rule draws, so that every seed has a schedule of its own."""
        return self.code not in (ALWAYS_BUSY, BATCH)

    def size(self, workers: int, iterations: int) -> tuple[int, int, int]:
        """Return (most jobs in flight or asked in a round, updates that a round keeps, most jobs assigned)."""
        limit = self.dispatch.limit(workers)
        if isinstance(self.dispatch, FirstOf):
            asked, goal = self.dispatch.asked, self.dispatch.clients
            return asked, goal, iterations + (iterations // goal + 2) * min(asked, workers)
        return limit, 1, iterations + (2 * workers if isinstance(self.dispatch, Batch) else limit)


@dataclass(frozen=True, eq=False)
class TaskCode:
    """A task whose gradient is compiled: a built-in task, or one of the user."""

    task: Any
    own: bool
    """Whether the user wrote the gradient."""

    @property
    def data(self) -> Any:
        """The data that the compiled gradient reads."""
        return self.task.compiled[1] if self.own else self.task.lowered

    @property
    def stochastic(self) -> bool:
        """Whether the gradient draws from its seed or depends on the worker."""
        return self.own or not self.task.deterministic

    @property
    def measured(self) -> bool:
        """Whether the kernels can evaluate the task too; otherwise ``task.evaluate`` is called between two calls."""
        return not self.own and type(self.task).evaluate.__module__.startswith("asyncsgd.")


@dataclass(frozen=True, eq=False)
class Numbers:
    """What the compiled replay needs from a method and a task."""

    rule: Rule
    task: TaskCode


@dataclass(frozen=True, eq=False)
class Lowered:
    """The two halves of a method's compiled form on a task: the schedule of arrivals, and the numbers along them."""

    schedule: ScheduleRule | Reason
    numbers: Numbers | Reason


Part = dict[str, Any] | Reason


def _buffer(gather: Buffer) -> Part:
    if gather.by_examples:
        return Reason("a buffer weighted by examples", "has no compiled form")
    return Reason("a buffer with noise", "has no compiled form") if gather.noise else {"buffer": gather.size}


def _local_steps(work: LocalSteps) -> Part:
    plain = LocalSteps(work.steps, work.stepsize, work.scaled, work.proximal)
    if work != plain or not isinstance(work.stepsize, int | float):
        return Reason("local work with more than plain SGD", "has no compiled form")
    return {
        "local_steps": work.steps,
        "local_stepsize": float(work.stepsize),
        "scaled": int(work.scaled),
        "proximal": float(work.proximal),
    }


DISPATCH: dict[type, int] = {
    AlwaysBusy: ALWAYS_BUSY,
    Batch: BATCH,
    Uniform: UNIFORM,
    Shuffled: SHUFFLED,
    FirstOf: FIRST_OF,
}
GATHER: dict[type, Callable[[Any], Part]] = {Each: lambda part: {}, Buffer: _buffer}
OPTIMIZER: dict[type, Callable[[Any], Part]] = {
    SGD: lambda part: {},
    Momentum: lambda part: {"momentum": 1 + part.nesterov, "beta": float(part.beta)},
}
WORK: dict[type, Callable[[Any], Part]] = {Gradient: lambda part: {}, LocalSteps: _local_steps}
TRANSFORM: dict[type, Callable[[Any], Part]] = {
    Clip: lambda part: {"clip": float(part.norm)},
    Interpolate: lambda part: {"interpolate": 1},
}
TRANSFORMS = ((), (Clip,), (Interpolate,), (Interpolate, Clip))
"""The transforms, in the order in which the kernels apply them."""


def lower(method: Method, task: Task) -> Lowered:
    """Return the compiled form of a method on a task; a half that has none is a `Reason`.

    >>> from asyncsgd import methods, optimizers, tasks
    >>> low = lower(methods.async_sgd(0.1).using(optimizer=optimizers.adamw()), tasks.quadratic(workers=2))
    >>> bool(low.schedule), str(low.numbers)
    (True, 'optimizer Adam has no compiled form')
    """
    schedule = lower_dispatch(method.dispatch)
    if method.work.per_worker == SPEED:  # the schedule then depends on how long earlier jobs took
        schedule = Reason("a number of steps by speed", "has no compiled form")
    return Lowered(schedule, lower_numbers(method, task))


def lower_dispatch(dispatch: Dispatch) -> ScheduleRule | Reason:
    """Return how the compiled schedule follows a dispatch rule, or why it cannot."""
    code = DISPATCH.get(type(dispatch))
    if code is None:
        return Reason(f"dispatch rule {type(dispatch).__name__}", "has no compiled form")
    if dispatch.restart_after is not None:
        return Reason("a dispatch rule that stops late jobs", "has no compiled form")
    return ScheduleRule(code, dispatch)


def lower_numbers(method: Method, task: Task) -> Numbers | Reason:
    """Return what the compiled replay needs from a method and a task, or the first reason why it cannot run them."""
    code = lower_task(task)
    if isinstance(code, Reason):
        return code
    if sees(method) == "everything":
        name = type(method.step).__name__
        return Reason(f"step rule {name}", "does not say that its weight depends on the delay or the staleness alone")
    for compression in (method.up, method.down):
        if compression is not None:
            return Reason(f"compression {compression.name}", "has no compiled form in simulations")
    if method.weights is not None:
        return Reason("weights by examples", "have no compiled form")
    fields: dict[str, Any] = {}
    for role, table, part in (
        ("aggregation", GATHER, method.aggregation),
        ("work", WORK, method.work),
        ("optimizer", OPTIMIZER, method.optimizer),
        *(("transform", TRANSFORM, part) for part in method.transforms),
    ):
        known = table.get(type(part))
        found = Reason(f"{role} {type(part).__name__}", "has no compiled form") if known is None else known(part)
        if isinstance(found, Reason):
            return found
        fields |= found
    if tuple(map(type, method.transforms)) not in TRANSFORMS:
        names = ", ".join(type(part).__name__ for part in method.transforms)
        return Reason(f"the transforms ({names})", "have no compiled form in this order")
    if method.average:
        return Reason("averaging", "has no compiled form")
    return Numbers(Rule(**fields), code)


def lower_task(task: Task) -> TaskCode | Reason:
    """Return the compiled gradient of a task, or why there is none."""
    built_in = isinstance(task, BuiltIn) and type(task).update is BuiltIn.update  # no subclass replaced its gradient
    name = f"task {type(task).__name__}"
    if not built_in and getattr(task, "compiled", None) is None:
        return Reason(name, "has no compiled gradient")
    if getattr(task, "uses_batch", False):
        return Reason(name, "needs the number of its mini-batch, which compiled gradients do not get")
    dtype = task.initial().dtype
    if dtype != np.float64:
        return Reason(name, f"has a {dtype} model, and the compiled numbers are float64")
    return TaskCode(task, own=not built_in)


# ---------------------------------------------------------------------------------------------- weights


def sees(method: Method) -> str:
    """Return what the weight depends on: "nothing", "delay" (with τ_C and n), "staleness" or "everything".

    The class that defines ``weight`` declares it; a subclass with another ``weight`` must declare it again.
    """
    for kind in type(method.step).__mro__:
        if "weight" in vars(kind):
            return str(vars(kind).get("sees", "everything"))
    return "everything"


def weigh(arrivals: Arrivals, method: Method) -> Weighed:
    """Return the weight of every arrival, with one call of the step rule per distinct combination of its inputs."""
    from asyncsgd.simulation.replay_kernel import versions

    total = len(arrivals)
    size = method.aggregation.size if isinstance(method.aggregation, Buffer) else 1
    weight, table = np.ones(total), np.empty(0)
    if sees(method) == "delay":
        weight = _by_delay(arrivals, method)
    elif sees(method) == "staleness":
        longest = int(arrivals.delay.max(initial=0))
        table = np.array([_ask(method, staleness=s) for s in range(longest + 1)])
    version, flush = np.empty(total + 1, np.int64), np.empty(total, np.uint8)
    versions(arrivals.iteration, weight, table, size, version, flush)
    return Weighed(weight, version, flush)


def share(method: Method, weight: Floats) -> Floats:
    """Return the step that each arrival got, from its weight, rounded in the order of the core."""
    steps: Floats = (method.step.peak * method.step.shares(len(weight))) * weight
    if isinstance(method.aggregation, Buffer):
        steps = steps / method.aggregation.size
    return steps


def _by_delay(arrivals: Arrivals, method: Method) -> Floats:
    keys = np.stack([arrivals.delay, arrivals.max_concurrency, arrivals.workers])
    change = np.flatnonzero((np.diff(keys[1:], axis=1) != 0).any(axis=0)) + 1
    weight = np.empty(len(arrivals))
    for begin, end in zip((0, *change), (*change, len(arrivals)), strict=True):
        _, concurrency, workers = (int(k) for k in keys[:, begin])
        delays, inverse = np.unique(keys[0, begin:end], return_inverse=True)
        asked = [_ask(method, delay=int(d), max_concurrency=concurrency, workers=workers) for d in delays]
        weight[begin:end] = np.array(asked)[inverse]
    return weight


def _ask(method: Method, **known: int) -> float:
    facts: dict[str, Any] = dict.fromkeys(Arrival.__slots__, 0)
    empty = np.empty(0)
    weight = float(method.step.weight(Arrival(**{**facts, "x": empty, "point": empty, **known})))
    if not (np.isfinite(weight) and weight >= 0):
        name = type(method.step).__name__
        raise BadStep(f"the step rule {name} gave weight {weight!r} for {known}; return a finite number >= 0")
    return weight
