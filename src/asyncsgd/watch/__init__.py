"""A run seen from another process, while it goes on or afterwards: the run directory is all that is read.

``tails`` what was appended since the last look · ``tally`` counts that grow · ``watcher`` looks · ``frame`` what it
sees · ``view`` the terminal · ``show`` the command.
"""

from asyncsgd.watch.frame import Frame, Note, WorkerSeen
from asyncsgd.watch.watcher import Watcher

__all__ = ["Frame", "Note", "Watcher", "WorkerSeen"]
