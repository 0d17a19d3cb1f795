"""The ServerApp: Flower's FedAvg, or any method of asyncsgd, by one argument."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import asyncsgd as asgd
from digits_app.task import Net, load_test, test

app = ServerApp()
CLIENTS = 8

# An update is what one client's training moved, so a step of 1 applies it in full. Rounds apply the mean of eight.
# Where single updates are applied, the step is smaller, as several are on their way at once.
METHODS = {
    "rounds": asgd.over_selection(1.0, goal=CLIENTS, ask=CLIENTS),
    "over-selection": asgd.over_selection(1.0, goal=6, ask=CLIENTS),
    "fedbuff": asgd.fedbuff(1.0, concurrency=CLIENTS, buffer=4),
    "algorithm-2": asgd.federated_async_sgd(0.25, concurrency=4),
    "delay-adaptive": asgd.delay_adaptive(0.25),
}


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, load_test())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    train_config = ConfigRecord({"lr": float(config["learning-rate"])})
    if config["method"] == "flower-fedavg":
        start_flower(grid, arrays, train_config, context)
        return
    run = asgd.flower.serve(
        grid,
        arrays,
        METHODS[str(config["method"])],
        iterations=int(config["iterations"]),
        train_config=train_config,
        evaluate=global_evaluate,
        evaluate_clients=bool(config["evaluate-clients"]),
        until=str(config["until"]) or None,
        every=CLIENTS // 2,
        directory=str(config["directory"]) or None,
        resume=bool(config["resume"]),
        clients=asgd.flower.Clients(minimum=CLIENTS),
    )
    print(f"{run.method.name}: accuracy {run.metrics['accuracy'][-1]:.3f} after {run.seconds:.1f} s")


def start_flower(grid: Grid, arrays: ArrayRecord, train_config: ConfigRecord, context: Context) -> None:
    """The same with Flower's own strategy, for comparison."""
    began, rows = time.monotonic(), []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        metrics = global_evaluate(server_round, arrays)
        rows.append({"iteration": server_round * CLIENTS, "time": time.monotonic() - began, **metrics})
        return metrics

    both = 1.0 if context.run_config["evaluate-clients"] else 0.0
    strategy = FedAvg(fraction_evaluate=both, min_available_nodes=CLIENTS, min_train_nodes=CLIENTS)
    rounds = int(context.run_config["iterations"]) // CLIENTS
    strategy.start(grid, arrays, num_rounds=rounds, train_config=train_config, evaluate_fn=evaluate)
    if directory := str(context.run_config["directory"]):
        Path(directory).mkdir(parents=True, exist_ok=True)
        Path(directory, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
