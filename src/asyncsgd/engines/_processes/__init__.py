"""Worker processes on this machine, with shared memory for parameters and updates.

``engine`` what the user asks for · ``crew`` the live workers, seen from the server · ``nursery`` the small process that
forks them · ``worker`` what each of them does · ``memory`` and ``messages`` what they share and say.
"""

from asyncsgd.engines._processes.engine import Processes, processes

__all__ = ["Processes", "processes"]
