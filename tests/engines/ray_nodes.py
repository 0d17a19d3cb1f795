"""A real Ray cluster of several nodes on this machine, which tests can add to and take from."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from asyncsgd.engines._ray.cluster import LOOPBACK, _settings, loopback

STORE = 200 * 1024**2

SLOW = {
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_agent_register_timeout_ms": "600000",
    "RAY_health_check_initial_delay_ms": "60000",
    "RAY_health_check_timeout_ms": "60000",
    "RAY_py_gcs_connect_timeout_s": "300",
    "RAY_gcs_rpc_server_connect_timeout_s": "300",
}
"""Settings for Ray's processes: one that is slow to start or to answer is not taken for dead. One that is gone is, at
once, because its connection is closed."""


def be_patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a test pass however slowly Ray starts: its nodes, its processes, and the workers of our engine."""
    from asyncsgd.engines._ray import Ray

    nodes_may_start_slowly()
    for name, value in SLOW.items():
        monkeypatch.setenv(name, value)
    start = Ray.start

    def patient(engine: Ray, *arguments: Any) -> Any:
        if engine.start_timeout == type(engine).start_timeout:  # the default
            object.__setattr__(engine, "start_timeout", 600.0)
        return start(engine, *arguments)

    monkeypatch.setattr(Ray, "start", patient)


def nodes_may_start_slowly() -> None:
    """Ray itself gives up after 30 s, here after 300 s."""
    with _settings():  # Ray reads them when it is imported
        node: Any = import_module("ray._private.node")
    node.time = SimpleNamespace(sleep=time.sleep, monotonic=lambda: time.monotonic() / 10)


class Nodes:
    """The server's own node has 4 processors; others come and go."""

    def __init__(self, folder: str) -> None:
        from ray.cluster_utils import Cluster

        self._common = {"node_ip_address": LOOPBACK, "include_dashboard": False, "object_store_memory": STORE}
        self.folder = Path(folder)
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**self._common, "num_cpus": 4, "temp_dir": folder}
        )
        self.address: str = self._cluster.address
        self.head: str = self._cluster.head_node.node_id

    def add(self, num_cpus: int, num_gpus: int = 0, **resources: float) -> Any:
        """One more node; graphics processors are there on paper only."""
        with _settings(), loopback(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Ray leaves files open
            return self._cluster.add_node(**self._common, num_cpus=num_cpus, num_gpus=num_gpus, resources=resources)

    def kill(self, node: Any) -> None:
        """Without a word: no process of it has time to say goodbye."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self._cluster.shutdown()


@contextmanager
def ray_nodes() -> Iterator[Nodes]:
    """Started and connected to; gone afterwards."""
    nodes_may_start_slowly()
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # a short name, as sockets lie deep in it
    before = dict(os.environ)
    with ExitStack() as afterwards:
        afterwards.callback(_forget, folder, before)
        os.environ["RAY_TMPDIR"] = folder  # where "auto" finds its address: not that of the user's own cluster
        os.environ.update(SLOW)
        (Path(folder) / "ray").mkdir()
        with _settings(), loopback(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nodes = Nodes(folder)
            afterwards.callback(_end, nodes)
            import ray

            ray.init(address=nodes.address, logging_level="error", log_to_driver=False, configure_logging=False)
        yield nodes


def _end(nodes: Nodes) -> None:
    import ray

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()
        nodes.close()


def _forget(folder: str, before: dict[str, str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    for name in set(os.environ) - set(before):
        del os.environ[name]
