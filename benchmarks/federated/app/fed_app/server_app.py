"""Train with Flower's FedAvg or with a method of asyncsgd, and write when which accuracy was reached, and the trace."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import asyncsgd as asgd
from fed_app.client_app import rows_of

app = ServerApp()


class Reached(Exception):
    """Raised to end a run at the target: Flower's strategies stop early only by an exception."""


class Evaluation:
    """Measure the accuracy of models as they appear, and when."""

    def __init__(self, config: Any) -> None:
        self._data, self._target, self._held = str(config["data"]), float(config["target"]), int(config["held"])
        self.rows: list[dict[str, float]] = []
        self.began = time.monotonic()

    def __call__(self, number: int, arrays: ArrayRecord) -> MetricRecord:
        accuracy = 0.0
        if self._data:
            rows, x = rows_of(self._data), arrays["x"].numpy()
            scores = rows["test_features"] @ x.reshape(-1, 10)
            accuracy = float(np.mean(scores.argmax(axis=1) == rows["test_labels"]))
        self.rows.append({"time": time.monotonic() - self.began, "accuracy": accuracy})
        return MetricRecord({"accuracy": accuracy, "reached": float(self.reached)})

    @property
    def reached(self) -> bool:
        last = self.rows[-self._held :]
        return len(last) == self._held and all(row["accuracy"] >= self._target for row in last)


def method(config: Any) -> asgd.Method:
    step, at_once, buffer = float(config["stepsize"]), int(config["at-once"]), int(config["buffer"])
    buffered = asgd.fedbuff(step, concurrency=at_once, buffer=buffer)
    return {
        "algorithm-2": asgd.federated_async_sgd(step, concurrency=at_once),
        "fedbuff": buffered,
        "fedbuff-idle": buffered.using(dispatch=asgd.dispatch.always_busy(at_once)),
    }[str(config["method"])]


def flower_fedavg(grid: Grid, arrays: ArrayRecord, config: Any, evaluation: Evaluation) -> None:
    clients, at_once = int(config["clients"]), int(config["at-once"])

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        metrics = evaluation(number, arrays)
        if evaluation.reached:
            raise Reached
        return metrics

    strategy = FedAvg(
        fraction_train=at_once / clients,
        fraction_evaluate=0.0,
        min_train_nodes=at_once,
        min_available_nodes=clients,
    )
    with suppress(Reached):
        strategy.start(grid, arrays, num_rounds=int(config["updates"]) // at_once, evaluate_fn=evaluate)


def asynchronous(grid: Grid, arrays: ArrayRecord, config: Any, evaluation: Evaluation) -> asgd.trace.Trace:
    clients = int(config["clients"])
    strategy = asgd.flower.AsyncStrategy(
        method(config),
        fraction_evaluate=0.0,
        min_available_nodes=clients,
        evaluate_every=1,
        until="reached >= 1" if config["data"] else None,
        clients=asgd.flower.Clients(heterogeneous=False),
        seed=int(config["seed"]),
        progress=False,
    )
    rounds = -(-int(config["updates"]) // clients)
    result = strategy.start(grid, arrays, num_rounds=rounds, evaluate_fn=evaluation if config["data"] else None)
    return result.run.trace


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    data = str(config["data"])
    size = rows_of(data)["features"].shape[1] * 10 if data else 10
    arrays = ArrayRecord({"x": Array(np.zeros(size))})
    warm_up(grid, arrays, int(config["clients"]), int(config["at-once"]))
    output = Path(str(config["output"]))
    part = output.with_suffix(".part")
    part.mkdir()
    evaluation = Evaluation(config)
    if config["method"] == "flower-fedavg":
        flower_fedavg(grid, arrays, config, evaluation)
    else:
        asynchronous(grid, arrays, config, evaluation).write(part / "trace.parquet")
    seconds = time.monotonic() - evaluation.began
    (part / "figures.json").write_text(json.dumps({"seconds": seconds, "rows": evaluation.rows}), "utf-8")
    part.rename(output)


def warm_up(grid: Grid, arrays: ArrayRecord, clients: int, at_once: int) -> None:
    """Wait until the simulator has registered all clients and started its processes, so that this is not timed."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    content = RecordDict({"arrays": arrays, "config": ConfigRecord()})
    for turn in range(2):
        some = nodes[:at_once]
        grid.send_and_receive([Message(content, node, "train", group_id=f"warm-up-{turn}") for node in some])
