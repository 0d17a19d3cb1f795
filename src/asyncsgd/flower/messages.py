"""The content of messages to clients, and the reading of their replies. Every value in a reply is checked.

Each message in flight has a thread to itself (see `sender`), which builds its content and reads its reply. So several
threads use `MessageWriter` at once. They share the carried arrays, which the polling thread replaces as a whole and
never changes in place, and a cache of records, where at worst two threads build the same record.
"""

from __future__ import annotations

import math
import secrets
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd.compiled.kernels import CompiledKernels, GrowingNorm
from asyncsgd.compiled.spares import LARGE, Spares
from asyncsgd.core.errors import BadParameter, BadReply, NotFinite
from asyncsgd.core.events import Assign
from asyncsgd.core.validate import check_update
from asyncsgd.core.vectors import Vector
from asyncsgd.flower.arrays import Arrays
from asyncsgd.flower.client_work import STEPS
from asyncsgd.flower.clients import WorkerHandle
from asyncsgd.flower.encoding import TERMS, Coding
from asyncsgd.flower.legacy import legacy_content, legacy_metrics, numbered
from asyncsgd.flower.records import Records, model_record, records_of
from asyncsgd.flower.round_rules import Config
from asyncsgd.flower.sender import ClientMessage, clean
from asyncsgd.flower.task import Memory
from asyncsgd.flower.weights import EXAMPLES, read_examples

if TYPE_CHECKING:
    from asyncsgd.flower.engine import Flower

MOST = 1000
"""Largest number of metrics in one reply. A reply with more is not averaged."""
LONGEST = 80
"""Largest number of characters in a metric's name."""
MOST_EXAMPLES, LARGEST = 1e9, 1e100
"""Largest credible number of examples, and of a metric. A reply beyond them is not averaged: it would outweigh all."""


@dataclass(frozen=True)
class ReportedMetrics:
    """The metrics of one reply, and their weight in the average."""

    weight: float
    values: dict[str, float]
    left_out: tuple[str, ...] = ()
    """The names of metrics that cannot be averaged: they are not finite, or their names are too long."""


def read_metrics(records: Mapping[str, Any], weighted_by: str | None) -> ReportedMetrics | None:
    """Return the metrics of a reply, with lists spread out as ``name.0``, ``name.1``; None if they cannot be averaged.

    The weight is the number of examples, or 1 if the client does not report it. Names and numbers come from outside: if
    they are too many, or the weight is not credible, the reply is not averaged. A metric that is not finite, or whose
    name is too long, is left out alone.

    >>> read_metrics({"metrics": {"num-examples": 20, "loss": 0.5, "per class": [0.1, 0.9]}}, "num-examples")
    ReportedMetrics(weight=20.0, values={'loss': 0.5, 'per class.0': 0.1, 'per class.1': 0.9}, left_out=())
    >>> read_metrics({"metrics": {"loss": 0.5, "auc": math.nan}}, "num-examples")
    ReportedMetrics(weight=1.0, values={'loss': 0.5}, left_out=('auc',))
    >>> read_metrics({"metrics": {"num-examples": -1, "loss": 0.5}}, "num-examples") is None
    True
    """
    found: dict[str, Any] = {}
    for record in records.values():
        for name, value in record.items():
            several = isinstance(value, list)
            for place, number in enumerate(value[: MOST + 1] if several else [value]):
                found[f"{name}.{place}" if several else name] = number
            if len(found) > MOST:
                return None
    weight = _credible(1.0 if weighted_by is None else found.pop(weighted_by, 1.0))
    if weight is None or not 0 < weight <= MOST_EXAMPLES:
        return None
    values = {name: _credible(number) for name, number in found.items() if len(name) <= LONGEST and name.isprintable()}
    good = {name: value for name, value in values.items() if value is not None}
    return ReportedMetrics(weight, good, tuple(name for name in found if name not in good)) if good else None


def _credible(number: Any) -> float | None:
    try:
        value = float(number)
    except (TypeError, ValueError, OverflowError):
        return None
    return value if abs(value) <= LARGEST else None  # also for NaN, as every comparison with it is false


