"""`AsyncStrategy` in place of Flower's FedAvg: the same calls, the same names, the same kind of result."""

from __future__ import annotations

import inspect
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, record, reply, towards
from flower.serving import ARRAYS, Ear, clients, error
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg, Result, Strategy

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.flower import AsyncStrategy, Clients
from asyncsgd.run.read import read_config

METHOD = asgd.federated_async_sgd(0.3, concurrency=4)


def strategy(method: asgd.Method = METHOD, **options: Any) -> Any:
    return AsyncStrategy(method, **{"progress": False, "evaluate_every": 1, **options})


# ---------------------------------------------------------------------------------------------- as FedAvg


def test_start_has_the_signature_of_flowers_strategies() -> None:
    ours, theirs = (inspect.signature(kind.start).parameters for kind in (AsyncStrategy, FedAvg))
    assert list(ours) == list(theirs)
    assert [value.default for value in ours.values()] == [value.default for value in theirs.values()]


def test_the_parameters_of_fedavg_have_its_names_and_defaults() -> None:
    ours, theirs = (inspect.signature(kind.__init__).parameters for kind in (AsyncStrategy, FedAvg))
    assert theirs.keys() <= ours.keys()
    for name in theirs.keys() - {"self"}:
        assert ours[name].default == theirs[name].default, name


def test_one_line_changes() -> None:
    """The same function calls Flower's strategy or ours; the result is one of Flower's."""
    result = strategy(evaluate_every=None).start(clients(1.0, 2.0, 3.0), ARRAYS, num_rounds=5, evaluate_fn=error)
    assert isinstance(result, Result)
    assert isinstance(strategy(), Strategy)
    assert result.run.trace.iterations == 15
    assert {key: array.numpy().shape for key, array in result.arrays.items()} == {"w": (2, 3), "b": (3,), "n": ()}
    assert result.train_metrics_clientapp.keys() == {1, 2, 3, 4, 5}
    assert {0, 5} <= result.evaluate_metrics_serverapp.keys()  # the rest as far as 5 % of the time allow
    assert 5 in result.evaluate_metrics_clientapp
    assert result.evaluate_metrics_serverapp[5]["loss"] < result.evaluate_metrics_serverapp[0]["loss"]
    assert isinstance(result.train_metrics_clientapp[1], MetricRecord)
    assert "ServerApp-side Evaluate Metrics" in repr(result)


def test_rounds_give_what_fedavg_gives() -> None:
    """Straight from the formula, and round by round."""
    models: dict[int, float] = {}

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        models[server_round] = float(arrays["w"].numpy()[0, 0])
        return MetricRecord({"w": models[server_round]})

    result = strategy(asgd.fedavg(1.0, clients=3)).start(
        clients(1.0, 2.0, 6.0), ARRAYS, num_rounds=4, evaluate_fn=evaluate
    )
    w, expected = 0.0, [0.0]
    for _ in range(4):
        w = float(np.mean([w + 0.5 * (target - w) for target in (1.0, 2.0, 6.0)]))
        expected.append(w)
    assert list(models) == [0, 1, 2, 3, 4]
    np.testing.assert_allclose(list(models.values()), expected, rtol=1e-6)
    assert {number: row["w"] for number, row in result.evaluate_metrics_serverapp.items()} == models
    assert result.evaluate_metrics_clientapp.keys() <= {1, 2, 3, 4}
    assert 4 in result.evaluate_metrics_clientapp


def test_server_rounds_count_alike_for_training_and_evaluation() -> None:
    grid = clients(1.0, 2.0, 3.0)
    strategy(asgd.fedavg(1.0, clients=3)).start(grid, ARRAYS, num_rounds=3)
    rounds: dict[str, list[int]] = {"train": [], "evaluate": []}
    for message in grid.messages:
        rounds[message.metadata.message_type].append(int(message.content["config"]["server-round"]))
    assert rounds["train"] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert set(rounds["evaluate"]) <= {1, 2, 3}
    assert rounds["evaluate"][-3:] == [3, 3, 3]


