"""Checkpoints: when one is due, its file with the server's whole state, and the thread that writes it.

`Checkpointer` decides when the state is saved and copies it, in the loop's thread. The run directory then lets a
`BackgroundCall` write the copy as one safetensors file with a checksum, atomically.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import make_folder
from asyncsgd.core.errors import BadCheckpoint, Damage
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import Vector, is_finite
from asyncsgd.run.options import Checkpoints
from asyncsgd.trace import Recorder
from asyncsgd.trace.arrays import Whole, read_arrays, write_arrays
from asyncsgd.trace.sealed import Mark

# --------------------------------------------------------------------------------------------------------------
# A server's state as named arrays and one JSON text, for any file format that holds arrays.


if TYPE_CHECKING:
    from asyncsgd.run.directory import RunDirectory  # which imports this file

Array = NDArray[Any]


def pack(state: Any) -> tuple[dict[str, Array], str]:
    """Return (arrays by name, JSON text) of nested dicts, lists, arrays and numbers, without losing a bit.

    >>> arrays, text = pack({"x": np.ones(2), "memory": {7: np.zeros(1)}, "eta": 0.1})
    >>> sorted(arrays)
    ['memory.7', 'x']
    >>> unpack(arrays, text)
    {'x': array([1., 1.]), 'memory': {7: array([0.])}, 'eta': 0.1}
    """
    arrays: dict[str, Array] = {}
    return arrays, json.dumps(_packed(state, "", arrays))


# These two are not inner functions: one that calls itself is a cycle, which would keep its arrays alive long after.


def _packed(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if isinstance(value, dict):  # as pairs, because keys may be worker ids
        pairs = ((key, f"{path}.{key}" if path else str(key), item) for key, item in value.items())
        return {"dict": [[key, _packed(item, place, arrays)] for key, place, item in pairs]}
    if isinstance(value, list | tuple | deque):
        return [_packed(item, f"{path}.{place}", arrays) for place, item in enumerate(value)]
    return value


def unpack(arrays: dict[str, Array], text: str) -> Any:
    """Return the state that `pack` was given."""
    return _unpacked(json.loads(text), arrays)


def _unpacked(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, arrays) for item in value]
    if isinstance(value, dict):
        if "array" in value:
            return arrays[value["array"]]
        return {key: _unpacked(item, arrays) for key, item in value["dict"]}
    return value


FORMAT = "2"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The state that a run is resumed from."""

    state: dict[str, Any]
    """`asyncsgd.core.server.Server.state`."""
    marks: dict[str, Mark]
    """Length and checksum of every appended file at the checkpoint."""
    seconds: float
    """Time on the clock of the run."""

    @property
    def iteration(self) -> int:
        """Number of updates that had arrived."""
        return int(self.state["iteration"])


def model_of(checkpoint: Checkpoint) -> Vector:
    """Return the model in a checkpoint: the newest version, or the average if the method averages."""
    points, memory = checkpoint.state["update"]["points"], checkpoint.state["update"]["memory"]
    average: Vector | None = memory["average"]
    newest: Vector = points["live"][points["current"]]
    return newest if average is None else average


def write(folder: Path, checkpoint: Checkpoint) -> tuple[Path, Whole]:
    """Write a checkpoint straight from its arrays; return its path, and its size and checksum."""
    arrays, text = pack(checkpoint.state)
    facts = {
        "format": FORMAT,
        "state": text,
        "marks": json.dumps({name: [mark.size, mark.chain] for name, mark in checkpoint.marks.items()}),
        "seconds": repr(checkpoint.seconds),
    }
    path = path_of(folder, checkpoint.iteration)
    make_folder(folder)
    return path, write_arrays(path, arrays, facts)


def path_of(folder: Path, iteration: int) -> Path:
    """Return the file for the checkpoint of this iteration."""
    return folder / f"{iteration:012d}{SUFFIX}"


def listed(folder: Path) -> list[Path]:
    """Return the checkpoint files of a folder, newest first."""
    return sorted((path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit()), reverse=True)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint and check it against its checksum."""
    try:
        arrays, facts = read_arrays(path)
    except Damage as error:
        raise BadCheckpoint(f"{path} {error}; use an older checkpoint") from error
    if facts.get("format") != FORMAT:
        raise BadCheckpoint(f"{path} has format {facts.get('format')!r}, and this asyncsgd reads format {FORMAT!r}")
    marks = {name: Mark(*numbers) for name, numbers in json.loads(facts["marks"]).items()}
    return Checkpoint(unpack(arrays, facts["state"]), marks, float(facts["seconds"]))


T = TypeVar("T")


class BackgroundCall(Generic[T]):
    """At most one call under way. All methods belong to one thread, the owner's; the call has a thread of its own.

    The thread is not a daemon: if the process ends in any other way than by a kill, Python waits for the call first.

    Args:
        name: The name of its thread.

    >>> call = BackgroundCall()
    >>> call.start(lambda: 6 * 7)
    >>> call.result(wait=True), call.result(wait=True)
    (42, None)
    """

    def __init__(self, name: str = "asyncsgd-checkpoint") -> None:
        self._name = name
        self._under_way: Future[T] | None = None

    @property
    def busy(self) -> bool:
        """Whether a call is under way, or its result was not yet fetched."""
        return self._under_way is not None

    def start(self, function: Callable[[], T]) -> None:
        """Call the function in another thread; the result of the call before must have been fetched."""
        assert self._under_way is None
        result: Future[T] = Future()

        def call() -> None:
            try:
                result.set_result(function())
            except BaseException as error:
                result.set_exception(error)

        thread = threading.Thread(target=call, name=self._name, daemon=False)
        thread.start()
        self._under_way = result  # only now: a thread that cannot be started would be waited for forever

    def result(self, *, wait: bool) -> T | None:
        """Return the result once, None if there is none (yet), or raise what the function raised."""
        under_way = self._under_way
        if under_way is None or not (wait or under_way.done()):
            return None
        under_way.exception()  # a signal handler may raise here: then the call is still under way
        self._under_way = None
        return under_way.result()

    def wait(self) -> None:
        """Wait for the call under way, whatever it gives; `result` can still fetch that."""
        if self._under_way is not None:
            self._under_way.exception()


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

    def due_at(self, now: float, *, busy: bool = False) -> bool:
        """Return whether a checkpoint is due by the clock. While one is written, none is.

        The state of callbacks that are ``busy`` would stop the loop until they are done, so the checkpoint is put off,
        but not for longer than the time between two.
        """
        late = now - self._next
        return self._options.every is None and self._began is None and late >= (self._options.seconds if busy else 0)

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
