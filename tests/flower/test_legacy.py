"""Clients of Flower's legacy interface: how the server finds out, what it sends, and how it reads their replies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import FOREVER, Bench, bench
from flower.client_apps import node
from flower.fake import Client, FakeGrid, record, towards
from flower.serving import Ear, quiet, serve
from flwr.app import Error, Message, RecordDict
from flwr.client import Client as LegacyClient
from flwr.client import ClientApp, NumPyClient
from flwr.common import Code, FitIns, FitRes, Parameters, Status

import asyncsgd as asgd
from asyncsgd.core.compression import TopK
from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Arrived, Left
from asyncsgd.engines.base import Failed, Note, Rejected
from asyncsgd.flower import Clients, compress_mod
from asyncsgd.flower.legacy import ClientFormat, Formats
from asyncsgd.flower.sender import ClientMessage, ErrorReply, Good, Refused

Fit = Callable[[list[np.ndarray], dict[str, Any]], Any]


class Towards(NumPyClient):
    """Pulls every array of floats towards a number, and counts in every other array."""

    def __init__(self, target: float, seen: list[Any] | None = None) -> None:
        self.target, self.seen = target, [] if seen is None else seen

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        self.seen.append(config)
        moved = [x + 0.5 * (self.target - x) if x.dtype.kind == "f" else x + 1 for x in parameters]
        return moved, 30, {"train_loss": 0.25, "name": "me", "fine": True}

    def evaluate(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        self.seen.append(config)
        return float(np.mean((parameters[0] - self.target) ** 2)), 20, {"accuracy": 0.5, "note": "text"}


def legacy(client: Any, **options: Any) -> Client:
    return node(ClientApp(client_fn=lambda context: client.to_client(), **options))


def groups(here: Bench) -> list[str]:
    return [message.metadata.group_id for message in here.grid.messages]


def formats(here: Bench) -> list[str]:
    return [next(iter(message.content.array_records)) for message in here.grid.messages]


# ---------------------------------------------------------------------------------------------- which format


def test_the_first_message_is_sent_again_and_all_later_ones_are_right_at_once() -> None:
    with bench(legacy(Towards(1.0)), rules=Clients(max_failures=1, pause=FOREVER)) as here:
        first, second = here.give(0), here.give(0)
        assert here.expect(Arrived, job=first).update.tolist() == [-0.5] * 4
        here.expect(Arrived, job=second)
        assert groups(here) == ["1", "1", "2"]
        assert formats(here) == ["arrays", "fitins.parameters", "fitins.parameters"]
        assert not here.of(Failed)
        assert not here.of(Left)


def test_both_kinds_of_clients_train_in_one_run() -> None:
    """The formula of rounds, as in test_serve: who understands which message changes nothing."""
    grid = FakeGrid([node_of(towards(1.0)), legacy(Towards(2.0)), legacy(Towards(6.0))])
    model = record(w=np.zeros((2, 3), np.float32), n=np.array(0))
    method = asgd.fedavg(1.0, clients=3, ask=3)
    run = serve(grid, model, method, iterations=12, every=100, **quiet(weighted_by=None))
    w = 0.0
    for _ in range(4):
        w = np.mean([w + 0.5 * (target - w) for target in (1.0, 2.0, 6.0)])
    np.testing.assert_allclose(run.arrays["w"].numpy(), w, rtol=1e-6)
    assert run.arrays["n"].numpy() > 0
    assert not grid.wrong
    assert (run.faults.rejected, run.faults.exceptions) == (0, 0)


def test_who_comes_later_is_asked_in_the_format_of_the_others() -> None:
    with bench(legacy(Towards(1.0))) as here:
        here.expect(Arrived, job=here.give(0))
        here.grid.add(12, legacy(Towards(2.0)))
        here.all_join(2)
        here.expect(Arrived, job=here.give(1))
        assert groups(here) == ["1", "1", "2"]


def test_a_wrong_guess_costs_one_message_and_no_failure() -> None:
    with bench(legacy(Towards(1.0)), rules=Clients(max_failures=1, pause=FOREVER)) as here:
        here.expect(Arrived, job=here.give(0))
        here.grid.add(12, node_of(towards(3.0)))
        here.all_join(2)
        assert here.expect(Arrived, job=here.give(1)).update.tolist() == [-1.5] * 4
        assert formats(here)[-2:] == ["fitins.parameters", "arrays"]


def node_of(client: Client) -> Client:
    """A client that raises for a message without arrays, as today's ClientApps do."""

    def careful(message: Message) -> Any:
        return client(message) if "arrays" in message.content else Error(2, "<class 'KeyError'>:<''arrays''>")

    return careful


