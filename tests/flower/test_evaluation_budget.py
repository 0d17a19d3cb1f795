"""Evaluation takes a small share of the time, and clients that never answer hold nothing."""

from __future__ import annotations

import math
import threading
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import MODEL, Bench
from flower.fake import towards
from flower.serving import ARRAYS, clients, error
from flower.virtual import World, hangs_after, in_turn, steady, virtual_bench

import asyncsgd as asgd
from asyncsgd.core.events import Arrived
from asyncsgd.engines.base import Note
from asyncsgd.flower import AsyncStrategy
from asyncsgd.flower.round_rules import RoundRules
from asyncsgd.run.evaluator import Evaluator
from asyncsgd.run.options import Evaluation


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def evaluations(here: Bench) -> list[Any]:
    return [note.details for note in here.of(Note, event="client_metrics") if note.details["kind"] == "evaluate"]


# ---------------------------------------------------------------------------------------------- on clients


def by_kind(train: float, evaluate: float) -> Any:
    return lambda message: train if message.kind == "train" else evaluate


def share_of_evaluation(world: World, share: float | None) -> tuple[float, int]:
    """The share of clients' time, and the number of evaluations, after 200 rounds of two jobs of 10 s each."""
    pace = by_kind(10.0, 4.0)
    world.paces = [pace, pace]
    rules = RoundRules(size=2, share=share)
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}, rounds=rules) as here:
        for number in range(1, 201):
            jobs = [here.give(0), here.give(1)]
            for job in jobs:
                here.pool.used(here.expect(Arrived, job=job), True)
            here.pool.measured(2 * number, MODEL)
        here.until(lambda: not here.pool._evaluations.busy, "the last evaluation")
        asked = [message for _, message in world.sent]
        spent = {kind: sum(pace(each) for each in asked if each.kind == kind) for kind in ("train", "evaluate")}
        return spent["evaluate"] / sum(spent.values()), len(evaluations(here))


def test_evaluation_takes_at_most_a_twentieth_of_the_clients_time(world: World) -> None:
    share, number = share_of_evaluation(world, 0.05)
    assert 0.04 < share <= 0.05
    assert number > 20


def test_without_a_limit_every_round_is_evaluated(world: World) -> None:
    share, number = share_of_evaluation(world, None)
    assert share > 0.25
    assert number == 200


def test_the_last_model_is_evaluated_whatever_it_takes(world: World) -> None:
    pace = by_kind(1.0, 50.0)
    world.paces = [pace, pace]
    with virtual_bench(
        world, towards(1.0), towards(3.0), evaluate_config={}, rounds=RoundRules(size=2, share=0.05)
    ) as here:
        here.expect(Arrived, job=here.give(0))
        here.pool.measured(2, MODEL)
        here.until(lambda: evaluations(here), "the first evaluation, whose length nobody knew")
        here.pool.measured(4, MODEL)
        here.expect(Arrived, job=here.give(0))
        assert len(evaluations(here)) == 1
        here.pool.measured(6, MODEL)
        notes = [note for note in here.pool.finish() if isinstance(note, Note) and note.event == "client_metrics"]
        assert [(note.details["at"], note.details["clients"]) for note in notes] == [(6, 2)]


# ---------------------------------------------------------------------------------------------- at the end


def finished(here: Bench) -> Any:
    """The note about the last evaluation."""
    [note] = [note for note in here.pool.finish() if isinstance(note, Note) and note.event == "client_metrics"]
    return note


