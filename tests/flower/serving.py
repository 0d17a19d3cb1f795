"""What the tests of `asgd.flower.serve` share: a small model, clients that train it, a callback."""

from __future__ import annotations

from typing import Any

import numpy as np
from flower.fake import FakeGrid, record, towards
from flwr.app import ArrayRecord, MetricRecord

from asyncsgd.flower import Clients
from asyncsgd.run import Callback

ARRAYS = record(w=np.zeros((2, 3), np.float32), b=np.full(3, 9.0, np.float32), n=np.array(0))


def quiet(**options: Any) -> dict[str, Any]:
    """Arguments of `serve` without progress and without a warning about bias, with these options of `Clients`."""
    return {"progress": False, "clients": Clients(heterogeneous=False, **options)}


QUIET = quiet()


def error(iteration: int, arrays: ArrayRecord) -> MetricRecord:
    return MetricRecord({"loss": float(np.mean((arrays["w"].numpy() - 2.0) ** 2))})


def clients(*targets: float) -> FakeGrid:
    return FakeGrid([towards(target) for target in targets])


class Ear(Callback):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)
