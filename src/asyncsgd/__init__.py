"""asyncsgd: asynchronous SGD for distributed and federated learning.

Workers compute gradients at their own pace. The server applies each gradient as it arrives, knows its exact delay, and
scales the step for late gradients by a rule with proven guarantees.

>>> import asyncsgd as asgd
>>> task = asgd.tasks.quadratic(dim=10, workers=2)
>>> run = asgd.simulate(task, asgd.async_sgd(stepsize=0.1), asgd.durations.fixed([1.0, 16.0]), iterations=100)
>>> run.trace.delays.maximum, run.trace.delays.concurrency
(16, 2)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from asyncsgd import aggregation, compression, dispatch, methods, optimizers, schedules, steps
from asyncsgd.core import errors
from asyncsgd.core.errors import AsyncSGDError, BiasWarning
from asyncsgd.core.events import (
    Arrived,
    Assign,
    Cancel,
    Changed,
    Drain,
    Ended,
    Job,
    Joined,
    Left,
    Lost,
    Outcome,
    Reply,
)
from asyncsgd.core.method import Method
from asyncsgd.core.server import Server
from asyncsgd.methods import (
    async_diloco,
    async_sgd,
    decoupled_diloco,
    delay_adaptive,
    diloco,
    fedasync,
    fedavg,
    fedbuff,
    federated_async_sgd,
    mifa,
    minibatch_sgd,
    rennala,
    ringmaster,
)

if TYPE_CHECKING:
    from asyncsgd import engines, flower, plot, tasks, testing, theory, trace
    from asyncsgd.pages import report
    from asyncsgd.planning import Plan, plan
    from asyncsgd.run import Callback, Checkpoints, Limits, Replay, TrainingRun, callbacks, train
    from asyncsgd.run.replaying import replay
    from asyncsgd.simulation import (
        Comparison,
        DivergenceWarning,
        EdgeWarning,
        Run,
        Sweep,
        TargetNotReached,
        compare,
        durations,
        grid,
        simulate,
        sweep,
    )
    from asyncsgd.trace import Trace

__version__ = "0.1.0"

__all__ = [
    "Arrived",
    "Assign",
    "AsyncSGDError",
    "BiasWarning",
    "Callback",
    "Cancel",
    "Changed",
    "Checkpoints",
    "Comparison",
    "DivergenceWarning",
    "Drain",
    "EdgeWarning",
    "Ended",
    "Job",
    "Joined",
    "Left",
    "Limits",
    "Lost",
    "Method",
    "Outcome",
    "Plan",
    "Replay",
    "Reply",
    "Run",
    "Server",
    "Sweep",
    "TargetNotReached",
    "Trace",
    "TrainingRun",
    "aggregation",
    "async_diloco",
    "async_sgd",
    "callbacks",
    "compare",
    "compression",
    "decoupled_diloco",
    "delay_adaptive",
    "diloco",
    "dispatch",
    "durations",
    "engines",
    "errors",
    "fedasync",
    "fedavg",
    "fedbuff",
    "federated_async_sgd",
    "flower",
    "grid",
    "methods",
    "mifa",
    "minibatch_sgd",
    "optimizers",
    "plan",
    "plot",
    "rennala",
    "replay",
    "report",
    "ringmaster",
    "schedules",
    "simulate",
    "steps",
    "sweep",
    "tasks",
    "testing",
    "theory",
    "trace",
    "train",
]

# Imported on first use, so that `import asyncsgd` stays fast.
_SIMULATION = "asyncsgd.simulation"
_LATER = {
    "Trace": "asyncsgd.trace",
    "engines": "asyncsgd.engines",
    "flower": "asyncsgd.flower",
    **dict.fromkeys(("Plan", "plan"), "asyncsgd.planning"),
    **dict.fromkeys(("Callback", "Checkpoints", "Limits", "Replay", "TrainingRun"), "asyncsgd.run"),
    **dict.fromkeys(("callbacks", "replay", "train"), "asyncsgd.run"),
    "plot": "asyncsgd.plot",
    "report": "asyncsgd.pages",
    "tasks": "asyncsgd.tasks",
    "testing": "asyncsgd.testing",
    "theory": "asyncsgd.theory",
    "trace": "asyncsgd.trace",
    **dict.fromkeys(
        ("Comparison", "DivergenceWarning", "EdgeWarning", "Run", "Sweep", "TargetNotReached"), _SIMULATION
    ),
    **dict.fromkeys(("compare", "durations", "grid", "simulate", "sweep"), _SIMULATION),
}


_MODULES = ("core", "pages", "planning", "run", "simulation")
"""Subpackages that users may use as attributes, such as `asyncsgd.run`, besides the names in ``__all__``."""


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"asyncsgd.{name}")
    if name not in _LATER:
        raise AttributeError(f"module 'asyncsgd' has no attribute {name!r}")
    module = import_module(_LATER[name])
    value = globals()[name] = module if module.__name__ == f"asyncsgd.{name}" else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, "__version__"})
