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
    for process in orphans(group):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            continue  # it went by itself


def orphans(group: int) -> list[int]:
    """Processes of this group that belonged to a raylet which is gone."""
    names, parents = {}, {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat") as file:
                    name, _, rest = file.read().partition("(")[2].rpartition(")")
                state, parent, its_group = rest.split()[:3]
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has just ended
            if state != "Z":
                names[int(entry)] = name
            if int(its_group) == group:
                parents[int(entry)] = int(parent)
    return [
        process
        for process, parent in parents.items()
        if names.get(process, "").startswith("ray::") and names.get(parent) != "raylet"
    ]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
