"""The Flower engine passes the suite that every engine passes, with clients that compute the suite's tasks."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, record, reply
from flwr.app import Error, Message

from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work, compute_job
from asyncsgd.engines.base import Engine, WorkerPool
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.engine import Clients, Flower
from asyncsgd.flower.sender import ClientMessage
from asyncsgd.testing import SCENARIOS, Abilities, check_engine
from asyncsgd.testing.faults import job_seed

ABILITIES = Abilities(
    replaces=False, times_out=False, stops=False, cleans_up=False, other_processes=False, batches=False
)


@dataclass(frozen=True)
class Federation(Engine):
    """As many clients, which compute the task's own updates and send these: differences would round."""

    def start(self, task: Any, work: Work, x: Vector) -> WorkerPool:
        sent = threading.local()  # a message does not name its job, and its thread sends it and fetches the reply

        def client(worker: int, message: Message) -> Any:
            point = message.content["arrays"]["x"].numpy()
            seed = job_seed(0, sent.job)
            try:
                update = compute_job(work, task, point, worker, seed, steps=None, batch=0)
            except BaseException as error:
                return Error(2, f"Traceback\n{type(error).__name__}: {error}")
            if update is not None and update.dtype != point.dtype:
                update = update.astype(
                    complex
                )  # any real dtype is converted (test_replies), so a wrong one is not real
            return reply(record(x=np.array("nothing") if update is None else update))

        def place(worker: int) -> Any:
            return lambda message: client(worker, message)

        grid = FakeGrid([place(worker) for worker in range(self.workers)])
        model = record(x=x)
        rules = Clients(replies="updates", max_failures=1_000_000)
        pool = Flower(self.workers, grid, Layout.of(model), clients=rules).start(task, work, x)
        push = pool._sender._push

        def push_and_remember(message: ClientMessage) -> Any:
            sent.job = message.number
            return push(message)

        pool._sender._push = push_and_remember  # type: ignore[method-assign]
        return pool


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_flower(scenario: str) -> None:
    check_engine(Federation, abilities=ABILITIES, only=scenario)
