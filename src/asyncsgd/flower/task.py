"""The server's part of a federated task: the initial model, its evaluation, and the files beside the checkpoints."""

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
from asyncsgd.engines.base import Note
from asyncsgd.flower.arrays import Arrays, Layout, Part
from asyncsgd.flower.privacy import Accountant
from asyncsgd.run.read import read_config
from asyncsgd.trace.arrays import read_arrays, read_vector, write_arrays, write_vector

if TYPE_CHECKING:
    from asyncsgd.flower.engine import Flower
    from asyncsgd.flower.pool import FlowerPool


CARRIED = "carried.safetensors"
UPDATES = "updates"
INITIAL = "initial.npy"
SECONDS = 1.0
"""Least number of seconds between two writes of the carried arrays."""
LAST_CLIENTS = 32
"""Number of clients whose last carried arrays are kept in memory: those that replied last."""
SHOWN = 3
"""Number of new metrics, and of missing ones, that a note names."""


class Memory:
    """The carried arrays, and files beside the checkpoints: the carried arrays and the kept updates.

    The polling thread calls `take` and `save`; the threads that read replies call `keep`, each for another job. They
    also read ``carried``, which is replaced as a whole and never changed in place.
    """

    def __init__(self, engine: Flower, x: Vector) -> None:
        self._folder, self._engine, self._layout = engine.folder, engine, engine.layout
        self.carried: Arrays = dict(engine.carried)
        self._last: OrderedDict[int, Arrays] = OrderedDict()  # of each client
        self._changed = False
        self._next = 0.0
        if engine.resume and self._folder is not None:
            self.carried = read_carried(self._folder, engine.layout) or self.carried
        if engine.clients.keep_updates and self._folder is not None:
            make_folder(self._folder / UPDATES)
            write_vector(self._folder / UPDATES / INITIAL, x)

    def take(self, worker: int, returned: Arrays) -> None:
        """Take the carried arrays of a good reply into the median of the clients that replied last."""
        if not returned or self._engine.freeze:
            return
        self._last[worker] = returned
        self._last.move_to_end(worker)
        if len(self._last) > LAST_CLIENTS:
            self._last.popitem(last=False)
        if len(self._last) == 1 < self._engine.workers:
            return  # there is no other client to compare it with
        votes = list(self._last.values())
        if len(votes) == 2:
            votes.append(self.carried)  # the median of two would let either of them set any value
        self.carried = {part.name: middle(part, [vote[part.name] for vote in votes]) for part in self._layout.carried}
        self._changed = True

    def save(self, now: float) -> None:
        """Write the carried arrays if they have changed, at most once per `SECONDS`."""
        if self._folder is None or not self._changed or now < self._next:
            return
        write_arrays(self._folder / CARRIED, dict(self.carried), {})
        self._changed, self._next = False, now + SECONDS

    def keep(self, job: int, update: Vector) -> None:
        """Write an update to disk for `asyncsgd.replay`."""
        if self._engine.clients.keep_updates and self._folder is not None:
            try:
                write_vector(self._folder / UPDATES / f"{job:012d}.npy", update)
            except OSError as error:
                raise NotKept(f"{self._folder}: {error.strerror or error}") from error


def middle(part: Part, values: list[NDArray[Any]]) -> NDArray[Any]:
    """Return the median of each coordinate. For an even number of integer arrays it is the lower of the middle two."""
    lower, upper = (len(values) - 1) // 2, len(values) // 2
    ordered = np.partition(np.stack(values), (lower, upper), axis=0)
    if part.rule == "whole" or lower == upper:
        return np.asarray(ordered[lower])
    return np.asarray((ordered[lower] / 2 + ordered[upper] / 2).astype(part.dtype))  # the sum itself might overflow


def read_carried(folder: Path, layout: Layout) -> dict[str, NDArray[Any]] | None:
    """Return the carried arrays of a run; None if it has none, or if they belong to another model."""
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
"""``evaluate(number, arrays)``, like the ``evaluate_fn`` of Flower's strategies."""


