"""The fork server: the process that forks all workers. It loads the task once, so that a new worker starts in no time.

Forking the user's own process, with its threads and devices, would not be safe. Forking this small process, which
computes nothing, is. The children share the memory of the task until they write to it. When the server ends for any
reason, the socket closes; the fork server then kills every worker and ends. If the fork server itself is killed, the
kernel kills the workers.

The fork server has one thread, and never reads a job or a vector. It holds the pipes and the shared memory of a worker
only from the request until the fork, and closes its own copies right after. If it kept a copy, the server could write
jobs to a dead worker without an error, and every restart would cost descriptors.

What happens if a process dies at a bad moment:

- The server, while the task is being loaded: loading may take minutes and does not watch the socket, so the kernel
  kills the fork server (``_die_with``). After loading, the fork server watches the socket itself and removes the tie:
  the kernel would otherwise kill it when the server's *thread* that started it ends.
- The fork server, between a request and the fork: the worker never starts. The server sees the socket close, starts
  another fork server, and requests all workers again.
- The fork server, between the fork and the child's ``_die_with``: the child sees that its parent has changed, and ends.
- A worker, before its end was reported: its process id stays taken until ``waitpid``, which only the fork server
  calls. So a signal from the fork server can never reach an unrelated process.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import socket
import sys
import traceback
from io import TextIOWrapper
from typing import Any

from asyncsgd.engines._processes.shared_memory import Shared
from asyncsgd.engines._processes.worker import WorkerSetup, serve
from asyncsgd.engines.base import limited
from asyncsgd.engines.job import JobRules, load_compiled

PR_SET_PDEATHSIG = 1


def main(descriptor: int, server: int) -> None:
    """Serve one server, the process with this id, until it closes the socket."""
    _die_with(server)  # loading the task does not watch the socket
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the server handles Ctrl-C, and then stops this process
    for stream in (sys.stdout, sys.stderr):  # a worker that is killed does not flush its buffers
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    connection = socket.socket(fileno=descriptor)
    ForkServer(connection).run()


class ForkServer:
    """Handles requests, which are lines of JSON with file descriptors beside them. Answers are lines of JSON too."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._buffer = b""
        self._descriptors: list[int] = []
        self._children: dict[int, int] = {}  # pid -> worker
        self._task: Any = None
        self._work: Any = None
        # A child's end must interrupt `select`. The handler of SIGCHLD does nothing, but Python writes a byte to this
        # pipe for every signal that has a handler, and `select` waits for the pipe too. No signal is lost in between.
        self._wake, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Handle requests until the server closes the socket, then kill every worker."""
        try:
            while self._wait():
                pass
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)
            for pid in self._children:  # in a container no other process may reap them, and they would stay zombies
                os.waitpid(pid, 0)

    def _wait(self) -> bool:
        ready, _, _ = select.select([self._socket.fileno(), self._wake], [], [])
        if self._wake in ready:
            os.read(self._wake, 4096)
            self._reap()
        if self._socket.fileno() in ready:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._socket, 65536, 16)
            except ConnectionResetError:
                return False
            if not data:
                return False
            self._buffer += data
            self._descriptors += descriptors
            *lines, self._buffer = self._buffer.split(b"\n")
            for text in lines:
                self._handle(json.loads(text))
        return True

    def _handle(self, request: dict[str, Any]) -> None:
        match request["do"]:
            case "load":
                self._load()
            case "fork":
                self._fork(request)
            case "signal":  # sent by this process, whose children keep their process ids until it reaps them
                for pid, worker in self._children.items():
                    if worker == request["worker"]:
                        os.kill(pid, request["signal"])

    def _load(self) -> None:
        [package] = self._take(1)
        try:
            import cloudpickle

            # One thread: a fork copies only the thread that calls it, so a library's other threads would be missing.
            with os.fdopen(package, "rb") as file, limited(1):
                file.seek(0)
                self._task, self._work, dtype = cloudpickle.load(file)
                load_compiled(self._work, dtype)  # once here, not at the first job of every worker
        except BaseException:
            self._answer(error=traceback.format_exc())
            return
        _die_with(None)  # from now on this process watches the socket; see the module's docstring
        gc.collect()
        gc.freeze()  # otherwise a garbage collection in a child would touch every page, and so copy it
        self._answer(loaded=True)

    def _fork(self, request: dict[str, Any]) -> None:
        worker = request["worker"]
        taken = self._take(6)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_worker(request, taken, parent)
        for descriptor in taken:
            os.close(descriptor)
        self._children[pid] = worker
        self._answer(forked=worker, pid=pid)

    def _become_worker(self, request: dict[str, Any], taken: list[int], parent: int) -> None:
        """Run a worker in the child, and end the process. This never returns.

        The order matters: first tie the child to its parent, then undo the parent's signal handling, and close the
        child's copy of the socket. With that copy left open, the server would not notice the death of the fork server.
        """
        status = 1
        try:
            _die_with(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._socket.close()
            inbox, outbox, *descriptors = taken
            place = WorkerSetup(
                worker=request["worker"],
                inbox=inbox,
                outbox=outbox,
                shared=Shared.opened(descriptors, request["n"], request["dtype"], request["places"]),
                note=request["note"],
                device=request["device"],
                rules=JobRules(request["threads"], request["slowdown"], request["min_seconds"]),
            )
            serve(place, self._task, self._work)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        for pid in tuple(self._children):  # by id, as the task may have started processes of its own in this process
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._answer(ended=self._children.pop(pid), status=os.waitstatus_to_exitcode(status))

    def _take(self, count: int) -> list[int]:
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def _answer(self, **fields: Any) -> None:
        try:
            self._socket.sendall(json.dumps(fields).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # the server is gone, which the next read of the socket shows


def _die_with(parent: int | None) -> None:
    """Let the kernel kill this process when its parent dies (Linux only). None removes that tie.

    The kernel does so even while a call holds Python's lock. The parent may have died before the tie was made, so the
    parent's id is compared afterwards.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0 if parent is None else signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)