def test_a_legacy_client_that_raises_is_a_failure_with_its_own_reason() -> None:
    class Broken(Towards):
        def fit(self, parameters: Any, config: Any) -> Any:
            raise ValueError("no data here")

    with bench(legacy(Broken(1.0)), legacy(Towards(2.0)), rules=Clients(max_failures=2, pause=FOREVER)) as here:
        for _ in range(2):
            failed = here.expect(Failed, job=here.give(0))
            assert "no data here" in failed.error
        assert here.expect(Note, event="left_out").details["worker"] == 0
        assert groups(here) == ["1", "1", "2"]


def test_the_format_survives_a_restart_of_the_client_and_is_found_again_if_it_changed() -> None:
    with bench(legacy(Towards(1.0)), towards(0.0)) as here:
        [first, _] = here.grid.clients
        here.expect(Arrived, job=here.give(0))
        here.grid.leave(first)
        here.expect(Left, worker=0)
        here.grid.add(first, legacy(Towards(1.0)))
        here.all_join(3)
        here.expect(Arrived, job=here.give(0))
        assert groups(here)[-1] == "2"  # right at once
        here.grid.leave(first)
        here.until(lambda: len(here.of(Left, worker=0)) == 2, "its end")
        here.grid.add(first, node_of(towards(3.0)))
        here.all_join(4)
        assert here.expect(Arrived, job=here.give(0)).update.tolist() == [-1.5] * 4
        assert formats(here)[-2:] == ["fitins.parameters", "arrays"]
        assert not here.of(Failed)


def test_a_client_that_always_names_the_missing_record_is_not_asked_for_ever() -> None:
    liar = Error(2, "fitins.parameters")
    with bench(lambda m: liar, towards(1.0), rules=Clients(max_failures=2, pause=FOREVER)) as here:
        for _ in range(2):
            here.expect(Failed, job=here.give(0))
        assert here.expect(Note, event="left_out").details["worker"] == 0
        assert len(here.grid.messages) == 3


def test_the_rules_of_a_format() -> None:
    """Every answer in both formats, sure and not: when a message is sent again, and what the next one looks like."""
    raised, missed = ErrorReply("ValueError", 2), ErrorReply("KeyError: 'evaluateins.parameters'", 2)
    for outcome, sent, sure, again, then in (
        (Good(None, 1.0), False, False, False, False),
        (Good(None, 1.0), True, False, False, True),
        (missed, False, False, True, True),
        (missed, False, True, False, False),
        (raised, False, False, False, False),
        (raised, True, False, True, False),
        (raised, True, True, False, True),
        (ErrorReply("evaluateins.parameters", 6), False, False, False, False),
        (ErrorReply("expired", 3), True, False, False, True),
        (Refused("NaN"), True, False, False, True),
    ):
        client, message = ClientFormat(Formats()), ClientMessage(0, 1, "train", "g", dict, 1.0, id, 0)
        if sent or sure:
            message.legacy = sent
            client.learn(message, Good(None, 1.0))
        if not sure:
            client.doubt()
        message.legacy = sent
        assert (client.learn(message, outcome), client.legacy) == (again, then), (outcome, sent, sure)


# ---------------------------------------------------------------------------------------------- what is sent


