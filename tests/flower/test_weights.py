"""Clients weigh by what they report: FedAvg's numbers, clients that report nothing, and how to turn it off."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, record
from flower.serving import Ear, quiet, serve
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

import asyncsgd as asgd
from asyncsgd.flower import AsyncStrategy, Clients
from asyncsgd.flower.weights import read_examples

ARRAYS = record(w=np.zeros(2))


def client(value: float, **metrics: float) -> Callable[[Message], RecordDict]:
    """A client that returns this model whatever it gets, with these metrics ("_" stands for "-" in their names)."""
    reported = MetricRecord({name.replace("_", "-"): number for name, number in metrics.items()})

    def answer(message: Message) -> RecordDict:
        arrays: ArrayRecord = record(w=np.full(2, value))
        return RecordDict({"arrays": arrays, "metrics": reported})

    return answer


def train(method: asgd.Method, *answers: Callable[[Message], RecordDict], **options: Any) -> Any:
    options = {"iterations": 2, **options}
    clients = quiet(weighted_by=options.pop("weighted_by")) if "weighted_by" in options else quiet()
    return serve(FakeGrid(answers), ARRAYS, method, **clients, **options)


def test_a_round_has_the_number_of_flowers_own_strategy() -> None:
    answers = client(0.0, num_examples=900), client(1.0, num_examples=100)
    run = train(asgd.fedavg(1.0, clients=2), *answers)
    assert run.arrays["w"].numpy().tolist() == [0.1, 0.1]
    assert sorted(run.trace.jobs.examples[run.trace.job].tolist()) == [100, 900]
    from flwr.serverapp.strategy import FedAvg

    replies = [Message(content=answer(None), dst_node_id=1, message_type="train") for answer in answers]  # type: ignore[arg-type]
    merged, _ = FedAvg().aggregate_train(1, replies)
    assert merged is not None
    np.testing.assert_allclose(merged["w"].numpy(), run.arrays["w"].numpy(), rtol=1e-15)


def test_weights_can_be_turned_off_and_named() -> None:
    answers = client(0.0, num_examples=900, trust=0.25), client(1.0, num_examples=100, trust=0.75)
    assert train(asgd.fedavg(1.0, clients=2), *answers, weighted_by=None).arrays["w"].numpy()[0] == 0.5
    assert train(asgd.fedavg(1.0, clients=2), *answers, weighted_by="trust").arrays["w"].numpy()[0] == 0.75


def test_the_strategy_weighs_by_its_key_unless_weights_are_turned_off() -> None:
    answers = client(0.0, num_examples=900, trust=0.25), client(1.0, num_examples=100, trust=0.75)

    def start(**options: Any) -> float:
        strategy = AsyncStrategy(asgd.fedavg(1.0, clients=2), progress=False, fraction_evaluate=0.0, **options)
        return float(strategy.start(FakeGrid(answers), ARRAYS, num_rounds=1).arrays["w"].numpy()[0])

    off = Clients(weighted_by=None)
    assert start() == start(clients=Clients()) == 0.1
    assert start(weighted_by_key="trust") == 0.75
    assert start(clients=off) == start(clients=off, weighted_by_key="trust") == 0.5


def test_a_client_that_reports_nothing_is_an_average_one_and_noted_once() -> None:
    answers = client(0.0, num_examples=900), client(0.0, num_examples=300), client(1.0, loss=0.5)
    ear = Ear()
    run = train(asgd.fedavg(1.0, clients=3), *answers, iterations=9, callbacks=[ear])
    found = [text for text in ear.notes if "does not report" in text]
    assert len(found) == 1
    assert found[0].startswith("client 2 (node 9223372036854775835) does not report 'num-examples', which client ")
    assert run.arrays["w"].numpy()[0] == pytest.approx(1 / 3)


def test_all_clients_count_the_same_if_none_reports() -> None:
    ear = Ear()
    run = train(asgd.fedavg(1.0, clients=2), client(0.0), client(1.0), callbacks=[ear])
    assert run.arrays["w"].numpy()[0] == 0.5
    assert not [text for text in ear.notes if "report" in text]


def test_noise_keeps_every_weight_at_one() -> None:
    method = asgd.fedavg(1.0, clients=2).clipped(1e9, noise=1e-15)
    run = train(method, client(0.0, num_examples=900), client(1.0, num_examples=100))
    assert run.arrays["w"].numpy()[0] == pytest.approx(0.5, abs=1e-3)


def test_a_replay_uses_the_recorded_examples(tmp_path: Path) -> None:
    method = asgd.federated_async_sgd(0.3, concurrency=2)
    answers = client(0.0, num_examples=900), client(1.0, num_examples=100)
    clients = {"progress": False, "clients": asgd.flower.Clients(heterogeneous=False, keep_updates=True)}
    run = serve(FakeGrid(answers), ARRAYS, method, iterations=40, directory=tmp_path / "run", **clients)
    again = asgd.replay(tmp_path / "run")
    assert again.model_compared
    assert again.x.tobytes() == run.x.tobytes()
    assert run.method.weights is not None


@pytest.mark.parametrize("value", [-1, float("nan"), float("inf"), 1e12, "many", [3], None])
def test_a_number_that_is_not_credible_is_no_report(value: Any) -> None:
    assert read_examples({"metrics": {"num-examples": value}}, "num-examples") is None


def test_zero_and_fractions() -> None:
    assert read_examples({"metrics": {"num-examples": 0}}, "num-examples") == 0
    assert read_examples({"metrics": {"num-examples": 0.2}}, "num-examples") == 1


def test_a_report_far_above_the_median_is_noted_once_with_the_way_out() -> None:
    answers = [client(0.0, num_examples=10) for _ in range(4)] + [client(1.0, num_examples=1000)]
    method = asgd.federated_async_sgd(0.05, concurrency=5)
    ear = Ear()
    train(method, *answers, iterations=40, callbacks=[ear])
    [note] = [text for text in ear.notes if "times the median" in text]
    assert note.startswith("client 4 ")
    assert "reports a 'num-examples' of more than 10 times the median of all clients" in note
    assert note.endswith("method.weighted(limit=None) counts every report in full")
    for other in (method.weighted(limit=None), asgd.fedavg(0.5, clients=5)):  # rounds are those of FedAvg
        ear = Ear()
        train(other, *answers, iterations=40, callbacks=[ear])
        assert not [text for text in ear.notes if "times the median" in text]


def test_a_fraction_of_an_example_is_noted_once() -> None:
    answers = client(0.0, num_examples=0.9, loss=1.0), client(1.0, num_examples=0.1, loss=1.0)
    ear = Ear()
    train(asgd.fedavg(1.0, clients=2), *answers, iterations=6, callbacks=[ear])
    [note] = [text for text in ear.notes if "counts as 1" in text]
    assert "report fractions under another name, and pass it as weighted_by_key=" in note


def test_two_names_for_the_weight_are_refused() -> None:
    strategy = AsyncStrategy(asgd.fedavg(clients=2), clients=Clients(weighted_by="trust"), progress=False)
    with pytest.raises(asgd.errors.BadParameter, match="pass weighted_by_key='trust' to AsyncStrategy instead"):
        strategy.start(FakeGrid([client(0.0)]), ARRAYS, num_rounds=1)


def test_an_aggregation_function_gets_the_strategys_name_of_the_weight() -> None:
    answers = client(0.0, trust=0.25, loss=1.0), client(1.0, trust=0.75, loss=3.0)
    seen = []

    def mean(records: list[RecordDict], weighted_by: str) -> MetricRecord:
        seen.append(weighted_by)
        return MetricRecord({"loss": sum(float(record["metrics"]["loss"]) for record in records) / len(records)})  # type: ignore[index,arg-type,misc]

    for off in (Clients(), Clients(weighted_by=None)):
        options = {"weighted_by_key": "trust", "train_metrics_aggr_fn": mean, "fraction_evaluate": 0.0, "clients": off}
        strategy = AsyncStrategy(asgd.fedavg(1.0, clients=2), progress=False, **options)  # type: ignore[arg-type]
        strategy.start(FakeGrid(answers), ARRAYS, num_rounds=1)
    assert set(seen) == {"trust"}
