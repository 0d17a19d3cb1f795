"""A client that takes a few local steps of softmax regression, or none, and then sleeps until its time is over."""

from __future__ import annotations

import time
from functools import cache
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    began = time.monotonic()
    config, client = context.run_config, int(context.node_config["partition-id"])
    arrays = message.content["arrays"]
    if data := str(config["data"]):
        arrays = ArrayRecord({"x": Array(trained(arrays["x"].numpy(), data, client, config))})
    time.sleep(max(0.0, seconds_of(client, config) - (time.monotonic() - began)))
    # Every client reports one example, so that all have the same weight, as in the simulated task.
    return Message(RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 1})}), reply_to=message)


def seconds_of(client: int, config: Any) -> float:
    """Return how long each job of this client takes."""
    slow = client >= int(config["clients"]) - int(config["slow"])
    mean = float(config["seconds"]) * (float(config["factor"]) if slow else 1.0)
    random = np.random.default_rng((int(config["seed"]), client))
    return float(mean * np.exp(float(config["spread"]) * random.standard_normal()))


@cache
def rows_of(data: str) -> dict[str, np.ndarray]:
    with np.load(data) as file:
        return dict(file)


def trained(x: np.ndarray, data: str, client: int, config: Any) -> np.ndarray:
    """Take local steps on mini-batches drawn with replacement, as the simulated task does."""
    rows, random = rows_of(data), np.random.default_rng()
    first, last = rows["bounds"][client]
    features, labels = rows["features"][first:last], rows["labels"][first:last]
    truth = np.eye(10)[labels]
    weights = x.reshape(features.shape[1], 10).copy()
    for _ in range(int(config["steps"])):
        some = random.integers(0, len(labels), int(config["batch"]))
        scores = features[some] @ weights
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        gradient = features[some].T @ (chances - truth[some]) / len(some) + float(rows["ridge"]) * weights
        weights -= float(config["local-stepsize"]) * gradient
    return weights.ravel()
