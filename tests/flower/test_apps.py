"""Apps written as Flower's examples are, with an asynchronous server; three of them have legacy clients."""

from __future__ import annotations

import ast
import difflib
import itertools
import math
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from flower.client_apps import APPS, LEGACY, MESSAGES, accuracies, imported, needs, node
from flower.fake import Client, FakeGrid
from flwr.app import Context, Message, RecordDict

from asyncsgd.run.read import read_lines, read_trace

CLIENTS, ROUNDS = 4, 6
JOBS = 20
"""Fewer than the run has. Legacy clients get four of them twice and four are in flight, so eleven or more have been
applied: the first checkpoint, after four updates, is complete, as the second one waits for it."""


def settings(name: str, folder: Path, rounds: int) -> dict[str, Any]:
    return {
        "num-server-rounds": rounds,
        "local-epochs": 10 if name.startswith("sklearn") else 1,
        "learning-rate": {"numpy_legacy": 0.5, "torch_app": 0.05, "torch_legacy": 0.05}.get(name, 0.1),
        "output": str(folder / "accuracy"),
        "directory": str(folder / "run"),
        "clients": CLIENTS,
        "slow-seconds": 0.0,
    }


def train(name: str, config: dict[str, Any], *, jobs: float = math.inf) -> FakeGrid:
    """Run an app on a grid without a network. The process kills itself when clients get one more than ``jobs``."""
    counted = itertools.count()  # several threads ask clients

    def counting(client: Client) -> Client:
        def answer(message: Message) -> Any:
            if message.metadata.message_type == "train" and next(counted) >= jobs:
                os.kill(os.getpid(), signal.SIGKILL)
            return client(message)

        return answer

    with imported(name, "client_app") as clients, imported(name, "async_server_app") as server:
        grid = FakeGrid([counting(node(clients.app, partition, CLIENTS, **config)) for partition in range(CLIENTS)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server.app(grid, Context(7, 1, {}, RecordDict(), config))
    return grid


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEGACY, *MESSAGES])
def test_the_clients_train_and_evaluate_unchanged(name: str, tmp_path: Path) -> None:
    needs(name)
    grid = train(name, settings(name, tmp_path, rounds=5))
    assert not grid.wrong
    assert read_trace(tmp_path / "run").iterations == 5 * CLIENTS
    accuracy = accuracies(tmp_path / "accuracy")
    assert accuracy[-1] > 0.8 > accuracy[0]
    journal = read_lines(tmp_path / "run", "journal.jsonl")
    assert not [row for row in journal if row["event"] in ("failed", "rejected")]
    evaluated = [row for row in journal if row.get("kind") == "evaluate"]
    assert {row["clients"] for row in evaluated} == {CLIENTS}
    assert evaluated[0]["metrics"].keys() >= ({"loss", "accuracy"} if name in LEGACY else set())
    probes = [message for message in grid.messages if "arrays" in message.content]
    assert (0 < len(probes) <= CLIENTS) if name in LEGACY else len(probes) == len(grid.messages)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEGACY, *MESSAGES])
def test_an_app_that_is_killed_continues_from_its_checkpoint(name: str, tmp_path: Path) -> None:
    """The first process kills itself in the middle of a run; the app is started again as it is."""
    needs(name)
    config, run = settings(name, tmp_path, ROUNDS), tmp_path / "run"
    code = f"from flower.test_apps import JOBS, train; train({name!r}, {config!r}, jobs=JOBS)"
    paths = os.pathsep.join((str(Path(__file__).parents[1]), *filter(None, sys.path)))
    killed = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": paths}, check=False)
    assert killed.returncode == -signal.SIGKILL
    before = max(int(path.stem) for path in (run / "checkpoints").glob("*.safetensors"))
    assert before < ROUNDS * CLIENTS
    train(name, config)
    events = read_lines(run, "journal.jsonl")
    [resumed] = [row["iteration"] for row in events if row["event"] == "resumed"]
    assert 0 < resumed == before
    assert events[-1]["event"] == "diagnosed"
    trace = read_trace(run)
    trace.check()
    assert trace.iterations == ROUNDS * CLIENTS
    assert accuracies(tmp_path / "accuracy")[-1] > 0.8


def statements(name: str, module: str) -> list[str]:
    """The module with each statement on one line, without its docstring."""
    tree = ast.parse((APPS / name / name / f"{module}.py").read_text("utf-8"))
    return ast.unparse(tree.body[1:]).splitlines()  # type: ignore[arg-type]


def changes(name: str) -> list[str]:
    pair = statements(name, "server_app"), statements(name, "async_server_app")
    return [line for line in difflib.unified_diff(*pair, n=0, lineterm="") if line[:3] not in ("---", "+++", "@@ ")]


@pytest.mark.parametrize("name", MESSAGES)
def test_one_statement_changes_beside_the_import(name: str) -> None:
    """FedAvg's arguments stay as they are."""
    changed = [line[0] + line[1:].strip() for line in changes(name)]
    imports = {"+import asyncsgd as asgd", "-from flwr.serverapp.strategy import FedAvg"}
    assert imports < set(changed)
    ours, flowers = sorted(set(changed) - imports)
    assert len(changed) == 4
    arguments = flowers.removeprefix("-strategy = FedAvg(").removesuffix(")")
    assert ours.startswith("+strategy = asgd.flower.AsyncStrategy(asgd.")
    assert arguments in ours


@pytest.mark.parametrize("name", LEGACY)
def test_the_server_of_a_legacy_app_changes_in_few_places(name: str) -> None:
    """`server_fn` becomes `main`, and `evaluate` returns a record. The clients have one version."""
    changed = changes(name)
    assert len([line for line in changed if line.startswith("+")]) <= 13, changed
    assert {path.name for path in (APPS / name / name).glob("*.py")} == {
        "__init__.py",
        "async_server_app.py",
        "client_app.py",
        "server_app.py",
        "task.py",
    }
