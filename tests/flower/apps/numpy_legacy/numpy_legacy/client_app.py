"""numpy-legacy: a Flower client of the legacy interface."""

import time

from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from numpy_legacy.task import get_initial_parameters, load_data, slow_seconds, test, train


class FlowerClient(NumPyClient):
    """A client with its own digits."""

    def __init__(self, data, epochs, slow):
        self.x_train, self.y_train, self.x_test, self.y_test = data
        self.epochs, self.slow = epochs, slow
        self.parameters = get_initial_parameters()

    def get_parameters(self, config):
        return self.parameters

    def fit(self, parameters, config):
        self.parameters = train(parameters, self.x_train, self.y_train, self.epochs, config["lr"])
        time.sleep(self.slow)
        loss, _ = test(self.parameters, self.x_train, self.y_train)
        return self.parameters, len(self.x_train), {"train_loss": loss, "round": config["server_round"], "by": "numpy"}

    def evaluate(self, parameters, config):
        loss, accuracy = test(parameters, self.x_test, self.y_test)
        return loss, len(self.x_test), {"accuracy": accuracy}


def client_fn(context: Context):
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return FlowerClient(data, context.run_config["local-epochs"], slow_seconds(context)).to_client()


app = ClientApp(client_fn=client_fn)
