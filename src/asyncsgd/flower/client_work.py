"""What a ClientApp computes for a job, as far as the server has a say in it: the number of local steps."""

from __future__ import annotations

from dataclasses import dataclass

from asyncsgd.core.compression import Compression
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import SPEED, Gradient, GradientOf, LocalSteps, Tools, Work
from asyncsgd.flower.round_rules import Config

STEPS = "steps"
"""Name of the number of local steps in the configuration of a job."""


@dataclass(frozen=True)
class ClientWork(Work):
    """One update, which the ClientApp computes in its own way, and compresses with the mod if the method says so.

    A replay reads the updates as the server decoded them, so nothing is encoded again.
    """

    steps: int = 1
    per_worker: tuple[int, ...] | str | None = None
    sent: bool = False
    """Whether the server sends the number of steps to the client."""

    def encoded(self, up: Compression | None, down: Compression | None) -> Work:
        return self

    def compute(
        self, gradient: GradientOf, x: Vector, worker: int, seed: int, counts: tuple[int, int], tools: Tools
    ) -> Vector:
        return gradient(x, worker, seed)


def for_clients(method: Method, train_config: Config) -> tuple[Method, list[str]]:
    """Return the method with the work that ClientApps do, and notes about what changed."""
    work, compressed = method.work, method.up is not None or method.down is not None
    if isinstance(work, LocalSteps):
        if not callable(train_config) and STEPS in train_config:  # a function is checked at every job
            fix = "leave it out of train_config, or use a method without .local(...)"
            raise BadParameter(f"train_config[{STEPS!r}]", train_config[STEPS], "is set by the method", fix)
        if work.state == "kept":
            problem = "is not possible: a Flower client owns its inner loop, and the server cannot keep state there"
            fix = "keep it in the ClientApp (context.state), and leave state out of .local(...)"
            raise BadParameter("state", work.state, problem, fix)
        steps = "up to " if work.per_worker == SPEED else ""
        note = f'the ClientApp decides what a job computes: it gets config["{STEPS}"] = {steps}{work.steps}, and its '
        note += "own code has the optimizer, the step size and the state of the local steps"
        return method.using(work=ClientWork(work.steps, work.per_worker, sent=True)), [note]
    if isinstance(work, Gradient):
        return (method.using(work=ClientWork()) if compressed else method), []
    note = f"the ClientApp decides what a job computes: {work} is not used"
    return method.using(work=ClientWork() if compressed else Gradient()), [note]
