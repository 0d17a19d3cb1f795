"""A process that ends what Ray leaves behind, when the server is killed or its start comes to nothing.

Ray's main processes die with a killed server, but two helpers of its raylet live on for minutes; and of a start that
was interrupted Ray itself ends nothing. Run as a program, with nothing but the standard library: ``watchman.py
(descriptor) (folder of the cluster) (process group of the server)``.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

SECONDS = 30
"""That what was killed may take to die."""


def main(line: int, folder: str, group: int) -> None:
    """Wait until the server says good-bye, or is gone without a word, or hangs up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if os.read(line, 1):
        return
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        processes = living()
        found = naming(folder, group, processes) or orphans(group, processes)
        if not found:
            return
        end(found, deadline)


def end(processes: list[int], deadline: float) -> None:
    """Kill them, and wait until they are gone."""
    watched = []
    try:
        for process in processes:
            try:
                watched.append(os.pidfd_open(process))
                signal.pidfd_send_signal(watched[-1], signal.SIGKILL)
            except ProcessLookupError:
                continue  # it went by itself
        for descriptor in watched:
            select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
    finally:
        for descriptor in watched:
            os.close(descriptor)


def naming(folder: str, group: int, processes: dict[int, tuple[str, int, int]]) -> list[int]:
    """Processes of this group that were told of the folder when they were started."""
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
    """All processes: (name, parent, group)."""
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
    """Processes of this group that belonged to a raylet which is gone: Ray's, and no raylet is above them.

    Another run of the same group has a raylet that lives, and its workers may have children of their own.

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
