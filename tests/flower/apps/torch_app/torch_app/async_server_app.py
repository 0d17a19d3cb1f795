"""torch-app: the same app with an asynchronous server. The clients are the same."""

import time
from pathlib import Path

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import asyncsgd as asgd
from torch_app.task import Net, load_data, test

app = ServerApp()


def get_evaluate_fn(output):
    _, testloader = load_data()

    def evaluate(server_round, arrays):
        model = Net()
        model.load_state_dict(arrays.to_torch_state_dict())
        loss, accuracy = test(model, testloader, torch.device("cpu"))
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"{time.time()} {accuracy}\n")
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = asgd.flower.AsyncStrategy(
        asgd.federated_async_sgd(0.25, concurrency=config["clients"]),
        fraction_train=1.0,
        fraction_evaluate=1.0,
        min_available_nodes=config["clients"],
        evaluate_every=1,
        clients=asgd.flower.Clients(queue=1),
        directory=config["directory"],
        resume=True,
        checkpoints=asgd.Checkpoints(every=config["clients"]),
    )
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(Net().state_dict()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        evaluate_fn=get_evaluate_fn(config["output"]),
    )
