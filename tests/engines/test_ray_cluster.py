"""Checks before connecting to Ray: errors for a cluster that cannot be reached. No cluster is started here."""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncsgd.core.errors import UsageError
from asyncsgd.engines import EngineError, ray
from asyncsgd.engines._ray import cluster
from asyncsgd.engines._ray.cluster import CLUSTERS, SETTINGS, _found, _settings, check_connected, loopback, probe


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Listen on a port, send every caller the same bytes (None: never answer), and yield the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    line, _ = server.accept()
                except OSError:
                    return  # the test is over
                with line, suppress(OSError):
                    if line.recv(1000):
                        line.sendall(answer or b"")

        thread = threading.Thread(target=serve)
        if answer is not None:
            thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            server.shutdown(socket.SHUT_RDWR)  # wakes the thread
            if answer is not None:
                thread.join()


def closed() -> str:
    """Return an address where no process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_nobody_at_home() -> None:
    address = closed()
    with pytest.raises(EngineError, match=rf"no Ray cluster can be reached at {address} \(.*refused\); is the head"):
        probe(address)


@pytest.mark.ray
@pytest.mark.parametrize("answer", [b"220 store.example.org ESMTP\r\n", b"HTTP/1.1 400 Bad Request\r\n\r\n", None])
def test_somebody_else_at_home(answer: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's own client would wait for half a minute."""
    pytest.importorskip("ray")
    monkeypatch.setattr(cluster, "ANSWER", 1.5)
    with listening(answer) as address:
        words = rf"the process at {address} is not a Ray cluster \(no answer in 1\.5 s\); check the address"
        with pytest.raises(EngineError, match=words):
            probe(address)


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (0, "", None),
        (1, "Traceback\nRuntimeError: no node here", r"this machine is not a node of .* \(no node here\); make it one"),
        (
            1,
            "Traceback\nray.exceptions.RpcError: RPC error: ",
            r"is not a Ray cluster \(ray.exceptions.RpcError: RPC err",
        ),
        (
            -6,
            "",
            r"is not a Ray cluster \(Ray's client ended with exit code -6\); check",
        ),  # Ray's compiled code ended the process
        (-14, "half a word", r"is not a Ray cluster \(no answer in 5 s\); check the address, which may be that of a"),
    ],
)
def test_what_the_probing_process_says(
    code: int, said: str, words: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = SimpleNamespace(returncode=code, stderr=said)
    fake = SimpleNamespace(run=lambda *_, **__: done, DEVNULL=None)
    monkeypatch.setattr(cluster, "subprocess", fake)
    with listening(None) as address:
        if words is None:
            probe(address)
        else:
            with pytest.raises(EngineError, match=words):
                probe(address)


def test_a_host_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(cluster, "socket", SimpleNamespace(create_connection=never))
    with pytest.raises(EngineError, match=r"no answer from 10.0.0.1:6379 in 5 s; is the head node up"):
        probe("10.0.0.1:6379")


@pytest.mark.parametrize("address", ["nonsense", "host:port"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(EngineError, match="has no port; write host:6379 or auto"):
        probe(address)


def test_no_proxy() -> None:
    with pytest.raises(EngineError, match=r"'ray://host:10001' is a proxy.*run this on a node of the cluster"):
        probe("ray://host:10001")


def test_auto_follows_ray_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert _found() == "10.0.0.1:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: "127.0.0.1:6379")
    monkeypatch.setattr("ray._private.services.node_ip_address_from_perspective", lambda address: "10.1.2.3")
    assert _found() == "127.0.0.1:6379"  # where it listens, if it does on loopback alone
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: None)
    for given in ("", "auto"):
        monkeypatch.setenv("RAY_ADDRESS", given)
        with pytest.raises(EngineError, match="RAY_ADDRESS names none, and none was started on this machine"):
            _found()
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: "127.0.0.1:6379")
    assert _found() == "127.0.0.1:6379"
    monkeypatch.setitem(sys.modules, "ray._private.services", SimpleNamespace())
    with pytest.raises(EngineError, match="cannot be looked up with this version of Ray; pass host:6379"):
        _found()


def test_settings_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    with _settings():
        assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "0"
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO" not in os.environ


def test_loopback_where_ray_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while a cluster on loopback is reached: a driver on a real cluster needs the address of its node."""
    services = pytest.importorskip("ray._private.services")
    monkeypatch.delenv(CLUSTERS, raising=False)
    monkeypatch.setattr("ray._private.worker._global_node", None)  # another test may be connected
    monkeypatch.setattr("ray._private.services.node_ip_address_from_perspective", lambda address: "10.1.2.3")
    with loopback():
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
        assert os.environ[CLUSTERS] == "0"
    assert services.resolve_ip_for_localhost("127.0.0.1") == "10.1.2.3"
    assert CLUSTERS not in os.environ


def test_a_ray_that_has_other_names_inside_is_asked_no_more(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])  # the standard library stays importable
    with listening(None) as address:
        probe(address)
    monkeypatch.setitem(sys.modules, "ray._private.ray_constants", constants := SimpleNamespace())
    with loopback():
        assert os.environ[CLUSTERS] == "0"
    assert not vars(constants)


# ---------------------------------------------------------------------------------------------- connected already


def connected(address: str) -> Any:
    """A Ray that is."""
    return SimpleNamespace(get_runtime_context=lambda: SimpleNamespace(gcs_address=address))


@pytest.mark.parametrize("address", [None, "auto", "127.0.0.1:6379", "localhost:6379"])
def test_the_cluster_that_was_asked_for_whatever_it_is_called(address: str | None) -> None:
    check_connected(connected("127.0.0.1:6379"), ray(2, address=address))


@pytest.mark.parametrize("address", ["localhost:6380", "127.0.0.2:6379"])
def test_another_cluster(address: str) -> None:
    with pytest.raises(UsageError, match=r"but this process is connected to the Ray cluster at 127\.0\.0\.1:6379"):
        check_connected(connected("127.0.0.1:6379"), ray(2, address=address))


def test_a_directory_is_sent_along_only_when_a_connection_is_made() -> None:
    here = connected("127.0.0.1:6379")
    check_connected(here, ray(2, runtime_env={"working_dir": "https://example.org/it.zip", "pip": ["einops"]}))
    with pytest.raises(UsageError, match=r"working_dir = '\.' cannot be sent, as.*pass runtime_env to ray.init"):
        check_connected(here, ray(2, runtime_env={"working_dir": "."}))
