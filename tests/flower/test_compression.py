"""Compressed messages from end to end: what the server accepts, what it tells clients, and what it costs nobody."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import MODEL, Bench, bench
from flower.compressed import Node
from flower.fake import Client, FakeGrid, Held, failing, record, towards
from flower.serving import ARRAYS, QUIET, error, quiet, serve
from flwr.app import ArrayRecord, ConfigRecord, Message

import asyncsgd as asgd
from asyncsgd.core.compression import BFloat16, Compression, Int4, Int8
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival, Arrived, Joined, Left, Outcome
from asyncsgd.core.steps import Step
from asyncsgd.core.work import Encoded, Gradient
from asyncsgd.core.worker import Workers
from asyncsgd.engines.base import Failed, Rejected
from asyncsgd.flower import compress_mod
from asyncsgd.flower.encoding import TERMS, UPDATE, byte_array, spell
from asyncsgd.run.read import read_config
from asyncsgd.trace.arrays import read_vector

CODES = {
    "float16": asgd.async_sgd(0.25).compressed("float16"),
    "bfloat16, both ways": asgd.async_sgd(0.25).compressed("bfloat16", down="bfloat16"),
    "int8, both ways": asgd.federated_async_sgd(0.25, concurrency=6).compressed("int8", down="float16"),
    "int4 in a buffer": asgd.fedbuff(1.0, concurrency=4, buffer=3).compressed("int4"),
    "top_k": asgd.async_sgd(0.25).compressed(asgd.compression.top_k(fraction=0.4)),
    "models alone": asgd.async_sgd(0.25).compressed(down="int8"),
}


@pytest.mark.parametrize("name", CODES)
def test_training_is_as_good_with_one_more_line_on_the_client(name: str, tmp_path: Path) -> None:
    grid = FakeGrid([Node(towards(target)) for target in (1.0, 2.0, 3.0)])
    run = serve(grid, ARRAYS, CODES[name], iterations=60, evaluate=error, directory=tmp_path, **QUIET)
    # Where the clients' data differ, the fast one decides: on a busy machine it may be 1 away from the optimum.
    assert run.metrics["loss"][-1] < 2.0 < run.metrics["loss"][0]
    assert run.arrays["n"].numpy() > 0
    assert not grid.wrong
    assert not (run.trace.jobs.outcome == Outcome.REJECTED).any()
    assert f"up={CODES[name].up!r}, down={CODES[name].down!r}" in read_config(tmp_path)["method"]


@dataclass(frozen=True)
class Choosy(Step):
    """Drops every third arrival."""

    def weight(self, arrival: Arrival) -> float:
        return float(arrival.iteration % 3 != 0)


@pytest.mark.parametrize("code", [Int4(block=4), Int8(block=4)], ids=repr)
def test_every_update_is_what_the_rule_gives(code: Compression, tmp_path: Path) -> None:
    """Straight from the trace: the updates of the clients, encoded with what is left over of the *applied* ones."""
    nodes = [Node(towards(target, rate)) for target, rate in ((1.0, 0.3), (2.0, 0.123), (3.3, 0.7))]
    method = asgd.Method("choosy", Choosy(0.3), asgd.dispatch.uniform(6)).compressed(code)
    model = record(w=np.linspace(-1, 1, 10, dtype=np.float32))
    options = {"every": 100, "directory": tmp_path, **quiet(keep_updates=True)}
    run = serve(FakeGrid(nodes), model, method, iterations=60, **options)
    workers = Workers(Encoded(Gradient(), up=code), run.x)
    rows = run.trace.jobs
    for job, worker in zip(run.trace.job.tolist(), run.trace.worker.tolist(), strict=True):
        expected = workers.of(worker).sent(nodes[worker].updates[job])
        assert read_vector(tmp_path / "updates" / f"{job:012d}.npy").tobytes() == expected.tobytes()
        workers.settle(worker, rows.outcome[job] == Outcome.APPLIED)
    assert (rows.outcome == Outcome.DROPPED).sum() == 20
    replayed = asgd.replay(tmp_path)
    assert replayed.compared == 60
    assert replayed.model_compared
    assert replayed.x.tobytes() == run.x.tobytes()


# ---------------------------------------------------------------------------------------------- the verdict


def judge(here: Bench, job: int, applied: bool | None) -> None:
    """What the training loop does with an arrival; None: it ignores it."""
    report = here.expect(Arrived, job=job)
    if applied is not None:
        here.pool.used(report, applied)


def test_a_job_waits_for_the_verdict_on_the_one_before() -> None:
    node = Node(towards(1.0))
    with bench(node, up=Int4()) as here:
        first, second, third, fourth = (here.give(0) for _ in range(4))
        here.expect(Arrived, job=first)
        assert len(here.grid.messages) == 1  # not yet: the verdict is not known
        judge(here, first, applied=True)
        judge(here, second, applied=False)
        judge(here, third, applied=None)
        judge(here, fourth, applied=True)
        assert [terms["job"] for terms in node.terms] == [first, second, third, fourth]
        assert [terms["applied"] for terms in node.terms] == [-1, first, first, first]
        assert len({terms["memory"] for terms in node.terms}) == 1


def test_without_compressed_updates_no_job_waits() -> None:
    with bench(Node(towards(1.0)), down=BFloat16()) as here:
        jobs = [here.give(0) for _ in range(3)]
        here.expect(Arrived, job=jobs[-1])
        assert [report.job for report in here.of(Arrived)] == jobs


def test_a_cancelled_job_does_not_count() -> None:
    node = Node(towards(1.0))
    held = Held(node)
    with bench(held, up=Int4()) as here:
        first, second = here.give(0), here.give(0)
        here.until(held.asked.is_set, "the first job")
        here.cancel(first)
        held.gate.set()
        judge(here, second, applied=True)
        assert [terms["applied"] for terms in node.terms] == [-1, -1]


def test_a_client_that_joins_again_starts_afresh() -> None:
    node = Node(towards(1.0))
    with bench(node, up=Int4()) as here:
        judge(here, here.give(0), applied=True)
        [number] = here.grid.clients
        here.grid.leave(number)
        here.expect(Left, worker=0)
        here.grid.add(number, node)
        here.until(lambda: len(here.of(Joined)) == 2, "it to come back")
        judge(here, here.give(0), applied=True)
        judge(here, here.give(0), applied=True)
        before, after, later = node.terms
        assert before["memory"] != after["memory"] == later["memory"]
        assert [terms["applied"] for terms in node.terms] == [-1, -1, 1]


def test_every_start_of_a_server_starts_afresh() -> None:
    node = Node(towards(1.0))
    for _ in range(2):
        with bench(node, up=Int4()) as here:
            judge(here, here.give(0), applied=True)
    assert node.terms[0]["memory"] != node.terms[1]["memory"]


# ---------------------------------------------------------------------------------------------- what is refused


def altered(change: Any, mod: Any = None) -> Client:
    """A client whose first compressed reply is changed by this function, and which is honest from then on."""
    node, left = Node(towards(1.0), mod), [change]

    def client(message: Message) -> Any:
        answer = node(message)
        return left.pop()(answer) if left else answer

    return client


def with_bytes(message: np.ndarray[Any, Any]) -> Any:
    def change(answer: Message) -> Message:
        answer.content["arrays"][UPDATE] = byte_array(message)
        return answer

    return change


def with_array(name: str, values: Any) -> Any:
    def change(answer: Message) -> Message:
        answer.content["arrays"][name] = next(iter(record(x=values).values()))
        return answer

    return change


def without(name: str) -> Any:
    def change(answer: Message) -> Message:
        kept = {key: array for key, array in answer.content["arrays"].items() if key != name}
        answer.content["arrays"] = ArrayRecord(kept)
        return answer

    return change


def claims(code: str | None) -> Any:
    def change(answer: Message) -> Message:
        del answer.content[TERMS]
        if code is not None:
            answer.content[TERMS] = ConfigRecord({"up": code})
        return answer

    return change


def lies_about_its_size(answer: Message) -> Message:
    """The header claims a terabyte; the fields beside it are right."""
    array = answer.content["arrays"][UPDATE]
    array.data = array.data.replace(b"(8,)", b"(1099511627776,)")
    return answer


NAN = np.concatenate([np.array([np.nan], np.float32).view(np.uint8), np.zeros(4, np.uint8)])
LIES: dict[str, tuple[Any, str]] = {
    "no compression": (
        lambda answer: towards(1.0)(answer_to(answer)),
        "the update is not compressed, the server expects int8(block=256); add mods=[asgd.flower.compress_mod()]",
    ),
    "another code": (claims(spell(Int4())), 'is compressed as \'{"block": 64, "code": "int4"}\', the server expects'),
    "other options": (claims(spell(Int8(block=64))), "the server expects"),
    "no code": (claims(None), "is compressed as None"),
    "too short": (with_bytes(np.zeros(7, np.uint8)), "'asyncsgd-update' has shape (7,), the model has (8,)"),
    "too long": (with_bytes(np.zeros(10**6, np.uint8)), "has shape (1000000,)"),
    "another dtype": (with_array(UPDATE, np.zeros(8, np.float32)), "the model has uint8"),
    "a header that lies": (lies_about_its_size, "'asyncsgd-update'"),
    "a scale that is NaN": (with_bytes(NAN), "has a scale that is not in range"),
    "a unit that no encoder makes": (with_bytes(np.array([0, 0, 0, 0, 128, 0, 0, 0], np.uint8)), "holds -128"),
    "too large": (with_bytes(np.array([0, 0, 0, 127, 127, 0, 0, 0], np.uint8)), "scale"),
    "a carried array is missing": (without("n"), "'n' is missing"),
    "a carried array of another shape": (with_array("n", np.zeros(3, np.int64)), "has shape (3,)"),
}


def answer_to(answer: Message) -> Any:
    """The message as a client without the mod would see it."""
    message = Message(answer.content.copy(), 1, "train")
    message.content["arrays"] = MODEL
    return message


@pytest.mark.parametrize("lie", LIES)
def test_a_damaged_or_hostile_reply_is_refused_and_does_not_count(lie: str) -> None:
    change, words = LIES[lie]
    with bench(altered(change), up=Int8()) as here:
        first, second = here.give(0), here.give(0)
        assert words in here.expect(Rejected, job=first).reason
        assert here.pool.carried["n"] == 0 or here.of(Arrived)
        judge(here, second, applied=True)
        assert here.of(Arrived)[0].update.tolist() == pytest.approx([-0.5] * 4, rel=1e-2)


def test_a_rejected_job_is_not_named_as_applied() -> None:
    node = Node(towards(1.0))
    answers = iter([claims("?")])

    def client(message: Message) -> Any:
        answer = node(message)
        return next(answers, lambda honest: honest)(answer)

    with bench(client, up=Int8()) as here:
        here.expect(Rejected, job=here.give(0))
        judge(here, here.give(0), applied=True)
        judge(here, here.give(0), applied=True)
        assert [terms["applied"] for terms in node.terms] == [-1, -1, 1]


def test_a_client_without_the_mod_is_told_what_to_add() -> None:
    with bench(towards(1.0), up=Int4()) as here:
        assert "mods=[asgd.flower.compress_mod()]" in here.expect(Rejected, job=here.give(0)).reason
    with bench(failing, down=Int8()) as here:  # its train function finds no arrays, and raises
        why = here.expect(Failed, job=here.give(0)).error
        assert why.startswith("the ClientApp raised an exception: Traceback\nValueError: no data here")
        assert why.endswith(
            "The model was sent compressed: if the client has no mod that decodes it, "
            "add mods=[asgd.flower.compress_mod()] to the ClientApp."
        )


def test_a_client_with_the_mod_gets_no_such_hint() -> None:
    answers = iter([Node(towards(1.0))])
    with bench(lambda message: next(answers, failing)(message), down=Int8()) as here:
        here.expect(Arrived, job=here.give(0))
        assert "compressed" not in here.expect(Failed, job=here.give(0)).error


def test_a_client_that_insists_on_another_code_says_so() -> None:
    with bench(Node(towards(1.0), compress_mod("int8")), up=Int4()) as here:
        why = here.expect(Failed, job=here.give(0)).error
        assert why.startswith("a mod of the ClientApp refused: this client compresses updates as int8(block=256)")


def test_too_long_an_update_is_refused_after_it_is_decoded() -> None:
    rules = asgd.flower.Clients(max_norm=0.1)
    with bench(Node(towards(1.0)), up=Int4(), rules=rules) as here:
        assert "more than max_norm = 0.1" in here.expect(Rejected, job=here.give(0)).reason


def test_evaluations_are_sent_as_they_are() -> None:
    seen: list[Any] = []

    def client(message: Message) -> Any:
        if message.metadata.message_type == "evaluate":
            seen.append(list(message.content))
        return towards(1.0)(message)

    grid = FakeGrid([Node(client), Node(client)])
    method = asgd.async_sgd(0.2).compressed("int4", down="bfloat16")
    run = serve(grid, ARRAYS, method, iterations=8, every=4, evaluate_clients=True, evaluate=error, **QUIET)
    assert any(row["kind"] == "evaluate" for row in run.client_metrics)
    assert all(content == ["arrays", "config"] for content in seen)
    assert seen


def test_what_cannot_be_private_or_sent_is_refused() -> None:
    grid = FakeGrid([Node(towards(1.0)), Node(towards(2.0))])
    with pytest.raises(BadParameter, match="cannot be together with compression"):
        asgd.fedbuff(1.0, concurrency=2, buffer=2).clipped(1.0, noise=1.0).compressed("int8")

    @dataclass(frozen=True)
    class Mine(Int8):
        """A code that clients do not know."""

    with pytest.raises(BadParameter, match="up = 'Mine' is not known to the clients; use a code"):
        serve(grid, ARRAYS, asgd.async_sgd(0.1).compressed(Mine()), iterations=2, **QUIET)


def test_noise_goes_with_compressed_models() -> None:
    """A model may be rounded after the noise is in it: that gives nothing away."""
    pytest.importorskip("dp_accounting", reason="the extra 'flower' is not installed")
    method = asgd.fedbuff(0.5, concurrency=2, buffer=2).clipped(1.0, noise=4.0).compressed(down="bfloat16")
    run = serve(FakeGrid([Node(towards(1.0)), Node(towards(2.0))]), ARRAYS, method, iterations=4, **QUIET)
    assert run.privacy is not None
    assert run.privacy.epsilon > 0
