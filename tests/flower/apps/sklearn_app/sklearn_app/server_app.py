"""sklearn-app: a Flower server of the message interface."""

import time
from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearn_app.task import create_model, get_model_params, load_data, set_model_params

app = ServerApp()


def get_evaluate_fn(output):
    _, _, images, labels = load_data()
    model = create_model(1)

    def evaluate(server_round, arrays):
        set_model_params(model, arrays.to_numpy_ndarrays())
        accuracy = float(model.score(images, labels))
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"{time.time()} {accuracy}\n")
        return MetricRecord({"accuracy": accuracy})

    return evaluate


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=1.0, min_available_nodes=config["clients"])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(get_model_params(create_model(config["local-epochs"]))),
        num_rounds=config["num-server-rounds"],
        evaluate_fn=get_evaluate_fn(config["output"]),
    )
