"""Flower clients in virtual time: no thread, no network, and the clock advances only when all wait."""

from __future__ import annotations

import heapq
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import Empty
from types import SimpleNamespace
from typing import Any

import pytest
from flower.bench import MODEL, Bench
from flower.fake import Client, FakeGrid

from asyncsgd.core.work import Gradient
from asyncsgd.flower import clients, pool
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.clients import ConnectedNodes
from asyncsgd.flower.engine import Clients, Flower
from asyncsgd.flower.sender import ClientMessage, ErrorReply, Good, Sender

Pace = Callable[[ClientMessage], float]
"""Seconds until a client answers this message; infinity: never."""


class World:
    """The clock and the coming events. ``paces`` gives how long each client takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.paces: list[Pace] = []
        # Clients that each list of nodes has (None: all). The run opens when two lists in a row have the same number.
        self.looks: list[int | None] = [None, None]
        self.sent: list[tuple[float, ClientMessage]] = []
        self._ready: deque[Any] = deque()
        self._coming: list[tuple[float, int, Any]] = []
        self._order = itertools.count()
        clock = SimpleNamespace(monotonic=lambda: self.now)
        for module in (pool, clients):
            monkeypatch.setattr(module, "time", clock)
        monkeypatch.setattr(pool, "SimpleQueue", lambda: self)
        monkeypatch.setattr(pool, "sender_for", lambda grid, inbox: VirtualSender(grid, self))
        monkeypatch.setattr(pool, "PresenceWatcher", lambda grid, inbox: VirtualPresence(grid, self))

    # ------------------------------------------------------------------------------------------ the pool's inbox

    def put(self, item: Any, after: float = 0.0) -> None:
        if after:
            heapq.heappush(self._coming, (self.now + after, next(self._order), item))
        else:
            self._ready.append(item)

    def get(self, timeout: float) -> Any:
        """The next item; time passes until it is there."""
        if not self._ready and self._coming and self._coming[0][0] <= self.now + timeout:
            self.now = max(self.now, self._coming[0][0])
        elif not self._ready:
            self.now += timeout
        return self.get_nowait()

    def get_nowait(self) -> Any:
        if self._ready:
            return self._ready.popleft()
        if self._coming and self._coming[0][0] <= self.now:
            return heapq.heappop(self._coming)[2]
        raise Empty


class VirtualSender(Sender):
    """A client computes its reply at once, and the reply arrives when its time has come."""

    def __init__(self, grid: Any, world: World) -> None:
        super().__init__(grid, world)  # type: ignore[arg-type]
        self._world = world

    def send(self, message: ClientMessage) -> None:
        world = self._world
        message.sent_at = world.now
        world.sent.append((world.now, message))
        seconds = world.paces[message.worker](message)
        if seconds >= message.timeout:
            world.put((message, ErrorReply("expired", 3)), message.timeout)
            return
        outcome = self._exchange(message)
        world.put((message, replace(outcome, seconds=seconds) if isinstance(outcome, Good) else outcome), seconds)


class VirtualPresence:
    """Lists the nodes a few times, once a second."""

    def __init__(self, grid: Any, world: World) -> None:
        self.interval = 0.0
        for second, found in enumerate(world.looks):
            nodes = sorted(grid.get_nodes(), key=lambda node: node.registered_at)
            world.put(ConnectedNodes(second, tuple(nodes[:found])), after=second)

    def close(self, patience: float) -> None:
        pass


def steady(seconds: float) -> Pace:
    return lambda message: seconds


def in_turn(*seconds: float) -> Pace:
    """One after the other; the last one for ever."""
    left = iter(seconds)
    return lambda message: next(left, seconds[-1])


def hangs_after(answers: int, seconds: float) -> Pace:
    return in_turn(*[seconds] * answers, math.inf)


@contextmanager
def virtual_bench(world: World, *clients: Client, rules: Clients | None = None, **options: Any) -> Iterator[Bench]:
    """A pool in virtual time; jobs are handed out by the test."""
    grid = FakeGrid(clients)
    layout = Layout.of(MODEL)
    x, carried = layout.split(MODEL)
    engine = Flower(len(clients), grid, layout, carried, rules or Clients(), **options)
    with engine.start(None, Gradient(), x) as flower_pool:  # type: ignore[arg-type]
        here = Bench(flower_pool, grid)
        here.step = 1.0
        here.all_join(len(clients))
        yield here
