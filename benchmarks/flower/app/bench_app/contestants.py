"""The servers that are measured; each applies a given number of updates of the clients of a grid."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.serverapp.strategy import FedAvg

import asyncsgd as asgd

CLIENTS = 2
logging.getLogger("flwr").setLevel(logging.ERROR)


def model(parameters: int) -> ArrayRecord:
    return ArrayRecord({"x": Array(np.zeros(parameters, np.float32))})


def fedavg(grid: Any, arrays: ArrayRecord, updates: int) -> None:
    strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=CLIENTS, min_train_nodes=CLIENTS)
    strategy.start(grid, arrays, num_rounds=updates // CLIENTS)


def asynchronous(method: Callable[[], asgd.Method]) -> Callable[[Any, ArrayRecord, int], None]:
    def run(grid: Any, arrays: ArrayRecord, updates: int) -> None:
        rules = asgd.flower.Clients(heterogeneous=False)
        strategy = asgd.flower.AsyncStrategy(method(), fraction_evaluate=0.0, clients=rules, progress=False)
        strategy.start(grid, arrays, num_rounds=updates // CLIENTS)

    return run


CONTESTANTS = {
    "Flower's FedAvg": fedavg,
    "asyncsgd, rounds": asynchronous(lambda: asgd.fedavg(1.0, clients=CLIENTS, ask=CLIENTS)),
    "asyncsgd, asynchronous": asynchronous(lambda: asgd.async_sgd(0.5)),
}


def settle(grid: Any) -> None:
    """Wait until all clients are idle: what a run without rounds leaves in flight must not slow down the next one."""
    content = RecordDict({"arrays": model(1), "config": ConfigRecord()})
    nodes = list(grid.get_node_ids())
    grid.send_and_receive([Message(content, node, "train", group_id=f"settle-{node}") for node in nodes])


def measured(grid: Any, parameters: int, updates: int, rounds: int) -> dict[str, list[dict[str, float]]]:
    """Return wall-clock seconds and this process's CPU seconds per update, for each contestant and round."""
    arrays = model(parameters)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(rounds):
        for name, run in CONTESTANTS.items():
            settle(grid)
            began, used = time.monotonic(), sum(os.times()[:2])
            run(grid, arrays, updates)
            seconds = {"seconds": time.monotonic() - began, "processor": sum(os.times()[:2]) - used}
            found[name].append({what: value / updates for what, value in seconds.items()})
    return found
