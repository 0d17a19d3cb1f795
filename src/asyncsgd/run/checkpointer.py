"""Decide when the server's state is saved, copy it, and let the run directory write the copy in the background."""

from __future__ import annotations

import time
from pathlib import Path

from asyncsgd.core.server import Server
from asyncsgd.core.vectors import is_finite
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.options import Checkpoints
from asyncsgd.trace import Recorder


class Checkpointer:
    """Saves the server's state. Updates wait only while the state is copied; at most one checkpoint is in flight.

    Only the loop's thread uses it. The copy belongs to the thread that writes it, and its memory is freed with the last
    byte: between two checkpoints it costs nothing.
    """

    def __init__(self, options: Checkpoints, files: RunDirectory) -> None:
        self._options, self._files = options, files
        self._next = 0.0
        self._began: float | None = None  # when the checkpoint that is being written was begun

    def begin(self, now: float) -> None:
        """Count the seconds from now on."""
        self._next = now + self._options.seconds

    def due_after(self, iteration: int) -> bool:
        """Return whether a checkpoint is due after the update that made this iteration."""
        return self._options.every is not None and iteration % self._options.every == 0

    def due_at(self, now: float) -> bool:
        """Return whether a checkpoint is due by the clock. While one is written, none is."""
        return self._options.every is None and self._began is None and now >= self._next

    def save(self, server: Server, recorder: Recorder, seconds: float, callbacks: str, *, sound: bool) -> None:
        """Start to write a checkpoint with the state of the callbacks; `written` returns it.

        The one before must have been written. Of a model that is not ``sound`` or not finite, only the other files are
        written: the last good checkpoint is worth more than one of a model that has blown up.
        """
        if sound and is_finite(server.x):
            self._began = time.monotonic()
            # A resume drops the jobs in flight, so no worker will read their points again.
            state = server.state(in_flight=False)
            if callbacks:
                state["callbacks"] = callbacks
            self._files.begin_checkpoint(state, seconds, recorder, self._options.keep)
        else:
            self._files.flush(recorder, sync=True)
            self.begin(time.monotonic())

    def written(self, *, wait: bool) -> Path | None:
        """Return the path of the checkpoint that was begun, once, as soon as it is written.

        An error of the thread that writes it, such as a full disk, is raised here, in the loop.
        """
        if self._began is None:
            return None
        began = self._began
        try:
            saved = self._files.written(wait=wait)
        except Exception:
            self._began = None
            raise
        if saved is None:
            return None
        self._began = None
        self._next = saved.at + max(self._options.seconds, 20 * (saved.at - began))  # a twentieth of the time at most
        return saved.path
