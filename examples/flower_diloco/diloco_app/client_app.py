"""The ClientApp: the training loop is the client's own, and one line compresses what it sends and receives."""

from __future__ import annotations

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

import asyncsgd as asgd
from diloco_app.task import load, net

app = ClientApp(mods=[asgd.flower.compress_mod()])


@app.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)  # the clients of a simulation share this machine
    config, model = message.content["config"], net()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    images, labels = load(int(context.node_config["partition-id"]), int(context.node_config["num-partitions"]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=float(config["lr"]), weight_decay=0.1)
    total = 0.0
    for _ in range(int(config["steps"])):  # the server asks slower clients for fewer steps
        rows = torch.randint(len(labels), (32,))
        loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    metrics = MetricRecord({"train_loss": total / int(config["steps"]), "num-examples": 32 * int(config["steps"])})
    return Message(RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics}), reply_to=message)
