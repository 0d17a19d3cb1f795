"""Real ClientApps as clients of a grid without a network, and the apps in the folder apps."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from flower.fake import Client
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

APPS = Path(__file__).parent / "apps"
LEGACY, MESSAGES = ("numpy_legacy", "sklearn_legacy"), ("sklearn_app", "torch_app")


def node(app: ClientApp, partition: int = 0, partitions: int = 1, **config: Any) -> Client:
    """A SuperNode with this app: it reports an exception as Flower does."""
    context = Context(7, partition + 1, {"partition-id": partition, "num-partitions": partitions}, RecordDict(), config)

    def client(message: Message) -> Any:
        try:
            return app(message, context)
        except Exception as error:
            return Error(2, f"{type(error)}:<'{error}'>")

    return client


@contextmanager
def imported(name: str, module: str) -> Iterator[Any]:
    """A module of one of the apps."""
    sys.path.insert(0, str(APPS / name))
    try:
        yield importlib.import_module(f"{name}.{module}")
    finally:
        sys.path.remove(str(APPS / name))
