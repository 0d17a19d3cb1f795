"""A real deployment on loopback, as the guide sets it up: TLS, keys, a proxy, and SuperNodes of every sort."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.client_apps import LEGACY, MESSAGES, accuracies, needs, with_server
from flower.deployment import APP, DIGITS, Deployment
from safetensors.numpy import load_file

from asyncsgd.run.read import read_config, read_lines, read_trace

pytestmark = [
    pytest.mark.flower,
    pytest.mark.timeout(900),
    # flwr 1.41 joins the folders of its database's migrations by spaces, and alembic splits them there.
    pytest.mark.skipif(" " in sys.prefix, reason="Flower's SuperLink makes no database below a path with a space"),
    pytest.mark.skipif(
        not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="openssl or ssh-keygen is not installed"
    ),
]
PROXY = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
KILLED = {"numpy_legacy", "sklearn_app"}
"""The apps that lose their ServerApp in the middle of a run: one of each interface, and those that load fastest."""
TORCH = find_spec("torch") and find_spec("sklearn")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("federation")) as here:
        here.superlink()
        here.register("one", "two", "liar", "late")
        here.key("stranger")
        if PROXY is not None:
            here.nginx(PROXY)
        yield here


@pytest.mark.skipif(PROXY is None, reason="nginx is not installed; get it with: apt-get install nginx-light")
def test_the_proxy_lets_clients_reach_the_fleet_alone(federation: Deployment) -> None:
    inside, outside = federation.port, federation.outside
    # A message that is not one of their protobufs: the SuperLink refuses it, so it got there.
    assert federation.ask(inside, "/v1/fleet/pull-messages", b"") == federation.ask(
        outside, "/v1/fleet/pull-messages", b""
    )
    assert federation.ask(inside, "/health") == 200
    assert federation.ask(inside, "/v1/control/list-runs", b"") != 403
    for path in (
        "/health",
        "/v1/control/list-runs",
        "/v1/control/start-run",
        "/v1/runtime/push-messages",
        "/v1/fleet/register-node",
        "/v1/fleet/../control/list-runs",
        "/v1/fleet/..%2fcontrol/list-runs",
        "/v1/fleet/pull-messages/../../control/list-runs",
        "/v1/control/list-runs/../../fleet/pull-messages/x",
        "//v1/control/list-runs",
        "/docs",
        "/openapi.json",
    ):
        assert federation.ask(outside, path, b"") == 403, path
    assert federation.ask(outside, "/v1/fleet/pull-messages") == 403  # GET


def test_a_federation_from_the_first_job_to_the_last(federation: Deployment) -> None:
    """One run for all parts, as starting it for each would take too long."""
    supernodes_of_every_sort(federation)
    killed_and_started_again(federation)
    stopped(federation)


def supernodes_of_every_sort(here: Deployment) -> None:
    stranger = here.supernode("stranger", 3)
    here.supernode("one", 0)
    two = here.supernode("two", 1)
    here.supernode("liar", 2, role="lies")
    here.train(minimum=3)

    # One lies: nothing of it is used, and it is left out.
    here.until(lambda: here.journal("left_out"), "the liar to be left out")
    [liar] = {row["worker"] for row in here.journal("rejected")}
    assert {row["worker"] for row in here.journal("left_out")} == {liar}
    assert here.heard(liar) == 0

    # One is killed, another comes late, through the proxy if there is one.
    here.until(lambda: all(here.heard(worker) for worker in {0, 1, 2} - {liar}), "updates of both")
    here.kill(two)
    here.supernode("late", 3, port=here.outside if PROXY else here.port)

    # Flower takes most of a minute to miss the killed one; meanwhile another app runs, with PyTorch and BatchNorm.
    digits = here.folder / "digits"
    if TORCH:
        pace = {"fast-seconds": 0.0, "slow-seconds": 1.0}
        config = {"clients": 2, "rounds": 1, "target": 2.0, "evaluate-clients": False, **pace}
        here.flwr_run(DIGITS, directory=str(digits), **config)

    def missed() -> set[int]:
        """By Flower, or by our own patience if that ends first; on a busy machine others may miss a heartbeat."""
        return {row["worker"] for event in ("died", "silent") for row in here.journal(event)} - {liar, 3}

    here.until(missed, "the killed one to be missed")
    here.until(lambda: here.heard(3), "an update of the late one")
    if TORCH:
        ended = digits / "journal.jsonl"
        here.until(lambda: ended.exists() and '"diagnosed"' in ended.read_text("utf-8"), "the digits")
        assert read_trace(digits).iterations == read_config(digits)["engine"]["round"] >= 2
        assert load_file(digits / "carried.safetensors")["layers.1.num_batches_tracked"] > 0

    # One has no registered key: it got nowhere.
    assert stranger.wait(60) != 0
    assert "Failed to activate SuperNode" in here.said("stranger")
    known = json.loads((here.directory / "clients.json").read_text("utf-8"))
    assert len(known) == len(here.journal("client")) == 4
    assert {row["name"] for row in here.journal("client")} == {"one", "two", "liar", "late"}

    # Clients have evaluated meanwhile.
    evaluated = [row for row in here.journal("client_metrics") if row["kind"] == "evaluate"]
    assert evaluated[0]["metrics"].keys() == {"distance"}
    here.kill(here.processes["liar"])  # it has been seen through, and takes time from others


def killed_and_started_again(here: Deployment) -> None:
    """First the ServerApp, then the SuperLink."""
    known = (here.directory / "clients.json").read_text("utf-8")
    for process in here.running("flwr-serverapp"):
        os.kill(process, signal.SIGKILL)
    here.until(lambda: not here.running("flwr-serverapp"), "the ServerApp to end")
    before = here.iteration()
    here.train(minimum=2, resume=True, evaluate=False)
    here.until(lambda: here.iteration() > before, "the run to continue without its first ServerApp")
    assert 0 < here.journal("resumed")[-1]["iteration"] <= before

    here.kill(here.processes["superlink"])
    here.until(lambda: not here.running("flwr-serverapp"), "the ServerApp to end with the SuperLink")
    before, size = here.iteration(), read_config(here.directory)["engine"]["round"]
    rounds = before // size + 1
    here.superlink()
    here.train(minimum=2, resume=True, evaluate=False, rounds=rounds)
    here.until(lambda: len(here.journal("resumed")) == 2, "the run to continue with another SuperLink")
    here.until(lambda: here.lines("journal.jsonl")[-1]["event"] == "diagnosed", "the end")
    assert 0 < here.journal("resumed")[-1]["iteration"] <= before
    assert (here.directory / "clients.json").read_text("utf-8") == known
    trace = read_trace(here.directory)
    trace.check()
    assert trace.iterations == rounds * size
    mean = here.lines("metrics.jsonl")[-1]["mean"]
    assert mean < 9.0  # it began at 10; the clients pull towards 0, 1 and 3, the liar towards nothing


def stopped(here: Deployment) -> None:
    """`flwr stop` ends a run with a checkpoint; there would be no other one."""
    before = here.iteration()
    run = here.train(minimum=2, resume=True, evaluate=False, **{"checkpoint-every": 1_000_000})
    here.until(lambda: here.lines("metrics.jsonl")[-1]["iteration"] > before + 1, "updates")
    here.run("flwr", "stop", run, "federation")
    here.until(lambda: here.iteration() > before, "the last checkpoint")
    here.until(lambda: not here.running("flwr-serverapp"), "the ServerApp to end")
    assert here.iteration() == here.journal("ended")[-1]["iteration"] > before + 1


def two_supernodes(here: Deployment) -> None:
    for number, name in ((0, "one"), (3, "late")):
        if name not in here.processes or here.processes[name].poll() is not None:
            here.supernode(name, number)


def test_compressed_messages_over_tls(federation: Deployment) -> None:
    """Flower keeps what the mod remembers from job to job, although each job has a process of its own."""
    two_supernodes(federation)
    directory = federation.folder / "runs" / "compressed"
    options = {"minimum": 2, "rounds": 3, "evaluate": False}
    federation.flwr_run(APP, methods="compressed", directory=str(directory.parent), **options)
    journal = directory / "journal.jsonl"
    federation.until(lambda: journal.exists() and '"diagnosed"' in journal.read_text("utf-8"), "the compressed run")
    rows = read_lines(directory, "journal.jsonl")
    assert not [row for row in rows if row["event"] in ("rejected", "failed")]
    assert [row["highest"]["remembers"] for row in rows if row.get("kind") == "train"][-1] == 1.0
    assert read_trace(directory).iterations == 3 * read_config(directory)["engine"]["round"]
    assert read_lines(directory, "metrics.jsonl")[-1]["mean"] < 10.0


@pytest.mark.parametrize("name", [*LEGACY, *MESSAGES])
def test_an_app_with_its_changed_server_over_tls(federation: Deployment, tmp_path: Path, name: str) -> None:
    """Two apps lose their ServerApp by SIGKILL, and continue when they are started again as they are."""
    needs(name)
    two_supernodes(federation)
    app, output, run = with_server(name, "async_server_app", tmp_path), tmp_path / "accuracy", tmp_path / "run"
    config: dict[str, Any] = {"clients": 2, "directory": str(run), "output": str(output)}
    rounds = 1
    if name in KILLED:
        federation.flwr_run(app, **config, **{"num-server-rounds": 1_000_000})
        federation.until(lambda: last_checkpoint(run), "a checkpoint")
        for process in federation.running("flwr-serverapp"):
            os.kill(process, signal.SIGKILL)
        federation.until(lambda: not federation.running("flwr-serverapp"), "the ServerApp to end")
        rounds = last_checkpoint(run) // 2 + 1
    before = last_checkpoint(run)
    evaluated = len(accuracies(output)) if before else 0
    federation.flwr_run(app, **config, **{"num-server-rounds": rounds})
    federation.until(lambda: '"diagnosed"' in text_of(run / "journal.jsonl"), "the end of the run")
    journal = read_lines(run, "journal.jsonl")
    assert [row["iteration"] for row in journal if row["event"] == "resumed"] == ([before] if before else [])
    assert not [row for row in journal if row["event"] in ("failed", "rejected")]
    trace = read_trace(run)
    trace.check()
    assert trace.iterations == 2 * rounds > before
    # The last model is evaluated, and the initial one unless the run was resumed. So few updates may not improve it.
    assert len(accuracies(output)) >= evaluated + (1 if before else 2)


def last_checkpoint(run: Path) -> int:
    return max((int(path.stem) for path in (run / "checkpoints").glob("[0-9]*.safetensors")), default=0)


def text_of(path: Path) -> str:
    return path.read_text("utf-8") if path.exists() else ""
