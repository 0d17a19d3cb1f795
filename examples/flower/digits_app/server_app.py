"""The ServerApp: one setting chooses Flower's FedAvg or a method of asyncsgd."""

from __future__ import annotations

import json
import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

import asyncsgd as asgd
from digits_app.task import Net, load_test, test

app = ServerApp()


def method(name: str, clients: int) -> asgd.Method:
    """Return the method of this name.

    An update is the change made by one client's training, so a step of 1 applies it in full. Rounds apply the mean of
    all updates. Methods that apply single updates use a smaller step, because several updates are in flight at once.
    """
    recipes = {
        "rounds": lambda: asgd.fedavg(1.0, clients=clients, ask=clients),
        "over-selection": lambda: asgd.fedavg(1.0, clients=max(1, 3 * clients // 4), ask=clients),
        "fedbuff": lambda: asgd.fedbuff(1.0, concurrency=clients, buffer=max(1, clients // 2)),
        "algorithm-2": lambda: asgd.federated_async_sgd(0.25, concurrency=max(1, clients // 2)),
        "delay-adaptive": lambda: asgd.delay_adaptive(0.25),
    }
    return recipes[name]()


def global_evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    model = Net()
    model.load_state_dict(arrays.to_torch_state_dict())
    loss, accuracy = test(model, load_test())
    return MetricRecord({"loss": loss, "accuracy": accuracy})


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients = int(config["clients"])
    torch.manual_seed(0)
    arrays = ArrayRecord(Net().state_dict())
    train_config = ConfigRecord({"lr": float(config["learning-rate"])})
    if config["warm-up"]:
        warm_up(grid, arrays, train_config, clients)
    if config["method"] == "flower-fedavg":
        start_flower(grid, arrays, train_config, context)
        return
    strategy = asgd.flower.AsyncStrategy(
        method(str(config["method"]), clients),
        fraction_evaluate=1.0 if config["evaluate-clients"] else 0.0,
        min_train_nodes=clients,
        min_available_nodes=clients,
        evaluate_every=1,  # the accuracy is what we compare, so we want it for every round
        until=f"accuracy >= {config['target']}",
        directory=str(config["directory"]) or None,
        resume=bool(config["resume"]),
    )
    rounds = int(config["rounds"])
    run = strategy.start(grid, arrays, num_rounds=rounds, train_config=train_config, evaluate_fn=global_evaluate).run
    print(f"{run.method.name}: accuracy {run.metrics['accuracy'][-1]:.3f} after {run.seconds:.1f} s")


# ---------------------------------------------------------------------------------------------- for the comparison


def warm_up(grid: Grid, arrays: ArrayRecord, train_config: ConfigRecord, clients: int) -> None:
    """Wait until the simulator has started its processes and loaded PyTorch in them, so that this is not timed."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.2)
    content = RecordDict({"arrays": arrays, "config": train_config})
    grid.send_and_receive([Message(content, node, "train", group_id=f"warm-up-{node}") for node in nodes])


class Reached(Exception):
    """Raised to end the rounds at the target accuracy: Flower's strategies stop early only by an exception."""


def start_flower(grid: Grid, arrays: ArrayRecord, train_config: ConfigRecord, context: Context) -> None:
    """Train with Flower's own strategy, and write the same metrics file."""
    config, clients = context.run_config, int(context.run_config["clients"])
    began, rows = time.monotonic(), []

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        metrics = global_evaluate(server_round, arrays)
        rows.append({"iteration": server_round * clients, "time": time.monotonic() - began, **metrics})
        if metrics["accuracy"] >= float(config["target"]):
            raise Reached
        return metrics

    both = 1.0 if config["evaluate-clients"] else 0.0
    strategy = FedAvg(fraction_evaluate=both, min_available_nodes=clients, min_train_nodes=clients)
    rounds = int(config["rounds"])
    try:
        strategy.start(grid, arrays, num_rounds=rounds, train_config=train_config, evaluate_fn=evaluate)
    except Reached:
        print(f"FedAvg: accuracy {rows[-1]['accuracy']:.3f} after {rows[-1]['time']:.1f} s")
    if directory := str(config["directory"]):
        Path(directory).mkdir(parents=True, exist_ok=True)
        Path(directory, "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")
