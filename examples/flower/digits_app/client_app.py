"""A ClientApp as in Flower's own tutorial. It does not import asyncsgd, and works with Flower's FedAvg and asyncsgd."""

from __future__ import annotations

import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from digits_app.task import Net, load_client, test, train

app = ClientApp()


def load(message: Message, context: Context) -> tuple[Net, tuple[int, int, float, int]]:
    torch.set_num_threads(1)  # eight clients share this machine
    model = Net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    node, config = context.node_config, context.run_config
    return model, (
        int(node["partition-id"]),
        int(node["num-partitions"]),
        float(config["alpha"]),
        int(config["batch-size"]),
    )


@app.train()
def train_client(message: Message, context: Context) -> Message:
    began = time.monotonic()
    model, whose = load(message, context)
    data, _ = load_client(*whose)
    loss = train(model, data, int(context.run_config["local-epochs"]), float(message.content["config"]["lr"]))
    # Sleep so that the last clients are slow.
    slow = whose[0] >= whose[1] - int(context.run_config["slow-clients"])
    seconds = float(context.run_config["slow-seconds" if slow else "fast-seconds"])
    time.sleep(max(0.0, seconds - (time.monotonic() - began)))
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data.dataset)})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_client(message: Message, context: Context) -> Message:
    model, whose = load(message, context)
    _, data = load_client(*whose)
    loss, accuracy = test(model, data)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(data.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
