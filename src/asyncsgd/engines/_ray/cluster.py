"""The Ray cluster of a run: the one this process is connected to, one at an address, or one started for the run."""

from __future__ import annotations

import importlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

from asyncsgd import _files
from asyncsgd.core.errors import EngineError, MissingLibrary, UsageError
from asyncsgd.engines._ray import Ray
from asyncsgd.engines._ray.orphan_cleanup import OrphanCleanup
from asyncsgd.engines._ray.signals import ENDED_BY_SIGTERM, not_swallowed

LOOPBACK = "127.0.0.1"
LONGEST_FOLDER = 36
"""Characters: the path of a socket may have 107, and Ray adds "/ray/session_(date)_(process)/sockets/plasma_store"."""
PREFIX = "asgd-ray-"
LEAST_STORE = 100 * 1024**2
SPARE = 0.6
"""The fraction of the object store that vectors may fill. The rest is for Ray, for the task, and for fragmentation."""

ANSWER = 5.0
"""Seconds in which the process at the address must answer. Ray itself tries for 107."""
NEARBY = 5.0
"""Seconds in which a node of the cluster must be found on this machine. Ray itself looks for 60."""

GIVES_UP = 50.0
"""Ray tries at least this many seconds to connect before it gives up."""

SETTINGS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the future default of Ray, which warns if it is not set
}


CLUSTERS = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""With 0, Ray keeps 127.0.0.1, instead of replacing it by an address that other machines can reach."""


class Cluster:
    """A connection to Ray. `close` ends everything that was started for it."""

    def __init__(self, engine: Ray, vectors: int) -> None:
        """Connect. ``vectors`` is the number of bytes of all points and updates that may be under way at once."""
        self._folder: Path | None = None
        self._cleanup: OrphanCleanup | None = None
        self._connected = self._up = False
        self.environment: dict[str, Any] | None = None
        """The ``runtime_env`` of each worker. None: the connection has it already, for all workers."""
        self._handler = signal.getsignal(signal.SIGTERM)  # Ray installs its own; `close` restores this one
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
        self._cleanup = OrphanCleanup(self._folder)
        total: dict[str, float] = {}
        for group in engine.group:
            for name, amount in group.needs.items():
                total[name] = total.get(name, 0.0) + amount
        graphics = total.pop("GPU", 0.0)
        # On one machine Ray's processors are only numbers for placing workers: several workers may share a processor.
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
        complaint = f"the Ray cluster at {address} refused the connection"
        near = address.rpartition(":")[0] in (LOOPBACK, "localhost", "[::1]")
        with loopback() if near else nullcontext():
            probe(address)
            self._init(complaint, address=address, **_common(engine))

    def _init(self, complaint: str, **options: Any) -> None:
        self._connected = True
        began = time.monotonic()
        try:
            with not_swallowed(), warnings.catch_warnings():
                warnings.simplefilter("ignore")  # Ray leaves files open while it starts its processes
                self.ray.init(logging_level="error", configure_logging=False, **options)
        except Exception as error:
            raise EngineError(f"{complaint}: {type(error).__name__}: {error}") from error
        except SystemExit as error:
            # Ray's handler of SIGTERM raises this. Ray itself also sends SIGTERM to this process when it gives up, so
            # the time tells the two cases apart.
            seconds = time.monotonic() - began
            if error.code == ENDED_BY_SIGTERM or seconds < GIVES_UP:
                raise SystemExit(ENDED_BY_SIGTERM) from error
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
        """Return a text about the cluster's nodes and its free resources."""
        everything, free = self.ray.cluster_resources(), self.ray.available_resources()
        nodes = sum(bool(node["Alive"]) for node in self.ray.nodes())
        resources = [
            f"{free.get(name, 0.0):g} of {amount:g} {name}"
            for name, amount in sorted(everything.items())
            if not name.startswith("node:") and name not in ("memory", "object_store_memory")
        ]
        return f"{nodes} nodes with {', '.join(resources) or 'nothing'} free"

    def close(self) -> None:
        """Disconnect, and end a cluster that was started for this run."""
        clean = False
        try:
            self._disconnect()
            clean = self._up  # if the start did not finish, Ray may leave any of its processes behind
        finally:
            if self._cleanup is not None:
                self._cleanup.end(clean=clean)
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                os.close(self._lock)
                self._folder = None

    def _disconnect(self) -> None:
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


# ---------------------------------------------------------------------------------------------- connecting


@contextmanager
def _settings() -> Iterator[None]:
    """Set `SETTINGS`, which Ray reads at import and when it starts processes. The user's own values win."""
    missing = [name for name in SETTINGS if name not in os.environ]
    os.environ.update({name: SETTINGS[name] for name in missing})
    try:
        yield
    finally:
        for name in missing:
            os.environ.pop(name, None)


@contextmanager
def loopback() -> Iterator[None]:
    """Keep Ray on loopback: in this process by its constant, in Ray's processes by the environment."""
    constants: Any = importlib.import_module("ray._private.ray_constants")
    before, given = getattr(constants, "ENABLE_RAY_CLUSTER", None), os.environ.get(CLUSTERS)
    os.environ[CLUSTERS] = "0"
    if before is not None:  # else a version of Ray with other internal names
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
    """Return the options of every connection. Ray sends a local directory only if it is named when connecting."""
    environment = engine.runtime_env
    return {"log_to_driver": engine.logs, "runtime_env": None if environment is None else dict(environment)}


