"""Signals that stop a run: they wait until the event at hand is handled."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self


class Interrupts:
    """Postpone the first SIGINT or SIGTERM until the event at hand is handled; a second signal acts at once.

    A signal in the middle of an event would save a state that is half updated. The loop therefore reads ``received``
    between two events. Python runs signal handlers in the main thread only, so elsewhere nothing is installed.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (
                    signal.SIG_IGN,
                    None,
                ):  # None: installed by C code, so Python cannot restore it
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
        """End the call as the signal asked, after everything was saved."""
        kept = f"saved in {directory}: continue with resume=True" if directory else "nothing was saved (no directory)"
        text = f"stopped by {received.name} at iteration {iteration}; {kept}"
        if received is signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(text)
