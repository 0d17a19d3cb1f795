"""Clients that pull a vector towards their number; those whose role is to lie send what must not be used."""

from __future__ import annotations

from io import BytesIO

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

import asyncsgd as asgd

app = ClientApp(mods=[asgd.flower.compress_mod()])  # has an effect if the server's method is compressed

LIES = (
    lambda x: Array(np.full_like(x, np.nan)),
    lambda x: Array(np.zeros(len(x) + 1, x.dtype)),
    lambda x: Array(dtype="float32", shape=x.shape, stype="numpy.ndarray", data=claims(x, (2**40,))),
    lambda x: Array(x.astype(np.complex64)),
    lambda x: Array(np.full_like(x, 1e30)),
)


def claims(x: np.ndarray, shape: tuple[int, ...]) -> bytes:
    """An array whose header says that it is much larger than it is."""
    file = BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
    return file.getvalue() + x.tobytes()


@app.train()
def train(message: Message, context: Context) -> Message:
    mine = int(context.node_config["partition-id"])
    role = str(context.node_config.get("role", ""))
    x = message.content["arrays"]["x"].numpy()
    count = message.content["arrays"]["count"].numpy()
    if role == "lies":
        number = int(message.metadata.group_id.removeprefix("job-"))
        arrays = {"x": LIES[number % len(LIES)](x), "count": Array(count)}
    else:
        arrays = {"x": Array((x + 0.5 * (mine - x)).astype(x.dtype)), "count": Array(np.asarray(count + 1))}
    numbers = {"num-examples": 10 * (mine + 1), "distance": float(np.abs(x - mine).mean())}
    numbers["remembers"] = float(bool(context.state.array_records.get("asyncsgd-memory")))
    metrics = MetricRecord(numbers)
    return Message(RecordDict({"arrays": ArrayRecord(arrays), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    mine = int(context.node_config["partition-id"])
    x = message.content["arrays"]["x"].numpy()
    metrics = MetricRecord({"num-examples": 10 * (mine + 1), "distance": float(np.abs(x - mine).mean())})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
