"""Jobs, points and answers on the server's desk, with a Ray that does what the test says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from asyncsgd.core.events import Arrived, Assign, Job
from asyncsgd.engines import EngineError, Failed, Rejected
from asyncsgd.engines.ray import Group, post
from asyncsgd.engines.ray.actor import Kind
from asyncsgd.engines.ray.desk import AT_ONCE, Desk
from asyncsgd.engines.ray.member import AHEAD, Call, Member, Stage
from asyncsgd.engines.ray.post import Post

N = 1000
BYTES = 8 * N


class Gone(Exception):
    """What a dead worker's calls are answered with."""


@dataclass(eq=False)
class FakeRay:
    """Calls are answered when the test says so."""

    answers: dict[Any, Any] = field(default_factory=dict)
    called: list[tuple[Any, ...]] = field(default_factory=list)
    puts: list[float] = field(default_factory=list)
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayError=Gone))

    def put(self, vector: Any) -> str:
        self.puts.append(float(vector[0]))
        return f"object {len(self.puts)}"

    def remote(self, *arguments: Any) -> str:
        self.called.append(arguments)
        return f"call {len(self.called) - 1}"

    def wait(self, references: list[Any], num_returns: int, timeout: float) -> tuple[list[Any], list[Any]]:
        ready = [reference for reference in references if reference in self.answers][:num_returns]
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference: Any) -> Any:
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class Office:
    """A desk with workers on other machines, and points 0, 1, 2, ... whose first element is their number."""

    ray: FakeRay
    post: Post
    desk: Desk
    members: list[Member]
    jobs: int = 0

    def give(self, worker: int, slot: int) -> int:
        point = np.full(N, float(slot))
        job = Job(self.jobs, worker, 0, 0, 0, seed=100 + self.jobs)
        self.jobs += 1
        self.desk.assign(self.members[worker], Assign(job, point, slot))
        return job.id

    def finish(self, call: int, kind: Kind = Kind.DONE, answer: Any = None) -> None:
        update = np.full(N, float(call)) if answer is None else answer
        self.ray.answers[f"call {call}"] = (int(kind), update, 0.5)

    def reports(self) -> list[Any]:
        found = [self.desk.computed(call, *answer) for call, answer in self.desk.answers(0.0)]
        return [report for report in found if report is not None]

    @property
    def points(self) -> list[Any]:
        """What was sent as the point, call by call."""
        return [arguments[1] for arguments in self.ray.called]


def office(workers: int = 2, vectors: float = 100.0, transport: str | None = None) -> Office:
    ray = FakeRay()
    mail = Post(N, np.float64, halved=transport is not None)
    mail.open(ray, vectors * BYTES)
    desk = Desk(mail, transport)
    desk.open(ray)
    members = [Member(number, Group(1), AHEAD if transport is None else 1) for number in range(workers)]
    for member in members:
        member.stage, member.compute, member.present = Stage.READY, ray, True
    return Office(ray, mail, desk, members)


@pytest.fixture(autouse=True)
def _everything_through_the_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(post, "SMALL", 0)
    return


# ---------------------------------------------------------------------------------------------- versions


def test_a_version_is_put_once_for_all_its_readers() -> None:
    here = office(workers=3)
    for worker in (0, 1, 2, 0):
        here.give(worker, slot=7)
    here.give(1, slot=8)
    assert here.ray.puts == [7.0, 8.0]
    assert here.points == ["object 1"] * 4 + ["object 2"]


def test_a_slot_may_hold_another_version_once_its_jobs_have_ended() -> None:
    here = office(workers=2)
    here.give(0, slot=3)
    cancelled = here.give(1, slot=3)
    here.finish(0)
    assert [report.job for report in here.reports()] == [0]
    here.desk.make_room()
    here.desk.cancel(here.members[1], cancelled)  # it still runs, and reads the old object
    here.give(0, slot=3)
    assert here.ray.puts == [3.0, 3.0]
    assert here.points[-1] == "object 2"


def test_a_small_point_goes_along_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(post, "SMALL", BYTES)
    here = office()
    here.give(0, slot=5)
    assert here.ray.puts == []
    assert here.points[0][0] == 5.0


def test_a_worker_on_this_machine_is_told_the_slot() -> None:
    here = office()
    here.members[0].shares = True
    here.give(0, slot=5)
    assert (here.ray.puts, here.points) == ([], [5])
    place = here.ray.called[0][2]
    here.post.updates[place][:] = 2.5
    here.finish(0)
    [report] = here.reports()
    assert report.update[0] == 2.5
    assert np.shares_memory(report.update, here.post.updates[place])


# ---------------------------------------------------------------------------------------------- what is in flight


def test_a_worker_is_sent_two_jobs_at_most() -> None:
    here = office()
    for slot in range(5):
        here.give(0, slot)
    assert [arguments[0] for arguments in here.ray.called] == [100, 101]
    here.finish(0)
    assert len(here.reports()) == 1
    assert len(here.ray.called) == 2  # its update is still being used
    here.desk.make_room()
    assert [arguments[0] for arguments in here.ray.called] == [100, 101, 102]


