"""Ctrl-C and SIGTERM between two events, never in the middle of one: the state that is then saved is whole."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self


class Interrupts:
    """While it is entered, the first SIGINT or SIGTERM is only noted; a second one acts at once, as usual."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's, so not ours to restore
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._restore()
            signal.raise_signal(number)
        self.received = signal.Signals(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._restore()

    @staticmethod
    def raise_it(received: signal.Signals, iteration: int, directory: Path | None) -> NoReturn:
        """What the signal asked for, now that everything is saved."""
        kept = f"saved in {directory}: go on with resume=True" if directory else "nothing was kept (no directory)"
        words = f"stopped by {received.name} at iteration {iteration}; {kept}"
        if received is signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(words)
