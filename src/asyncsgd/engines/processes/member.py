"""What the server holds for one worker process: its pipe, and its places for updates."""

from __future__ import annotations

import os
import signal

AHEAD = 2
"""Jobs that a worker may hold: it computes one while the update of the one before is applied. Each has its own place
for the update, which is free again once the update was used or will never come."""


class WorkerHandle:
    """Written to by the pool alone.

    A place is always in one of three states: free, with a job that was sent (`Lifecycle` keeps it with the job), or
    unused, which means that its update was reported and the server may still read it. Only a free place is given to
    a job, so no worker writes where the server reads.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox = -1
        self.places = range(AHEAD * number, AHEAD * (number + 1))
        self.free = list(self.places)
        self.unused: dict[int, int] = {}  # job -> place of its update, of those that the last poll reported

    def hang_up(self) -> None:
        """Close the pipe to the process, which then ends if it is idle."""
        if self.inbox >= 0:
            os.close(self.inbox)
            self.inbox = -1

    def forget(self) -> None:
        """Its process is gone, and with it the jobs. Updates that it has reported stay where they are."""
        self.hang_up()
        self.free = [place for place in self.places if place not in self.unused.values()]


def explain(status: int) -> str:
    """What an exit status says of a process that ended.

    >>> explain(3), explain(-11)
    ('ended by itself with exit code 3', 'was killed by SIGSEGV')
    """
    if status >= 0:
        return f"ended by itself with exit code {status}"
    hint = ", perhaps because memory ran out" if status == -signal.SIGKILL else ""
    known = -status in set(signal.Signals)  # most real-time signals have no name
    return f"was killed by {signal.Signals(-status).name if known else f'signal {-status}'}{hint}"