def test_a_round_is_as_long_as_the_clients_at_the_start(tmp_path: Path) -> None:
    """The number is fixed then: neither a client that joins nor a resume changes it."""
    first = strategy(directory=tmp_path).start(clients(1.0, 2.0, 3.0), ARRAYS, num_rounds=2)
    assert (first.run.trace.iterations, read_config(tmp_path)["engine"]["round"]) == (6, 3)
    again = strategy(directory=tmp_path, resume=True).start(clients(1.0, 2.0), ARRAYS, num_rounds=4)
    assert (again.run.trace.iterations, read_config(tmp_path)["engine"]["round"]) == (12, 3)
    assert again.train_metrics_clientapp.keys() == {1, 2, 3, 4}
    done = strategy(directory=tmp_path, resume=True).start(clients(), ARRAYS, num_rounds=4)  # needs no client
    assert repr(done) == repr(again)


def test_a_resume_in_the_middle_of_a_round_completes_it(tmp_path: Path) -> None:
    class Stop(asgd.Callback):
        def on_update(self, view: Any, control: Any) -> None:
            if view.iteration == 5:
                control.stop("in the second round of three")

    first = strategy(directory=tmp_path, callbacks=[Stop()]).start(clients(1.0, 2.0, 3.0), ARRAYS, num_rounds=4)
    assert first.run.trace.iterations == 5
    again = strategy(directory=tmp_path, resume=True).start(clients(1.0, 2.0, 3.0), ARRAYS, num_rounds=4)
    rows = {row["round"]: row["replies"] for row in again.run.round_metrics if row["kind"] == "train"}
    assert rows == {1: 3, 2: 3, 3: 3, 4: 3}
    trained = [row["iteration"] for row in again.run.client_metrics if row["kind"] == "train"]
    assert trained == list(range(1, 13))


def test_records_have_the_keys_that_were_asked_for() -> None:
    seen: set[tuple[str, ...]] = set()

    def client(message: Message) -> RecordDict:
        seen.add(tuple(message.content))
        return reply(message.content["model"], {"rows": 5.0})

    keys = {"arrayrecord_key": "model", "configrecord_key": "settings", "weighted_by_key": "rows"}
    result = strategy(fraction_evaluate=0.0, **keys).start(FakeGrid([client] * 2), record(w=np.zeros(2)), num_rounds=1)
    assert seen == {("model", "settings")}
    assert result.run.client_metrics[0]["examples"] == 5.0
    assert result.run.client_metrics[0]["metrics"] == {"num-examples": 10.0}


def test_the_timeout_of_start_is_that_of_jobs() -> None:
    for rules, expected in ((Clients(), 77.0), (Clients(timeout=5.0), 5.0)):
        grid = clients(1.0, 2.0)
        strategy(clients=rules).start(grid, ARRAYS, num_rounds=1, timeout=77.0)
        assert {message.metadata.ttl for message in grid.messages} == {expected}


def test_it_waits_for_clients() -> None:
    """Until as many are connected as FedAvg would wait for; a reminder says so."""
    grid, asked = clients(1.0, 2.0, 3.0), 0
    first, *others = grid.online
    grid.online = {first}
    list_nodes = grid.get_nodes

    def get_nodes() -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            grid.online |= set(others)
        return list_nodes()

    grid.get_nodes = get_nodes  # type: ignore[method-assign]
    result = strategy(min_available_nodes=3).start(grid, ARRAYS, num_rounds=2)
    assert result.run.trace.iterations == 6


# ---------------------------------------------------------------------------------------------- configurations


def test_configurations_may_be_functions_of_round_and_client() -> None:
    grid = clients(1.0, 2.0)
    asked: list[tuple[int, int]] = []

    def train_config(number: int, client: Any) -> ConfigRecord:
        asked.append((number, client.number))
        return ConfigRecord({"lr": 0.1 / number, "node": str(client.node)})

    strategy(asgd.fedavg(1.0, clients=2)).start(
        grid, ARRAYS, num_rounds=2, train_config=train_config, evaluate_config=lambda number, client: {"n": number}
    )
    for message in grid.messages:
        config = message.content["config"]
        if message.metadata.message_type == "train":
            assert config["lr"] == 0.1 / config["server-round"]
            assert config["node"] == str(message.metadata.dst_node_id)
        else:
            assert config["n"] == config["server-round"]
    assert sorted(asked) == [(1, 0), (1, 1), (2, 0), (2, 1)]


