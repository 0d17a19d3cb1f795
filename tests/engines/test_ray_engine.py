"""What can be asked of the Ray engine, what cannot, and what is said then; no cluster is started here."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.engines import EngineError, Group, ray
from asyncsgd.engines.ray.cluster import CLUSTERS, SETTINGS, _found, loopback
from asyncsgd.engines.ray.knock import knock
from asyncsgd.engines.ray.member import Member, Stage
from asyncsgd.engines.ray.words import explain, missing
from asyncsgd.run.named import named_engine


def test_importing_the_engines_does_not_import_ray() -> None:
    program = "import sys, asyncsgd.engines as e; e.ray(2); print('ray' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_workers_that_are_all_alike() -> None:
    engine = ray(3, num_cpus=2, num_gpus=0.5, resources={"big": 1}, slowdown={2: 10})
    assert engine.groups == (Group(3, num_cpus=2, num_gpus=0.5, resources={"big": 1}),)
    assert (engine.workers, engine.threads, engine.transport) == (3, 2, None)
    assert engine.slowdown == (1.0, 1.0, 10.0)
    assert engine.groups[0].needs == {"CPU": 2, "GPU": 0.5, "big": 1}


def test_groups_of_workers() -> None:
    engine = ray([Group(1, num_cpus=0.5), Group(2, num_cpus=3), Group(1, threads=7)])
    assert (engine.workers, engine.threads) == (4, [1, 3, 3, 7])
    assert [group.num_cpus for group in engine.group] == [0.5, 3, 3, 1]
    assert ray(Group(2, threads=2)).threads == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers = 0 must be an integer of at least 1"),
        ({"workers": []}, r"workers = \[\] are no groups; pass a number, or asgd.engines.Group"),
        ({"workers": [2, 3]}, r"workers = \[2, 3\] are no groups"),
        ({"workers": Group(2), "num_cpus": 2}, "num_cpus = 2 is for workers that are all alike; say it in each Group"),
        ({"workers": 2, "num_cpus": -1}, "num_cpus = -1 must be a finite number that is not negative"),
        ({"workers": 2, "resources": {"GPU": 1}}, "names GPU, which Ray counts apart; pass num_gpus=1"),
        ({"workers": 2, "resources": {"big": 0}}, r"resources\['big'\] = 0 must be a positive"),
        ({"workers": 2, "resources": ["big"]}, r"resources = \['big'\] names nothing"),
        ({"workers": 2, "threads": 0}, "threads = 0 must be"),
        ({"workers": 2, "at_least": 3}, "at_least = 3 is more than the 2 workers"),
        ({"workers": 2, "transport": "int8"}, "transport = 'int8' is unknown"),
        ({"workers": 2, "slowdown": {2: 3}}, "names worker 2, who is not there"),
        ({"workers": 2, "start_timeout": 0}, "start_timeout = 0 must be"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        ray(**options)


def test_run_json_says_what_it_takes_to_go_on() -> None:
    before = ray(
        [Group(2), Group(1, num_cpus=2, resources={"big": 1})], address="auto", transport="float16", at_least=2
    )
    described = json.loads(json.dumps(before.describe()))
    assert described["engine"] == "ray"
    assert named_engine(described, {}) == before
    assert named_engine(described, {"address": "here:1"}).address == "here:1"
    assert named_engine(described, {"workers": 5}) == ray(5, address="auto", transport="float16", at_least=2)
    one = json.loads(json.dumps(ray(3, num_cpus=2, resources={"big": 1}).describe()))
    assert named_engine(one, {"workers": 4}) == ray(4, num_cpus=2, resources={"big": 1})


def test_passwords_stay_out_of_run_json() -> None:
    engine = ray(2, runtime_env={"env_vars": {"TOKEN": "secret"}})
    assert "secret" not in json.dumps(engine.describe()) + repr(engine)


@pytest.mark.parametrize(
    ("described", "changes", "words"),
    [
        ("processes", {"address": "auto"}, "--address = 'auto' is for another engine; pass --engine ray"),
        ("processes", {"at_least": 2}, "--at-least = 2 is for another engine; pass --engine ray"),
    ],
)
def test_an_option_of_another_engine(described: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        named_engine({"engine": described, "workers": 2}, changes)


# ---------------------------------------------------------------------------------------------- reaching a cluster


@contextmanager
def listening(answer: bytes) -> Iterator[str]:
    """Somebody who says the same to everyone; the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                line.recv(1000)
                line.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}"
        finally:
            thread.join()


