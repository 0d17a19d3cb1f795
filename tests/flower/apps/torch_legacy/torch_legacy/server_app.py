"""torch-legacy: a Flower server of the legacy interface, as it was before the migration."""

import time
from pathlib import Path

import torch
from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg

from torch_legacy.task import Net, get_weights, load_data, set_weights, test


def get_evaluate_fn(output):
    _, testloader = load_data()

    def evaluate(server_round, parameters, config):
        model = Net()
        set_weights(model, parameters)
        loss, accuracy = test(model, testloader, torch.device("cpu"))
        with Path(output).open("a", encoding="utf-8") as file:
            file.write(f"{time.time()} {accuracy}\n")
        return loss, {"accuracy": accuracy}

    return evaluate


def weighted_average(metrics):
    examples = [num_examples for num_examples, _ in metrics]
    return {"accuracy": sum(n * m["accuracy"] for n, m in metrics) / sum(examples)}


def server_fn(context: Context):
    config = context.run_config
    strategy = FedAvg(
        fraction_fit=1.0,
        fraction_evaluate=1.0,
        min_available_clients=config["clients"],
        initial_parameters=ndarrays_to_parameters(get_weights(Net())),
        on_fit_config_fn=lambda server_round: {"lr": config["learning-rate"]},
        evaluate_fn=get_evaluate_fn(config["output"]),
        evaluate_metrics_aggregation_fn=weighted_average,
    )
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=config["num-server-rounds"]))


app = ServerApp(server_fn=server_fn)
