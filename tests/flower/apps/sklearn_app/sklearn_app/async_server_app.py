"""sklearn-app: the same app with an asynchronous server. The clients are the same."""

from pathlib import Path

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import asyncsgd as asgd
from sklearn_app.task import create_model, get_model_params, load_data, set_model_params

app = ServerApp()


def get_evaluate_fn(output):
    _, _, images, labels = load_data()
    model = create_model(1)

    def evaluate(iteration, arrays):
        set_model_params(model, arrays.to_numpy_ndarrays())
        accuracy = float(model.score(images, labels))
        with Path(output).open("a") as file:
            file.write(f"{accuracy}\n")
        return MetricRecord({"accuracy": accuracy})

    return evaluate


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    clients = config["clients"]
    asgd.flower.serve(
        grid,
        ArrayRecord(get_model_params(create_model(config["local-epochs"]))),
        asgd.federated_async_sgd(0.5, concurrency=clients),
        iterations=config["num-server-rounds"] * clients,
        evaluate=get_evaluate_fn(config["output"]),
        evaluate_clients=True,
        every=clients,
        directory=config["directory"],
        clients=asgd.flower.Clients(minimum=clients),
    )
