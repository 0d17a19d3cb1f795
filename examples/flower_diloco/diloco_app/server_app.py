"""The ServerApp: asynchronous DiLoCo, with messages of about a quarter and half the size."""

from __future__ import annotations

from flwr.app import ArrayRecord, ConfigRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

import asyncsgd as asgd
from diloco_app.task import accuracy, load, net

app = ServerApp()


def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
    """Return the accuracy of a model on the held-out digits."""
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return MetricRecord({"accuracy": accuracy(model, *load(None))})


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the clients of the grid."""
    config = context.run_config
    method = asgd.async_diloco(0.7, steps=int(config["steps"]))
    if config["compress"]:
        method = method.compressed("int8", down="bfloat16")
    clients = int(config["clients"])
    strategy = asgd.flower.AsyncStrategy(
        method,
        fraction_evaluate=0.0,
        min_train_nodes=clients,
        min_available_nodes=clients,
        directory=str(config["directory"]) or None,
        resume=bool(config["resume"]),
        clients=asgd.flower.Clients(heterogeneous=False),
    )
    arrays, train_config = ArrayRecord(net().state_dict()), ConfigRecord({"lr": float(config["learning-rate"])})
    rounds = int(config["rounds"])
    run = strategy.start(grid, arrays, num_rounds=rounds, train_config=train_config, evaluate_fn=evaluate).run
    up, down = run.method.message_bytes(len(run.x), run.x.dtype)
    print(f"accuracy {run.metrics['accuracy'][-1]:.3f}; an update takes {up} bytes, a model {down}")