@dataclass
class Means:
    """Weighted means, and the lowest and highest value, of what several clients reported."""

    clients: set[int] = field(default_factory=set)
    replies: int = 0
    examples: float = 0.0
    _sums: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (Σ w v, Σ w)
    _lowest: dict[str, float] = field(default_factory=dict)
    _highest: dict[str, float] = field(default_factory=dict)

    def add(self, worker: int, reported: ReportedMetrics) -> None:
        """Add one reply."""
        self.clients.add(worker)
        self.replies += 1
        self.examples += reported.weight
        for name, value in reported.values.items():
            if name not in self._sums and len(self._sums) >= MOST:
                continue  # clients that invent names must not fill the memory
            total, weight = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + reported.weight * value, weight + reported.weight
            self._lowest[name] = min(value, self._lowest.get(name, value))
            self._highest[name] = max(value, self._highest.get(name, value))

    def row(self) -> dict[str, Any]:
        """Return the means as a row for the journal.

        >>> means = Means()
        >>> means.add(0, ReportedMetrics(1.0, {"accuracy": 0.5}))
        >>> means.add(1, ReportedMetrics(3.0, {"accuracy": 0.9}))
        >>> means.row()["metrics"], means.row()["lowest"]
        ({'accuracy': 0.8}, {'accuracy': 0.5})
        """
        return {
            "clients": len(self.clients),
            "replies": self.replies,
            "examples": self.examples,
            "metrics": {name: total / weight for name, (total, weight) in self._sums.items()},
            "lowest": dict(self._lowest),
            "highest": dict(self._highest),
        }


WHO, NAME = "who", "name"
"""A client may report its name in its replies, as this text of the ``ConfigRecord`` of this name."""


@dataclass(frozen=True)
class Told:
    """What a reply reports beside its arrays."""

    metrics: ReportedMetrics | None
    """None if the metrics cannot be averaged."""
    records: Mapping[str, Any] | None = None
    """The records of the reply's metrics, for a user's aggregation function; None if they are too many."""
    lists: tuple[str, ...] = ()
    """Names of the metrics that are lists."""
    name: str = ""
    """The name by which the client calls itself."""
    left_out: str = ""
    """Which of the metrics cannot be averaged, and why, in words; empty if all can."""


def hear(records: Records, weighted_by: str | None, legacy: Mapping[str, Any] | None = None) -> Told:
    """Return what a reply reports. A client cannot make the server keep more than `MOST` numbers of it.

    ``legacy`` are the metrics of a reply in Flower's legacy format.
    """
    metrics = records.metrics
    if legacy is not None:
        from flwr.app import MetricRecord

        metrics = {"metrics": MetricRecord({name: +value for name, value in legacy.items()})}
    entries = [entry for record in metrics.values() for entry in record.items()]
    lists = [name for name, value in entries if isinstance(value, list)]
    size = sum(len(value) if isinstance(value, list) else 1 for _, value in entries)
    few = size <= MOST and all(len(name) <= LONGEST for name, _ in entries)
    named = records.configs.get(WHO, {}).get(NAME)
    name = clean(named[:LONGEST]).replace("\n", " ").strip() if isinstance(named, str) else ""
    reported = read_metrics(metrics, weighted_by)
    left_out = ""
    if size > MOST:
        left_out = f"{size:,} numbers, more than {MOST:,}"
    elif reported is None and any(name != weighted_by for name, _ in entries):
        left_out = "metrics without a finite number, or with a weight that is not above 0"
    elif reported is not None and reported.left_out:
        names = ", ".join(clean(name[:LONGEST]) for name in reported.left_out[:3])
        left_out = f"{names}{', ...' if len(reported.left_out) > 3 else ''}, which is not a finite number"
    return Told(reported, metrics if few else None, tuple(lists) if reported else (), name, left_out)


SHARED = 2
"""Number of versions whose records are cached. Jobs of one version share a record, as it is costly to build."""


