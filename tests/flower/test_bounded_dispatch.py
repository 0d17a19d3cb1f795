"""Algorithm 2 with a bound on waiting jobs: never above it, and uniform where it is not reached."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncsgd as asgd
from asyncsgd.core.dispatch import Dispatch, Shuffled, Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.flower.bounded_dispatch import BoundedShuffled, BoundedUniform, bounded
from asyncsgd.run.checkpoints import pack, unpack


@pytest.mark.parametrize("kind", [BoundedUniform, BoundedShuffled])
@given(data=st.data())
def test_no_client_has_more_than_its_share(kind: type[Dispatch], data: st.DataObject) -> None:
    queue, concurrency = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 8))
    method = asgd.async_sgd(0.1).using(dispatch=kind(concurrency=concurrency, queue=queue))  # type: ignore[call-arg]
    server = asgd.Server(np.zeros(1), method)
    server.handle(asgd.Joined(range(3)))
    for _ in range(30):
        load = {worker: 0 for worker in server.workers}
        for job in server.in_flight:
            load[job.worker] += 1
        assert max(load.values(), default=0) <= queue
        assert server.concurrency == min(concurrency, queue * len(load))
        choice = data.draw(st.sampled_from(["arrive", "lose", "leave", "join", "save"]))
        if choice in ("arrive", "lose") and server.in_flight:
            worker = data.draw(st.sampled_from([job.worker for job in server.in_flight]))
            first = next(job.id for job in server.in_flight if job.worker == worker)
            server.handle(asgd.Arrived(first, np.ones(1)) if choice == "arrive" else asgd.Lost(first))
        elif choice == "leave" and len(server.workers) > 1:
            server.handle(asgd.Left(data.draw(st.sampled_from(server.workers))))
        elif choice == "join":
            server.handle(asgd.Joined(max(server.workers) + 1))
        elif choice == "save":
            server = asgd.Server.restore(unpack(*pack(server.state())), method)


def test_draws_are_uniform_over_those_with_room() -> None:
    rule = BoundedUniform(concurrency=1, queue=1)
    state = rule.init(0)
    for worker in range(3):
        rule.joined(state, worker)
    counts = np.zeros(3, int)
    for _ in range(3000):
        [worker] = rule.pick(state, 0)
        counts[worker] += 1
        rule.ended(state, worker, True)
    assert (abs(counts - 1000) < 100).all(), counts


def test_there_is_no_bound_unless_one_is_given() -> None:
    assert bounded(Uniform(9), None) == bounded(Uniform(9), 9) == Uniform(9)
    assert bounded(Uniform(9), 5) == BoundedUniform(concurrency=9, queue=5)
    assert bounded(Shuffled(9), 3) == BoundedShuffled(concurrency=9, queue=3)
    rounds = asgd.fedavg(1.0, clients=2, ask=3).dispatch
    assert bounded(rounds, 3) is rounds
    with pytest.raises(BadParameter, match="queue = 0 must be an integer of at least 1"):
        BoundedUniform(concurrency=2, queue=0)


def test_what_the_bound_costs_slow_clients_is_said() -> None:
    """In a note before the run, and in the diagnosis where it happened."""
    pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
    from flower.fake import FakeGrid, record, towards
    from flower.serving import serve

    answers, fast, slow = 0, towards(1.0), towards(2.0)

    def quick(message: Any) -> Any:
        nonlocal answers
        answers += 1
        return fast(message)

    asked_at: dict[str, int] = {}

    def late(message: Any) -> Any:
        began = asked_at.setdefault(message.metadata.message_id, answers)
        return slow(message) if answers >= began + 40 else None

    run = serve(
        FakeGrid([quick, quick, late]),
        record(w=np.zeros(2)),
        asgd.federated_async_sgd(0.1, concurrency=6),
        iterations=300,
        clients=asgd.flower.Clients(minimum=3, queue=2, max_norm=None),  # without noise, norms tend to 0
        progress=False,
    )
    note = "no client has more than 2 jobs at once: much slower clients contribute less; leave queue out"
    assert any(said.startswith(note) for said in run.config["notes"])
    [problem] = [said for said in run.diagnosis.problems if "no client has more than 2 jobs" in said]
    assert problem.startswith("client 2 (node 9223372036854775835) gave ")
    assert "33% are fair" in problem