@pytest.mark.parametrize(("usual", "limit"), [(1.0, 5.0), (4.0, 14.0), (10.0, 20.0), (20.0, 27.0), (60.0, 77.0)])
def test_a_client_that_never_answers_does_not_hold_the_end(world: World, usual: float, limit: float) -> None:
    """It gets 2 s and three times its own usual time, at most 20 s; a slow one 2 s and 1.25 times its usual time."""
    world.paces = [hangs_after(2, usual), steady(usual)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        for iteration in (1, 2):
            here.pool.measured(iteration, MODEL)
            here.until(lambda count=iteration: len(evaluations(here)) == count, "the evaluation")
        here.pool.measured(3, MODEL)
        began, note = world.now, finished(here)
        assert (note.details["clients"], note.details["failed"]) == (1, 1)
        assert limit <= world.now - began <= limit + 1
        assert f"no answer in {limit:.0f} s" in note.message


@pytest.mark.parametrize("usual", [8.0, 30.0, 300.0])
def test_a_slow_client_that_answers_is_waited_for(world: World, usual: float) -> None:
    world.paces = [steady(1.0), in_turn(usual, usual, 1.2 * usual)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        for iteration in (1, 2):
            here.pool.measured(iteration, MODEL)
            here.until(lambda count=iteration: len(evaluations(here)) == count, "the evaluation")
        here.pool.measured(3, MODEL)
        began, note = world.now, finished(here)
        assert (note.details["clients"], note.details["failed"]) == (2, 0)
        assert world.now - began <= 1.2 * usual + 1


def test_a_client_that_was_silent_before_the_end_gets_no_more_time(world: World) -> None:
    """Its evaluation began long before the run ended, and its time is up at the end."""
    world.paces = [hangs_after(1, 20.0), steady(1.0)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        here.pool.measured(1, MODEL)
        here.until(lambda: evaluations(here), "the evaluation")
        here.pool.measured(2, MODEL)
        for _ in range(40):  # 40 s pass while the client hangs; it would be left out after 200 s
            here.expect(Arrived, job=here.give(1))
        began, note = world.now, finished(here)
        assert (note.details["at"], note.details["failed"]) == (2, 1)
        assert world.now - began <= 1


def test_clients_that_all_hang_in_one_evaluation_do_not_hold_the_end_for_the_next(world: World) -> None:
    world.paces = [hangs_after(1, 2.0), hangs_after(1, 2.0)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        here.pool.measured(1, MODEL)
        here.until(lambda: evaluations(here), "the evaluation")
        here.pool.measured(2, MODEL)
        here.pool.measured(3, MODEL)
        began, note = world.now, finished(here)
        assert (note.details["at"], note.details["failed"]) == (2, 2)
        assert world.now - began <= 21
        assert not here.pool._evaluations.busy


@pytest.mark.parametrize(("usual", "limit"), [(4.0, 14.0), (600.0, 20.0)])
def test_an_old_job_does_not_hold_the_end(world: World, usual: float, limit: float) -> None:
    """The model is evaluated after the job; a job that takes ten minutes is too long to wait for."""
    world.paces = [by_kind(usual, 1.0), steady(1.0)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        here.expect(Arrived, job=here.give(0))
        world.paces[0] = by_kind(math.inf, 1.0)
        here.give(0)
        here.pool.measured(3, MODEL)
        began, note = world.now, finished(here)
        assert (note.details["clients"], note.details["failed"]) == (1, 1)
        assert limit <= world.now - began <= limit + 1
        assert f"no answer in {limit:.0f} s" in note.message


def test_a_client_that_computes_an_old_job_is_waited_for(world: World) -> None:
    """A slow client ends the job that is not wanted any more, and evaluates then."""
    world.paces = [steady(1.0), by_kind(15.0, 3.0)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        here.expect(Arrived, job=here.give(1))
        here.give(1)
        here.pool.measured(3, MODEL)
        [note] = [note for note in here.pool.finish() if isinstance(note, Note) and note.event == "client_metrics"]
        assert (note.details["clients"], note.details["failed"]) == (2, 0)


def test_a_client_that_hangs_in_a_job_does_not_hold_the_end(world: World) -> None:
    world.paces = [hangs_after(3, 2.0), steady(2.0)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        for _ in range(3):
            here.expect(Arrived, job=here.give(0))
        here.give(0)
        here.pool.measured(3, MODEL)
        began = world.now
        [note] = [note for note in here.pool.finish() if isinstance(note, Note) and note.event == "client_metrics"]
        assert (note.details["clients"], note.details["failed"]) == (1, 1)
        assert world.now - began <= 9.0


# ---------------------------------------------------------------------------------------------- on the server


class Slow:
    """A task whose evaluation takes as long as the test says."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def evaluate(self, x: Any) -> dict[str, float]:
        return {"loss": 1.0}


def test_evaluation_on_the_server_takes_at_most_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a clock of the test's own: an update per second, an evaluation of two seconds wanted at every fifth."""
    now = [0.0]
    evaluator = Evaluator(Slow(), Evaluation(5, federated=True, share=0.05))  # type: ignore[arg-type]
    begun: list[int] = []

    def evaluate(iteration: int, seconds: float) -> None:
        evaluator.begin(iteration, now[0], np.zeros(1))
        evaluator._under_way.result.result()  # type: ignore[union-attr]
        row, _ = evaluator._under_way.result.result()  # type: ignore[union-attr]
        from concurrent.futures import Future

        done: Future[Any] = Future()
        done.set_result((row, seconds))
        evaluator._under_way = evaluator._under_way._replace(result=done)  # type: ignore[union-attr]
        evaluator.finished()
        begun.append(iteration)

    evaluate(0, 2.0)
    for iteration in range(1, 2001):
        now[0] += 1.0
        if evaluator.due(iteration) and evaluator.affordable(iteration, now[0]):
            evaluate(iteration, 2.0)
    assert 0.045 < 2.0 * (len(begun) - 1) / now[0] <= 0.05
    assert all(iteration % 5 == 0 for iteration in begun)
    assert evaluator.spared == 400 - (len(begun) - 1)


def test_training_does_not_wait_for_an_evaluation_unless_rounds_are_asked_for() -> None:
    """The evaluation of round 1 ends only after the last update has arrived."""
    grid, last = clients(1.0, 2.0), threading.Event()
    seen: list[int] = []

    class Ear(asgd.Callback):
        def on_update(self, view: Any, control: Any) -> None:
            if view.iteration == 40:
                last.set()

    def evaluate(server_round: int, arrays: Any) -> Any:
        seen.append(server_round)
        if 0 < server_round < 20:
            assert last.wait(60), "updates wait for the evaluation"
        return error(server_round, arrays)

    method = asgd.federated_async_sgd(0.1, concurrency=2)
    result = AsyncStrategy(method, progress=False, callbacks=[Ear()], fraction_evaluate=0.0).start(
        grid, ARRAYS, num_rounds=20, evaluate_fn=evaluate
    )
    assert result.run.trace.iterations == 40
    assert {0, 20} <= set(result.evaluate_metrics_serverapp) == set(seen)
    assert len(seen) <= 3
    every: list[int] = []
    AsyncStrategy(method, progress=False, evaluate_every=5, fraction_evaluate=0.0).start(
        clients(1.0, 2.0), ARRAYS, num_rounds=20, evaluate_fn=lambda number, arrays: every.append(number)
    )
    assert every == [0, 5, 10, 15, 20]
