"""Every client gets its share however slow it is, and one that hangs does not hold the jobs of the others."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from docs.pages import DOCS
from flower.bench import MODEL, Bench
from flower.fake import FakeGrid, towards
from flower.serving import ARRAYS, quiet, serve
from flower.virtual import Pace, World, hangs_after, in_turn, steady, virtual_bench

import asyncsgd as asgd
from asyncsgd.core.dispatch import Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrived, Joined, Left, Outcome
from asyncsgd.engines.base import Note
from asyncsgd.flower import Clients
from asyncsgd.flower.bounded_dispatch import bounded
from asyncsgd.flower.clients import Patience
from asyncsgd.flower.engine import TIMEOUT
from asyncsgd.run.evaluator import TICK


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def served(world: World, method: asgd.Method, paces: list[Pace], iterations: int = 600, **rules: Any) -> Any:
    world.paces = paces
    options: dict[str, Any] = {"iterations": iterations, "every": 10**6, "progress": False}
    team = Clients(minimum=len(paces), **rules)
    return serve(FakeGrid([towards(1.0)] * len(paces)), ARRAYS, method, clients=team, **options)


def shares(run: Any, clients: int = 3) -> np.ndarray[Any, Any]:
    return np.bincount(run.trace.worker, minlength=clients) / run.trace.iterations


# ---------------------------------------------------------------------------------------------- shares


@pytest.mark.parametrize("concurrency", [3, 6, 12])
def test_a_client_ten_times_slower_gives_its_third(world: World, concurrency: int) -> None:
    """A third of 600 draws is 200 with a standard deviation of 12; up to ``concurrency`` of them are still waiting."""
    run = served(world, asgd.federated_async_sgd(0.1, concurrency=concurrency), [steady(1), steady(1), steady(10)])
    assert (abs(shares(run) - 1 / 3) < 0.08).all(), shares(run)
    assert not any("no client has more than" in note for note in run.config["notes"])


@pytest.mark.parametrize("slow", [1.0, 3.0])
def test_its_data_may_differ_from_that_of_the_others(world: World, slow: float) -> None:
    """The bound on norms, which is on by default, must not refuse what a slow client has sent all along."""
    world.paces = [steady(1), steady(1), steady(10)]
    grid = FakeGrid([towards(2.0), towards(2.1), towards(slow)])
    options: dict[str, Any] = {"iterations": 600, "every": 10**6, "progress": False}
    run = serve(grid, ARRAYS, asgd.federated_async_sgd(0.1, concurrency=6), clients=Clients(minimum=3), **options)
    assert not (run.trace.jobs.outcome == Outcome.REJECTED).any()
    assert (abs(shares(run) - 1 / 3) < 0.08).all(), shares(run)


def test_in_shuffled_order_shares_are_equal_but_for_jobs_that_wait(world: World) -> None:
    run = served(
        world, asgd.federated_async_sgd(0.1, concurrency=6, order="shuffled"), [steady(1), steady(1), steady(10)]
    )
    assert (abs(600 * shares(run) - 200) <= 6).all(), shares(run)


def test_what_a_bound_costs_a_slow_client(world: World) -> None:
    """The figure that the documentation of `Clients` gives."""
    method = asgd.federated_async_sgd(0.1, concurrency=6)
    run = served(world, method, [steady(1), steady(1), steady(10)], queue=3)
    said = " ".join(str(Clients.__doc__).split())
    assert f"gives {100 * shares(run)[2]:.0f} % of the updates with ``concurrency=6`` and ``queue=3``" in said
    assert any(note.startswith("no client has more than 3 jobs at once") for note in run.config["notes"])


COSTS = {
    "Algorithm 2": asgd.federated_async_sgd(0.001, concurrency=6),
    "Algorithm 2 with `Clients(queue=3)`": asgd.federated_async_sgd(0.001, concurrency=6).using(
        dispatch=bounded(Uniform(6), 3)
    ),
    "delay-adaptive, all clients busy": asgd.delay_adaptive(0.001),
    "rounds of all three": asgd.fedavg(0.001, clients=3, ask=3),
}


@pytest.mark.parametrize("name", COSTS)
def test_what_the_guide_says_that_equal_shares_cost(name: str) -> None:
    speeds = asgd.durations.fixed([1.0, 1.0, 10.0])
    run = asgd.simulate(asgd.tasks.quadratic(workers=3), COSTS[name], speeds, iterations=3000, every=3000)
    row = f"| {name} | {100 * shares(run)[2]:.0f} % | {round(run.trace.time[-1], -2):,.0f} s |"
    assert row in (DOCS / "guides" / "federated.md").read_text("utf-8")


# ---------------------------------------------------------------------------------------------- clients that hang


def test_who_hangs_is_left_out_after_ten_times_its_own_median(world: World) -> None:
    """Client 2 takes 20 s and so gets 200 s, whatever the others take; the run continues without it."""
    paces = [steady(1), steady(1), hangs_after(5, seconds=20)]
    run = served(world, asgd.federated_async_sgd(0.1, concurrency=4), paces, timeout=10_000)
    counts = np.bincount(run.trace.worker, minlength=3)
    assert counts[2] == 5
    assert counts.sum() == 600
    [last] = [when for when, message in world.sent if message.worker == 2][5:]
    # By then it held every job, so others were sent none until it was given up, within a poll of 200 s.
    idle = [when for when, message in world.sent if message.worker != 2 and when > last + 20]
    assert last + 200 < idle[0] <= last + 200 + 2 * TICK
    assert world.now < last + 1000


def test_it_is_said_who_is_left_out_and_the_jobs_behind_it_are_free(world: World) -> None:
    world.paces = [steady(1), hangs_after(3, seconds=20)]
    with virtual_bench(world, towards(1.0), towards(2.0)) as here:
        for _ in range(3):
            here.expect(Arrived, job=here.give(1))
        began, hanging, behind = world.now, here.give(1), here.give(1)
        note = here.expect(Note, event="silent")
        assert began + 200 < world.now <= began + 201
        assert note.details == {"worker": 1, "allowed": 200.0, "reason": f"no answer to job {hanging} in 200 s"}
        assert note.message.startswith(
            f"client 1 (node 9223372036854775824) is left out until it answers: no answer to job {hanging} in 200 s; "
        )
        assert here.of(Left) == [Left(1)]
        here.expect(Arrived, job=here.give(0))
        assert behind not in [message.number for _, message in world.sent]
        [bias] = [note for note in here.pool.finish() if note.event == "bias"]
        assert bias.details == {"left_out": {"1": pytest.approx(world.now - began - 200, abs=1.0)}}


def test_a_late_answer_brings_a_client_back_and_gives_it_more_time(world: World) -> None:
    """Its update came too late to be used; what is learned is how long it takes."""
    world.paces = [steady(1), in_turn(20, 500, 500, 500, 3000)]
    with virtual_bench(world, towards(1.0), towards(2.0), rules=Clients(timeout=10_000)) as here:
        here.expect(Arrived, job=here.give(1))
        late = here.give(1)
        here.until(lambda: joined(here, 1) == 2, "its return")
        assert here.of(Left) == [Left(1)]
        assert not here.of(Arrived, job=late)
        for _ in range(2):
            here.expect(Arrived, job=here.give(1))
        began = world.now
        here.expect(Arrived, job=here.give(1))  # 3000 s are within ten times the median of 20, 500, 500, 500
        assert world.now == pytest.approx(began + 3000)
        assert len(here.of(Note, event="silent")) == 1


def test_who_hangs_from_the_beginning_does_not_hold_the_run(world: World) -> None:
    """Both jobs may go to clients that hang before any client has answered."""
    paces = [hangs_after(0, seconds=1), hangs_after(0, seconds=1), steady(1)]
    run = served(world, asgd.federated_async_sgd(0.1, concurrency=2), paces, iterations=100)
    assert (run.trace.worker == 2).all()
    assert world.now < 3600


def test_the_run_continues_where_every_first_answer_is_late(world: World) -> None:
    """All are left out after ten minutes, and join again when they answer, with what is then known of their speed."""
    run = served(world, asgd.federated_async_sgd(0.1, concurrency=3), [steady(700)] * 3, iterations=30)
    assert run.trace.iterations == 30
    assert len(set(run.trace.worker.tolist())) == 3


def joined(here: Bench, worker: int) -> int:
    return sum(worker in report.workers for report in here.of(Joined))


def test_who_never_answers_fails_once_more_each_time_flower_gives_up(world: World) -> None:
    world.paces = [steady(1), hangs_after(1, seconds=20)]
    with virtual_bench(world, towards(1.0), towards(2.0), rules=Clients(timeout=1000, max_failures=2)) as here:
        here.expect(Arrived, job=here.give(1))
        began = world.now
        here.give(1)
        here.until(lambda: joined(here, 1) == 2, "Flower to give it up")
        assert world.now == pytest.approx(began + 1000)
        here.give(1)
        out = here.expect(Note, event="left_out")
        assert (out.details["worker"], out.details["reason"]) == (1, "it did not answer")
        assert here.of(Left) == [Left(1), Left(1)]  # each time it was given up, and not once more


def test_who_goes_offline_while_it_is_left_out_may_come_back(world: World) -> None:
    from asyncsgd.flower.clients import ConnectedNodes

    world.paces = [steady(1), hangs_after(1, seconds=20)]
    with virtual_bench(world, towards(1.0), towards(2.0)) as here:
        here.expect(Arrived, job=here.give(1))
        here.give(1)
        here.expect(Note, event="silent")
        both = tuple(here.grid.get_nodes())
        world.put(ConnectedNodes(world.now, both[:1]))
        here.until(lambda: not here.pool._handles[1].online, "it to be gone")
        world.put(ConnectedNodes(world.now + 1, both))
        here.until(lambda: joined(here, 1) == 2, "its return")
        assert len(here.of(Left)) == 1


# ---------------------------------------------------------------------------------------------- how long


def allowed(rules: Clients, *took: tuple[int, float], worker: int = 0, kind: str = "train") -> float:
    patience = Patience(rules.patience, TIMEOUT if rules.timeout is None else rules.timeout)
    for other, seconds in took:
        patience.took(other, "train", seconds)
    return patience.allowed(worker, kind)


def test_how_long_a_client_may_take() -> None:
    rules = Clients()
    assert allowed(rules, (0, 20.0), (0, 30.0), (0, 900.0)) == 300.0  # ten times its own median
    assert allowed(rules, (0, 20.0), (1, 900.0)) == 200.0  # whatever others take
    assert allowed(rules, (0, 0.01)) == 60.0
    assert allowed(Clients(patience=3.0), (0, 40.0)) == 120.0
    assert allowed(rules, *[(0, 1.0)] * 50, *[(0, 20.0)] * 11) == 200.0  # it has become slower


def test_before_its_first_answer_a_client_gets_longer() -> None:
    assert allowed(Clients(), (1, 1.0)) == 600.0
    assert allowed(Clients(), (1, 1.0), (2, 90.0)) == 900.0
    assert allowed(Clients()) == 600.0  # no client has answered yet
    assert allowed(Clients(), (0, 1.0), kind="evaluate") == 600.0  # nor evaluated


def test_a_slow_client_that_hangs_is_left_out_before_the_timeout() -> None:
    assert allowed(Clients(), (0, 360.0)) == 1980.0  # halfway to the timeout
    assert allowed(Clients(), (0, 3000.0)) == 3300.0
    assert allowed(Clients(), (1, 400.0)) == 2000.0


def test_the_timeout_is_flowers_own() -> None:
    """Where that is not longer, the job ends as it always did."""
    assert allowed(Clients(timeout=600.0)) == math.inf
    assert allowed(Clients(timeout=30.0), (0, 1.0)) == math.inf
    assert allowed(Clients(patience=None), (0, 0.0)) == math.inf


def test_patience_is_checked() -> None:
    for value in (0.0, -1.0, 1.0, math.nan):
        with pytest.raises(BadParameter, match=f"patience = {value}"):
            Clients(patience=value)


# ---------------------------------------------------------------------------------------------- evaluation


def evaluations(here: Bench) -> list[Any]:
    return [note for note in here.of(Note, event="client_metrics") if note.details["kind"] == "evaluate"]


def test_clients_that_start_slowly_have_not_failed(world: World) -> None:
    """At the first evaluation clients load their libraries and data, some while others have answered."""
    world.paces = [steady(4), in_turn(45, 4), in_turn(95, 4)]
    with virtual_bench(world, towards(1.0), towards(3.0), towards(5.0), evaluate_config={}) as here:
        here.pool.measured(1, MODEL)
        for _ in range(10):
            here.expect(Arrived, job=here.give(0))
        [note] = here.until(lambda: evaluations(here), "the evaluation")
        assert (note.details["clients"], note.details["failed"]) == (3, 0)
        assert note.message.endswith("(3 clients, 30 examples)")


def test_who_hangs_does_not_hold_up_the_next_evaluation(world: World) -> None:
    world.paces = [hangs_after(1, seconds=20), steady(1)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        for iteration in (1, 2):
            here.pool.measured(iteration, MODEL)
            here.until(lambda count=iteration: len(evaluations(here)) == count, "the evaluation")
        first, second = evaluations(here)
        assert (first.details["clients"], first.details["failed"]) == (2, 0)
        assert (second.details["clients"], second.details["failed"]) == (1, 1)
        assert "1 failed: no answer in 200 s" in second.message
        here.pool.measured(3, MODEL)
        here.until(lambda: len(evaluations(here)) == 3, "the next one")
        assert evaluations(here)[2].details["failed"] == 0  # it was not asked


def test_an_evaluation_does_not_wait_behind_jobs(world: World) -> None:
    """A slow client may have many of them in line."""
    world.paces = [steady(1), steady(10)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}) as here:
        first, *others = [here.give(1) for _ in range(5)]
        here.pool.measured(7, MODEL)
        here.until(lambda: evaluations(here), "the evaluation")
        assert [report.job for report in here.of(Arrived)] == [first]
        here.expect(Arrived, job=others[-1])


def test_clients_evaluate_the_last_model_and_not_the_initial_one(world: World) -> None:
    """As under Flower's own strategies."""
    world.paces, world.looks = [steady(1)] * 3, [1, 3, 3]
    options = {"iterations": 9, "every": 10**6, "evaluate_clients": True, **quiet(minimum=3)}
    run = serve(FakeGrid([towards(1.0)] * 3), ARRAYS, asgd.async_sgd(0.1), **options)
    [row] = [row for row in run.round_metrics if row["kind"] == "evaluate"]
    assert (row["at"], row["clients"]) == (9, 3)
