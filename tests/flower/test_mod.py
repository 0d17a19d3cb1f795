"""The mod of a ClientApp alone: what it sends, what it remembers, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import record, reply
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.supercore.task_identity import TaskIdentity

import asyncsgd as asgd
from asyncsgd.core.compression import BFloat16, Compression, Int4, Int8, TopK
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Encoded, Gradient
from asyncsgd.core.worker import WorkerState
from asyncsgd.flower import compress_mod
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.encoding import TERMS, UPDATE, Coding
from asyncsgd.flower.records import records_of

SHAPES = {"w": (30, 10), "b": (13,)}
MODEL = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()} | {
    "bn.running_var": np.ones(3, np.float32),
    "n": np.array(4),
}
LAYOUT = Layout.of(record(**MODEL))
CARRIED = {"bn.running_var": np.full(3, 0.25, np.float32), "n": np.array(5)}


class Server:
    """The server's half, with a client whose update is whatever the test says."""

    def __init__(self, up: Compression | None, down: Compression | None = None, replies: str = "models") -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 7, 1, 3
        self.coding = Coding(LAYOUT, up, down, replies)
        self.context = Context(7, 2, {}, RecordDict(), {})
        self.mod, self.replies = compress_mod(), replies
        self.job = -1
        self.seen: Message | None = None

    def message(self, x: Vector, memory: str = "a-0", applied: int = -1, kind: str = "train") -> Message:
        self.job += 1
        content = {
            "arrays": self.coding.model(x, {name: MODEL[name] for name in CARRIED}),
            "config": ConfigRecord({"lr": 0.5}),
            TERMS: self.coding.terms(memory, self.job, applied),
        }
        return Message(RecordDict(content), 2, kind, group_id=f"job-{self.job}")

    def ask(self, message: Message, returned: Callable[[Vector], Vector]) -> Message:
        def train(message: Message, context: Context) -> Message:
            self.seen = message
            start = LAYOUT.gather(LAYOUT.read(message.content["arrays"]))
            return Message(reply(LAYOUT.join(returned(start), CARRIED), {"loss": 0.5}), reply_to=message)

        return self.mod(message, self.context, train)

    def update(self, answer: Message) -> Vector:
        assert answer.has_content(), answer.error.reason
        return self.coding.update(records_of(answer.content), answer.content["arrays"])[0]


def numbers(seed: int) -> Vector:
    return np.random.default_rng(seed).standard_normal(LAYOUT.size).astype(np.float32)


def test_the_client_sees_ordinary_arrays_and_the_server_a_few_bytes() -> None:
    server, x = Server(Int4(), BFloat16()), numbers(0)
    answer = server.ask(server.message(x), lambda start: start - 1.0)
    assert server.seen is not None
    seen = server.seen.content
    assert list(seen) == ["arrays", "config"]
    assert list(seen["arrays"]) == list(MODEL)
    assert {name: array.numpy().shape for name, array in seen["arrays"].items() if name in SHAPES} == SHAPES
    assert dict(seen["config"]) == {"lr": 0.5}
    assert set(answer.content) == {"arrays", "metrics", TERMS}
    assert answer.content["metrics"]["loss"] == 0.5
    assert answer.content["arrays"].keys() == {*CARRIED, UPDATE}
    assert answer.content["arrays"][UPDATE].shape == (Int4().size(LAYOUT.size, np.float32),)
    update, carried = server.coding.update(records_of(answer.content), answer.content["arrays"])
    start = server.coding.start(x)
    assert not np.array_equal(start, x)  # rounded on its way
    assert server.seen.content["arrays"]["b"].numpy().tobytes() == start[300:].tobytes()
    np.testing.assert_allclose(update, 1.0, rtol=1e-5)  # equal numbers lose nothing
    assert carried["n"] == 5
    assert carried["bn.running_var"].tolist() == [0.25] * 3


@pytest.mark.parametrize("replies", ["models", "updates"])
def test_the_update_is_what_the_replies_mean(replies: str) -> None:
    server, x = Server(TopK(fraction=1.0), replies=replies), numbers(1)
    answer = server.ask(server.message(x), lambda start: start / 4)
    np.testing.assert_allclose(server.update(answer), x / 4 if replies == "updates" else 3 * x / 4, rtol=1e-6)


@pytest.mark.parametrize(
    "code", [Int4(), Int8(32), TopK(fraction=0.05), TopK(fraction=0.05, decay=0.5), BFloat16()], ids=repr
)
@pytest.mark.parametrize("seed", range(4))
def test_what_is_left_over_follows_the_rule_whatever_happens(code: Compression, seed: int) -> None:
    """Bit for bit as in `WorkerState`: applied, dropped, lost on either way, crashed, joined again, at random."""
    random = np.random.default_rng(seed)
    server, worker = Server(code, replies="updates"), None
    joins, applied, happened = 0, -1, set()
    for step in range(40):
        if worker is None:
            worker = WorkerState(Encoded(Gradient(), up=code), np.zeros(LAYOUT.size, np.float32))
        message, update = server.message(numbers(99), f"a-{joins}", applied), numbers(1000 + step)
        fate = random.choice(["applied", "applied", "dropped", "message lost", "reply lost", "crashed", "left"])
        happened.add(str(fate))
        if fate == "message lost":
            continue
        state = server.context.state.copy()
        answer = server.ask(message, lambda start, update=update: update)
        assert server.update(answer).tobytes() == worker.sent(update).tobytes(), (step, fate)
        worker.settle(used=fate == "applied")
        if fate == "applied":
            applied = server.job
        elif fate == "crashed":  # Flower keeps the state of a job that ended with a reply
            server.context.state = state
        elif fate == "left":
            joins, applied, worker = joins + 1, -1, None
    assert len(happened) == 6


