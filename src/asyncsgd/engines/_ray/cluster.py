"""The cluster: the one this process is connected to, one that an address leads to, or one started here for a run."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from asyncsgd import _files
from asyncsgd.core.errors import EngineError, MissingLibrary
from asyncsgd.engines._ray.cluster_probe import check_connected, check_node, knock
from asyncsgd.engines._ray.engine import Ray
from asyncsgd.engines._ray.orphans import Watch

LOOPBACK = "127.0.0.1"
LONGEST_FOLDER = 36
"""Characters; a socket's name may have 107, and Ray adds "/ray/session_(date)_(process)/sockets/plasma_store"."""
PREFIX = "asgd-ray-"
LEAST_STORE = 100 * 1024**2
SPARE = 0.6
"""The part of an object store that is used for vectors; the rest is for what Ray and the task need, and for gaps."""

GIVES_UP = 50.0
"""Seconds for which Ray waits at least, where nobody answers, before it gives up."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray is going to do anyway; without it, it warns
}


CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray takes 127.0.0.1 as it is, in place of an address of this machine that others can reach."""


class Cluster:
    """Ray, connected while this is open. Whatever was started for it is gone once it is closed."""

    def __init__(self, engine: Ray, vectors: int) -> None:
        """``vectors``: bytes of all points and updates that may be under way at once."""
        self._folder: Path | None = None
        self._watch: Watch | None = None
        self._connected = self._up = False
        self.environment: dict[str, Any] | None = None
        """What Ray is to prepare for each worker; None: for the whole run, which it has been told already."""
        self._handler = signal.getsignal(signal.SIGTERM)  # Ray puts its own in place
        with _settings():
            self.ray = _imported()
            if self.ray.is_initialized():
                check_connected(self.ray, engine)
                self.environment = dict(engine.runtime_env or {}) or None
                return
            try:
                if engine.address is None:
                    with loopback():
                        self._start(engine, vectors)
                else:
                    self._reach(engine)
            except BaseException:
                self.close()
                raise

    def _start(self, engine: Ray, vectors: int) -> None:
        self._folder, self._lock = _folder()
        self._watch = Watch(self._folder)
        total: dict[str, float] = {}
        for group in engine.group:
            for name, amount in group.needs.items():
                total[name] = total.get(name, 0.0) + amount
        graphics = total.pop("GPU", 0.0)
        # A worker needs room on paper: on one machine, several may share a processor, and stand for large ones.
        processors = max(total.pop("CPU", 0.0), float(os.cpu_count() or 1))
        self._init(
            "Ray could not be started on this machine",
            address="local",
            num_cpus=-int(-processors // 1),
            resources=total or None,
            object_store_memory=_store(vectors),
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(self._folder / "ray"),
            **_common(engine),
        )
        missing = graphics - self.ray.cluster_resources().get("GPU", 0.0)
        if missing > 0:
            raise EngineError(
                f"the workers need {graphics:g} GPUs, {missing:g} more than this machine has; pass the address of a "
                "cluster that has them, or a smaller num_gpus (a fraction shares one)"
            )

    def _reach(self, engine: Ray) -> None:
        assert engine.address is not None
        address = engine.address
        if address == "auto":
            address = _found()
        knock(address)
        complaint = f"the Ray cluster at {address} did not take us in"
        near = address.rpartition(":")[0] in (LOOPBACK, "localhost", "[::1]")
        with loopback() if near else nullcontext():
            check_node(address)
            self._init(complaint, address=address, **_common(engine))

    def _init(self, complaint: str, **options: Any) -> None:
        self._connected = True
        began = time.monotonic()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray leaves files open while it starts its processes
                self.ray.init(logging_level="error", configure_logging=False, **options)
        except Exception as error:
            raise EngineError(f"{complaint}: {type(error).__name__}: {error}") from error
        except SystemExit as error:  # what SIGTERM does meanwhile; Ray gives up by sending it to this very process
            seconds = time.monotonic() - began
            if seconds < GIVES_UP:
                raise SystemExit(128 + signal.SIGTERM) from error
            raise EngineError(f"{complaint}: it gave up after {seconds:.0f} s") from error
        self._up = True

    @property
    def store(self) -> float:
        """Bytes of vectors that the object store of the server's own node can hold."""
        here = self.ray.get_runtime_context().get_node_id()
        for node in self.ray.nodes():
            if node["NodeID"] == here:
                return SPARE * float(node["Resources"].get("object_store_memory", 0.0))
        return float("inf")

    def describe(self) -> str:
        """What the cluster has and what of it is free, in words."""
        everything, free = self.ray.cluster_resources(), self.ray.available_resources()
        nodes = sum(bool(node["Alive"]) for node in self.ray.nodes())
        words = [
            f"{free.get(name, 0.0):g} of {amount:g} {name}"
            for name, amount in sorted(everything.items())
            if not name.startswith("node:") and name not in ("memory", "object_store_memory")
        ]
        return f"{nodes} nodes with {', '.join(words) or 'nothing'} free"

    def close(self) -> None:
        """Hang up; a cluster that was started here ends."""
        clean = False
        try:
            self._hang_up()
            clean = self._up  # of a start that did not finish, Ray may leave all
        finally:
            if self._watch is not None:
                self._watch.end(clean=clean)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                os.close(self._lock)
                self._folder = None

    def _hang_up(self) -> None:
        if not self._connected:
            return
        self._connected = False
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.ray.shutdown()
        finally:
            if threading.current_thread() is threading.main_thread() and self._handler is not None:
                signal.signal(signal.SIGTERM, self._handler)


# ---------------------------------------------------------------------------------------------- reaching one


@contextmanager
def _settings() -> Iterator[None]:
    """Ray reads them when it is imported and when it starts processes; the user's own come first."""
    missing = [name for name in SETTINGS if name not in os.environ]
    os.environ.update({name: SETTINGS[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def loopback() -> Iterator[None]:
    """Ray stays on loopback, also where it was imported before; its processes are told by the environment."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before, given = getattr(constants, "ENABLE_RAY_CLUSTER", None), os.environ.get(CLUSTERS)
    os.environ[CLUSTERS] = "0"
    if before is not None:  # else a Ray that has other names inside
        constants.ENABLE_RAY_CLUSTER = False
    try:
        yield
    finally:
        if before is not None:
            constants.ENABLE_RAY_CLUSTER = before
        if given is None:
            del os.environ[CLUSTERS]
        else:
            os.environ[CLUSTERS] = given


def _imported() -> Any:
    try:
        import ray
    except ModuleNotFoundError as error:
        raise MissingLibrary("the Ray engine", "Ray", "asyncsgd[ray]") from error
    return ray


def _common(engine: Ray) -> dict[str, Any]:
    """What Ray is told however it is reached. A local directory is sent along only if it is said here."""
    environment = engine.runtime_env
    return {"log_to_driver": engine.logs, "runtime_env": None if environment is None else dict(environment)}


def _found() -> str:
    """The address of the cluster that this machine belongs to."""
    given = os.environ.get("RAY_ADDRESS", "")
    if given not in ("", "auto"):
        return given
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError as error:
        raise EngineError("address = 'auto' cannot be looked up with this version of Ray; pass host:6379") from error
    try:
        with loopback():  # else 127.0.0.1 becomes an address where a cluster on loopback does not listen
            found = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if found is None:
        raise EngineError(
            "address = 'auto' found no Ray cluster: RAY_ADDRESS names none, and none was started on this machine; "
            "start one with `ray start --head`, pass its address, or leave the address out to start one for this run"
        )
    return str(found)


def _folder() -> tuple[Path, int]:
    """A folder that nobody else may look into, and the descriptor of a lock that says whose it is while we live.

    Sockets lie deep in it, so its own name must be short.
    """
    parent = tempfile.gettempdir()
    if len(parent) + 1 + len(PREFIX) + 8 > LONGEST_FOLDER and os.path.isdir("/tmp"):
        parent = "/tmp"
    _sweep(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(folder / "new", os.O_CREAT | os.O_RDWR, 0o600)
    _files.take(lock)
    (folder / "new").rename(folder / "lock")  # held before anybody else can find it
    return folder, lock


def _sweep(parent: Path) -> None:
    """Remove what servers that were killed have left: folders of ours whose lock nobody holds."""
    for lock in parent.glob(f"{PREFIX}*/lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # another user's, or gone by now
        try:
            if os.fstat(descriptor).st_uid == os.getuid() and _files.take(descriptor):  # else its server lives
                shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(descriptor)


def _store(vectors: int) -> int:
    """How large a store to start: room for all that may be under way, but not more than half of the free memory."""
    wanted = max(LEAST_STORE, int(vectors / SPARE))
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return wanted
    return max(LEAST_STORE, min(wanted, free // 2))