def test_a_function_of_a_configuration_is_checked() -> None:
    for given, words in (
        (lambda number, client: {"lr": object()}, r"train_config\['lr'\] = .* cannot be sent by Flower"),
        (lambda number, client: 0.1, "train_config = 0.1 is a float"),
    ):
        with pytest.raises(BadParameter, match=words):
            strategy().start(clients(1.0, 2.0), ARRAYS, num_rounds=1, train_config=given)
    local = asgd.async_diloco(0.7, steps=20)
    with pytest.raises(BadParameter, match=r"train_config\['steps'\] = 3 is set by the method"):
        strategy(local, clients=Clients(heterogeneous=False)).start(
            clients(1.0, 2.0), ARRAYS, num_rounds=1, train_config=lambda number, client: {"steps": 3}
        )


# ---------------------------------------------------------------------------------------------- metrics


def test_a_users_aggregation_gets_the_replies_of_a_round() -> None:
    calls: list[tuple[int, str]] = []

    def worst(records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        calls.append((len(records), weighted_by_key))
        assert all(not each.array_records for each in records)
        values = [float(next(iter(each.metric_records.values()))["loss"]) for each in records]
        return MetricRecord({"worst": max(values), "all": sorted(values)})

    options = {"train_metrics_aggr_fn": worst, "evaluate_metrics_aggr_fn": worst}
    result = strategy(asgd.fedavg(1.0, clients=3), **options).start(clients(1.0, 2.0, 6.0), ARRAYS, num_rounds=2)
    assert set(calls) == {(3, "num-examples")}
    assert result.train_metrics_clientapp.keys() == {1, 2}
    assert result.train_metrics_clientapp[1]["worst"] == max(result.train_metrics_clientapp[1]["all"])
    assert len(result.evaluate_metrics_clientapp[2]["all"]) == 3


def test_an_aggregation_that_raises_stops_the_run_and_is_named() -> None:
    def broken(records: list[RecordDict], weighted_by_key: str) -> MetricRecord:
        raise ZeroDivisionError("no weights")

    with pytest.raises(ZeroDivisionError, match="no weights") as caught:
        strategy(train_metrics_aggr_fn=broken).start(clients(1.0, 2.0), ARRAYS, num_rounds=1)
    assert "Raised in train_metrics_aggr_fn, called with 2 replies." in caught.value.__notes__
    with pytest.raises(BadParameter, match="train_metrics_aggr_fn = 3 returned a int; return a flwr"):
        strategy(train_metrics_aggr_fn=lambda records, key: 3).start(clients(1.0, 2.0), ARRAYS, num_rounds=1)


def test_the_default_is_the_weighted_mean_of_flower() -> None:
    """Lists stay lists."""
    from flwr.serverapp.strategy.strategy_utils import aggregate_metricrecords

    said = [
        {"num-examples": 10, "loss": 1.0, "each": [0.0, 1.0]},
        {"num-examples": 30, "loss": 3.0, "each": [1.0, 0.5]},
    ]
    contents: list[RecordDict] = []

    def client(numbers: dict[str, Any]) -> Any:
        def answer(message: Message) -> RecordDict:
            contents.append(RecordDict({"metrics": MetricRecord(numbers)}))
            return RecordDict({"arrays": message.content["arrays"], "metrics": MetricRecord(numbers)})

        return answer

    grid = FakeGrid([client(each) for each in said])
    result = strategy(asgd.fedavg(1.0, clients=2), fraction_evaluate=0.0).start(
        grid, record(w=np.zeros(2)), num_rounds=1
    )
    assert dict(result.train_metrics_clientapp[1]) == dict(aggregate_metricrecords(contents, "num-examples"))


@pytest.mark.parametrize("directory", [True, False])
def test_every_reply_is_kept_with_client_iteration_and_time(directory: bool, tmp_path: Path) -> None:
    where = tmp_path / "run" if directory else None
    grid = clients(1.0, 2.0)
    result = strategy(directory=where).start(grid, ARRAYS, num_rounds=3)
    rows = [row for row in result.run.client_metrics if row["kind"] == "train"]
    trace = result.run.trace
    assert [row["iteration"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert [row["round"] for row in rows] == [1, 1, 2, 2, 3, 3]
    assert [row["client"] for row in rows] == trace.worker.tolist()
    assert [row["time"] for row in rows] == pytest.approx(trace.time.tolist(), abs=5.0)
    assert [row["time"] for row in rows] == sorted(row["time"] for row in rows)
    assert {row["node"] for row in rows} <= set(grid.clients)
    assert all(row["metrics"].keys() == {"loss"} and row["examples"] == 10.0 for row in rows)
    evaluated = [row for row in result.run.client_metrics if row["kind"] == "evaluate"]
    assert {row["iteration"] for row in evaluated} <= {2, 4, 6}
    assert 6 in {row["iteration"] for row in evaluated}


def test_memory_for_replies_is_bounded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from asyncsgd.flower import rounds

    monkeypatch.setattr(rounds, "KEPT", 4)
    result = strategy(fraction_evaluate=0.0).start(clients(1.0, 2.0), ARRAYS, num_rounds=5)
    assert [row["iteration"] for row in result.run.client_metrics] == [7, 8, 9, 10]
    strategy(fraction_evaluate=0.0, directory=tmp_path).start(clients(1.0, 2.0), ARRAYS, num_rounds=5)
    assert len(rounds.read_rows(tmp_path, most=None)) == 10


def test_a_fraction_of_the_clients_evaluates() -> None:
    def evaluated(**options: Any) -> list[int]:
        grid = clients(1.0, 2.0, 3.0, 4.0)
        strategy(**options).start(grid, ARRAYS, num_rounds=1)
        asked = [message for message in grid.messages if message.metadata.message_type == "evaluate"]
        return [message.metadata.dst_node_id for message in asked]

    assert len(evaluated()) == 4
    assert len(evaluated(fraction_evaluate=0.5, min_evaluate_nodes=0)) == 2
    assert len(evaluated(fraction_evaluate=0.3, min_evaluate_nodes=3)) == 3
    assert len(evaluated(fraction_evaluate=0.1, min_evaluate_nodes=9)) == 4  # all that are present
    assert evaluated(fraction_evaluate=0.0) == []
    drawn = {tuple(sorted(evaluated(fraction_evaluate=0.5, seed=seed))) for seed in range(8)}
    assert len(drawn) > 1


# ---------------------------------------------------------------------------------------------- texts


def test_the_terminal_shows_the_metric_that_matters_at_every_evaluation(capsys: pytest.CaptureFixture[str]) -> None:
    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        return MetricRecord({"loss": 1.0, "accuracy": server_round / 10})

    strategy(until="accuracy >= 0.9", progress=True).start(
        clients(1.0, 2.0), ARRAYS, num_rounds=3, evaluate_fn=evaluate
    )
    said = capsys.readouterr().err
    for number in range(4):
        assert f"round {number} of 3: accuracy {number / 10:g}, loss 1\n" in said
    assert "round 3, evaluated by clients: loss " in said


def test_clients_have_the_names_that_operators_know() -> None:
    """A registered name counts more than the one that a client gives itself, and every text has the number too."""

    def named(name: str) -> Any:
        inner = towards(1.0)

        def client(message: Message) -> RecordDict:
            content = inner(message)
            content["who"] = ConfigRecord({"name": name})
            return content

        return client

    from flower.fake import failing

    ear, grid = Ear(), FakeGrid([named("clinic\nb\x1b[2J"), named("liar"), towards(3.0), failing])
    second = list(grid.clients)[1]
    grid.names = {second: "clinic-a"}
    rules = Clients(max_failures=1, pause=3600.0)
    seen: list[str] = []

    def train_config(number: int, client: Any) -> dict[str, Any]:
        seen.append(client.name)
        return {}

    result = strategy(callbacks=[ear], clients=rules).start(grid, ARRAYS, num_rounds=6, train_config=train_config)
    names = {row["client"]: row["name"] for row in result.run.client_metrics}
    assert names == {0: "clinic b?[2J", 1: "clinic-a", 2: ""}
    assert {"clinic-a", "clinic b?[2J", ""} == set(seen)
    node = list(grid.clients)[3]
    assert any(note.startswith(f"client 3 (node {node}) is left out for") for note in ear.notes)


def test_warnings_point_at_the_line_of_the_caller() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        strategy(asgd.async_sgd(0.1)).start(clients(1.0, 2.0), ARRAYS, num_rounds=1)
    [warning] = [warning for warning in caught if issubclass(warning.category, asgd.BiasWarning)]
    assert warning.filename == __file__


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"fraction_train": 0.0}, "fraction_train = 0.0 is not a fraction of the clients"),
        ({"fraction_evaluate": 1.5}, "fraction_evaluate = 1.5 is not a fraction"),
        ({"min_train_nodes": -1}, "min_train_nodes = -1 is not a number of clients"),
        ({"min_evaluate_nodes": "two"}, "min_evaluate_nodes = 'two' is not a number of clients"),
        ({"arrayrecord_key": ""}, "arrayrecord_key = '' is not a key"),
        ({"train_metrics_aggr_fn": "mean"}, "train_metrics_aggr_fn = 'mean' is not a function"),
        ({"evaluate_every": 0}, "evaluate_every = 0 must be an integer"),
        ({"method": "fedavg"}, "method = 'fedavg' is a str; call the recipe"),
        ({"until": "good"}, "until = 'good' is not a target"),
    ],
)
def test_mistakes_are_named(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        strategy(**options).start(clients(1.0, 2.0), ARRAYS, num_rounds=1)


def test_what_flower_calls_per_round_is_refused_with_the_reason() -> None:
    here = strategy()
    for name, count in (
        ("configure_train", 4),
        ("aggregate_train", 2),
        ("configure_evaluate", 4),
        ("aggregate_evaluate", 2),
    ):
        with pytest.raises(UsageError, match=f"AsyncStrategy.{name} cannot be called: the strategy runs a loop of its"):
            getattr(here, name)(*[None] * count)
    from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping as Private

    with pytest.raises(UsageError, match="Strategies that wrap another one do not work"):
        Private(here, 1.0, 1.0, 2).start(clients(1.0, 2.0), ARRAYS, num_rounds=1)


def test_flower_is_imported_on_first_use() -> None:
    code = "import sys, asyncsgd as asgd; asgd.flower.Clients(); assert 'flwr' not in sys.modules"
    code += "; asgd.flower.AsyncStrategy"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(("ask", "connected"), [(None, 5), (4, 5), (None, 3)])
def test_a_method_with_rounds_keeps_them(ask: int | None, connected: int) -> None:
    """However many clients are connected: 3 of them make a round, and each round changes the model once."""
    method = asgd.fedavg(clients=3) if ask is None else asgd.fedavg(clients=3, ask=ask)
    alike = Clients(heterogeneous=False)  # over-selection favours fast clients, and warns of it
    result = strategy(method, min_available_nodes=connected, clients=alike).start(
        clients(*[1.0] * connected), ARRAYS, num_rounds=4, evaluate_fn=error
    )
    assert result.run.trace.iterations == 12
    assert len(set(result.run.trace.version.tolist())) == 4
    assert result.train_metrics_clientapp.keys() == {1, 2, 3, 4}


def test_a_robust_buffer_of_another_size_than_the_round_is_noted() -> None:
    def notes(size: int) -> list[str]:
        method = asgd.fedavg(clients=3).using(aggregation=asgd.aggregation.median(size))
        result = strategy(method).start(clients(1.0, 2.0, 3.0), ARRAYS, num_rounds=2)
        return [text for text in result.run.config["notes"] if "pass the same number to both" in text]

    assert notes(3) == []
    assert notes(2) == [
        "median gathers 2 updates, and a round has 3: pass the same number to both, so that every round changes the "
        "model once"
    ]
