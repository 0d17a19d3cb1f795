"""A grid without any network: clients are functions, and every rule that Flower leaves to the caller is watched."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

Client = Callable[[Message], Any]
"""Gives a RecordDict, an Error, a whole Message, a list of them, or None: not yet."""


class FakeGrid(Grid):
    """Clients answer when they are asked for their reply, in the thread that asks."""

    def __init__(self, clients: Sequence[Client], *, first_id: int = 2**63 + 5) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3
        self.clients = {first_id + 11 * place: client for place, client in enumerate(clients)}
        self.online = set(self.clients)
        self.keys: dict[int, bytes] = {}
        self.names: dict[int, str] = {}  # that operators gave to nodes
        self.messages: list[Message] = []
        self.wrong: list[str] = []  # rules that the caller has broken
        self.dead: BaseException | None = None  # what every call raises
        self._pending: dict[str, Message] = {}
        self._pulled: set[str] = set()
        self._sent: set[str] = set()  # Flower's ids, which are hashes of the messages
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------------------ what tests do

    def add(self, node: int, client: Client) -> None:
        with self._lock:
            self.clients[node] = client
            self.online.add(node)

    def leave(self, node: int) -> None:
        with self._lock:
            self.online.discard(node)

    # ------------------------------------------------------------------------------------------ what Flower has

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError("deprecated")

    def send_and_receive(self, *args: Any, **kwargs: Any) -> Iterable[Message]:
        raise NotImplementedError("waits for all")

    def get_node_ids(self) -> list[int]:
        self._check()
        with self._lock:
            return list(self.online)

    def get_nodes(self) -> list[NodeInfo]:
        order = list(self.clients)
        return [
            NodeInfo(
                node_id=node,
                registered_at=f"{order.index(node):09d}",
                public_key=self.keys.get(node, b""),
                name=self.names.get(node),
            )
            for node in self.get_node_ids()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        self._check()
        taken = []
        with self._lock:
            for message in messages:
                node = message.metadata.dst_node_id
                if node not in self.clients:
                    continue
                if any(other.metadata.dst_node_id == node for other in self._pending.values()) and node in self.online:
                    self.wrong.append(f"node {node} was sent a message before it had answered")
                if message.object_id in self._sent:
                    self.wrong.append(f"a message to node {node} has the id of another one")
                self._sent.add(message.object_id)
                name = str(uuid4())
                message.metadata.__dict__["_message_id"] = name
                self._pending[name] = message
                self.messages.append(message)
                taken.append(name)
        return taken

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        self._check()
        replies: list[Message] = []
        for name in message_ids:
            with self._lock:
                message = self._pending.get(name)
                if message is None or name in self._pulled:
                    self.wrong.append(f"two asked for the reply to {name}")
                    continue
                self._pulled.add(name)
                here = message.metadata.dst_node_id in self.online
            answer: Any = None
            try:
                client = self.clients[message.metadata.dst_node_id] if here else from_superlink(5)
                answer = client(message)
                replies += as_messages(answer, message)
            finally:
                with self._lock:
                    self._pulled.discard(name)
                    if answer is not None:
                        self._pending.pop(name)
        return replies

    def _check(self) -> None:
        if self.dead is not None:
            raise self.dead


def as_messages(answer: Any, message: Message) -> list[Message]:
    if answer is None:
        return []
    if isinstance(answer, list):
        return [reply for part in answer for reply in as_messages(part, message)]
    return [answer] if isinstance(answer, Message) else [Message(answer, reply_to=message)]


# ---------------------------------------------------------------------------------------------- clients


def record(**arrays: Any) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(values)) for name, values in arrays.items()})


def reply(arrays: ArrayRecord, metrics: dict[str, Any] | None = None) -> RecordDict:
    return RecordDict({"arrays": arrays, "metrics": MetricRecord({"num-examples": 10, **(metrics or {})})})


def numbers(array: Array, tries: int = 5) -> Any:
    """Real clients are processes of their own; threads that parse at a time may get a SystemError of CPython 3.11."""
    try:
        return array.numpy()
    except SystemError:
        if tries == 1:
            raise
        return numbers(array, tries - 1)


def towards(target: float, rate: float = 0.5) -> Client:
    """Trains every array of floats towards a number, and evaluates how far they are from it."""

    def client(message: Message) -> RecordDict:
        arrays = {name: numbers(array) for name, array in message.content["arrays"].items()}
        floats = [values for values in arrays.values() if values.dtype.kind == "f"]
        loss = float(np.mean([np.mean((values - target) ** 2) for values in floats]))
        if message.metadata.message_type == "evaluate":
            return RecordDict({"metrics": MetricRecord({"num-examples": 10, "loss": loss})})
        moved = {
            name: (values + rate * (target - values)).astype(values.dtype) if values.dtype.kind == "f" else values + 1
            for name, values in arrays.items()
        }
        return reply(record(**moved), {"loss": loss})

    return client


def from_superlink(code: int, reason: str = "why") -> Client:
    """What the SuperLink says in place of a reply: sender and receiver are itself."""

    def client(message: Message) -> Message:
        said = Message(Error(code, reason), reply_to=message)
        said.metadata.__dict__["_src_node_id"] = said.metadata.dst_node_id
        return said

    return client


def failing(message: Message) -> Error:
    return Error(2, "Traceback\nValueError: no data here")


class Held:
    """A client that answers only while its gate is open."""

    def __init__(self, inner: Client) -> None:
        self.inner, self.gate = inner, threading.Event()
        self.asked = threading.Event()

    def __call__(self, message: Message) -> Any:
        self.asked.set()
        return self.inner(message) if self.gate.is_set() else None
