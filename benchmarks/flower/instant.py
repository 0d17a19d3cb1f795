"""A grid without a network: replies are available at once, so that only the server's own work is measured."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any
from uuid import uuid4

from bench_app.contestants import CLIENTS
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid import InMemoryGrid


class InstantGrid(InMemoryGrid):
    """A grid in this process, as that of Flower's simulation, whose clients have their reply ready.

    It is always the same arrays, serialized once beforehand.
    """

    def __init__(self, reply: ArrayRecord) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1
        self._reply = RecordDict({"arrays": reply, "metrics": MetricRecord({"num-examples": 1})})
        self._pending: dict[str, Message] = {}
        self._lock = threading.Lock()

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(range(1, CLIENTS + 1))

    def get_nodes(self) -> list[NodeInfo]:
        return [NodeInfo(node_id=node, registered_at=str(node)) for node in self.get_node_ids()]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        names = []
        for message in messages:
            name = str(uuid4())
            message.metadata.__dict__["_message_id"] = name
            with self._lock:
                self._pending[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        with self._lock:
            asked = [self._pending.pop(name) for name in message_ids]
        return [Message(self._reply, reply_to=message) for message in asked]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        return self.pull_messages(self.push_messages(messages))
