"""A run that Flower ends is saved first, also where the ServerApp is not in the main thread.

`flwr stop`, and whatever else ends an app, comes as a signal, which only the main thread hears. In a deployment that is
ours. The simulation engine runs the ServerApp in another thread, and Flower's main thread would end the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PATIENCE = 60.0
"""Seconds that the run gets to write its checkpoint."""


@contextmanager
def saved_before_exit(stop: Callable[[], None]) -> Iterator[None]:
    """While it is entered, Flower's exit calls ``stop`` and waits until this is left."""
    if threading.current_thread() is threading.main_thread():  # asyncsgd.run.interrupts hears the signal itself
        yield
        return
    from flwr.supercore.exit import add_exit_handler

    left = threading.Event()
    to_stop = [stop]  # emptied at the end, as Flower keeps the handler and with it whatever it refers to

    def leave() -> None:
        for call in to_stop:
            call()
            left.wait(PATIENCE)

    add_exit_handler(leave, run_before_force_exit=True)
    try:
        yield
    finally:
        to_stop.clear()
        left.set()
