"""The last good model of a run: what a run that diverges returns."""

from __future__ import annotations

from pathlib import Path

from asyncsgd.core.errors import BadCheckpoint
from asyncsgd.core.vectors import Vector
from asyncsgd.run import checkpoints

LARGE = 64 << 20
"""Bytes of a model from which on the last good one is not kept in memory, if the run has a directory."""


def on_disk(x: Vector, *, directory: bool) -> bool:
    """Return whether the last good model is read from a checkpoint, rather than kept in memory."""
    return directory and x.nbytes >= LARGE


class LastGood:
    """The newest model with finite metrics. Of a large model it remembers the iteration, and the disk has the rest.

    A large model is then that of the newest checkpoint not after this iteration. If all of these were replaced by newer
    ones (a small ``keep``), it is that of the oldest checkpoint: a checkpoint's model is always finite, but nothing is
    known about its metrics.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._iteration: int | None = None
        self._x: Vector | None = None

    @property
    def known(self) -> bool:
        """Whether there is such a model."""
        return self._iteration is not None

    def keep(self, iteration: int, x: Vector, *, changes: bool = False) -> None:
        """Remember that the model of this iteration is good; pass ``changes`` if x is not a copy."""
        self._iteration, self._x = iteration, None
        if not on_disk(x, directory=self._directory is not None):
            self._x = x.copy() if changes else x

    def model(self) -> tuple[int, Vector] | None:
        """Return the iteration and a copy of the model; None if there is none, or no checkpoint can be read.

        No thread may write checkpoints meanwhile.
        """
        if self._iteration is None:
            return None
        if self._x is not None:
            return self._iteration, self._x.copy()
        assert self._directory is not None
        return _stored(self._directory / "checkpoints", self._iteration)


def _stored(folder: Path, iteration: int) -> tuple[int, Vector] | None:
    """Return the newest model that is not after this iteration, else the oldest one."""
    newest_first = checkpoints.listed(folder)
    after = [path for path in newest_first if int(path.stem) > iteration]
    for path in (*newest_first[len(after) :], *reversed(after)):
        try:
            checkpoint = checkpoints.read(path)
        except BadCheckpoint:
            continue
        return checkpoint.iteration, checkpoints.model_of(checkpoint).copy()
    return None
