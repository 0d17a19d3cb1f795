"""The server of the tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
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

    def evaluate(iteration: int, arrays: ArrayRecord) -> dict[str, float]:
        return {"mean": float(arrays["x"].numpy().mean())}

    run = asgd.flower.serve(
        grid,
        ArrayRecord({"x": Array(np.full(1000, 10.0, np.float32)), "count": Array(np.array(0))}),
        METHODS[name],
        iterations=int(config["iterations"]),
        evaluate=evaluate,
        evaluate_clients=bool(config["evaluate"]),
        every=4,
        directory=directory,
        resume=bool(config["resume"]),
        checkpoints=asgd.Checkpoints(every=int(config["checkpoint-every"])),
        clients=asgd.flower.Clients(
            minimum=int(config["minimum"]),
            max_norm=1e6,
            timeout=120.0,
            max_failures=1,
            pause=30.0,
            heterogeneous=False,
        ),
    )
    print(f"{name}: mean {run.arrays['x'].numpy().mean():.4f} after {run.trace.iterations} iterations")
