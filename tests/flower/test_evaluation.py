"""What clients measure: in training, and when they are asked to evaluate a model."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import FOREVER, MODEL, Bench, bench
from flower.fake import Held, failing, towards
from flwr.app import Message

from asyncsgd.core.events import Arrived, Left
from asyncsgd.engines.base import Note
from asyncsgd.flower.engine import Clients
from asyncsgd.flower.round_rules import RoundRules


def metrics(here: Bench, kind: str) -> list[Any]:
    return [note.details for note in here.of(Note, event="client_metrics") if note.details["kind"] == kind]


def evaluating(here: Bench) -> set[int]:
    """The numbers of the clients that were asked to evaluate."""
    nodes = list(here.grid.clients)
    asked = [message.metadata for message in here.grid.messages if message.metadata.message_type == "evaluate"]
    return {nodes.index(one.dst_node_id) for one in asked if one.group_id == "5"}


def test_metrics_of_training_are_averaged_by_round() -> None:
    with bench(towards(1.0), towards(3.0), rounds=RoundRules(size=3)) as here:
        for worker in (0, 1, 1, 0):
            here.pool.used(here.expect(Arrived, job=here.give(worker)), True)
        here.until(lambda: metrics(here, "train"), "metrics")
        [row] = metrics(here, "train")
        assert (row["clients"], row["replies"], row["examples"]) == (2, 3, 30.0)
        assert row["metrics"] == {"loss": pytest.approx((1 + 9 + 9) / 3)}
        assert (row["round"], row["at"]) == (1, 3)
        assert not metrics(here, "evaluate")
        assert here.pool.log.history == [row]


def test_clients_evaluate_while_they_train() -> None:
    held = Held(towards(1.0))
    with bench(held, towards(3.0), evaluate_config={"lr": 0.0}) as here:
        job = here.give(0)
        here.pool.measured(5, MODEL)
        here.until(lambda: evaluating(here), "the evaluation")
        assert evaluating(here) == {1}
        here.pool.measured(6, MODEL)  # waits
        here.pool.measured(7, MODEL)  # the newest counts
        held.gate.set()
        here.expect(Arrived, job=job)
        here.until(lambda: len(metrics(here, "evaluate")) == 2, "both evaluations")
        first, second = metrics(here, "evaluate")
        assert (first["at"], second["at"]) == (5, 7)
        assert first["metrics"] == {"loss": pytest.approx(5.0)}
        assert (first["lowest"], first["highest"]) == ({"loss": 1.0}, {"loss": 9.0})


def test_a_client_that_cannot_evaluate_still_trains() -> None:
    def trains(message: Message) -> Any:
        return failing(message) if message.metadata.message_type == "evaluate" else towards(1.0)(message)

    with bench(trains, towards(3.0), evaluate_config={}, rules=Clients(max_failures=1, pause=FOREVER)) as here:
        here.pool.measured(1, MODEL)
        here.until(lambda: metrics(here, "evaluate"), "metrics")
        [note] = here.of(Note, event="client_metrics")
        assert note.message == (
            "round 1, evaluated by clients: loss 9 (1 client, 10 examples; 1 failed: ValueError: no data here)"
        )
        here.expect(Arrived, job=here.give(0))
        assert not here.of(Left)


def test_the_last_evaluation_is_waited_for() -> None:
    asked = iter([None] * 5)  # not yet, not yet, ...

    def slow(message: Message) -> Any:
        return next(asked, message) and towards(1.0)(message)

    with bench(slow, towards(3.0), evaluate_config={}) as here:
        here.pool.measured(9, MODEL)
        [note] = [note for note in here.pool.finish() if getattr(note, "event", "") == "client_metrics"]
        assert (note.details["at"], note.details["clients"]) == (9, 2)


def test_who_leaves_does_not_hold_up_an_evaluation() -> None:
    held = Held(towards(1.0))
    with bench(held, towards(3.0), evaluate_config={}) as here:
        here.pool.measured(9, MODEL)
        here.until(held.asked.is_set, "the evaluation")
        here.grid.leave(next(iter(here.grid.clients)))
        here.until(lambda: metrics(here, "evaluate"), "the evaluation without it")
        assert metrics(here, "evaluate")[0]["clients"] == 1


def test_who_is_left_out_is_not_asked_to_evaluate() -> None:
    with bench(failing, towards(3.0), evaluate_config={}, rules=Clients(max_failures=1, pause=FOREVER)) as here:
        here.give(0)
        here.expect(Left, worker=0)
        here.pool.measured(5, MODEL)
        here.until(lambda: metrics(here, "evaluate"), "the evaluation")
        assert metrics(here, "evaluate")[0]["failed"] == 0
        assert evaluating(here) == {1}
