"""What a strategy fixes for all rounds: how many arrivals they have, who evaluates, and how metrics are aggregated."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from asyncsgd.trace.labels import client_label

if TYPE_CHECKING:
    from asyncsgd.flower.clients import WorkerHandle

SHARE = 0.05
"""The largest share of the time that evaluations take, unless the user asks for evaluations of certain rounds."""

Aggregate: TypeAlias = Callable[[list[Any], str], Any]
"""``function(records, weighted_by_key)`` turns the metrics of some replies into one ``MetricRecord``, as in Flower."""


@dataclass(frozen=True)
class ClientName:
    """The names of one client. A function for ``train_config`` or ``evaluate_config`` receives one."""

    number: int
    """The client's number in trace, journal and page: 0, 1, ... in the order in which clients were first seen."""
    node: int
    """Flower's id of the node."""
    name: str = ""
    """The name that the operator gave the node, or that the client reported; empty if there is none."""
    simulated: bool = False

    def __str__(self) -> str:
        return client_label(self.number, self.name, "" if self.simulated else str(self.node))


Config: TypeAlias = Mapping[str, Any] | Callable[[int, ClientName], Mapping[str, Any]]
"""A configuration for clients, or a function of the round and the client that returns one."""


@dataclass(frozen=True)
class RoundRules:
    """How long a round is, and what happens once per round."""

    size: int = 1
    """Number of arrivals."""
    iterations: int | None = None
    """Number of arrivals after which the run is over. A job that is handed out then is not sent; None: all are sent."""
    train_metrics: Aggregate | None = None
    evaluate_metrics: Aggregate | None = None
    """None: the weighted mean."""
    fraction_evaluate: float = 1.0
    min_evaluate_nodes: int = 0
    weighted_by_key: str = "num-examples"
    """What functions that aggregate metrics are told about the weight of a reply."""
    arrays_key: str = "arrays"
    config_key: str = "config"
    share: float | None = None
    """The largest share of clients' time that evaluation may take; None: no limit."""
    seed: int = 0

    def over(self, iteration: int) -> bool:
        """Return whether the run is over after this many arrivals."""
        return self.iterations is not None and iteration >= self.iterations

    def of_job(self, iteration: int) -> int:
        """Return the round in which a job begins that was handed out after this many arrivals.

        >>> [RoundRules(size=3).of_job(iteration) for iteration in (0, 2, 3)]
        [1, 1, 2]
        """
        return iteration // self.size + 1

    def of_model(self, iteration: int) -> int:
        """Return the round that made the model of this iteration; 0 for the initial model.

        >>> [RoundRules(size=3).of_model(iteration) for iteration in (0, 1, 3, 4)]
        [0, 1, 1, 2]
        """
        return -(-iteration // self.size)

    def choose(self, handles: Sequence[WorkerHandle], iteration: int) -> list[WorkerHandle]:
        """Draw the clients that evaluate a model: the fraction of those present, and at least the minimum of them."""
        wanted = min(len(handles), max(int(len(handles) * self.fraction_evaluate), self.min_evaluate_nodes))
        drawn = random.Random(f"{self.seed}-{iteration}").sample(list(handles), wanted)
        return sorted(drawn, key=lambda handle: handle.number)
