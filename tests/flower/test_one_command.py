"""One command starts a federation: examples/flower_deployment, and what the guide says about restarting SuperNodes."""

from __future__ import annotations

import configparser
import os
import shlex
import shutil
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

import yaml
from cryptography import x509
from flower.guide import block
from flower.programs import GUARD, Programs
from flwr.common import constant
from flwr.supercore.exit import ExitCode

from asyncsgd.run.read import read_lines, read_trace

ROOT = Path(__file__).parents[2]
HERE = ROOT / "examples" / "flower_deployment"
COMPOSE: dict[str, Any] = yaml.safe_load((HERE / "docker-compose.yml").read_text("utf-8"))
NODES = ("client-1", "client-2", "client-3")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The two modules of the example, imported as the script imports them, and forgotten afterwards."""
    monkeypatch.syspath_prepend(str(HERE))
    yield import_module("start")
    for name in ("start", "keys"):
        sys.modules.pop(name, None)


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def options(command: list[str]) -> set[str]:
    return {word.split("=")[0] for word in command if word.startswith("--")}


# ------------------------------------------------------------------------------------------------ one source of truth


def test_the_script_has_the_commands_of_the_guide(example: Any) -> None:
    superlink = [word if word != "8000" else "1" for word in words(block("superlink"))]
    assert sorted(example.superlink_command(1)) == sorted(superlink)
    changes = (("federation.example.org:443", "127.0.0.1:1"), ("hospital-1", "a"), ("--port 9094", "--port 2"))
    supernode = words(block("supernode", *changes))
    assert sorted(example.supernode_command(1, 2, "a", "partition-id=0 num-partitions=2")) == sorted(supernode)
    assert example.register_command("a") == words(block("register", ("hospital-1", "a")))


def test_supervisors_start_the_supernode_of_the_guide() -> None:
    command = words(block("supernode"))
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(block("systemd").replace("\\\n", " "))
    started = words(unit["Service"]["ExecStart"])
    assert [Path(started[0]).name, *started[1:]] == command
    assert unit["Service"]["Restart"] == "always"
    assert unit["Unit"]["StartLimitIntervalSec"] == "0"
    looped = words(block("loop"))
    first = looped.index("flower-supernode")
    assert looped[first : first + len(command)] == command


def test_containers_have_the_options_of_the_guide() -> None:
    services = COMPOSE["services"]
    assert options(services["superlink"]["command"]) == options(words(block("superlink")))
    keys = services["keys"]["command"]
    assert keys[1:4] == list(NODES)
    [register] = services["register"]["command"]
    assert register.startswith(f"for name in {' '.join(NODES)}; do flwr ")
    written = register.replace("$$name", "client-1")  # compose reads $$ as $
    assert " ".join(
        words(block("register", ("hospital-1.key", "keys/hospital-1.key"), ("hospital-1", "client-1")))
    ) in (" ".join(words(written)))
    for number, name in enumerate(NODES):
        command = services[name]["command"]
        assert options(command) == options(words(block("supernode"))) - {"--port"}  # each container has its own 9094
        assert f"--auth-supernode-private-key=keys/{name}.key" in command
        assert f"--node-config=partition-id={number} num-partitions={len(NODES)}" in command
        assert services[name]["restart"] == "always"
    assert keys[keys.index("--host") + 1] == "superlink"  # the name in the certificate that SuperNodes connect to
    assert not any("ports" in service for service in services.values())


def test_the_images_have_the_tested_version_of_flower() -> None:
    pinned = next(
        line for line in (ROOT / "constraints.txt").read_text("utf-8").splitlines() if line.startswith("flwr==")
    )
    assert f"ARG FLOWER={pinned.removeprefix('flwr==')}-py" in (HERE / "Dockerfile").read_text("utf-8")


def test_the_guide_knows_the_heartbeats_of_flower() -> None:
    """The numbers in "Keep the SuperNodes running" follow from these."""
    assert ExitCode.SUPERNODE_CONNECTION_ERROR == 305
    pace = constant.HEARTBEAT_DEFAULT_INTERVAL - constant.HEARTBEAT_CALL_TIMEOUT
    low, high = (pace * (constant.HEARTBEAT_BASE_MULTIPLIER + one) for one in constant.HEARTBEAT_RANDOM_RANGE)
    assert (low, high) == pytest.approx((17.5, 22.5))
    assert constant.HEARTBEAT_PATIENCE * constant.HEARTBEAT_DEFAULT_INTERVAL == 60


# ------------------------------------------------------------------------------------------------ parts


def test_keys_are_private_and_kept(example: Any, tmp_path: Path) -> None:
    keys = import_module("keys")
    keys.create_certificates(tmp_path, ("superlink", "127.0.0.1"))
    keys.create_node_key(tmp_path, "one")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert before.keys() == {"ca.crt", "ca.key", "server.crt", "server.key", "one.key", "one.key.pub"}
    for name in ("ca.key", "server.key", "one.key"):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    server = x509.load_pem_x509_certificate(before["server.crt"])
    server.verify_directly_issued_by(x509.load_pem_x509_certificate(before["ca.crt"]))
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["superlink"]
    assert [str(one) for one in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    # A second call adds what is missing and changes nothing else.
    keys.create_certificates(tmp_path)
    keys.create_node_key(tmp_path, "one")
    keys.create_node_key(tmp_path, "two")
    after = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert after == before | {name: after[name] for name in ("two.key", "two.key.pub")}


def test_the_loop_of_the_guide_retries_and_ends(tmp_path: Path) -> None:
    """With a SuperNode that is refused twice, and with pauses that take no time."""
    tools = tmp_path / "bin"
    tools.mkdir()
    fakes = {
        "flower-supernode": 'echo "$@" >> calls\n[ $(wc -l < calls) -lt 3 ] && exit 1\necho $$ > up\nexec cat pipe\n',
        "sleep": 'echo "$@" >> pauses\n',
    }
    for name, text in fakes.items():
        (tools / name).write_text(f"#!/bin/sh\n{text}", "utf-8")
        (tools / name).chmod(0o755)
    os.mkfifo(tmp_path / "up")
    os.mkfifo(tmp_path / "pipe")
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    loop = subprocess.Popen(["sh", "-c", block("loop")], cwd=tmp_path, env={**os.environ, "PATH": path})
    try:
        node = int((tmp_path / "up").read_text("utf-8"))  # returns once the third SuperNode has written its number
        assert (tmp_path / "calls").read_text("utf-8").splitlines() == [
            " ".join(words(block("supernode"))[1:]).replace('"', "")
        ] * 3
        assert (tmp_path / "pauses").read_text("utf-8").split() == ["10", "10"]
        loop.terminate()
        loop.wait(GUARD)
        with pytest.raises(ProcessLookupError):
            os.kill(node, 0)
    finally:
        loop.kill()
        loop.wait()


# ------------------------------------------------------------------------------------------------ the whole


@pytest.mark.timeout(900)
@pytest.mark.skipif(" " in sys.prefix, reason="Flower's SuperLink makes no database below a path with a space")
@pytest.mark.skipif(not (find_spec("torch") and find_spec("sklearn")), reason="torch or scikit-learn is not installed")
@pytest.mark.skipif(not shutil.which("ps"), reason="ps is not installed")
def test_one_command_trains_survives_a_kill_and_cleans_up(tmp_path: Path) -> None:
    with Programs(tmp_path) as here:
        folder = tmp_path / "federation"
        command = [sys.executable, str(HERE / "start.py"), "--folder", str(folder), "--config"]
        pace = "target=2.0 evaluate-clients=false fast-seconds=0.0 slow-seconds=0.0"

        def said(name: str) -> str:
            log = folder / f"{name}.log"
            return log.read_text("utf-8", "replace") if log.exists() else ""

        def activated() -> int:
            return said("superlink").count("Activated node_id")

        # One SuperNode is killed: Flower refuses the next one with code 305, until it has missed the heartbeats.
        script = here.start("script", *command, f"{pace} rounds=1000000")
        here.until(lambda: activated() == 3 or script.poll() is not None, "three SuperNodes")
        [node] = here.running("client-2.key")
        os.kill(node, signal.SIGKILL)
        here.until(lambda: "Exit Code: 305" in said("client-2"), "the refusal")
        assert activated() == 3
        here.until(lambda: activated() == 4, "the SuperNode to be back")
        here.until(lambda: (folder / "run" / "run.json").exists() and read_trace(folder / "run").iterations, "updates")

        # Ctrl-C ends all processes, also the ServerApp and the ClientApps.
        script.send_signal(signal.SIGINT)
        assert script.wait(GUARD) == 130
        assert here.relatives() == set()

        # The next start resumes, and ends by itself.
        rounds = read_trace(folder / "run").iterations // 3 + 1  # of three updates, as three clients began
        script = here.start("again", *command, f"{pace} rounds={rounds}")
        assert script.wait(GUARD) == 0, here.said()
        assert here.relatives() == set()
        assert read_trace(folder / "run").iterations == 3 * rounds
        journal = read_lines(folder / "run", "journal.jsonl")
        assert [row for row in journal if row["event"] == "resumed"]
        # Operators see the names under which the SuperNodes were registered.
        assert {row["name"] for row in journal if row["event"] == "client"} == set(NODES)
