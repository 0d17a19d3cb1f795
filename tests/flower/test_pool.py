"""Replies of clients: what is used, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import bench
from flower.fake import Client, Held, record, reply, towards
from flwr.app import Message, RecordDict

from asyncsgd.core.events import Arrived
from asyncsgd.engines.base import Rejected
from asyncsgd.flower.engine import Clients


def test_the_update_is_what_training_moved() -> None:
    with bench(towards(2.0), towards(4.0)) as here:
        jobs = here.give(0), here.give(1)
        updates = [here.expect(Arrived, job=job) for job in jobs]
        assert [report.update.tolist() for report in updates] == [[-1.0] * 4, [-2.0] * 4]
        assert all(report.checked and report.update.dtype == np.float32 for report in updates)
        assert here.pool.carried["n"] == 1


def test_messages_are_those_of_flowers_own_strategies() -> None:
    with bench(towards(1.0), train_config={"lr": 0.1}) as here:
        here.expect(Arrived, job=here.give(0))
        [message] = here.grid.messages
        assert message.metadata.message_type == "train"
        assert dict(message.content["config"]) == {"lr": 0.1, "server-round": 1}
        assert list(message.content["arrays"]) == ["w", "n"]


def test_a_client_is_sent_one_job_at_a_time_in_order() -> None:
    held = Held(towards(1.0))
    with bench(held) as here:
        jobs = [here.give(0) for _ in range(4)]
        here.until(held.asked.is_set, "the first job")
        assert len(here.grid.messages) == 1
        held.gate.set()
        here.expect(Arrived, job=jobs[-1])
        assert [report.job for report in here.of(Arrived)] == jobs


def test_a_slow_client_holds_up_nobody() -> None:
    held = Held(towards(1.0))
    with bench(held, towards(2.0)) as here:
        here.give(0)
        for _ in range(5):
            here.expect(Arrived, job=here.give(1))
        assert not here.of(Arrived, worker=0)


def test_cancelled_jobs_are_not_reported() -> None:
    held = Held(towards(1.0))
    with bench(held) as here:
        running, waiting, wanted = (here.give(0) for _ in range(3))
        here.until(held.asked.is_set, "the first job")
        here.cancel(running)
        here.cancel(waiting)
        held.gate.set()
        here.expect(Arrived, job=wanted)
        assert [report.job for report in here.of(Arrived)] == [wanted]
        assert [message.metadata.group_id for message in here.grid.messages] == [str(running + 1), str(wanted + 1)]


# ---------------------------------------------------------------------------------------------- what is refused


def model(**changes: Any) -> RecordDict:
    arrays = {"w": np.ones((2, 2), np.float32), "n": np.array(1), **changes}
    return reply(record(**{name: values for name, values in arrays.items() if values is not None}))


def to_another(message: Message) -> Message:
    answer = Message(model(), reply_to=message)
    answer.metadata.__dict__["_reply_to_message_id"] = "another"
    return answer


def from_another(message: Message) -> Message:
    answer = Message(model(), reply_to=message)
    answer.metadata.__dict__["_src_node_id"] = 77
    return answer


def of_another_job(message: Message) -> Message:
    answer = Message(model(), reply_to=message)
    answer.metadata.__dict__["_group_id"] = "77"
    return answer


LIES: dict[str, tuple[Client, str]] = {
    "NaN": (lambda m: model(w=np.full((2, 2), np.nan, np.float32)), "NaN or infinity"),
    "infinity": (lambda m: model(w=np.full((2, 2), np.inf, np.float32)), "NaN or infinity"),
    "another shape": (lambda m: model(w=np.zeros((2, 3), np.float32)), "has shape"),
    "a dtype that is not real": (lambda m: model(w=np.zeros((2, 2), np.complex64)), "the model has float32"),
    "beyond float32": (lambda m: model(w=np.full((2, 2), 1e300)), "NaN or infinity"),
    "a missing array": (lambda m: model(w=None), "'w' is missing"),
    "another name": (lambda m: model(w=None, v=np.zeros((2, 2))), "'w' is missing, 2 in all"),
    "too long": (lambda m: model(w=np.full((2, 2), 1e9, np.float32)), "more than max_norm = 1000"),
    "no arrays": (lambda m: RecordDict(), "0 sets of arrays"),
    "two sets": (lambda m: RecordDict({"a": record(w=np.ones(1)), "b": record(w=np.ones(1))}), "2 sets of arrays"),
    "twice": (lambda m: [model(), model()], "2 replies came for one message"),
    "to another message": (to_another, "to another message"),
    "from another node": (from_another, "from another node"),
    "of another job": (of_another_job, "to another job"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_refused_and_the_client_goes_on(lie: str) -> None:
    says, words = LIES[lie]
    answers = iter([says])
    honest = towards(1.0)
    with bench(lambda m: next(answers, honest)(m), rules=Clients(max_norm=1000.0)) as here:
        first, second = here.give(0), here.give(0)
        refused = here.expect(Rejected, job=first)
        assert words in refused.reason
        assert here.pool.carried["n"] == 0 or here.of(Arrived)
        here.expect(Arrived, job=second)


def test_a_reply_that_cannot_even_be_unpacked_is_refused() -> None:
    def broken(message: Message) -> Any:
        raise ValueError("\x1b[2J no such object" + "x" * 5000)

    with bench(broken) as here:
        refused = here.expect(Rejected, job=here.give(0))
        assert refused.reason.startswith("the reply cannot be read (ValueError: ")
        assert "\x1b" not in refused.reason
        assert len(refused.reason) < 2100


@pytest.mark.parametrize("honest", [1, 2, 4])
def test_one_client_cannot_set_what_is_carried(honest: int) -> None:
    """Whole numbers and statistics: with one other client they stay between its own and what was there before."""

    def liar(message: Message) -> RecordDict:
        return model(n=np.array(10**15))

    with bench(liar, *[towards(1.0)] * honest) as here:
        here.expect(Arrived, job=here.give(0))
        assert here.pool.carried["n"] == 0
        for worker in range(1, honest + 1):
            here.expect(Arrived, job=here.give(worker))
        here.expect(Arrived, job=here.give(0))
        assert here.pool.carried["n"] <= honest  # each honest job counts on


def test_a_client_on_its_own_sets_what_is_carried() -> None:
    with bench(towards(1.0)) as here:
        here.expect(Arrived, job=here.give(0))
        assert here.pool.carried["n"] == 1
