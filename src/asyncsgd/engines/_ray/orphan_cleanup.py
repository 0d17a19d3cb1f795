"""A process that kills what Ray leaves behind if the server is killed, or if the start of Ray fails.

Ray's main processes end with a killed server, but two helpers of its raylet live on for minutes. After an interrupted
start Ray itself ends nothing. So the server starts this file as a program beside itself, with a pipe between the two:

- The server closes Ray cleanly: it writes a byte to the pipe, and the program ends without killing anything.
- The server fails to start Ray: it closes the pipe, and waits until the program has killed the processes.
- The server is killed: the kernel closes the pipe, and the program kills the processes. It is in a session of its own
  and ignores signals, so that Ctrl-C does not end it together with the server.

The program runs as ``python -I -S orphan_cleanup.py (descriptor) (folder of the cluster) (process group of the
server)``. It must start fast and anywhere, so this file imports only the standard library.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

SECONDS = 30
"""Time limit for killed processes to end."""


class OrphanCleanup:
    """The server's side: starts the program, and tells it whether Ray has ended cleanly."""

    def __init__(self, folder: Path) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "pidfd_open"):
            return
        reader, self._writer = os.pipe()
        try:
            program = [sys.executable, "-I", "-S", str(Path(__file__))]
            arguments = [str(reader), str(folder), str(os.getpgid(0))]
            self._process = subprocess.Popen([*program, *arguments], pass_fds=[reader], start_new_session=True)
        except BaseException:
            os.close(self._writer)
            raise
        finally:
            os.close(reader)

    def end(self, *, clean: bool) -> None:
        """End the program. Unless ``clean``, it first kills the processes of the cluster."""
        if self._process is None:
            return
        process, self._process = self._process, None
        try:
            if clean:
                with suppress(BrokenPipeError):  # the program was killed
                    os.write(self._writer, b".")
        finally:
            os.close(self._writer)
        process.wait()


def main(reader: int, folder: str, group: int) -> None:
    """Wait for the server to end or to close the pipe. Unless it wrote a byte first, kill what Ray left behind."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(reader, 1):
        return
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        processes = living()
        found = naming(folder, group, processes) or orphans(group, processes)
        if not found:
            return
        end(found, deadline)


def end(processes: list[int], deadline: float) -> None:
    """Kill these processes, and wait until they are gone."""
    watched = []
    try:
        for process in processes:
            try:
                watched.append(os.pidfd_open(process))
                signal.pidfd_send_signal(watched[-1], signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself
        for descriptor in watched:
            select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        for descriptor in watched:
            os.close(descriptor)


def naming(folder: str, group: int, processes: dict[int, tuple[str, int, int]]) -> list[int]:
    """Return the processes of this group whose command line names the folder."""
    found = []
    for process, (_, _, its_group) in processes.items():
        if its_group == group:
            try:
                with open(f"/proc/{process}/cmdline", "rb") as file:
                    if os.fsencode(folder) in file.read():
                        found.append(process)
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
    return found


def living() -> dict[int, tuple[str, int, int]]:
    """Return all processes that are not zombies, as id -> (name, parent, group)."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file:  # names are any bytes
                    name, _, rest = file.read().partition("(")[2].rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            state, parent, group = rest.split()[:3]
            if state != "Z":
                found[int(entry)] = name, int(parent), int(group)
    return found


def orphans(group: int, processes: dict[int, tuple[str, int, int]]) -> list[int]:
    """Return Ray's processes of this group that have no raylet among their ancestors: their raylet is gone.

    Another run in the same group has a living raylet, and its workers may have children of their own.

    >>> orphans(7, {2: ("raylet", 1, 7), 3: ("ray::Worker", 2, 7), 4: ("ray::Worker", 3, 7), 5: ("ray::Worker", 1, 7)})
    [5]
    """

    def has_raylet(process: int) -> bool:
        while process in processes:
            name, process, _ = processes[process]
            if name == "raylet":
                return True
        return False

    return [
        process
        for process, (name, _, its_group) in processes.items()
        if its_group == group and name.startswith("ray::") and not has_raylet(process)
    ]


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