def test_the_configuration_has_the_round_under_both_names_and_the_steps() -> None:
    seen: list[dict[str, Any]] = []
    grid = FakeGrid([legacy(Towards(target, seen)) for target in (1.0, 2.0)])
    method = asgd.async_sgd(0.2).local(7, 0.1)
    serve(grid, record(w=np.zeros(2)), method, iterations=6, train_config={"lr": 0.5}, **quiet())
    assert seen[0] == {"lr": 0.5, "steps": 7, "server_round": 1, "server-round": 1}
    assert {config["server_round"] for config in seen} > {1}


def test_a_list_in_the_configuration_is_named() -> None:
    with (
        bench(legacy(Towards(1.0)), train_config={"sizes": [1, 2]}) as here,
        pytest.raises(
            EngineError, match=r"train_config\['sizes'\] = \[1, 2\] is a list, which clients of Flower's leg"
        ),
    ):
        here.expect(Arrived, job=here.give(0))


def test_arrays_keep_their_order_however_many_there_are() -> None:
    sizes = range(1, 14)

    class Tells(NumPyClient):
        def fit(self, parameters: list[np.ndarray], config: Any) -> Any:
            assert [len(x) for x in parameters] == list(sizes)
            return [x - place for place, x in enumerate(parameters)], 1, {}

    model = record(**{f"layer{size}": np.zeros(size, np.float32) for size in sizes})
    run = serve(FakeGrid([legacy(Tells())]), model, asgd.async_sgd(1.0), iterations=1, **quiet(minimum=1))
    for place, size in enumerate(sizes):
        np.testing.assert_array_equal(run.arrays[f"layer{size}"].numpy(), np.full(size, -place, np.float32))


# ---------------------------------------------------------------------------------------------- what comes back


def test_examples_loss_and_metrics_are_read() -> None:
    grid = FakeGrid([legacy(Towards(1.0)), legacy(Towards(1.0))])
    ear = Ear()
    run = serve(
        grid,
        record(w=np.zeros(2)),
        asgd.async_sgd(0.2),
        iterations=6,
        evaluate_clients=True,
        callbacks=[ear],
        **quiet(),
    )
    trained = next(row for row in run.round_metrics if row["kind"] == "train" and row["replies"])
    assert trained["metrics"] == {"train_loss": 0.25, "fine": 1.0}
    assert trained["examples"] == 30 * trained["replies"]
    first = next(row for row in run.round_metrics if row["kind"] == "evaluate")
    assert first["metrics"] == {"loss": pytest.approx(0.81), "accuracy": 0.5}  # after one update: 0.9 away
    assert (first["examples"], first["failed"]) == (40, 0)
    assert not [note for note in ear.notes if "does not report" in note]


def test_a_status_that_is_not_ok_is_a_failure_with_its_message() -> None:
    class Refuses(LegacyClient):
        def fit(self, ins: FitIns) -> FitRes:
            status = Status(Code.FIT_NOT_IMPLEMENTED, "no data\x1b[2J today")
            return FitRes(status, Parameters([], "numpy.ndarray"), 0, {})

    with bench(legacy(Refuses()), towards(1.0), rules=Clients(max_failures=2, pause=FOREVER)) as here:
        for _ in range(2):
            refused = here.expect(Rejected, job=here.give(0))
            assert refused.reason == "the client reports FIT_NOT_IMPLEMENTED: no data?[2J today"
        assert here.expect(Note, event="left_out").details["worker"] == 0


def test_a_client_that_cannot_evaluate_trains_all_the_same() -> None:
    class Only(NumPyClient):
        def fit(self, parameters: list[np.ndarray], config: Any) -> Any:
            return [x + 1.0 if x.dtype.kind == "f" else x for x in parameters], 5, {}

    with bench(legacy(Only()), evaluate_config={}) as here:
        here.pool.measured(1, record(w=np.zeros((2, 2), np.float32), n=np.array(0)))
        note = here.expect(Note, event="client_metrics")
        assert note.details["failed"] == 1
        assert "EVALUATE_NOT_IMPLEMENTED" in note.message
        assert here.expect(Arrived, job=here.give(0)).update.tolist() == [-1.0] * 4


