"""What stock Flower apps do around `start`: mods that read the round, subclasses, fractions, histories."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import FOREVER, MODEL, bench
from flower.client_apps import node
from flower.fake import towards
from flower.serving import ARRAYS, clients, error
from flower.virtual import World, steady, virtual_bench
from flwr.app import Context, Message
from flwr.client import NumPyClient
from flwr.clientapp import ClientApp

import asyncsgd as asgd
from asyncsgd.core.errors import UsageError
from asyncsgd.core.events import Arrived
from asyncsgd.engines.base import Note
from asyncsgd.flower import AsyncStrategy, Clients
from asyncsgd.flower.round_rules import RoundRules
from asyncsgd.run.evaluator import Evaluator
from asyncsgd.run.options import FREE_SECONDS, Evaluation

METHOD = asgd.federated_async_sgd(0.3, concurrency=4)


def strategy(**options: Any) -> Any:
    return AsyncStrategy(METHOD, **{"progress": False, "evaluate_every": 1, **options})


# ---------------------------------------------------------------------------------------------- the round


def test_the_group_of_a_message_is_its_round_as_with_flowers_legacy_server() -> None:
    grid = clients(1.0, 2.0, 3.0)
    strategy().start(grid, ARRAYS, num_rounds=3)
    rounds = [(message.metadata.group_id, message.content["config"]["server-round"]) for message in grid.messages]
    assert {kind.metadata.message_type for kind in grid.messages} == {"train", "evaluate"}
    assert all(group == str(number) for group, number in rounds)
    assert not grid.wrong


def test_a_mod_of_a_legacy_client_may_read_the_round_from_the_group() -> None:
    """As mods in Flower's documentation do. It runs before anything can tell that the client is a legacy one."""
    seen: list[int] = []

    def mod(message: Message, context: Context, call_next: Any) -> Message:
        seen.append(int(message.metadata.group_id))
        return call_next(message, context)

    class Client(NumPyClient):
        def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
            assert config["server_round"] == seen[-1]
            return [x + 1 for x in parameters], 10, {}

    app = ClientApp(client_fn=lambda context: Client().to_client(), mods=[mod])
    with bench(node(app), rules=Clients(max_failures=1, pause=FOREVER)) as here:
        for _ in range(3):
            here.expect(Arrived, job=here.give(0))
        assert seen == [1, 1, 2, 3]  # the first message comes twice, in both formats
        [note] = here.of(Note, event="legacy")
        assert "it is harmless" in note.message


# ---------------------------------------------------------------------------------------------- strategies


@pytest.mark.parametrize("name", ["configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate"])
def test_a_subclass_whose_override_would_never_be_called_is_refused_before_the_start(name: str) -> None:
    kind = type("Mine", (AsyncStrategy,), {name: lambda *_: []})
    grid = clients(1.0, 2.0)
    with pytest.raises(UsageError, match=f"Mine.{name} would never be called: the strategy runs a loop of its own"):
        kind(METHOD, progress=False).start(grid, ARRAYS, num_rounds=1)
    assert not grid.messages


def test_other_methods_of_a_subclass_are_its_own_business() -> None:
    class Mine(AsyncStrategy):
        def start(self, *arguments: Any, **options: Any) -> Any:
            return super().start(*arguments, **options)

    assert Mine(METHOD, progress=False).start(clients(1.0, 2.0), ARRAYS, num_rounds=1).run.trace.iterations == 2


def test_a_legacy_server_app_gets_the_way_that_works() -> None:
    with pytest.raises(UsageError, match=r"write the ServerApp with @app.main\(\) and call strategy.start"):
        strategy().initialize_parameters(client_manager=None)


@pytest.mark.parametrize(
    ("fraction", "least", "size"), [(1.0, 2, 5), (0.5, 2, 2), (0.8, 2, 4), (0.1, 3, 3), (0.1, 1, 1), (0.5, 4, 4)]
)
def test_a_round_has_as_many_updates_as_with_fedavg(fraction: float, least: int, size: int) -> None:
    """FedAvg samples max(int(fraction * clients), min_train_nodes) of them."""
    from flwr.serverapp.strategy.strategy_utils import sample_nodes

    grid = clients(1.0, 2.0, 3.0, 4.0, 5.0)
    wanted, _ = sample_nodes(grid, 2, max(int(5 * fraction), least))
    here = strategy(fraction_train=fraction, min_train_nodes=least, min_available_nodes=5)
    run = here.start(grid, ARRAYS, num_rounds=3).run
    assert (run.config["engine"]["round"], run.trace.iterations) == (size, 3 * size)
    assert size == len(list(wanted))


# ---------------------------------------------------------------------------------------------- histories


