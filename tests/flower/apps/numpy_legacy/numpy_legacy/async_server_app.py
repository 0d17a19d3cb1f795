"""numpy-legacy: the same server after the migration. The clients are the same."""

import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import asyncsgd as asgd
from numpy_legacy.task import get_initial_parameters, load_data, test

app = ServerApp()


def get_evaluate_fn(output):
    _, _, images, labels = load_data()

    def evaluate(server_round, arrays):
        loss, accuracy = test(arrays.to_numpy_ndarrays(), images, labels)
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
        grid,
        ArrayRecord(get_initial_parameters()),
        num_rounds=config["num-server-rounds"],
        train_config=ConfigRecord({"lr": config["learning-rate"]}),
        evaluate_fn=get_evaluate_fn(config["output"]),
    )
