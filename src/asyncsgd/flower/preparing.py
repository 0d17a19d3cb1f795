"""What `asyncsgd.flower.serve` looks at before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from asyncsgd.core.check import integer
from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.method import Method
from asyncsgd.core.work import Gradient
from asyncsgd.engines.flower import Clients
from asyncsgd.engines.flower.layout import Layout
from asyncsgd.flower.privacy import Accountant, watched
from asyncsgd.flower.queues import bias_of, bounded, may_queue
from asyncsgd.run.directory import RunDirectory, read_config


@dataclass(frozen=True)
class Prepared:
    """The method as it is used here, and what there is to say about that."""

    method: Method
    minimum: int
    accountant: Accountant | None
    notes: tuple[str, ...] = field(default=())


def prepare(
    method: Method,
    rules: Clients,
    layout: Layout,
    delta: float,
    iterations: int,
    heterogeneous: bool,
    *,
    keyed: bool,
) -> Prepared:
    """Refuse what cannot work, and collect what there is to say. ``keyed``: clients are known by their keys."""
    notes: list[str] = []
    if not isinstance(method.work, Gradient):
        notes.append(f"what a job computes is up to the ClientApp: {method.work} is not used")
        method = method.using(work=Gradient())
    if rules.queue is not None and not may_queue(method.dispatch):
        fix = "leave it out, or use federated_async_sgd(...) or fedbuff(...)"
        raise BadParameter("queue", rules.queue, f"has no meaning with {method.name}: no job waits there", fix)
    goal = method.dispatch.clients if isinstance(method.dispatch, FirstOf) else 1
    minimum = max(2, goal) if rules.minimum is None else rules.minimum
    method.check(workers=minimum, iterations=iterations, heterogeneous=heterogeneous)
    method = method.using(dispatch=bounded(method.dispatch, rules.queue))
    if heterogeneous and (bound := bias_of(method.dispatch)) is not None:
        notes.append(bound)
    method, accountant = watched(method, delta)
    if accountant is not None and keyed:
        notes.append("ε is counted per SuperNode key: one that was started without a key is a new client every time")
    if layout.carried:
        notes.append(_about_carried(layout, private=accountant is not None))
    return Prepared(method, minimum, accountant, tuple(notes))


def _about_carried(layout: Layout, *, private: bool) -> str:
    if private:
        words = "whole numbers and running statistics stay as they were at the start, as noise does not protect them"
        return f"{words}; use GroupNorm in place of BatchNorm"
    names = [part.name for part in layout.carried]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"carried beside the trained arrays (medians of what clients return): {shown}"


def choose_seed(given: int | None, files: RunDirectory | None, resume: bool) -> int:
    """The one that was given, that of the run to go on with, or 0."""
    if given is not None:
        integer("seed", given)
        return int(given)
    if resume and files is not None and files.begun:
        return int(read_config(files.path)["seed"])
    return 0


def sendable(name: str, given: Any) -> dict[str, Any]:
    """What is sent along with jobs, if Flower can send it."""
    from flwr.app import ConfigRecord

    if not isinstance(given, Mapping):
        raise BadParameter(name, given, f"is a {type(given).__name__}", 'pass a dict such as {"lr": 0.1}')
    for key, value in given.items():
        try:
            ConfigRecord({key: value})
        except (TypeError, ValueError) as error:
            fix = "pass numbers, strings, bytes, booleans, or lists of one of them"
            raise BadParameter(f"{name}[{key!r}]", value, "cannot be sent by Flower", fix) from error
    return dict(given)


def check_flower() -> None:
    """Say how to install it."""
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.flower.serve", "Flower", "asyncsgd[flower]") from error