def test_a_round_without_metrics_says_why_in_the_error() -> None:
    result = strategy(evaluate_every=2).start(clients(1.0, 2.0), ARRAYS, num_rounds=5, evaluate_fn=error)
    assert set(result.evaluate_metrics_serverapp) == {0, 2, 4, 5}
    for history in (result.evaluate_metrics_serverapp, result.evaluate_metrics_clientapp):
        with pytest.raises(KeyError, match=r"round 3 has no metrics.*AsyncStrategy\(evaluate_every=1\)"):
            history[3]
        assert history.get(3) is None
        assert dict(history) == history


def evaluated(evaluator: Evaluator, iteration: int, seconds: float) -> None:
    """Let an evaluation end that took so long."""
    evaluator.begin(iteration, 0.0, np.zeros(1))
    result = evaluator._under_way.result  # type: ignore[union-attr]
    row, _ = result.result()
    result._result = row, seconds
    evaluator.finished()


class Quick:
    def evaluate(self, x: Any) -> dict[str, float]:
        return {"loss": 1.0}


@pytest.mark.parametrize("took", [0.5, 2.0])
def test_the_first_seconds_of_evaluation_are_free(took: float) -> None:
    """An update per second: without them, 1 of 20 rounds at most could be evaluated for half a second each."""
    evaluator = Evaluator(Quick(), Evaluation(1, federated=True, share=0.05))  # type: ignore[arg-type]
    evaluated(evaluator, 0, took)
    number = 0
    while evaluator.affordable(number + 1, number + 1.0):
        number += 1
        evaluated(evaluator, number, took)
    assert number * took == FREE_SECONDS
    assert evaluator.spared == 1


def test_the_last_model_is_not_counted_as_left_out() -> None:
    evaluator = Evaluator(Quick(), Evaluation(1, federated=True, share=0.05))  # type: ignore[arg-type]
    evaluated(evaluator, 0, 99.0)
    evaluator.skip(1)
    assert not evaluator.affordable(2, 2.0)
    assert not evaluator.affordable(3, 3.0)
    assert (evaluator.skipped, evaluator.spared) == (1, 2)
    evaluated(evaluator, 3, 99.0)
    assert (evaluator.skipped, evaluator.spared) == (1, 1)
    evaluator.skip(4)
    evaluated(evaluator, 4, 99.0)
    assert (evaluator.skipped, evaluator.spared) == (1, 1)


def test_clients_evaluate_short_runs_in_full_and_long_ones_say_what_is_missing(monkeypatch: Any) -> None:
    world = World(monkeypatch)
    world.paces = [steady(4.0), steady(4.0)]
    rules = RoundRules(size=2, share=0.05)
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}, rounds=rules) as here:
        for number in range(1, 7):
            here.pool.measured(2 * number, MODEL)
            here.reports += here.pool.poll(1.0)
            here.until(lambda: not here.pool._evaluations.busy, "the evaluation")
        notes = [note.details["round"] for note in here.of(Note, event="client_metrics")]
        assert notes == [1, 2]  # 4 s each of 10 s that are free
        [note] = [note for note in here.pool.finish() if isinstance(note, Note) and note.event == "not_evaluated"]
        assert note.details == {"rounds": 4}
        assert note.message.startswith("4 rounds were not evaluated by clients")


def test_a_run_in_which_all_rounds_were_evaluated_says_nothing(monkeypatch: Any) -> None:
    world = World(monkeypatch)
    world.paces = [steady(4.0), steady(4.0)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}, rounds=RoundRules(size=2)) as here:
        for number in (1, 2, 3):
            here.pool.measured(2 * number, MODEL)
            here.reports += here.pool.poll(1.0)
            here.until(lambda: not here.pool._evaluations.busy, "the evaluation")
        assert len(here.of(Note, event="client_metrics")) == 3
        assert not [note for note in here.pool.finish() if isinstance(note, Note)]


def test_models_that_come_during_an_evaluation_are_counted_but_for_the_newest(monkeypatch: Any) -> None:
    world = World(monkeypatch)
    world.paces = [steady(4.0), steady(4.0)]
    with virtual_bench(world, towards(1.0), towards(3.0), evaluate_config={}, rounds=RoundRules(size=2)) as here:
        for number in (1, 2, 3, 4):
            here.pool.measured(2 * number, MODEL)
        here.until(lambda: len(here.of(Note, event="client_metrics")) == 2, "both evaluations")
        assert [note.details["round"] for note in here.of(Note, event="client_metrics")] == [1, 4]
        [note] = [note for note in here.pool.finish() if isinstance(note, Note)]
        assert note.message == (
            "2 rounds were not evaluated by clients, because they were still evaluating an earlier model"
        )


def test_where_nothing_is_measured_no_round_in_between_costs_a_copy_of_the_model() -> None:
    run = strategy(fraction_evaluate=0.0, evaluate_every=None).start(clients(1.0, 2.0), ARRAYS, num_rounds=9).run
    assert run.metrics["iteration"].tolist() == [0, 18]
    seen = strategy(fraction_evaluate=0.0).start(clients(1.0, 2.0), ARRAYS, num_rounds=9, evaluate_fn=error).run
    assert seen.metrics["iteration"].tolist() == list(range(0, 20, 2))