def _found() -> str:
    """Return the address of the cluster that this machine belongs to."""
    given = os.environ.get("RAY_ADDRESS", "")
    if given not in ("", "auto"):
        return given
    try:
        from ray._private.services import canonicalize_bootstrap_address
    except ImportError as error:
        raise EngineError("address = 'auto' cannot be looked up with this version of Ray; pass host:6379") from error
    try:
        with loopback():  # else Ray replaces 127.0.0.1 by an address at which a cluster on loopback does not listen
            found = canonicalize_bootstrap_address("auto")
    except ConnectionError:
        found = None
    if found is None:
        raise EngineError(
            "address = 'auto' found no Ray cluster: RAY_ADDRESS names none, and none was started on this machine; "
            "start one with `ray start --head`, pass its address, or leave the address out to start one for this run"
        )
    return str(found)


PROBE = """
import signal, sys
sys.path[:] = {path!r}
try:
    from ray._private.services import GcsClient, get_node_to_connect_for_driver
except ImportError:
    sys.exit()  # a version of Ray with other internal names: the connection itself will show what is wrong
signal.signal(signal.SIGALRM, signal.SIG_DFL)
signal.setitimer(signal.ITIMER_REAL, {answer})
head = GcsClient(address={address!r})
signal.setitimer(signal.ITIMER_REAL, {answer} + {nearby})
try:
    get_node_to_connect_for_driver(head, timeout_seconds={nearby})
except TypeError:
    pass
"""
"""The program that asks Ray's own client whether a head node answers, and whether this machine is one of its nodes. It
runs in a process of its own, because that client waits for half a minute, or ends the process, if anything else listens
at the address. The alarm ends the process even inside the client's compiled code."""


def probe(address: str) -> None:
    """Raise `EngineError` within seconds unless a Ray cluster answers at the address, and this machine is its node.

    Without this check Ray itself would try for minutes, and end with an error that does not name the cause.
    """
    if address.startswith("ray://"):
        raise EngineError(
            f"address = {address!r} is a proxy that would copy every vector; run this on a node of the cluster "
            "with address = 'auto', or pass host:6379"
        )
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdigit():
        raise EngineError(f"address = {address!r} has no port; write host:6379 or auto")
    hint = "is the head node up (`ray start --head`), and the port open from here?"
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=ANSWER).close()
    except TimeoutError as error:
        raise EngineError(f"no answer from {address} in {ANSWER:g} s; {hint}") from error
    except OSError as error:
        raise EngineError(f"no Ray cluster can be reached at {address} ({error.strerror or error}); {hint}") from error
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    program = PROBE.format(path=path, address=address, answer=ANSWER, nearby=NEARBY)
    done = subprocess.run([sys.executable, "-c", program], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return
    reason = (done.stderr.strip().splitlines() or [f"Ray's client ended with exit code {done.returncode}"])[-1]
    if reason.startswith("RuntimeError: "):
        raise EngineError(
            f"this machine is not a node of the Ray cluster at {address} ({reason.partition(': ')[2]}); make it one "
            f"with `ray start --address={address}`, or train on a node of the cluster"
        )
    why = f"no answer in {ANSWER:g} s" if done.returncode == -signal.SIGALRM else reason.rstrip(" :")
    raise EngineError(
        f"the process at {address} is not a Ray cluster ({why}); check the address, which may be that of a cluster "
        "that has ended"
    )


def check_connected(ray: Any, engine: Ray) -> None:
    """Raise `UsageError` if this process is connected to another cluster, or too early for ``working_dir``."""
    here = ray.get_runtime_context().gcs_address
    if engine.address not in (None, "auto") and _place(engine.address) != _place(here):
        raise UsageError(
            f"address = {engine.address!r}, but this process is connected to the Ray cluster at {here}; leave the "
            "address out, or call ray.shutdown() first"
        )
    directory = str((engine.runtime_env or {}).get("working_dir", ""))
    if directory and "://" not in directory:
        raise UsageError(
            f"working_dir = {directory!r} cannot be sent, as this process is already connected to Ray; "
            "pass runtime_env to ray.init(...), or call ray.shutdown() first"
        )


def _place(address: str) -> tuple[str, str]:
    """Return (IP address, port), so that two names of one machine compare equal; an unknown name is returned as is."""
    host, _, port = address.rpartition(":")
    try:
        return str(socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0][4][0]), port
    except OSError:
        return host, port


def _folder() -> tuple[Path, int]:
    """Make a private folder for Ray's files. Return it with the descriptor of a lock, held while this process lives.

    Ray puts sockets deep into the folder, and their paths have a limit, so the folder's own path must be short.
    """
    parent = tempfile.gettempdir()
    if len(parent) + 1 + len(PREFIX) + 8 > LONGEST_FOLDER and os.path.isdir("/tmp"):
        parent = "/tmp"
    _sweep(Path(parent))
    folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    lock = os.open(folder / "new", os.O_CREAT | os.O_RDWR, 0o600)
    _files.take(lock)
    (folder / "new").rename(folder / "lock")  # the lock is held before `_sweep` of another process can find it
    return folder, lock


def _sweep(parent: Path) -> None:
    """Remove the folders of servers that were killed: those whose lock no process holds."""
    for lock in parent.glob(f"{PREFIX}*/lock"):
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:
            continue  # it belongs to another user, or is gone by now
        try:
            if os.fstat(descriptor).st_uid == os.getuid() and _files.take(descriptor):  # else its server is alive
                shutil.rmtree(lock.parent, ignore_errors=True)
        finally:
            os.close(descriptor)


def _store(vectors: int) -> int:
    """Return the size of the object store: room for all vectors under way, but at most half of the free memory."""
    wanted = max(LEAST_STORE, int(vectors / SPARE))
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return wanted
    return max(LEAST_STORE, min(wanted, free // 2))
