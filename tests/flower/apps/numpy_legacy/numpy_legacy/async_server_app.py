"""numpy-legacy: the same server after the migration. The clients are the same."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import asyncsgd as asgd
from numpy_legacy.task import get_initial_parameters, load_data, test

app = ServerApp()


def get_evaluate_fn(output):
    _, _, images, labels = load_data()

    def evaluate(iteration, arrays):
        loss, accuracy = test(arrays.to_numpy_ndarrays(), images, labels)
        with Path(output).open("a") as file:
            file.write(f"{accuracy}\n")
        return MetricRecord({"loss": loss, "accuracy": accuracy})

    return evaluate


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients = config["clients"]
    asgd.flower.serve(
        grid,
        ArrayRecord(get_initial_parameters()),
        asgd.federated_async_sgd(0.5, concurrency=clients),
        iterations=config["num-server-rounds"] * clients,
        train_config={"lr": config["learning-rate"]},
        evaluate=get_evaluate_fn(config["output"]),
        evaluate_clients=True,
        every=clients,
        directory=config["directory"],
        clients=asgd.flower.Clients(minimum=clients),
    )