@pytest.mark.parametrize(
    ("returned", "words"),
    [
        (lambda p: p[:1], "has 1 arrays without names, the model has 2"),
        (lambda p: [*p, p[0]], "has 3 arrays without names, the model has 2"),
        (lambda p: [], "has 0 arrays without names, the model has 2"),
        (lambda p: p[::-1], r"array 'w' has shape (), the model has (2, 2)"),
        (lambda p: [p[0] * np.nan, p[1]], "NaN or infinity"),
        (lambda p: [p[0].astype(complex), p[1]], "array 'w' is 'complex128', the model has float32"),
    ],
)
def test_arrays_that_do_not_match_the_model_are_refused(returned: Fit, words: str) -> None:
    class Lies(NumPyClient):
        def fit(self, parameters: list[np.ndarray], config: Any) -> Any:
            return returned(parameters), 5, {}  # type: ignore[call-arg]

    with bench(legacy(Lies()), towards(1.0)) as here:
        assert words in here.expect(Rejected, job=here.give(0)).reason


# ---------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize("down", [None, "bfloat16"])
def test_the_mod_compresses_what_legacy_clients_send(down: str | None) -> None:
    """As test_compression: everything is sent and 1, 0.5, 0.25 survive bfloat16, so nothing is lost."""
    model = record(w=np.zeros((2, 2), np.float32), n=np.array(0))
    runs, sent = [], []

    def watched(client: Client) -> Client:
        def answer(message: Message) -> Any:
            sent.append({name for arrays in message.content.array_records.values() for name in arrays})
            return client(message)

        return answer

    for mods, method in (
        ([], asgd.fedavg(1.0, clients=2, ask=2)),
        ([compress_mod()], asgd.fedavg(1.0, clients=2, ask=2).compressed(TopK(fraction=1.0), down=down)),
    ):
        grid = FakeGrid([watched(legacy(Towards(target), mods=mods)) for target in (1.0, 2.0)])
        run = serve(grid, model, method, iterations=6, every=100, **quiet())
        assert (run.faults.rejected, run.faults.exceptions) == (0, 0)
        runs.append(run.arrays)
    np.testing.assert_allclose(runs[1]["w"].numpy(), runs[0]["w"].numpy(), rtol=1e-2)
    assert runs[1]["n"].numpy() > 0
    assert sent[-1] == ({"0", "1"} if down is None else {"n", "asyncsgd-model"})


def test_a_legacy_client_without_the_mod_is_told_the_line_to_add() -> None:
    with bench(legacy(Towards(1.0)), towards(1.0), up=TopK(fraction=0.5)) as here:
        refused = here.expect(Rejected, job=here.give(0))
        assert "add mods=[asgd.flower.compress_mod()] to the ClientApp" in refused.reason


def test_a_failure_behind_the_mod_is_reported() -> None:
    class Refuses(LegacyClient):
        pass

    with bench(legacy(Refuses(), mods=[compress_mod()]), towards(1.0), up=TopK(fraction=0.5)) as here:
        failed = here.expect(Failed, job=here.give(0))
        assert "FIT_NOT_IMPLEMENTED: Client does not implement `fit`" in failed.error


def test_a_reply_in_the_legacy_format_is_read_whatever_was_sent() -> None:
    """A train function may use Flower's own conversion functions."""
    inner = legacy(Towards(1.0))

    def client(message: Message) -> Any:
        content = RecordDict(
            {"fitins.parameters": message.content["arrays"], "fitins.config": message.content["config"]}
        )
        asked = Message(content, 2, "train", group_id=message.metadata.group_id)
        asked.metadata.__dict__["_message_id"] = message.metadata.message_id
        return inner(asked).content

    with bench(client) as here:
        assert here.expect(Arrived, job=here.give(0)).update.tolist() == [-0.5] * 4
        assert groups(here) == ["1"]