def test_what_was_applied_and_what_is_left_are_the_sum_of_all_updates() -> None:
    server = Server(Int4(), replies="updates")
    total, arrived, applied = np.zeros(LAYOUT.size), np.zeros(LAYOUT.size), -1
    for step in range(60):
        update = numbers(step)
        answer = server.ask(server.message(numbers(99), "a-0", applied), lambda start, update=update: update)
        if step % 3:
            total += update
            arrived += server.update(answer)
            applied = server.job
    assert np.abs(total - arrived).max() < 1.0  # one rounding, not forty
    assert np.abs(total).max() > 10.0


def test_a_state_older_than_the_servers_starts_afresh() -> None:
    """The reply of a job left the node, and its state did not: what the older state holds was sent already."""
    server = Server(Int4(), replies="updates")
    for job in range(2):
        server.ask(server.message(numbers(0), applied=job - 1), lambda start: numbers(1))
    old = server.context.state.copy()
    server.ask(server.message(numbers(0), applied=1), lambda start: numbers(2))
    server.context.state = old
    answer = server.ask(server.message(numbers(0), applied=2), lambda start: numbers(3))
    fresh = Server(Int4(), replies="updates")
    other = fresh.ask(fresh.message(numbers(0)), lambda start: numbers(3))
    assert server.update(answer).tobytes() == fresh.update(other).tobytes()


# ---------------------------------------------------------------------------------------------- what passes, what not


def test_messages_of_other_servers_and_evaluations_pass_unchanged() -> None:
    server = Server(Int4())
    for kind in ("train", "evaluate"):
        message = Message(RecordDict({"arrays": record(**MODEL)}), 2, kind)
        seen: list[Message] = []
        answer = Message(RecordDict({"metrics": MetricRecord({"loss": 1.0})}), reply_to=message)
        given = server.mod(message, server.context, lambda m, c, seen=seen, answer=answer: seen.append(m) or answer)
        assert given is answer
        assert seen == [message]
        assert list(message.content) == ["arrays"]
    assert not server.context.state


def refused(mod: Any, message: Message, returned: Any = None) -> str:
    def train(message: Message, context: Context) -> Message:
        assert returned is not None, "the client must not be asked"
        return Message(returned, reply_to=message)

    context = Context(7, 2, {}, RecordDict(), {})
    answer = mod(message, context, train)
    assert answer.has_error()
    assert answer.error.code == 6
    assert not context.state
    return str(answer.error.reason)


def test_a_client_that_insists_on_a_code_refuses_another() -> None:
    why = refused(compress_mod("int8"), Server(Int4()).message(numbers(0)))
    assert why.startswith("this client compresses updates as int8(block=256), the server as int4(block=64); use the ")
    why = refused(compress_mod(down="bfloat16"), Server(Int4()).message(numbers(0)))
    assert "compresses models as bfloat16(), the server as uncompressed" in why
    plain = Message(RecordDict({"arrays": record(**MODEL)}), 2, "train")
    assert "updates as int4(block=64), the server as uncompressed" in refused(compress_mod("int4"), plain)
    server = Server(Int4(), BFloat16())
    server.mod = compress_mod(asgd.compression.int4(), down="bfloat16")
    server.update(server.ask(server.message(numbers(0)), lambda start: start))


def test_terms_of_another_version_are_refused() -> None:
    message = Server(Int4()).message(numbers(0))
    message.content[TERMS]["format"] = 2
    assert "format 2 is not 1); install the same version of asyncsgd" in refused(compress_mod(), message)
    message = Server(Int4()).message(numbers(0))
    del message.content[TERMS]["layout"]
    assert "cannot be read (KeyError: 'layout')" in refused(compress_mod(), message)


def test_arrays_that_cannot_be_compressed_are_refused_on_the_client() -> None:
    broken = {name: np.full_like(values, np.nan) if name == "w" else values for name, values in MODEL.items()}
    cases = {
        "hold NaN or infinity": reply(record(**broken)),
        "'b' is missing": reply(record(**{name: values for name, values in MODEL.items() if name != "b"})),
        "the reply has 0 sets of arrays": RecordDict({"metrics": MetricRecord({"loss": 1.0})}),
    }
    for words, returned in cases.items():
        assert words in refused(compress_mod(), Server(Int4()).message(numbers(0)), returned)


def test_an_error_of_the_client_passes_and_changes_nothing() -> None:
    server = Server(Int4())
    message = server.message(numbers(0))
    answer = server.mod(message, server.context, lambda m, c: Message(Error(2, "no data"), reply_to=m))
    assert answer.error.reason == "no data"
    assert not server.context.state


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"up": "int3"}, "up = 'int3' is not a code"),
        ({"down": "top_k"}, "down = 'top_k' leaves out most numbers of the model"),
    ],
)
def test_options_are_checked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        compress_mod(**options)
