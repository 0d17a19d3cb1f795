"""A real deployment on loopback, as the guide sets it up: TLS, keys, a proxy, and SuperNodes of every sort."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.deployment import Deployment

from asyncsgd.run.directory import read_trace

pytestmark = [
    pytest.mark.xdist_group("flower"),
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="openssl or ssh-keygen is not installed"
    ),
]
PROXY = shutil.which("nginx", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with Deployment(tmp_path_factory.mktemp("federation")) as here:
        here.superlink()
        here.register("one", "two", "liar", "late")
        here.key("stranger")
        yield here


@pytest.mark.skipif(PROXY is None, reason="nginx is not installed")
def test_the_proxy_lets_clients_reach_the_fleet_alone(federation: Deployment) -> None:
    assert PROXY is not None
    federation.nginx(PROXY)
    inside, outside = federation.port, federation.outside
    # A message that is no protobuf of theirs: the SuperLink refuses it, so it got there.
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


def test_supernodes_of_every_sort(federation: Deployment) -> None:
    here = federation
    stranger = here.supernode("stranger", 3)
    here.supernode("one", 0)
    two = here.supernode("two", 1)
    here.supernode("liar", 2, role="lies")
    here.flwr_run(minimum=3, method="async")

    # One lies: nothing of it is used, and it is left out.
    here.until(lambda: here.journal("left_out"), "the liar to be left out")
    rejected = here.journal("rejected")
    [liar] = {row["worker"] for row in rejected}
    assert {row["worker"] for row in here.journal("left_out")} == {liar}
    assert here.heard(liar) == 0

    # One is killed, another comes late, through the proxy if there is one.
    here.until(lambda: all(here.heard(worker) for worker in {0, 1, 2} - {liar}), "updates of both")
    here.kill(two)
    here.supernode("late", 3, port=here.outside if PROXY else here.port)
    here.until(lambda: here.journal("died"), "the killed one to be missed")
    here.until(lambda: here.heard(3) >= 2, "updates of the late one")
    [killed] = {row["worker"] for row in here.journal("died")}
    assert killed not in (liar, 3)

    # One has no registered key: it got nowhere.
    assert stranger.wait(60) != 0
    assert "Failed to activate SuperNode" in here.said("stranger")
    known = json.loads((here.directory / "clients.json").read_text())
    assert len(known) == len(here.journal("client")) == 4

    # Clients have evaluated meanwhile.
    evaluated = [row for row in here.journal("client_metrics") if row["kind"] == "evaluate"]
    assert evaluated
    assert evaluated[0]["metrics"].keys() == {"distance"}


def test_the_superlink_dies_and_training_goes_on(federation: Deployment) -> None:
    """The run of the test before: its SuperLink is killed in the middle, and started again."""
    here = federation
    known = (here.directory / "clients.json").read_text()
    superlink = here.processes["superlink"]
    here.kill(superlink)
    here.until(lambda: not here.running("flwr-serverapp"), "the ServerApp to end with it")
    before = here.iteration()
    here.superlink()
    here.flwr_run(minimum=2, method="async", resume=True)
    here.until(lambda: here.journal("resumed"), "the run to go on")
    [resumed] = here.journal("resumed")
    assert 0 < resumed["iteration"] <= before
    here.until(lambda: here.iteration() >= before + 3, "more updates")
    here.enough()
    here.until(lambda: here.journal("diagnosed"), "the end")
    assert (here.directory / "clients.json").read_text() == known
    trace = read_trace(here.directory)
    trace.check()
    assert trace.iterations > before
    mean = here.lines("metrics.jsonl")[-1]["mean"]
    assert mean < 5.0  # it began at 10; the clients pull towards 0, 1 and 3, the liar towards nothing