class FlowerTask:
    """The server's part of a federated task. It has no method ``update``: clients compute the updates."""

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
        self._layout, self._x, self._carried = layout, x.view(), carried
        self._x.flags.writeable = False
        self._evaluate, self._accountant = evaluate, accountant
        self._stand_in = stand_in
        self.heterogeneous, self.notes = heterogeneous, notes
        self.pool: FlowerPool | None = None
        self._names: set[str] | None = None  # of the first evaluation
        self._names_differ = False  # whether a note has said so
        self._last = 0
        self._contributions: float | None = None

    def bind(self, pool: FlowerPool) -> None:
        """Set the pool that receives evaluations. The engine calls this."""
        self.pool = pool

    def stop(self) -> None:
        """End the run with a checkpoint. Any thread may call this."""
        if self.pool is not None:
            self.pool.stop("it was stopped")

    def initial(self) -> Vector:
        """Return the initial arrays as one vector, which is read-only: a run asks for it several times."""
        return self._x

    def layout(self) -> tuple[tuple[str, int, tuple[int, ...]], ...]:
        """Return the name, the offset in the vector and the shape of every array that is trained."""
        return tuple((part.name, part.place.start, part.shape) for part in self._layout.parts if part.place)

    def named_arrays(self, x: Vector) -> dict[str, NDArray[Any]]:
        """Return the whole model by name: the arrays of this vector, and the carried ones that were kept last."""
        return self._layout.named(x, self._carried)

    def keep_carried(self) -> None:
        """Keep the carried arrays of now, which belong to the model of now. Clients change them at any time."""
        if self.pool is not None:
            self._carried = self.pool.carried

    def planned(self) -> None:
        """Keep what belongs to the model that is evaluated next: its carried arrays, and the ε spent up to it.

        Both move on while the evaluation runs. The next one begins only after the callbacks have seen its result.
        """
        self.keep_carried()
        if self._accountant is not None:
            self._contributions = self._accountant.book.most  # ε takes a while: the evaluating thread computes it

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return the metrics of the user's function at x."""
        return self.evaluate_at(self._last, x) or {}

    @property
    def evaluates_at_once(self) -> bool:
        """Whether there is nothing to evaluate: neither the server nor the clients measure the model."""
        return self._evaluate is None and self._accountant is None and not (self.pool and self.pool.evaluates)

    def evaluate_at(self, iteration: int, x: Vector) -> dict[str, Any] | None:
        """Return the metrics of the model of this iteration, and let clients evaluate it too, if they should.

        None if the user's function returned None or no metrics: it need not measure every time.
        """
        self._last = iteration
        clients = self.pool is not None and self.pool.evaluates
        record = self.record(x) if clients or self._evaluate is not None else None  # a copy of the whole model
        given = {} if self._evaluate is None else self._evaluate(iteration, record)
        values = None if given is None else _numbers(given)
        if self._evaluate is not None and not values:
            values = None
        notes = [] if values is None else self._compare(values)
        if values is not None and self._accountant is not None and self._contributions is not None:
            values["epsilon"] = self._accountant.epsilon(self._contributions)
        if self.pool is not None:
            self.pool.measured(iteration, record, *notes)
        return values

    def _compare(self, values: Mapping[str, float]) -> list[Note]:
        """Return a note if the metrics are not those of the first evaluation; only once."""
        if self._names is None:
            self._names = set(values)
        new, missing = sorted(values.keys() - self._names), sorted(self._names - values.keys())
        if self._names_differ or not (new or missing):
            return []
        self._names_differ = True
        shown = [*(f"{name} is new" for name in new[:SHOWN]), *(f"{name} is missing" for name in missing[:SHOWN])]
        left = f" and {more} more" if (more := len(new) + len(missing) - len(shown)) else ""
        text = f"evaluate_fn returned other metrics than at first: {', '.join(shown)}{left}"
        rest = "every round keeps those that it returned (said once)"
        return [Note("metrics_differ", {"new": new, "missing": missing}, f"{text}; {rest}")]

    def record(self, x: Vector) -> Any:
        """Return the ``ArrayRecord`` of a vector and of the carried arrays that were kept last."""
        return self._layout.join(x, self._carried)

    def restore(self, folder: Path) -> None:
        """Read the carried arrays from the directory of a finished run."""
        self._carried = read_carried(folder, self._layout) or self._carried

    def __reduce__(self) -> Any:
        """Pickle the stand-in that a replay uses: the kept updates, or a task that explains why there are none."""
        return type(self._stand_in), self._stand_in.arguments


def _numbers(given: Any) -> dict[str, float]:
    """Return a metric record as plain numbers, with lists spread out."""
    if not isinstance(given, Mapping):
        fix = 'return a MetricRecord or a dict such as {"accuracy": 0.9}'
        raise BadParameter("evaluate_fn", given, f"returned a {type(given).__name__}", fix)
    values: dict[str, float] = {}
    for name, value in given.items():
        if isinstance(value, list):
            values |= {f"{name}.{place}": float(number) for place, number in enumerate(value)}
        else:
            values[name] = float(value)
    return values


class AbsentUpdates:
    """The task of a replay if the updates were not kept: it raises an error that explains why."""

    arguments: tuple[Any, ...] = ()

    def initial(self) -> Vector:
        """Raise `UsageError`, as the updates cannot be computed again."""
        raise UsageError(
            "Flower clients computed the updates of this run from their own data, so they cannot be computed again "
            "here; pass clients=asgd.flower.Clients(keep_updates=True) to be able to replay the server's part"
        )

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """Raise `UsageError`, as the updates cannot be computed again."""
        return self.initial()

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return no metrics: the clients hold the data."""
        return {}


class KeptUpdates:
    """A task that reads the updates that a Flower run kept, so that `asyncsgd.replay` can apply them again.

    The directory of a run stores this task already. If the directory was moved, pass its new path:
    ``asgd.replay(new, task=asgd.flower.KeptUpdates(new), method=method)``.
    """

    def __init__(self, directory: str | Path) -> None:
        self._directory = Path(directory)
        self.arguments: tuple[Any, ...] = (str(directory),)

    @cached_property
    def _files(self) -> dict[int, Path]:
        """The files of the updates, by the seed of the job."""
        seeds = derive(int(read_config(self._directory)["seed"]), JOB)
        files = (self._directory / UPDATES).glob("[0-9]*.npy")
        return {output(seeds, int(path.stem)): path for path in files}

    def initial(self) -> Vector:
        """Return the initial model of the run."""
        return self._read(self._directory / UPDATES / INITIAL)

    def _read(self, path: Path) -> Vector:
        try:
            return read_vector(path)
        except Damage as error:
            raise BadRunDirectory(f"{path} {error}; restore it from a backup") from error

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """Return the update that the client sent."""
        if seed not in self._files:
            raise UsageError(f"an update of client {worker} is not in {self._directory}; was it moved?")
        return self._read(self._files[seed])

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return no metrics: the clients hold the data."""
        return {}