def test_memory_in_flight_is_bounded_and_jobs_wait_their_turn() -> None:
    """Room for five vectors: two jobs at points of their own, then one waits until a point and an update are gone."""
    here = office(workers=4, vectors=5.0)
    for worker in range(4):
        here.give(worker, slot=worker)
    assert here.ray.puts == [0.0, 1.0]
    here.finish(0)
    here.reports()
    assert here.ray.puts == [0.0, 1.0]
    here.desk.make_room()
    assert here.ray.puts == [0.0, 1.0, 2.0]
    for call in (1, 2):
        here.finish(call)
        here.reports()
        here.desk.make_room()
    assert here.ray.puts == [0.0, 1.0, 2.0, 3.0]
    assert here.post._held == 2.0


def test_readers_of_one_version_need_less_room() -> None:
    here = office(workers=4, vectors=5.0)
    for worker in range(4):
        here.give(worker, slot=0)
    assert len(here.ray.called) == 4


def test_what_a_dead_worker_held_is_free_again() -> None:
    here = office(workers=2, vectors=5.0)
    for slot in range(3):
        here.give(0, slot)
    here.give(1, slot=3)
    assert here.ray.puts == [0.0, 1.0]
    here.desk.drop(here.members[0])
    here.desk.make_room()
    assert here.ray.puts == [0.0, 1.0, 3.0]
    here.desk.drop(here.members[1])
    assert here.post._held == 0.0


def test_one_job_always_fits_if_the_store_can_hold_it() -> None:
    with pytest.raises(EngineError, match=r"room for 0 MiB.*larger --object-store-memory"):
        office(vectors=1.5).give(0, slot=0)
    here = office(vectors=2.0)
    here.give(0, slot=0)
    here.give(1, slot=1)
    assert len(here.ray.called) == 1


# ---------------------------------------------------------------------------------------------- answers


def test_answers_come_in_the_order_of_the_calls_of_a_worker() -> None:
    """A large answer can be overtaken on its way by the next."""
    here = office()
    first, second = here.give(0, 0), here.give(0, 1)
    here.finish(1)
    assert here.reports() == []
    here.finish(0)
    assert [report.job for report in here.reports()] == [first, second]


def test_not_more_answers_at_once_than_memory_should_hold() -> None:
    here = office(workers=AT_ONCE + 3)
    for worker in range(AT_ONCE + 3):
        here.give(worker, slot=0)
        here.finish(worker)
    assert len(here.reports()) == AT_ONCE
    assert len(here.reports()) == 3


def test_kinds_of_answers() -> None:
    here = office(workers=1)
    for slot, (kind, words) in enumerate([(Kind.DONE, None), (Kind.REJECTED, "nan"), (Kind.FAILED, "Traceback")]):
        here.give(0, slot)
        here.finish(slot, kind, words)
        reports = here.reports()
        here.desk.make_room()
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
    here = office()
    here.give(0, 0)
    here.give(0, 1)
    for call in (0, 1):
        here.ray.answers[f"call {call}"] = Gone()
    found = []
    for call, answer in here.desk.answers(0.0):
        found.append((call.job, type(answer)))
        here.desk.drop(call.member)
    assert found == [(0, Gone)]
    assert here.post._held == 0.0


def test_a_cancelled_job_is_not_reported_and_the_next_is() -> None:
    here = office()
    unwanted, wanted = here.give(0, 0), here.give(0, 1)
    here.desk.cancel(here.members[0], unwanted)
    for call in (0, 1):
        here.finish(call)
    assert [report.job for report in here.reports()] == [wanted]


# ---------------------------------------------------------------------------------------------- error feedback


def packed(value: float) -> tuple[Any, int]:
    return np.full(N, np.float16(value)).view(np.uint16), 0


def used(here: Office) -> list[bool]:
    """What each call said of the update before."""
    return [arguments[3] for arguments in here.ray.called]


def test_a_job_says_what_became_of_the_one_before() -> None:
    here = office(transport="float16", workers=1)
    slots = iter(range(10))

    def play(kind: Kind = Kind.DONE, *, cancel: str = "") -> None:
        job = here.give(0, next(slots))
        if cancel == "before":
            here.desk.cancel(here.members[0], job)
        here.finish(len(here.ray.called) - 1, kind, packed(1.5) if kind is Kind.DONE else "words")
        here.reports()
        if cancel == "after":  # another report of the same poll had it cancelled
            here.desk.cancel(here.members[0], job)
        here.desk.make_room()

    play()
    play()
    play(cancel="before")
    play()
    play(Kind.FAILED)
    play(cancel="after")
    play()
    assert used(here) == [False, True, True, False, True, False, False]


def test_with_error_feedback_a_worker_has_one_job_at_a_time() -> None:
    here = office(transport="bfloat16", workers=1)
    for slot in range(3):
        here.give(0, slot)
    assert len(here.ray.called) == 1


def test_updates_of_16_bits_stay_until_the_next_poll() -> None:
    here = office(transport="float16", workers=2)
    for worker in (0, 1):
        here.give(worker, 0)
        here.finish(worker, answer=packed(1.5 + worker))
    first, second = here.reports()
    assert (first.update[0], second.update[-1]) == (1.5, 2.5)
    assert first.update.dtype == np.float64


def test_a_ping_is_no_job() -> None:
    here = office()
    here.desk.note(Call(here.members[0], "ping"), "call 0")
    assert here.members[0].first == -1
    here.ray.answers["call 0"] = None
    [(call, answer)] = list(here.desk.answers(0.0))
    assert (call.method, answer) == ("ping", None)
