"""Real ClientApps as clients of a grid without a network, and the apps in the folder apps."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from flower.fake import Client
from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp

APPS = Path(__file__).parent / "apps"
LEGACY, MESSAGES = ("numpy_legacy", "sklearn_legacy", "torch_legacy"), ("sklearn_app", "torch_app")


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


def needs(name: str) -> None:
    """Skip the test if the app needs a package that is not installed."""
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    if name.startswith("torch"):
        pytest.importorskip("torch", reason="the extra 'torch' is not installed")


def accuracies(output: Path) -> list[float]:
    """The accuracy of every model that the server of an app has evaluated: each line has a time and an accuracy."""
    return [float(line.split()[1]) for line in output.read_text("utf-8").splitlines()]


def with_server(name: str, module: str, folder: Path) -> Path:
    """A copy of an app whose ServerApp is in this module."""
    app = folder / module / "app"
    shutil.copytree(APPS / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    settings = (app / "pyproject.toml").read_text("utf-8")
    (app / "pyproject.toml").write_text(settings.replace(f"{name}.server_app:", f"{name}.{module}:"), "utf-8")
    return app
