"""torch-legacy: a Flower client of the legacy interface."""

import time

import torch
from flwr.client import ClientApp, NumPyClient
from flwr.common import Context

from torch_legacy.task import Net, get_weights, load_data, set_weights, slow_seconds, test, train


class FlowerClient(NumPyClient):
    """A client with its own digits."""

    def __init__(self, net, loaders, local_epochs, slow):
        self.net = net
        self.trainloader, self.valloader = loaders
        self.local_epochs, self.slow = local_epochs, slow
        self.device = torch.device("cuda:0" if torch.cuda.is_available() else "cpu")
        self.net.to(self.device)

    def get_parameters(self, config):
        return get_weights(self.net)

    def fit(self, parameters, config):
        set_weights(self.net, parameters)
        loss = train(self.net, self.trainloader, self.local_epochs, config["lr"], self.device)
        time.sleep(self.slow)
        return self.get_parameters(config), len(self.trainloader.dataset), {"train_loss": loss}

    def evaluate(self, parameters, config):
        set_weights(self.net, parameters)
        loss, accuracy = test(self.net, self.valloader, self.device)
        return loss, len(self.valloader.dataset), {"accuracy": accuracy}


def client_fn(context: Context):
    loaders = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return FlowerClient(Net(), loaders, context.run_config["local-epochs"], slow_seconds(context)).to_client()


app = ClientApp(client_fn=client_fn)
