"""What outlives the run beside its checkpoints: the carried arrays and, if they are to be kept, the updates."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadTraceFile, Damage, NotKept
from asyncsgd.core.events import Vector
from asyncsgd.engines.flower.layout import Arrays, Layout, Part
from asyncsgd.trace.arrays import read_arrays, write_arrays, write_vector
from asyncsgd.trace.atomic import make_folder

if TYPE_CHECKING:
    from asyncsgd.engines.flower.engine import Flower

CARRIED = "carried.safetensors"
UPDATES = "updates"
INITIAL = "initial.npy"
SECONDS = 1.0
"""Between two writes of the carried arrays."""
HEARD = 32
"""Clients whose carried arrays are remembered: those heard last."""


class Memory:
    """Files of its own in the directory of the run."""

    def __init__(self, engine: Flower, x: Vector) -> None:
        self._folder, self._engine, self._layout = engine.folder, engine, engine.layout
        self.carried: Arrays = dict(engine.carried)
        self._last: OrderedDict[int, Arrays] = OrderedDict()  # of each client
        self._changed = False
        self._next = 0.0
        if engine.resume and self._folder is not None:
            self.carried = read_carried(self._folder, engine.layout) or self.carried
        if engine.keep_updates and self._folder is not None:
            make_folder(self._folder / UPDATES)
            write_vector(self._folder / UPDATES / INITIAL, x)

    def take(self, worker: int, returned: Arrays) -> None:
        """A good reply brought these."""
        if not returned or self._engine.freeze:
            return
        self._last[worker] = returned
        self._last.move_to_end(worker)
        if len(self._last) > HEARD:
            self._last.popitem(last=False)
        if len(self._last) == 1 < self._engine.workers:
            return  # nobody to compare it with
        voices = list(self._last.values())
        if len(voices) == 2:
            voices.append(self.carried)  # else one of the two could say what it likes
        self.carried = {
            part.name: middle(part, [voice[part.name] for voice in voices]) for part in self._layout.carried
        }
        self._changed = True

    def save(self, now: float) -> None:
        """Write the carried arrays if they have changed, now and then."""
        if self._folder is None or not self._changed or now < self._next:
            return
        write_arrays(self._folder / CARRIED, dict(self.carried), {})
        self._changed, self._next = False, now + SECONDS

    def keep(self, job: int, update: Vector) -> None:
        """Keep an update for `asyncsgd.replay`."""
        if self._engine.keep_updates and self._folder is not None:
            try:
                write_vector(self._folder / UPDATES / f"{job:012d}.npy", update)
            except OSError as error:
                raise NotKept(f"{self._folder}: {error.strerror or error}") from error


def middle(part: Part, values: list[NDArray[Any]]) -> NDArray[Any]:
    """Their median, coordinate by coordinate; of an even number of whole numbers the lower one, which is there."""
    lower, upper = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(np.stack(values), (lower, upper), axis=0)
    if part.rule == "whole" or lower == upper:
        return np.asarray(ordered[lower])
    return np.asarray((ordered[lower] / 2 + ordered[upper] / 2).astype(part.dtype))  # halves do not overflow


def read_carried(folder: Path, layout: Layout) -> dict[str, NDArray[Any]] | None:
    """Return the carried arrays of a run; None if there are none, or if they are of another model."""
    if not (folder / CARRIED).exists():
        return None
    try:
        found, _ = read_arrays(folder / CARRIED)
    except Damage as error:
        raise BadTraceFile(f"{folder / CARRIED} {error}; restore it from a backup") from error
    parts = {part.name: part for part in layout.carried}
    fits = found.keys() == parts.keys() and all(
        values.shape == parts[name].shape and values.dtype == parts[name].dtype for name, values in found.items()
    )
    return found if fits else None
