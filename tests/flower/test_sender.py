"""The threads of messages: one per message in flight, used again, and ended with the sender."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import Empty, SimpleQueue
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import Client, FakeGrid
from flwr.app import Message, MetricRecord, RecordDict

from asyncsgd.flower.sender import (
    ClientMessage,
    DirectSender,
    ErrorReply,
    Good,
    NotBuilt,
    Outcome,
    Refused,
    RunEnded,
    Sender,
    sender_for,
)

GUARD = 60.0
"""Seconds after which a test fails that waits for a thread."""


class Threads:
    """A sender, its clients, and the thread in which each message was answered."""

    def __init__(self, *answers: Client) -> None:
        self.seen: list[threading.Thread] = []
        self.grid = FakeGrid([self._watched(answer) for answer in answers])
        self.nodes = list(self.grid.clients)
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.sender = Sender(self.grid, self.inbox)
        self._sent = 0

    def _watched(self, answer: Client) -> Client:
        def client(message: Message) -> Any:
            self.seen.append(threading.current_thread())
            return answer(message)

        return client

    def send(self, client: int = 0, **changes: Any) -> ClientMessage:
        self._sent += 1
        given = {"content": RecordDict, "read": lambda content: content["metrics"]["number"], **changes}
        message = ClientMessage(
            client, self.nodes[client], "train", f"job-{self._sent}", timeout=GUARD, number=self._sent, **given
        )
        self.sender.send(message)
        return message

    def outcome(self) -> Outcome:
        _, found = self.inbox.get(timeout=GUARD)
        result: Outcome = found
        return result


@pytest.fixture
def made() -> Iterator[list[Threads]]:
    """Every `Threads` of a test, so that no thread outlives it."""
    found: list[Threads] = []
    yield found
    for threads in found:
        threads.sender.close(GUARD)


def answer(message: Message) -> RecordDict:
    return RecordDict({"metrics": MetricRecord({"number": 7})})


def test_messages_one_after_the_other_use_one_thread(made: list[Threads]) -> None:
    here = Threads(answer)
    made.append(here)
    for _ in range(20):
        here.send()
        found = here.outcome()
        assert isinstance(found, Good)
        assert found.value == 7
    assert len(here.seen) == 20
    assert len(set(here.seen)) == 1
    assert not here.grid.wrong


def test_there_are_as_many_threads_as_messages_in_flight(made: list[Threads]) -> None:
    """All clients wait for one another, so no answer comes unless each message has a thread."""
    together = threading.Barrier(5)

    def meet(message: Message) -> RecordDict:
        together.wait(GUARD)
        return answer(message)

    here = Threads(*[meet] * 5)
    made.append(here)
    for _ in range(3):  # the later messages use the threads of the first ones
        for client in range(5):
            here.send(client)
        assert all(isinstance(here.outcome(), Good) for _ in range(5))
    assert len(set(here.seen)) == 5


def test_closing_ends_idle_threads_at_once_and_a_busy_one_after_its_call(made: list[Threads]) -> None:
    begun, release, both = threading.Event(), threading.Event(), threading.Barrier(2)

    def long(message: Message) -> RecordDict:
        if message.metadata.group_id == "job-3":
            begun.set()
            release.wait(GUARD)
        else:
            both.wait(GUARD)
        return answer(message)

    here = Threads(long, long)
    made.append(here)
    here.send(0)
    here.send(1)
    assert all(isinstance(here.outcome(), Good) for _ in range(2))
    here.send(0)
    assert begun.wait(GUARD)
    busy = here.seen[-1]
    [idle] = {*here.seen} - {busy}
    here.sender.close(0.0)
    idle.join(GUARD)
    assert not idle.is_alive()
    assert busy.is_alive()
    release.set()
    busy.join(GUARD)
    assert not busy.is_alive()


class GridEnded(BaseException):
    """What Flower raises when its run is over: not an `Exception`."""


def test_an_exception_in_one_message_leaves_the_thread_for_the_next(made: list[Threads]) -> None:
    problems: list[BaseException | None] = [ValueError("not a reply"), GridEnded("over"), None]

    def fragile(message: Message) -> RecordDict:
        problem = problems.pop(0) if problems else None
        if problem is not None:
            raise problem
        return answer(message)

    def broken() -> RecordDict:
        raise TypeError("no such content")

    here = Threads(fragile)
    made.append(here)
    kinds: list[type] = []
    for changes in ({}, {}, {}, {"content": broken}, {"read": broken}, {}):
        here.send(**changes)
        kinds.append(type(here.outcome()))
    assert kinds == [Refused, RunEnded, Good, NotBuilt, Refused, Good]
    here.grid.dead = ConnectionError("away")
    here.send()
    assert isinstance(here.outcome(), ErrorReply)
    here.grid.dead = None
    here.send()
    assert isinstance(here.outcome(), Good)
    assert len(set(here.seen)) == 1


# ---------------------------------------------------------------------------------------------- without threads


class Direct:
    """A sender without threads, and its clients."""

    def __init__(self, *answers: Client) -> None:
        self.grid = FakeGrid(list(answers))
        self.pulls: list[int] = []
        pull = self.grid.pull_messages

        def pulled(names: Any) -> Any:
            names = list(names)
            self.pulls.append(len(names))
            return pull(names)

        self.grid.pull_messages = pulled  # type: ignore[method-assign]
        self.inbox: SimpleQueue[Any] = SimpleQueue()
        self.sender = DirectSender(self.grid, self.inbox)
        self.nodes = list(self.grid.clients)

    def send(self, client: int, number: int, **changes: Any) -> None:
        given = {"content": RecordDict, "read": lambda content: content["metrics"]["number"], **changes}
        node = self.nodes[client]
        self.sender.send(ClientMessage(client, node, "train", f"job-{number}", timeout=GUARD, number=number, **given))

    def exchange(self) -> dict[int, Outcome]:
        self.send(0, 0)
        return self.outcomes(1)

    def outcomes(self, count: int) -> dict[int, Outcome]:
        found = (self.sender.next(GUARD) for _ in range(count))
        return {message.number: outcome for message, outcome in found}


def test_all_replies_come_in_one_call_of_the_polling_thread() -> None:
    here = Direct(answer, answer, answer)
    before = set(threading.enumerate())
    for number in range(3):
        here.send(number, number)
    assert {number: found.value for number, found in here.outcomes(3).items()} == {0: 7, 1: 7, 2: 7}  # type: ignore[union-attr]
    assert here.pulls[0] == 3
    assert not set(threading.enumerate()) - before
    assert not here.grid.wrong


def test_a_reply_that_cannot_be_used_does_not_hide_the_others() -> None:
    here = Direct(answer, answer)
    here.send(0, 0, read=lambda content: content["nothing"])
    here.send(1, 1)
    here.send(0, 2, content=lambda: 1 / 0)
    found = here.outcomes(3)
    assert [type(found[number]) for number in range(3)] == [Refused, Good, NotBuilt]


def test_what_waits_for_no_reply_is_empty_after_its_time() -> None:
    here = Direct(answer)
    with pytest.raises(Empty):
        here.sender.next(0.0)
    held = Direct(lambda message: None)  # a client that never answers
    held.send(0, 0)
    with pytest.raises(Empty):
        held.sender.next(0.0)
    held.inbox.put("something else")
    assert held.sender.next(GUARD) == "something else"


@pytest.mark.parametrize("at", ["push_messages", "pull_messages"])
def test_the_end_of_flowers_run_is_an_outcome_and_an_interrupt_is_not(at: str) -> None:
    class RunNotRunning(BaseException):
        pass

    for error in (RunNotRunning, KeyboardInterrupt):
        here = Direct(answer)

        def refuse(names: Any, error: type[BaseException] = error) -> Any:
            raise error("stopped")

        setattr(here.grid, at, refuse)
        if error is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                here.exchange()
        else:
            assert here.exchange() == {0: RunEnded("RunNotRunning: stopped")}


def test_one_reply_that_raises_is_refused_alone() -> None:
    here = Direct(answer, answer)
    here.send(0, 0)
    here.send(1, 1)
    [bad, _] = here.sender._sent
    pull = here.grid.pull_messages

    def broken(names: Any) -> Any:
        names = list(names)
        if bad in names:
            raise ValueError("not a message")
        return pull(names)

    here.grid.pull_messages = broken  # type: ignore[method-assign]
    found = here.outcomes(2)
    assert found[0] == Refused("the reply cannot be read (ValueError: not a message)")
    assert isinstance(found[1], Good)


def test_flowers_simulation_needs_no_threads() -> None:
    class InMemoryGrid(FakeGrid):
        pass

    assert isinstance(sender_for(InMemoryGrid([answer]), SimpleQueue()), DirectSender)
    assert type(sender_for(FakeGrid([answer]), SimpleQueue())) is Sender
