"""The server's connection to the fork server: start it, send it the task, request workers, read how they ended.

Requests and answers are lines of JSON over one socket pair. Only the server's polling thread uses this end. File
descriptors (pipes, shared memory) travel beside the line that needs them, and arrive in the same order as the lines.

Only the first request (``load``) waits for its answer. If the fork server dies, a request is lost without an error:
``lost`` becomes true, either at once or at the next `read`, and the pool then starts another one with `restart`. The
pickled task is a file in memory that outlives the fork server, so the task is pickled only once.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from typing import Any

from asyncsgd.core.errors import EngineError, UsageError
from asyncsgd.core.work import Work
from asyncsgd.engines._processes.shared_memory import anonymous_file
from asyncsgd.tasks.base import Task
from asyncsgd.tasks.check import why_not_sent


class ForkClient:
    """A fork server that has loaded the task, and the socket to it."""

    def __init__(self, task: Task, work: Work, dtype: str, timeout: float) -> None:
        self._timeout = timeout
        self._package = anonymous_file("asyncsgd-task")  # the pickled task; -1 once closed
        try:
            self._pack(task, work, dtype)
        except BaseException:
            os.close(self._package)
            raise
        self._start()

    def _pack(self, task: Task, work: Work, dtype: str) -> None:
        import cloudpickle

        with os.fdopen(os.dup(self._package), "wb") as file:
            try:
                cloudpickle.dump((task, work, dtype), file)
            except Exception as error:
                raise UsageError(
                    f"the task cannot be sent to worker processes ({why_not_sent(task, error)}); keep "
                    "open files, locks and connections out of it, or open them when first used"
                ) from error

    def _start(self) -> None:
        self.lost = False
        self._buffer = b""
        self._socket, other = socket.socketpair()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _program(other.fileno())],
                pass_fds=[other.fileno()],
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # the terminal sends Ctrl-C and SIGHUP to the server alone
            )
        finally:
            other.close()
        try:
            self.send({"do": "load"}, [self._package])
            self._await_loaded()
        except BaseException:
            self._process.kill()  # it has no workers yet, and loading might never end
            self.close()
            raise

    def _await_loaded(self) -> None:
        deadline = time.monotonic() + self._timeout
        while (left := deadline - time.monotonic()) > 0 and not self.lost:
            select.select([self._socket], [], [], left)
            for answer in self.read():
                if "error" in answer:
                    raise UsageError(
                        "the task cannot be loaded in a worker process; let it come from a module that can be imported "
                        f"there, or define it in the script itself. The worker process raised:\n{answer['error']}"
                    )
                return
        if self.lost:
            raise EngineError(f"the process that starts workers ended with exit code {self._process.wait()}")
        raise EngineError(f"the task was not loaded in {self._timeout:g} s; pass a larger start_timeout")

    @property
    def descriptor(self) -> int:
        """The socket's descriptor, to poll for answers."""
        return self._socket.fileno()

    @property
    def readable(self) -> bool:
        """Whether `read` would return something now."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def send(self, request: dict[str, Any], descriptors: list[int]) -> None:
        """Send a request. If the fork server is dead, set ``lost`` and drop the request."""
        try:
            socket.send_fds(self._socket, [json.dumps(request).encode() + b"\n"], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            self.lost = True

    def signal(self, worker: int, number: int) -> None:
        """Ask the fork server to signal this worker, if it is still alive."""
        self.send({"do": "signal", "worker": worker, "signal": int(number)}, [])

    def read(self) -> list[dict[str, Any]]:
        """Return the answers that can be read without waiting."""
        answers: list[dict[str, Any]] = []
        while not self.lost and self.readable:
            try:
                data = self._socket.recv(65536)
            except ConnectionResetError:
                data = b""
            if not data:
                self.lost = True
            self._buffer += data
            *lines, self._buffer = self._buffer.split(b"\n")
            answers += [json.loads(line) for line in lines]
        return answers

    def restart(self) -> None:
        """Start another fork server with the same task, after the last one died."""
        self._disconnect()
        self._start()

    def close(self) -> None:
        """Close the socket, upon which the fork server kills its workers and ends. Wait until it has ended."""
        self._disconnect()
        if self._package >= 0:
            os.close(self._package)
            self._package = -1

    def _disconnect(self) -> None:
        self._socket.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _program(descriptor: int) -> str:
    """Return the fork server's program. It has our module path, and never runs the user's script."""
    path = [entry or os.getcwd() for entry in sys.path if isinstance(entry, str)]
    module = "asyncsgd.engines._processes.fork_server"
    return f"import sys; sys.path[:] = {path!r}; from {module} import main; main({descriptor}, {os.getpid()})"
