"""One run with the clients of a grid: what was asked for, and the method fitted to it, before anything starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.validate import count, integer
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.bounded_dispatch import bias_of, bounded, may_queue
from asyncsgd.flower.client_work import for_clients
from asyncsgd.flower.clients import connected
from asyncsgd.flower.encoding import check_sendable
from asyncsgd.flower.engine import Clients
from asyncsgd.flower.messages import sendable
from asyncsgd.flower.privacy import Accountant, Privacy, counted
from asyncsgd.flower.round_rules import SHARE, Config, RoundRules
from asyncsgd.flower.sender import is_simulated
from asyncsgd.flower.task import Evaluate
from asyncsgd.flower.weights import by_reports
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.options import Checkpoints, Evaluation, Target, check_options
from asyncsgd.run.read import read_config
from asyncsgd.run.training import CHECKPOINTS

CLIENTS, PRIVACY = Clients(), Privacy()


@dataclass(frozen=True)
class FederatedRequest:
    """One run with the clients of a grid, as `run_request` carries it out. `AsyncStrategy` makes one."""

    grid: Any
    initial_arrays: Any
    method: Method
    rounds: int
    size: int | None = None
    """Arrivals per round; None: those of the method's own rounds, if it has any, else as many as clients are connected
    at the start, times ``fraction``."""
    fraction: float = 1.0
    """The fraction of the connected clients that a round has arrivals of, unless ``size`` is given."""
    least: int = 1
    """Arrivals that such a round has at least, if as many clients are connected."""
    minimum: int = 2
    """Number of clients that must be connected at the start."""
    evaluate_every: int | None = None
    """Rounds between evaluations; None: every round, if that takes at most `SHARE` of the time."""
    until: str | None = None
    clients: Clients = CLIENTS
    privacy: Privacy = PRIVACY
    train_config: Config = field(default_factory=dict)
    evaluate_config: Config | None = None
    """None: clients do not evaluate."""
    evaluate: Evaluate | None = None
    """``evaluate(round, arrays)``, on the server."""
    rules: RoundRules = field(default_factory=RoundRules)
    directory: str | Path | None = None
    resume: bool = False
    seed: int | None = None
    checkpoints: Checkpoints = CHECKPOINTS

    def check(self) -> None:
        """Raise `BadParameter` for a value of the wrong kind, and for options that need a directory without one."""
        check_options(self.checkpoints)
        count("num_rounds", self.rounds)
        if self.evaluate_every is not None:
            count("evaluate_every", self.evaluate_every)
        for name, kind, fix in (
            ("method", Method, "call the recipe: asgd.federated_async_sgd(stepsize=0.25, concurrency=4)"),
            ("clients", Clients, "pass asgd.flower.Clients(timeout=600)"),
            ("privacy", Privacy, "pass asgd.flower.Privacy(delta=1e-5)"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise BadParameter(name, value, f"is a {type(value).__name__}", fix)
        for name in ("train_config", "evaluate_config"):
            given = getattr(self, name)
            if given is not None and not callable(given):
                sendable(name, given)
        if not isinstance(self.initial_arrays, Mapping):
            kind_given = type(self.initial_arrays).__name__
            fix = "pass ArrayRecord(model.state_dict())"
            raise BadParameter("initial_arrays", kind_given, "is not an ArrayRecord", fix)
        if self.directory is None:
            for name, wanted in (("resume", self.resume), ("keep_updates", self.clients.keep_updates)):
                if wanted:
                    raise BadParameter(name, True, "needs a directory", "pass the directory of the run")

    @property
    def needed(self) -> int:
        """Number of clients that must be connected at the start."""
        goal = self.method.dispatch.clients if isinstance(self.method.dispatch, FirstOf) else 1
        return max(self.minimum, goal if self.clients.minimum is None else self.clients.minimum)

    def evaluation(self, start: Start, *, private: bool) -> Evaluation:
        """Return when the server evaluates, and which metric ends the run. ``private``: ε is a metric.

        If nothing is measured, no round between the first and the last needs a copy of the model.
        """
        target = None if self.until is None else Target.parse(self.until)
        measured = private or self.evaluate is not None or self.evaluate_config is not None
        every = start.size * (self.evaluate_every or 1) if measured else start.iterations
        return Evaluation(every, target, federated=True, share=None if self.evaluate_every else SHARE)


@dataclass(frozen=True)
class Start:
    """What is fixed when a run starts, and stays the same when it is resumed."""

    workers: int
    """The number of clients that open options of the method are filled in with."""
    size: int
    """Arrivals per round."""
    iterations: int


def begin(request: FederatedRequest, files: RunDirectory | None, note: Callable[[str], None]) -> Start:
    """Return what the run starts with: from its directory if it has begun, else from the clients that are connected."""
    if files is not None and files.begun and request.resume:
        found = read_config(files.path)
        size = int(found["engine"].get("round", 1))
        return Start(int(found["bound"]["workers"]), size, request.rounds * size)
    if request.size is not None:
        return Start(request.needed, request.size, request.rounds * request.size)
    here = connected(request.grid, request.needed, note)
    if isinstance(request.method.dispatch, FirstOf):
        size = request.method.dispatch.clients
        return Start(here, size, request.rounds * size)
    size = max(int(here * request.fraction), min(request.least, here), 1)
    return Start(here, size, request.rounds * size)


@dataclass(frozen=True)
class Prepared:
    """The method as the server uses it, and notes for the user about the changes."""

    method: Method
    accountant: Accountant | None
    notes: tuple[str, ...] = field(default=())


def prepare(request: FederatedRequest, layout: Layout) -> Prepared:
    """Fit the method to clients, and check that the options suit it, before anything starts."""
    notes: list[str] = []
    method, clients = request.method, request.clients
    for argument, code in (("up", method.up), ("down", method.down)):
        check_sendable(code, argument)
    method, about_work = for_clients(by_reports(method, clients.weighted_by), request.train_config)
    notes += about_work
    if clients.queue is not None and not may_queue(method.dispatch):
        fix = "leave it out, or use federated_async_sgd(...) or fedbuff(...)"
        raise BadParameter("queue", clients.queue, f"has no effect with {method.name}, where no job waits", fix)
    method.check(workers=request.needed)
    method = method.using(dispatch=bounded(method.dispatch, clients.queue))
    if clients.heterogeneous and (bound := bias_of(method.dispatch)) is not None:
        notes.append(bound)
    gathered, kept = getattr(method.aggregation, "size", None), getattr(method.dispatch, "clients", None)
    if isinstance(gathered, int) and isinstance(kept, int) and gathered != kept:
        what = f"{type(method.aggregation).__name__.lower()} gathers {gathered} updates, and a round has {kept}"
        notes.append(f"{what}: pass the same number to both, so that every round changes the model once")
    method, accountant = counted(method, request.privacy)
    if accountant is not None and not is_simulated(request.grid):
        notes.append("ε is counted per SuperNode key: a SuperNode without a key is a new client at every start")
    if layout.carried:
        notes.append(_about_carried(layout, private=accountant is not None))
    return Prepared(method, accountant, tuple(notes))


def _about_carried(layout: Layout, *, private: bool) -> str:
    if private:
        what = "integer arrays and running statistics keep their initial values, as noise does not protect them"
        return f"{what}; use GroupNorm instead of BatchNorm"
    names = [part.name for part in layout.carried]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"not trained, but set to medians of what clients return: {shown}"


def choose_seed(given: int | None, files: RunDirectory | None, resume: bool) -> int:
    """Return the given seed, the seed of the run to resume, or 0."""
    if given is not None:
        integer("seed", given)
        return int(given)
    if resume and files is not None and files.begun:
        return int(read_config(files.path)["seed"])
    return 0
