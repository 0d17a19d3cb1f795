"""sklearn-legacy: a Flower server of the legacy interface, as it was before the migration."""

import time
from pathlib import Path

from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from sklearn_legacy.task import create_model, get_model_params, load_data, set_model_params


def get_evaluate_fn(output):
    _, _, images, labels = load_data()
    model = create_model(1)

    def evaluate(server_round, parameters, config):
        set_model_params(model, parameters)
        accuracy = float(model.score(images, labels))
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"{time.time()} {accuracy}\n")
        return 1.0 - accuracy, {"accuracy": accuracy}

    return evaluate


def server_fn(context: Context):
    config = context.run_config
    parameters = ndarrays_to_parameters(get_model_params(create_model(config["local-epochs"])))
    strategy = FedAvg(
        min_available_clients=config["clients"],
        initial_parameters=parameters,
        evaluate_fn=get_evaluate_fn(config["output"]),
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=config["num-server-rounds"]))


app = ServerApp(server_fn=server_fn)
