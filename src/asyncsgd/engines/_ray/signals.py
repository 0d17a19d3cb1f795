"""Signals that must not be lost in code of others."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ENDED_BY_SIGTERM = 128 + signal.SIGTERM


@contextmanager
def not_swallowed() -> Iterator[None]:
    """Raise at the end what SIGTERM or Ctrl-C raised inside, if the code there swallowed it.

    A handler's exception may come up anywhere, also where Python ignores exceptions, as in a ``__del__``. The kernel's
    signals are therefore read a second time, from the descriptor that Python writes their numbers to. Nothing is read
    outside the main thread, or if an event loop has set that descriptor already.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        try:
            yield
        finally:
            if before == -1:
                signal.set_wakeup_fd(-1)
        try:
            received = reader.recv(1024)
        except BlockingIOError:
            return
    if signal.SIGTERM in received:
        raise SystemExit(ENDED_BY_SIGTERM)
    if signal.SIGINT in received and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        raise KeyboardInterrupt
