"""Which points and updates are in the object store at once, with a fake Ray that the test controls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from engines.fake_ray import BYTES, N, fake_server, packed

import asyncsgd as asgd
from asyncsgd.core.compression import Float16
from asyncsgd.core.events import Assign, Joined
from asyncsgd.core.server import Server
from asyncsgd.engines import EngineError
from asyncsgd.engines._ray import vector_store


@pytest.fixture(autouse=True)
def _everything_through_the_store(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(vector_store, "SMALL", 0)
    return


# ---------------------------------------------------------------------------------------------- versions


def test_a_version_is_put_once_for_all_its_readers() -> None:
    here = fake_server(workers=3)
    for worker in (0, 1, 2, 0):
        here.give(worker, slot=7)
    here.give(1, slot=8)
    assert here.ray.puts == [7.0, 8.0]
    assert here.points == ["object 1"] * 4 + ["object 2"]


def test_a_slot_may_hold_another_version_once_its_jobs_have_ended() -> None:
    here = fake_server(workers=2)
    here.give(0, slot=3)
    cancelled = here.give(1, slot=3)
    here.finish(0)
    assert [report.job for report in here.reports()] == [0]
    here.queue.make_room()
    here.cancel(cancelled)  # it still runs, and reads the old object
    here.give(0, slot=3, version=4)
    assert here.ray.puts == [3.0, 3.0]
    assert here.points[-1] == "object 2"


def test_a_version_without_jobs_is_kept_until_there_is_a_newer_one() -> None:
    """Under a buffer the model stays as it is while updates arrive, one after the other or all at once."""
    here = fake_server(workers=2)
    for _ in range(3):
        for worker in (0, 1):
            here.give(worker, slot=7)
            here.finish(len(here.ray.called) - 1)
        assert len(here.reports()) == 2
        here.queue.make_room()
    assert here.ray.puts == [7.0]
    assert here.store.held == 1.0
    here.give(0, slot=8)
    assert here.ray.puts == [7.0, 8.0]
    assert here.store.held == 2.0  # the new one and an update


def test_one_object_per_version_of_a_run_with_a_buffer() -> None:
    """The server's own commands: both workers are done at once, and begin again at the model that has not changed."""
    here = fake_server(workers=2)
    server = Server(np.zeros(N), asgd.fedbuff(0.1, buffer=6, concurrency=2).local(1, 0.1), 0)
    events: list[Any] = [Joined((0, 1))]
    versions = set()
    for _ in range(20):
        for event in events:
            for command in server.handle(event).commands:
                assert isinstance(command, Assign)
                versions.add(command.job.version)
                here.queue.assign(here.handles[command.job.worker], command)
        here.queue.make_room()
        for call in range(len(here.ray.called)):
            here.finish(call)
        events = here.reports()
    assert len(versions) > 3
    assert len(here.ray.puts) == len(versions)


def test_of_two_versions_without_jobs_the_newer_is_kept() -> None:
    here = fake_server(workers=2)
    here.give(0, slot=5)
    here.give(1, slot=6)
    for call in (1, 0):  # the newer one ends first
        here.finish(call)
        here.reports()
    here.queue.make_room()
    here.give(0, slot=6)
    assert here.ray.puts == [5.0, 6.0]


def test_a_version_without_jobs_makes_room() -> None:
    """Older jobs may still wait for their turn when the newest version has no more readers."""
    here = fake_server(workers=3, vectors=3.5, up=Float16())
    for worker, slot in ((0, 1), (2, 1), (0, 2), (2, 3), (1, 4)):
        here.give(worker, slot)
    assert here.ray.puts == [1.0, 4.0]
    for call in (2, 0, 1):
        here.finish(call, answer=packed(1.0, Float16()))
        here.reports()
    here.poll()
    assert here.ray.puts == [1.0, 4.0, 2.0, 3.0]
    assert here.store.held == 2.0 + 2 * Float16().size(N, np.float64) / BYTES


def test_room_for_encoded_vectors_is_freed_to_the_last_byte() -> None:
    """One job fits always: sums of fractions that do not return to 0 would keep the last job waiting for ever."""
    update = Float16().size(N, np.float64)
    here = fake_server(workers=3, vectors=1 + update / BYTES, up=Float16())
    for slot in range(12):
        here.give(slot % 3, slot)
    for call in range(12):
        assert len(here.ray.called) == call + 1
        here.finish(call, answer=packed(1.0, Float16()))
        assert len(here.reports()) == 1
        here.poll()
    assert here.store.held == 1.0


