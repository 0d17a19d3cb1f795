"""The process that worker processes are forked from: it has loaded the task once, so a new worker is there in no time.

Forking from a small process that computes nothing is safe where forking the user's own (with its threads and its
device) is not. The children share the memory of the task until they write to it. When the server goes away, however
it goes, the nursery sees its line close, kills every worker and ends. If the nursery itself is killed, the kernel kills
the workers.

Nothing here reads a job or a vector. The nursery holds the pipes and the shared memory of a worker only from the
request until the fork: it closes its own copies right after. With a copy left open, the server could write jobs to a
dead worker without an error, and every restart would cost descriptors.

What happens if a process dies at a bad moment:

- The server, while the task is being loaded: loading may take minutes and reads no line, so the kernel kills the
  nursery (``_die_with``). Later the nursery notices by itself, and the tie to the server's thread is cut.
- The nursery, between a request and the fork: the worker never starts. The server sees the line close, and asks the
  next nursery for all workers again.
- The nursery, between the fork and the child's ``_die_with``: the child finds that it has another parent, and ends.
- A worker, before its end was reported: its process number stays taken until ``waitpid``, which only the nursery
  calls. So a signal from here can never reach a stranger.
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
from asyncsgd.engines._processes.worker import Place, serve
from asyncsgd.engines.base import limited
from asyncsgd.engines.job import JobRules

PR_SET_PDEATHSIG = 1


def main(descriptor: int, server: int) -> None:
    """Serve one server, the process with this number, until it hangs up."""
    _die_with(server)  # while the task is being loaded, nobody looks whether it hangs up
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then stops us
    for stream in (sys.stdout, sys.stderr):  # a worker that is killed flushes nothing
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)
    line = socket.socket(fileno=descriptor)
    Nursery(line).run()


class Nursery:
    """Requests come as lines of JSON with file descriptors beside them; answers are lines of JSON."""

    def __init__(self, line: socket.socket) -> None:
        self._line = line
        self._buffer = b""
        self._descriptors: list[int] = []
        self._children: dict[int, int] = {}  # pid -> worker
        self._task: Any = None
        self._work: Any = None
        self._wake, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def run(self) -> None:
        """Until the server hangs up; then nobody is left."""
        try:
            while self._wait():
                pass
        finally:
            for pid in self._children:
                os.kill(pid, signal.SIGKILL)
            for pid in self._children:  # in a container nobody else might, and they would stay as zombies
                os.waitpid(pid, 0)

    def _wait(self) -> bool:
        ready, _, _ = select.select([self._line.fileno(), self._wake], [], [])
        if self._wake in ready:
            os.read(self._wake, 4096)
            self._reap()
        if self._line.fileno() in ready:
            try:
                data, descriptors, _, _ = socket.recv_fds(self._line, 65536, 16)
            except ConnectionResetError:
                return False
            if not data:
                return False
            self._buffer += data
            self._descriptors += descriptors
            *lines, self._buffer = self._buffer.split(b"\n")
            for text in lines:
                self._obey(json.loads(text))
        return True

    def _obey(self, request: dict[str, Any]) -> None:
        match request["do"]:
            case "load":
                self._load()
            case "fork":
                self._fork(request)
            case "signal":  # sent from here, where no process number can have been given to somebody else meanwhile
                for pid, worker in self._children.items():
                    if worker == request["worker"]:
                        os.kill(pid, request["signal"])

    def _load(self) -> None:
        [package] = self._take(1)
        try:
            import cloudpickle

            # One thread: others that were started here would be missing in the children.
            with os.fdopen(package, "rb") as file, limited(1):
                file.seek(0)
                self._task, self._work = cloudpickle.load(file)
        except BaseException:
            self._answer(error=traceback.format_exc())
            return
        _die_with(None)  # from now on we look; the server may go on in another thread than the one that started us
        gc.collect()
        gc.freeze()  # a collection in a child would touch, and so copy, every page
        self._answer(loaded=True)

    def _fork(self, request: dict[str, Any]) -> None:
        worker = request["worker"]
        taken = self._take(6)
        nursery = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._grow_up(request, taken, nursery)
        for descriptor in taken:
            os.close(descriptor)
        self._children[pid] = worker
        self._answer(forked=worker, pid=pid)

    def _grow_up(self, request: dict[str, Any], taken: list[int], nursery: int) -> None:
        """In the child: become a worker, and never come back."""
        status = 1
        try:
            _die_with(nursery)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._line.close()
            inbox, outbox, *descriptors = taken
            place = Place(
                worker=request["worker"],
                inbox=inbox,
                outbox=outbox,
                shared=Shared.opened(descriptors, request["n"], request["dtype"], request["places"]),
                rules=JobRules(request["threads"], request["slowdown"], request["seconds"]),
            )
            serve(place, self._task, self._work)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        for pid in tuple(self._children):  # one by one: the task may have started processes of its own here
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._answer(ended=self._children.pop(pid), status=os.waitstatus_to_exitcode(status))

    def _take(self, count: int) -> list[int]:
        taken, self._descriptors = self._descriptors[:count], self._descriptors[count:]
        return taken

    def _answer(self, **words: Any) -> None:
        try:
            self._line.sendall(json.dumps(words).encode() + b"\n")
        except (BrokenPipeError, ConnectionResetError):
            return  # the server is gone: the next read says so


def _die_with(parent: int | None) -> None:
    """Linux: be killed when the parent dies, even in a call that holds Python's lock; with None, not any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, 0 if parent is None else signal.SIGKILL)
        if parent is not None and os.getppid() != parent:
            os._exit(1)
