"""What is written to clients, and how their replies are read. Nothing in a reply is believed."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd.core.errors import BadReply, NotFinite
from asyncsgd.core.events import Assign
from asyncsgd.core.validate import check_update
from asyncsgd.core.vectors import Vector, norm
from asyncsgd.flower import client_metrics
from asyncsgd.flower.arrays import Arrays
from asyncsgd.flower.client_handle import WorkerHandle
from asyncsgd.flower.sender import Letter
from asyncsgd.flower.task import Memory

if TYPE_CHECKING:
    from asyncsgd.flower.engine import Flower

SHARED = 2
"""Versions whose records are at hand: jobs of one version share one, as it is costly to make."""


class Letters:
    """Writes them in the words of Flower's own strategies, so that stock ClientApps understand."""

    def __init__(self, engine: Flower, memory: Memory, like: Vector) -> None:
        self._engine, self._layout, self._rules = engine, engine.layout, engine.clients
        self._memory, self._like = memory, like
        self._records: OrderedDict[tuple[int, int], Any] = OrderedDict()  # (version, slot) -> ArrayRecord

    def train(self, member: WorkerHandle, assign: Assign) -> Letter:
        """The letter of a job; its point stays as it is until the job ends."""
        job, point = assign.job, assign.point

        def content() -> Any:
            record = self._record((job.version, assign.slot), point)
            return _content(record, self._engine.train_config, job.version + 1)

        def read(content: Any) -> tuple[Vector, Arrays, client_metrics.Told | None]:
            return self._read(content, point, member.number, job.id)

        return Letter(member.number, member.node, "train", f"job-{job.id}", content, self._rules.timeout, read, job.id)

    def evaluate(self, member: WorkerHandle, iteration: int, record: Any) -> Letter:
        """The letter that asks for metrics of a model."""

        def content() -> Any:
            return _content(record, self._engine.evaluate_config or {}, iteration)

        def read(content: Any) -> client_metrics.Told | None:
            return client_metrics.read(content.metric_records, self._rules.weighted_by)

        group = f"evaluate-{iteration}-{member.number}"
        return Letter(member.number, member.node, "evaluate", group, content, self._rules.timeout, read, iteration)

    def _record(self, key: tuple[int, int], point: Vector) -> Any:
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = self._layout.join(point, self._memory.carried)
            while len(self._records) > SHARED:
                self._records.popitem(last=False)
        return record

    def _read(
        self, content: Any, point: Vector, worker: int, job: int
    ) -> tuple[Vector, Arrays, client_metrics.Told | None]:
        if len(content.array_records) != 1:
            raise BadReply(f"the reply has {len(content.array_records)} sets of arrays, one is expected")
        arrays = self._layout.read(next(iter(content.array_records.values())))
        models = self._rules.replies == "models"
        update = self._layout.difference(point, arrays) if models else self._layout.gather(arrays)
        try:
            check_update(update, self._like, worker, job)
        except NotFinite as error:
            raise BadReply("the arrays hold NaN or infinity") from error
        if self._rules.max_norm is not None:
            self._check_length(norm(update), "the update")
        carried = self._layout.keep(arrays)
        if self._rules.max_norm is not None:
            for part in self._layout.carried:
                if part.rule == "statistic":
                    moved = carried[part.name].astype(np.float64) - self._memory.carried[part.name]
                    self._check_length(norm(moved.reshape(-1)), f"the change of {part.name!r}")
        self._memory.keep(job, update)
        return update, carried, client_metrics.read(content.metric_records, self._rules.weighted_by)

    def _check_length(self, length: float, what: str) -> None:
        bound = self._rules.max_norm
        if bound is not None and length > bound:
            raise BadReply(f"{what} has norm {length:.4g}, more than max_norm = {bound:g}")


def _content(record: Any, config: Any, number: int) -> Any:
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({"arrays": record, "config": ConfigRecord({**config, "server-round": number})})