def test_a_small_point_goes_along_with_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_store, "SMALL", BYTES)
    here = fake_server()
    here.give(0, slot=5)
    assert here.ray.puts == []
    assert here.points[0][0] == 5.0


def test_a_worker_on_this_machine_is_told_the_slot() -> None:
    here = fake_server()
    here.handles[0].shares = True
    here.give(0, slot=5)
    assert (here.ray.puts, here.points) == ([], [5])
    place = here.ray.called[0][2]
    here.store.updates[place][:] = 2.5
    here.finish(0)
    [report] = here.reports()
    assert report.update[0] == 2.5
    assert np.shares_memory(report.update, here.store.updates[place])


# ---------------------------------------------------------------------------------------------- what is in flight


def test_a_worker_is_sent_two_jobs_at_most() -> None:
    here = fake_server()
    for slot in range(5):
        here.give(0, slot)
    assert [arguments[0][0] for arguments in here.ray.called] == [100, 101]
    here.finish(0)
    assert len(here.reports()) == 1
    assert len(here.ray.called) == 2  # its update is still being used
    here.queue.make_room()
    assert [arguments[0][0] for arguments in here.ray.called] == [100, 101, 102]


def test_memory_in_flight_is_bounded_and_jobs_wait_their_turn() -> None:
    """Room for five vectors: two jobs at points of their own, then one waits until a point and an update are gone."""
    here = fake_server(workers=4, vectors=5.0)
    for worker in range(4):
        here.give(worker, slot=worker)
    assert here.ray.puts == [0.0, 1.0]
    here.finish(0)
    here.reports()
    assert here.ray.puts == [0.0, 1.0]
    here.queue.make_room()
    assert here.ray.puts == [0.0, 1.0, 2.0]
    for call in (1, 2):
        here.finish(call)
        here.reports()
        here.queue.make_room()
    assert here.ray.puts == [0.0, 1.0, 2.0, 3.0]
    assert here.store.held == 2.0


def test_workers_take_turns_when_the_store_is_full() -> None:
    """Room for three vectors, and so for one job at a point of its own; the worker that finishes gets the next job."""
    here = fake_server(workers=3, vectors=3.0)
    slots = iter(range(100))
    for worker in (0, 1, 2):
        for _ in range(2):
            here.give(worker, next(slots))
    served = []
    for call in range(12):
        here.finish(call)
        [report] = here.reports()
        served.append(report.worker)
        here.give(report.worker, next(slots))
        here.queue.make_room()
    assert served == [0, *[0, 1, 2] * 3, 0, 1]
    assert here.store.held == 2.0


def test_a_job_that_needs_the_store_waits_behind_those_held_back() -> None:
    """A job that would fit waits too: otherwise small jobs would keep a large one waiting forever."""
    here = fake_server(workers=4, vectors=3.0)
    here.give(0, slot=0)
    here.give(1, slot=1)
    here.handles[3].shares = True
    here.give(2, slot=0)
    assert [arguments[0][0] for arguments in here.ray.called] == [100]
    here.give(3, slot=9)  # it shares memory with the server
    assert [arguments[0][0] for arguments in here.ray.called] == [100, 103]


def test_room_that_a_cancelled_job_leaves_is_used_at_once() -> None:
    """Nothing is reported then, so the next poll may be far."""
    here = fake_server(workers=2, vectors=3.0)
    unwanted = here.give(0, slot=0)
    here.give(1, slot=1)
    here.cancel(unwanted)
    here.finish(0)
    assert here.reports() == []
    assert here.ray.puts == [0.0, 1.0]


def test_readers_of_one_version_need_less_room() -> None:
    here = fake_server(workers=4, vectors=5.0)
    for worker in range(4):
        here.give(worker, slot=0)
    assert len(here.ray.called) == 4


def test_what_a_dead_worker_held_is_free_again() -> None:
    here = fake_server(workers=2, vectors=5.0)
    for slot in range(3):
        here.give(0, slot)
    here.give(1, slot=3)
    assert here.ray.puts == [0.0, 1.0]
    here.queue.drop(here.handles[0])
    here.queue.make_room()
    assert here.ray.puts == [0.0, 1.0, 3.0]
    here.queue.drop(here.handles[1])
    assert here.store.held == 1.0  # the newest version


def test_one_job_always_fits_if_the_store_can_hold_it() -> None:
    with pytest.raises(EngineError, match=r"room for 0 MiB.*larger --object-store-memory"):
        fake_server(vectors=1.5).give(0, slot=0)
    here = fake_server(vectors=2.0)
    here.give(0, slot=0)
    here.give(1, slot=1)
    assert len(here.ray.called) == 1