class MessageWriter:
    """Builds messages in the format of Flower's own strategies, so that stock ClientApps understand them."""

    def __init__(self, engine: Flower, memory: Memory, like: Vector, *, steps: bool = False) -> None:
        self._engine, self._layout, self._rules = engine, engine.layout, engine.clients
        self._memory, self._like, self._steps = memory, like, steps
        self._bound = None if self._rules.max_norm == "auto" else self._rules.max_norm
        self._coding = Coding(engine.layout, engine.up, engine.down, engine.clients.replies)
        self._start = secrets.token_hex(8)  # a client's memory of an earlier start, or of another run, is not used
        self._records: OrderedDict[tuple[int, int], Any] = OrderedDict()  # (version, slot) -> ArrayRecord
        self._last_config: tuple[Any, Any] | None = None  # what the newest ConfigRecord depends on, and the record
        self._kinds = import_module("flwr.app")
        self._norm = CompiledKernels(threads=1).norm  # of one thread, so that several messages may use it at once
        self._norm(like[:1])  # load it here: a message must not wait for the compiler
        self._spares, self._size = Spares(), engine.layout.size
        large = like.nbytes >= LARGE  # else a norm in steps takes longer than a second pass
        self._measures_at_once = large and self._rules.max_norm is not None

    def train(self, handle: WorkerHandle, assign: Assign) -> ClientMessage:
        """Return the message of a job. The server does not change the job's point until the job ends."""
        job, point = assign.job, assign.point
        number = self._engine.rounds.of_job(job.iteration)
        config = configured("train_config", self._engine.train_config, number, handle)
        if self._steps:
            if STEPS in config:
                fix = "leave it out of train_config, or use a method without .local(...)"
                raise BadParameter(f"train_config[{STEPS!r}]", config[STEPS], "is set by the method", fix)
            config = {**config, STEPS: job.steps}

        def content() -> Any:
            record = self._record((job.version, assign.slot), point)
            if message.legacy and not self._coding.encodes_models:  # else the mod numbers the arrays
                record = numbered(record)
            made = self._content(message, record, config, number)
            if self._coding.used:
                made[TERMS] = self._coding.terms(f"{self._start}-{message.joins}", job.id, message.applied)
            return made

        def read(content: Any) -> tuple[Vector, Arrays, Told]:
            return self._read(content, point, message)

        message = ClientMessage(
            handle.number, handle.node, "train", str(number), content, self._engine.timeout, read, job.id
        )
        return message

    def evaluate(self, handle: WorkerHandle, iteration: int, record: Any) -> ClientMessage:
        """Return the message that asks a client to evaluate a model."""
        number = self._engine.rounds.of_model(iteration)
        config = configured("evaluate_config", self._engine.evaluate_config or {}, number, handle)

        def content() -> Any:
            return self._content(message, numbered(record) if message.legacy else record, config, number)

        def read(content: Any) -> Told:
            message.records = lambda: content
            weighted_by, records = self._rules.weighted_by, records_of(content)
            return hear(records, weighted_by, legacy_metrics(records, "evaluate", weighted_by or EXAMPLES))

        message = ClientMessage(
            handle.number, handle.node, "evaluate", str(number), content, self._engine.timeout, read, iteration
        )
        return message

    def _record(self, key: tuple[int, int], point: Vector) -> Any:
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = self._coding.model(point, self._memory.carried)
            while len(self._records) > SHARED:
                self._records.popitem(last=False)
        return record

    def _read(self, content: Any, point: Vector, message: ClientMessage) -> tuple[Vector, Arrays, Told]:
        records = records_of(content)
        reported = legacy_metrics(records, "train", self._rules.weighted_by or EXAMPLES)
        name, record = model_record(records, self._layout, self._engine.rounds.arrays_key)
        update, arrays, length = self._unpack(records, record, point)
        worker, job = message.worker, message.number
        if length is None or not math.isfinite(length):  # a finite norm has finite numbers only
            try:
                check_update(update, self._like, worker, job)
            except NotFinite as error:
                raise BadReply("the arrays hold NaN or infinity") from error
        if self._rules.max_norm is not None:
            message.length = self._norm(update) if length is None else length
            if self._bound is not None:  # else the pool compares it with the bound, in the order of arrivals
                self._check_length(message.length, "the update")
        carried = self._layout.keep(arrays)
        if self._bound is not None:
            for part in self._layout.carried:
                if part.rule == "statistic":
                    moved = carried[part.name].astype(np.float64) - self._memory.carried[part.name]
                    self._check_length(self._norm(moved.reshape(-1)), f"the change of {part.name!r}")
        self._memory.keep(job, update)
        message.records = lambda: others(content, name)
        told = hear(records, self._rules.weighted_by, reported)
        metrics = records.metrics if reported is None else {"metrics": reported}
        message.examples = read_examples(metrics, self._rules.weighted_by)
        return update, carried, told

    def _unpack(self, records: Records, record: Any, point: Vector) -> tuple[Vector, Arrays, float | None]:
        """Return (the update, the arrays of the reply, of which the carried ones are needed, the norm if it is known).

        The memory of an update is used again when the server has applied it and nobody else kept it.
        """
        layout = self._layout
        if self._coding.encodes_updates:
            return *self._coding.update(records, record), None
        arrays = layout.read(record)  # which may refuse them: nothing is allocated before
        update = self._spares.take(self._size, layout.dtype)
        if self._rules.replies == "updates":
            return layout.gather(arrays, update), arrays, None
        start = self._coding.start(point)
        if not self._measures_at_once:
            return layout.difference(start, arrays, update), arrays, None
        norm = GrowingNorm(update)
        return layout.difference(start, arrays, update, norm.written), arrays, norm.length()

    def _check_length(self, length: float, what: str) -> None:
        if self._bound is not None and length > self._bound:
            raise BadReply(f"{what} has norm {length:.4g}, more than max_norm = {self._bound:g}")

    def _content(self, message: ClientMessage, record: Any, config: Any, number: int) -> Any:
        if message.legacy:
            return legacy_content(message.kind, record, config, number)
        rules = self._engine.rounds
        return self._kinds.RecordDict(
            {rules.arrays_key: record, rules.config_key: self._config(message, config, number)}
        )

    def _config(self, message: ClientMessage, config: Any, number: int) -> Any:
        """Return the ``ConfigRecord`` of a message; the messages of a round share one, as Flower checks every entry."""
        given = self._engine.train_config if message.kind == "train" else self._engine.evaluate_config
        key = None if callable(given) else (message.kind, number, config.get(STEPS))
        last = self._last_config
        if key is None or last is None or last[0] != key:
            last = self._last_config = key, self._kinds.ConfigRecord({**config, "server-round": number})
        return last[1]


def others(content: Any, model: str) -> Any:
    """Return the records of a reply, without that of the model and those of the mod that compresses."""
    from flwr.app import RecordDict

    return RecordDict({name: record for name, record in content.items() if name not in (model, TERMS)})


def configured(argument: str, given: Config, number: int, handle: WorkerHandle) -> dict[str, Any]:
    """Return the configuration of one message. The polling thread calls this, so a user's function needs no lock."""
    if not callable(given):
        return dict(given)
    return sendable(argument, given(number, handle.title))


def sendable(name: str, given: Any) -> dict[str, Any]:
    """Return a configuration for clients as a dict. Raise `BadParameter` if Flower cannot send it."""
    from flwr.app import ConfigRecord

    if not isinstance(given, Mapping):
        raise BadParameter(name, given, f"is a {type(given).__name__}", 'pass a dict such as {"lr": 0.1}')
    for key, value in given.items():
        try:
            ConfigRecord({key: value})
        except (TypeError, ValueError) as error:
            fix = "pass numbers, strings, bytes, booleans, or lists of one of them"
            raise BadParameter(f"{name}[{key!r}]", value, "cannot be sent by Flower", fix) from error
    return dict(given)
