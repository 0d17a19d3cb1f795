"""Clients that fail, leave, come late and come back, and what the pool reports about them."""

from __future__ import annotations

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import FOREVER, Bench, bench
from flower.fake import Client, Held, failing, from_superlink, towards
from flwr.app import Error

from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Arrived, Joined, Left, Lost
from asyncsgd.engines.base import Died, Failed, Note, Rejected
from asyncsgd.flower.engine import Clients


def joined(here: Bench, worker: int) -> int:
    return sum(worker in report.workers for report in here.of(Joined))


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (0, Failed, "an unknown error: why"),
        (1, Failed, "the ClientApp cannot be loaded: why"),
        (2, Failed, "the ClientApp raised an exception: why"),
        (3, Lost, "client 0 (node 9223372036854775813) did not answer job 0 in 3600 s"),
        (4, Lost, "client 0 (node 9223372036854775813) did not answer job 0 in 3600 s"),
        (6, Failed, "a mod of the ClientApp refused: why"),
        (7, Failed, "the app bundle is invalid: why"),
        (8, Failed, "the ClientApp ended without a reply: why"),
        (99, Failed, "error 99: why"),
    ],
)
def test_every_error_code_ends_the_job(code: int, kind: type, words: str) -> None:
    with bench(from_superlink(code) if kind is Lost else lambda m: Error(code, "why")) as here:
        report = here.expect(kind, job=here.give(0))
        said = report.error if kind is Failed else here.of(Note, event="unanswered")[0].message
        assert said == words


@pytest.mark.parametrize("code", [-1, 3, 4, 5])
def test_what_only_the_superlink_can_know_is_not_believed_of_a_client(code: int) -> None:
    with bench(lambda m: Error(code, "why"), towards(1.0), rules=Clients(max_failures=2, pause=FOREVER)) as here:
        for _ in range(2):
            refused = here.expect(Rejected, job=here.give(0))
            assert refused.reason == f"it sent error {code}, which only the SuperLink may send"
        assert here.expect(Note, event="left_out").details["worker"] == 0
        assert not here.of(Died)


@pytest.mark.slow
def test_who_is_said_to_be_offline_again_and_again_and_is_not_is_left_out() -> None:
    """A reply's sender can be forged: whether a client is connected is seen at the next look."""
    with bench(from_superlink(5), towards(1.0), rules=Clients(max_failures=2, pause=FOREVER)) as here:
        for times in (1, 2):
            here.until(lambda times=times: joined(here, 0) == times, "its return")
            here.give(0)
        out = here.expect(Note, event="left_out")
        assert (out.details["worker"], out.details["reason"]) == (0, "Flower reported it offline, but it is connected")


def test_a_message_that_the_superlink_does_not_take_is_lost() -> None:
    with bench(towards(1.0), towards(2.0)) as here:
        del here.grid.clients[next(iter(here.grid.clients))]
        here.expect(Lost, job=here.give(0))
        [note] = here.of(Note, event="unanswered")
        assert "the SuperLink did not accept it" in note.details["reason"]


@pytest.mark.slow
def test_who_fails_again_and_again_is_left_out_for_a_while() -> None:
    """Three times; then once more is enough, and the pause doubles. A good update forgives all."""
    moods: list[Client] = [failing] * 5 + [towards(1.0)] + [failing] * 2 + [towards(1.0)]
    mood = iter(moods)
    with bench(lambda m: next(mood)(m), towards(2.0), rules=Clients(pause=0.2, max_failures=3)) as here:
        for _ in range(3):
            here.expect(Failed, job=here.give(0))
        out = here.expect(Note, event="left_out")
        assert out.details == {"worker": 0, "pause": 0.2, "reason": "ValueError: no data here"}
        assert "leans towards the data of the other clients" in out.message
        assert here.reports.index(here.expect(Left, worker=0)) > here.reports.index(here.of(Failed)[-1])
        for pause in (0.4, 0.8):
            here.until(lambda: joined(here, 0) > len(here.of(Left)), "its return")
            here.expect(Failed, job=here.give(0))
            assert here.of(Note, event="left_out")[-1].details["pause"] == pause
        here.until(lambda: joined(here, 0) == 4, "its return")
        here.expect(Arrived, job=here.give(0))
        for _ in range(2):
            here.expect(Failed, job=here.give(0))
        here.expect(Arrived, job=here.give(0))
        assert len(here.of(Note, event="left_out")) == 3
        [bias] = [note for note in here.pool.finish() if note.event == "bias"]
        assert bias.details == {"left_out": {"0": pytest.approx(0.2 + 0.4 + 0.8)}}
        assert "the model leans towards the data of the others" in bias.message


