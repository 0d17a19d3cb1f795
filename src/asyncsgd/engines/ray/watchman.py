"""A process that outlives a killed server for a moment, to end what Ray leaves behind then.

Ray's main processes die with the server, but two helpers of its raylet live on for minutes. Run as a program, with
nothing but the standard library: ``watchman.py (descriptor) (process of the raylet) (process group of the server)``.
"""

from __future__ import annotations

import os
import select
import signal
import sys

SECONDS = 30
"""That the raylet may take to die."""


def main(line: int, raylet: int, group: int) -> None:
    """Wait until the server says good-bye, or is gone without a word."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        watched = os.pidfd_open(raylet)
    except ProcessLookupError:
        return
    if os.read(line, 1):
        return
    select.select([watched], [], [], SECONDS)
    for process in orphans(group, living()):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it went by itself


def living() -> dict[int, tuple[str, int, int]]:
    """All processes: (name, parent, group)."""
    found = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
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
    main(*map(int, sys.argv[1:]))