def closed() -> str:
    """An address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return f"127.0.0.1:{server.getsockname()[1]}"


def test_nobody_at_home() -> None:
    address = closed()
    with pytest.raises(EngineError, match=rf"no Ray cluster can be reached at {address} \(.*refused\); is the head"):
        knock(address)


SETTINGS_FRAME = b"\0\0\0\x04\0\0\0\0\0"


@pytest.mark.parametrize(
    "answer",
    [
        b"220 mail.example.org ESMTP\r\n",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        SETTINGS_FRAME + b"\0\0\x01\x01\x05\0\0\0\x01\x8d",  # status 404, by a proxy perhaps
        SETTINGS_FRAME,
    ],
)
def test_somebody_else_at_home(answer: bytes) -> None:
    with listening(answer) as address, pytest.raises(EngineError, match=f"listens at {address} is no Ray cluster"):
        knock(address)


def test_somebody_who_speaks_grpc() -> None:
    with listening(SETTINGS_FRAME + b"\0\0\x01\x01\x05\0\0\0\x01\x88") as address:
        knock(address)


def test_somebody_who_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[knock.__module__], "ANSWER", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(EngineError, match=rf"no answer from {address} in 0.05 s"):
            knock(address)


@pytest.mark.parametrize("address", ["nonsense", "host:port"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(EngineError, match="is none; write host:6379 or auto"):
        knock(address)


def test_no_proxy() -> None:
    with pytest.raises(EngineError, match=r"'ray://host:10001' leads to a proxy.*run this on a node of the cluster"):
        knock("ray://host:10001")


def test_auto_follows_ray_address(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert _found() == "10.0.0.1:6379"
    monkeypatch.delenv("RAY_ADDRESS")
    monkeypatch.setattr("ray._private.services.find_gcs_addresses", set)
    monkeypatch.setattr("ray._private.services.find_bootstrap_address", lambda folder: None)
    with pytest.raises(EngineError, match="RAY_ADDRESS is not set, and none was started on this machine"):
        _found()


def test_settings_are_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncsgd.engines.ray.cluster import _settings

    for name in SETTINGS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "1")
    import os

    with _settings():
        assert os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "0"
        assert os.environ["RAY_USAGE_STATS_ENABLED"] == "1"
    assert "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO" not in os.environ


def test_loopback_where_ray_was_imported_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only while a cluster on loopback is reached: a driver on a real cluster needs the address of its node."""
    import os

    services = pytest.importorskip("ray._private.services")
    monkeypatch.delenv(CLUSTERS, raising=False)
    monkeypatch.setattr("ray._private.worker._global_node", None)  # another test may be connected
    monkeypatch.setattr("ray._private.services.node_ip_address_from_perspective", lambda address: "10.1.2.3")
    with loopback():
        assert services.resolve_ip_for_localhost("127.0.0.1") == "127.0.0.1"
        assert os.environ[CLUSTERS] == "0"
    assert services.resolve_ip_for_localhost("127.0.0.1") == "10.1.2.3"
    assert CLUSTERS not in os.environ


# ---------------------------------------------------------------------------------------------- words


def test_why_a_worker_is_gone() -> None:
    said = """The actor died unexpectedly before finishing this task.
\tclass_name: Worker
\tpid: 4711
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was \
killed."""
    assert explain(Exception(said)) == (
        "is gone: its worker process has died (unexpectedly exits with a connection error code 2)"
    )
    assert explain(Exception("The actor died because its node has died.")) == "is gone: its node has died"
    assert explain(TimeoutError()) == "is gone: TimeoutError"


def test_who_is_missing() -> None:
    members = [Member(number, Group(1, num_cpus=2, resources={"big": 1}), 2) for number in range(4)]
    members[0].present, members[0].stage = True, Stage.READY
    members[3].stage = Stage.LOADING
    members[3].reason = "cannot load the task:\nTraceback\n  ...\nModuleNotFoundError: No module named 'mine'\n"
    said = missing(members, 4, 119.8, "2 nodes with 1 of 8 CPU free")
    assert said.startswith(
        "1 of the 4 workers that the run needs were there after 120 s: workers 1, 2 wait for room on a node; worker 3 "
        "loads the task. Worker 3 cannot load the task: ModuleNotFoundError: No module named 'mine'. Ray was asked for "
        "nodes with 2 CPU, 1 big free; the cluster has 2 nodes with 1 of 8 CPU free."
    )


def test_ray_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = ray(2)
    task = asgd.tasks.quadratic(workers=2)
    with pytest.raises(asgd.errors.UsageError, match=r"needs Ray; install it with: pip install 'asyncsgd\[ray\]'"):
        engine.start(task, asgd.async_sgd(0.1).work, task.initial())