def test_jobs_given_in_between_are_dropped() -> None:
    """The server hears of the failure first, and may give the same client another job."""
    with bench(failing, towards(1.0), rules=Clients(max_failures=1, pause=FOREVER)) as here:
        here.give(0)
        here.expect(Left, worker=0)
        late = here.give(0)
        here.expect(Arrived, job=here.give(1))
        assert str(late + 1) not in {message.metadata.group_id for message in here.grid.messages}


def test_if_everybody_fails_the_run_stops_and_says_why() -> None:
    with bench(failing, failing, rules=Clients(max_failures=2, pause=FOREVER)) as here:
        for worker in (0, 1, 0, 1):
            here.give(worker)
        here.until(lambda: len(here.of(Note, event="left_out")) == 2, "failures")
        with pytest.raises(
            EngineError, match=r"every client fails; the last was client \d \(node \d+\): Traceback\n.*; fix"
        ):
            here.pool.poll(0)


def test_if_the_run_is_over_for_flower_the_error_says_how_to_go_on() -> None:
    class RunNotRunning(BaseException):
        pass

    with bench(towards(1.0)) as here:
        here.grid.dead = RunNotRunning("stopped")
        with pytest.raises(EngineError, match=r"Flower's run has ended \(RunNotRunning: stopped\); .*resume=True"):
            here.expect(Arrived, job=here.give(0))


def test_a_message_that_cannot_be_made_is_not_flowers_fault() -> None:
    with (
        bench(towards(1.0), train_config={"lr": object()}) as here,
        pytest.raises(
            EngineError, match=r"the message to client 0 \(node \d+\) could not be built \(TypeError: .*\); check"
        ),
    ):
        here.expect(Arrived, job=here.give(0))


def test_trouble_on_the_way_to_the_superlink_is_said_once_and_survived() -> None:
    with bench(towards(1.0)) as here:
        here.grid.dead = ConnectionError("refused")
        note = here.expect(Note, event="trouble")
        assert note.message == "cannot list the connected clients (ConnectionError: refused); asking again"
        here.grid.dead = None
        here.expect(Arrived, job=here.give(0))
        assert len(here.of(Note, event="trouble")) == 1
        assert not here.of(Left)


# ---------------------------------------------------------------------------------------------- coming and going


def test_nothing_begins_before_enough_are_there() -> None:
    with bench(towards(1.0), workers=2) as here:
        here.expect(Note, event="client")
        for _ in range(10):
            here.reports += here.pool.poll(0.05)
        assert not here.of(Joined)
        here.grid.add(12, towards(2.0))
        here.all_join(2)


def test_late_clients_join() -> None:
    with bench(towards(1.0)) as here:
        here.grid.add(2**64 - 1, towards(3.0))
        here.all_join(2)
        assert here.expect(Arrived, job=here.give(1)).update.tolist() == [-1.5] * 4


def test_who_is_offline_leaves_with_his_jobs_and_may_come_back() -> None:
    held = Held(towards(1.0))
    with bench(held, towards(2.0)) as here:
        lost = here.give(0), here.give(0)
        here.until(held.asked.is_set, "the job")
        node = next(iter(here.grid.clients))
        here.grid.leave(node)
        here.expect(Left, worker=0)
        assert here.of(Died, worker=0)[0].reason == "is not connected any more"
        held.gate.set()
        here.grid.add(node, held)
        here.until(lambda: joined(here, 0) == 2, "its return")
        here.expect(Arrived, job=here.give(0))
        assert not [report for report in here.reports if getattr(report, "job", None) in lost]


def test_a_retired_client_is_not_asked_again() -> None:
    with bench(towards(1.0), towards(2.0)) as here:
        here.pool.retire(0)
        here.give(0)
        here.expect(Arrived, job=here.give(1))
        assert not here.of(Arrived, worker=0)
        assert joined(here, 0) == 1
