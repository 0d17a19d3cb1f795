"""The ServerApp: asynchronous DiLoCo, with messages of about a quarter and half the size."""

from __future__ import annotations

from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

import asyncsgd as asgd
from diloco_app.task import accuracy, load, net

app = ServerApp()


def evaluate(iteration: int, arrays: ArrayRecord) -> dict[str, float]:
    """Return the accuracy of a model on the held-out digits."""
    model = net()
    model.load_state_dict(arrays.to_torch_state_dict())
    return {"accuracy": accuracy(model, *load(None))}


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the clients of the grid."""
    config = context.run_config
    method = asgd.async_diloco(0.7, steps=int(config["steps"]))
    if config["compress"]:
        method = method.compressed("int8", down="bfloat16")
    run = asgd.flower.serve(
        grid,
        ArrayRecord(net().state_dict()),
        method,
        iterations=int(config["iterations"]),
        train_config={"lr": float(config["learning-rate"])},
        evaluate=evaluate,
        every=10,
        directory=str(config["directory"]) or None,
        resume=bool(config["resume"]),
        clients=asgd.flower.Clients(minimum=int(config["clients"]), heterogeneous=False),
    )
    up, down = run.method.message_bytes(len(run.x), run.x.dtype)
    print(f"accuracy {run.metrics['accuracy'][-1]:.3f}; an update takes {up} bytes, a model {down}")
