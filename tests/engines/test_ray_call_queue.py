"""Jobs and answers in the call queue, with a fake Ray that the test controls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from engines.fake_ray import FakeServer, Gone, fake_server, packed

from asyncsgd.core.compression import BFloat16, Float16, Int8
from asyncsgd.core.events import Arrived
from asyncsgd.engines import Failed, Rejected
from asyncsgd.engines._ray import vector_store
from asyncsgd.engines._ray.call_queue import AT_ONCE
from asyncsgd.engines._ray.handle import Call
from asyncsgd.engines.job import Kind


@pytest.fixture(autouse=True)
def _everything_through_the_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vector_store, "SMALL", 0)
    return


# ---------------------------------------------------------------------------------------------- answers


def test_answers_come_in_the_order_of_the_calls_of_a_worker() -> None:
    """A large answer can be overtaken on its way by the next."""
    here = fake_server()
    first, second = here.give(0, 0), here.give(0, 1)
    here.finish(1)
    assert here.reports() == []
    here.finish(0)
    assert [report.job for report in here.reports()] == [first, second]


def test_not_more_answers_at_once_than_memory_should_hold() -> None:
    here = fake_server(workers=AT_ONCE + 3)
    for worker in range(AT_ONCE + 3):
        here.give(worker, slot=0)
        here.finish(worker)
    assert len(here.reports()) == AT_ONCE
    assert len(here.reports()) == 3


def test_kinds_of_answers() -> None:
    here = fake_server(workers=1)
    for slot, (kind, words) in enumerate([(Kind.DONE, None), (Kind.REJECTED, "nan"), (Kind.FAILED, "Traceback")]):
        here.give(0, slot)
        here.finish(slot, kind, words)
        reports = here.reports()
        here.queue.make_room()
        match reports:
            case [Arrived(job=0, worker=0, checked=True)]:
                assert kind is Kind.DONE
            case [Rejected(job=1, worker=0, reason="nan")]:
                assert kind is Kind.REJECTED
            case [Failed(job=2, worker=0, error="Traceback")]:
                assert kind is Kind.FAILED
            case _:
                raise AssertionError(reports)


def test_the_error_of_a_dead_worker_comes_once() -> None:
    here = fake_server()
    here.give(0, 0)
    here.give(0, 1)
    for call in (0, 1):
        here.ray.answers[f"call {call}"] = Gone()
    found = []
    for call, answer in here.queue.answers(0.0):
        found.append((call.job, type(answer)))
        here.queue.drop(call.handle)
    assert found == [(0, Gone)]
    assert here.store.held == 1.0  # the newest version


def test_a_cancelled_job_is_not_reported_and_the_next_is() -> None:
    here = fake_server()
    unwanted, wanted = here.give(0, 0), here.give(0, 1)
    here.cancel(unwanted)
    for call in (0, 1):
        here.finish(call)
    assert [report.job for report in here.reports()] == [wanted]


# ---------------------------------------------------------------------------------------------- verdicts


def used(here: FakeServer) -> list[bool]:
    """What each call said of the update before."""
    return [arguments[3] for arguments in here.ray.called]


def test_a_job_says_what_became_of_the_one_before() -> None:
    here = fake_server(up=Int8(), workers=1)
    slots = iter(range(10))

    def play(kind: Kind = Kind.DONE, *, cancel: str = "", applied: bool = True) -> None:
        job = here.give(0, next(slots))
        if cancel == "before":
            here.cancel(job)
        here.finish(len(here.ray.called) - 1, kind, packed(1.5, Int8()) if kind is Kind.DONE else "words")
        for report in here.reports():
            if cancel == "after":  # another report of the same poll had it cancelled
                here.cancel(job)
            elif isinstance(report, Arrived):
                here.life.judged(0, job, applied)
        here.poll()

    play()
    play()
    play(cancel="before")
    play()
    play(Kind.FAILED)
    play(cancel="after")
    play()
    play(applied=False)
    play()
    assert used(here) == [False, True, True, False, True, False, False, True, False]


def test_a_worker_that_keeps_state_has_one_job_at_a_time() -> None:
    here = fake_server(up=BFloat16(), workers=1)
    for slot in range(3):
        here.give(0, slot)
    assert len(here.ray.called) == 1
    here.finish(0, answer=packed(1.5, BFloat16()))
    [report] = here.reports()
    here.queue.send(here.handles[0])
    assert len(here.ray.called) == 1  # the verdict is not known
    here.life.judged(0, report.job, True)
    here.queue.send(here.handles[0])
    assert [arguments[2:] for arguments in here.ray.called] == [(1, False), (0, True)]  # the server may still read 1


def test_updates_of_16_bits_stay_until_the_next_poll() -> None:
    here = fake_server(up=Float16(), workers=2)
    for worker in (0, 1):
        here.give(worker, 0)
        here.finish(worker, answer=packed(1.5 + worker, Float16()))
    first, second = here.reports()
    assert (first.update[0], second.update[-1]) == (1.5, 2.5)
    assert first.update.dtype == np.float64


def test_a_damaged_message_is_rejected_and_the_worker_continues() -> None:
    here = fake_server(up=Int8(), workers=1)
    here.give(0, 0)
    here.finish(0, answer=np.zeros(3, np.uint8))
    [report] = here.reports()
    match report:
        case Rejected(job=0, worker=0, reason=reason):
            assert "3 bytes" in reason
        case _:
            pytest.fail(f"{report} is not a rejection")
    here.queue.make_room()
    here.give(0, 1)
    here.finish(1, answer=packed(2.0, Int8()))
    [report] = here.reports()
    assert isinstance(report, Arrived)
    assert report.update[0] == 2.0


def test_a_ping_is_no_job() -> None:
    here = fake_server()
    here.queue.note(Call(here.handles[0], "ping"), "call 0")
    assert here.life.workers[0].first == -1
    here.ray.answers["call 0"] = None
    [(call, answer)] = list(here.queue.answers(0.0))
    assert (call.method, answer) == ("ping", None)
