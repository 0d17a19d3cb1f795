"""The server of the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import asyncsgd as asgd

app = ServerApp()
METHODS = {
    "algorithm-2": asgd.federated_async_sgd(0.2, concurrency=4),
    "rounds": asgd.fedavg(1.0, clients=2, ask=2),
    "async": asgd.async_sgd(0.2),
    "compressed": asgd.async_sgd(0.2).compressed(asgd.compression.top_k(0.5), down="bfloat16"),
    "fedbuff": asgd.fedbuff(1.0, concurrency=4, buffer=3),
    "private": asgd.fedbuff(1.0, concurrency=4, buffer=3).clipped(50.0, noise=0.1),
}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run after the other, each in a folder of its own."""
    for name in str(context.run_config["methods"]).split():
        run_with(name, grid, context)


def run_with(name: str, grid: Grid, context: Context) -> None:
    config = context.run_config
    directory = Path(str(config["directory"])) / name

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"mean": float(arrays["x"].numpy().mean())})

    strategy = asgd.flower.AsyncStrategy(
        METHODS[name],
        fraction_evaluate=1.0 if config["evaluate"] else 0.0,
        min_train_nodes=int(config["minimum"]),
        evaluate_every=1,
        directory=directory,
        resume=bool(config["resume"]),
        checkpoints=asgd.Checkpoints(every=int(config["checkpoint-every"])),
        clients=asgd.flower.Clients(max_norm=1e6, max_failures=1, pause=30.0, heterogeneous=False),
    )
    arrays = ArrayRecord({"x": Array(np.full(1000, 10.0, np.float32)), "count": Array(np.array(0))})
    rounds = int(config["rounds"])
    result = strategy.start(grid, arrays, num_rounds=rounds, timeout=120.0, evaluate_fn=evaluate)
    print(f"{name}: mean {result.arrays['x'].numpy().mean():.4f} after {result.run.trace.iterations} iterations")
