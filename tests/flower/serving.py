"""What the tests of runs share: `serve`, a small model, clients that train it, a callback."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from flower.fake import FakeGrid, record, towards
from flwr.app import ArrayRecord, MetricRecord

from asyncsgd.flower import Clients, FederatedRun
from asyncsgd.flower.request import FederatedRequest
from asyncsgd.flower.serving import run_request
from asyncsgd.run import Callback
from asyncsgd.run.callbacks.base import Hooks
from asyncsgd.run.callbacks.terminal import Terminal

ARRAYS = record(w=np.zeros((2, 3), np.float32), b=np.full(3, 9.0, np.float32), n=np.array(0))


def quiet(**options: Any) -> dict[str, Any]:
    """Arguments of `serve` without progress and without a warning about bias, with these options of `Clients`."""
    return {"progress": False, "clients": Clients(heterogeneous=False, **options)}


QUIET = quiet()


def serve(
    grid: Any,
    initial_arrays: Any,
    method: Any,
    *,
    iterations: int,
    every: int | None = None,
    evaluate_clients: bool | dict[str, Any] = False,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
    **options: Any,
) -> FederatedRun:
    """A run whose rounds are single arrivals, evaluated once per ``every`` of them, however long that takes."""
    rules = options.get("clients")
    with Hooks(callbacks, Terminal() if progress else None) as hooks:
        request = FederatedRequest(
            grid,
            initial_arrays,
            method,
            iterations,
            size=1,
            minimum=2 if getattr(rules, "minimum", None) is None else 1,
            evaluate_every=max(1, iterations // 100) if every is None else every,
            evaluate_config=None if evaluate_clients is False else {} if evaluate_clients is True else evaluate_clients,
            **options,
        )
        return run_request(request, hooks)


def error(iteration: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"loss": float(np.mean((arrays["w"].numpy() - 2.0) ** 2))})


def clients(*targets: float) -> FakeGrid:
    return FakeGrid([towards(target) for target in targets])


class Ear(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)
