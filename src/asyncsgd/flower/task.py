"""What is minimised, as far as the server can see it: where to start, and how to evaluate. Clients do the rest."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import make_folder
from asyncsgd.core.errors import BadParameter, BadRunDirectory, BadTraceFile, Damage, NotKept, UsageError
from asyncsgd.core.random import derive, output
from asyncsgd.core.server import JOB
from asyncsgd.core.vectors import Vector
from asyncsgd.flower.arrays import Arrays, Layout, Part
from asyncsgd.flower.privacy import Accountant
from asyncsgd.run.read import read_config
from asyncsgd.trace.arrays import read_arrays, read_vector, write_arrays, write_vector

if TYPE_CHECKING:
    from asyncsgd.flower.engine import Flower
    from asyncsgd.flower.pool import FlowerPool


# --------------------------------------------------------------------------------------------------------------
# What outlives the run beside its checkpoints: the carried arrays and, if they are to be kept, the updates.


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


Evaluate = Callable[[int, Any], Mapping[str, Any] | None]
"""``evaluate(iteration, arrays)``, like the ``evaluate_fn`` of Flower's strategies."""


class FlowerTask:
    """The server's side of a federated task. It has no ``update``: those come from clients."""

    name = "flower"

    def __init__(
        self,
        layout: Layout,
        x: Vector,
        carried: Arrays,
        evaluate: Evaluate | None,
        accountant: Accountant | None,
        stand_in: AbsentUpdates | KeptUpdates,
        *,
        heterogeneous: bool,
        notes: tuple[str, ...],
    ) -> None:
        self._layout, self._x, self._carried = layout, x, carried
        self._evaluate, self._accountant = evaluate, accountant
        self._stand_in = stand_in
        self.heterogeneous, self.notes = heterogeneous, notes
        self.pool: FlowerPool | None = None
        self._names: set[str] | None = None
        self._last = 0
        self._epsilon: float | None = None

    def bind(self, pool: FlowerPool) -> None:
        """The engine says whom to tell of evaluations."""
        self.pool = pool

    def stop(self) -> None:
        """End the run, with a checkpoint; from any thread."""
        if self.pool is not None:
            self.pool.stop("it was stopped")

    def initial(self) -> Vector:
        """The initial arrays as one vector."""
        return self._x.copy()

    def planned(self) -> None:
        """The model of this moment is evaluated next: what it has cost is known now, and more is spent meanwhile."""
        if self._accountant is not None:
            self._epsilon = self._accountant.spent().epsilon

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """What the user's function says of x."""
        return self.evaluate_at(self._last, x) or {}

    def evaluate_at(self, iteration: int, x: Vector) -> dict[str, Any] | None:
        """The same, where the iteration is known; it also makes clients evaluate, if that was asked for.

        None if the user's function returned None: it need not measure every time.
        """
        self._last = iteration
        clients = self.pool is not None and self.pool.evaluates
        record = self.record(x) if clients or self._evaluate is not None else None  # a copy of the whole model
        given = {} if self._evaluate is None else self._evaluate(iteration, record)
        values = None if given is None else self._named(_numbers(given))
        if self.pool is not None:
            self.pool.measured(iteration, record)
        return values

    def _named(self, values: dict[str, float]) -> dict[str, float]:
        """The same metrics every time, and the ε spent."""
        if self._names is None:
            self._names = set(values)
        elif self._names != set(values):
            fix = f"return {sorted(self._names)} every time, or None"
            raise BadParameter("evaluate", sorted(values), "names other metrics than before", fix)
        return values if self._epsilon is None else {**values, "epsilon": self._epsilon}

    def record(self, x: Vector) -> Any:
        """The arrays of a vector, with whatever is carried beside it."""
        return self._layout.join(x, self._carried if self.pool is None else self.pool.carried)

    def restore(self, folder: Path) -> None:
        """Take the carried arrays that a run has left in its directory."""
        self._carried = read_carried(folder, self._layout) or self._carried

    def __reduce__(self) -> Any:
        """Pickled as what can be replayed of it: clients' updates if they are kept, else nothing."""
        return type(self._stand_in), self._stand_in.arguments


def _numbers(given: Any) -> dict[str, float]:
    """A metric record as plain numbers, lists spread out."""
    if not isinstance(given, Mapping):
        fix = 'return a MetricRecord or a dict such as {"accuracy": 0.9}'
        raise BadParameter("evaluate", given, f"returned a {type(given).__name__}", fix)
    values: dict[str, float] = {}
    for name, value in given.items():
        if isinstance(value, list):
            values |= {f"{name}.{place}": float(number) for place, number in enumerate(value)}
        else:
            values[name] = float(value)
    return values


class AbsentUpdates:
    """What a replay finds in place of a task, where updates were not kept."""

    arguments: tuple[Any, ...] = ()

    def initial(self) -> Vector:
        """There is no way to go on from there."""
        raise UsageError(
            "the updates of this run were computed by Flower clients from data of their own, so they cannot be "
            "computed again here; pass keep_updates=True to asgd.flower.serve to be able to replay the server's side"
        )

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """The same."""
        return self.initial()

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Nothing is known."""
        return {}


class KeptUpdates:
    """A task that reads the updates which `asyncsgd.flower.serve` kept, so that `asyncsgd.replay` can apply them again.

    The directory of a run has it already. If the directory was moved, say where it is now:
    ``asgd.replay(new, task=asgd.flower.KeptUpdates(new), method=method)``.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self.arguments: tuple[Any, ...] = (str(directory),)

    @cached_property
    def _files(self) -> dict[int, Path]:
        """By the seed of the job."""
        seeds = derive(int(read_config(self._directory)["seed"]), JOB)
        files = (self._directory / UPDATES).glob("[0-9]*.npy")
        return {output(seeds, int(path.stem)): path for path in files}

    def initial(self) -> Vector:
        """Where the run began."""
        return self._read(self._directory / UPDATES / INITIAL)

    def _read(self, path: Path) -> Vector:
        try:
            return read_vector(path)
        except Damage as error:
            raise BadRunDirectory(f"{path} {error}; restore it from a backup") from error

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """What the client sent."""
        if seed not in self._files:
            raise UsageError(f"an update of client {worker} is not in {self._directory}; was it moved?")
        return self._read(self._files[seed])

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Nothing is known."""
        return {}
