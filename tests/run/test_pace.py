"""The rate and the time left are right for any pace, on the terminal, for loggers and in ``watch``."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline, InlinePool
from loggers.common import live
from rich.console import Console
from run.common import Notes, train
from watch.common import Scripted

import asyncsgd as asgd
from asyncsgd.cli.inspect import line
from asyncsgd.cli.watch_view import view
from asyncsgd.engines.base import Report
from asyncsgd.format import number
from asyncsgd.run.callbacks.base import LiveView
from asyncsgd.run.callbacks.terminal import Terminal, describe, time_left
from asyncsgd.run.live import Watcher
from asyncsgd.run.tail import Pace


class Clock:
    """Stands still unless it is told to move."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now


def told(monkeypatch: pytest.MonkeyPatch, workers: int, seconds: float, look: float) -> list[LiveView]:
    """What callbacks hear of a run whose workers take so long, all at once, and that is looked at now and then."""
    clock = Clock()

    class Slow(InlinePool):
        next = clock.now + seconds

        def poll(self, timeout: float) -> list[Report]:
            if self.newcomers:
                return super().poll(timeout)
            clock.now += look
            if clock.now < self.next:
                return []
            self.next += seconds
            return [self.compute(self.jobs.popleft()) for _ in range(len(self.jobs))]

    monkeypatch.setattr("asyncsgd.run.recording.time", clock)
    notes = Notes()
    train(None, engine=Inline(workers, Slow), callbacks=[notes], iterations=60, method=asgd.minibatch_sgd(0.05))
    statuses: list[LiveView] = notes.of("progressed")
    return statuses


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize(("seconds", "look"), [(1.0, 0.25), (25.0, 0.5), (600.0, 15.0)])
def test_the_rate_of_a_run(monkeypatch: pytest.MonkeyPatch, workers: int, seconds: float, look: float) -> None:
    right = workers / seconds
    statuses = told(monkeypatch, workers, seconds, look)
    assert len(statuses) > 10
    for status in statuses:
        if status.iteration == 0:
            assert status.updates_per_second == 0.0
            assert "/s" not in describe(status)
        else:
            assert status.updates_per_second == pytest.approx(right, rel=0.1)
            assert f"{number(status.updates_per_second)}/s" in describe(status)
            assert (" left" in time_left(status)) == (status.iteration > 0)


def test_a_run_that_stalls_slows_down() -> None:
    pace = Pace(0.0)
    for tick in range(1, 501):
        pace.add(tick / 10, tick)
    assert pace.per_second(50.0, workers=2) == pytest.approx(10.0)
    assert pace.per_second(50.1, workers=2) == pytest.approx(10.0)
    assert pace.per_second(60.0, workers=2) < 1.2
    assert pace.per_second(3650.0, workers=2) < 0.01


def test_a_run_that_was_slow_is_fast_soon() -> None:
    pace = Pace(0.0)
    for update in range(1, 21):
        pace.add(25.0 * update, update)
    for tick in range(1, 101):
        pace.add(500.0 + tick / 10, 20 + tick)
    assert pace.per_second(510.0, workers=1) == pytest.approx(10.0, rel=0.05)


@pytest.mark.parametrize("workers", [1, 4])
def test_a_slow_start_does_not_count(workers: int) -> None:
    """The first update comes after a minute, then a hundred per second."""
    pace = Pace(0.0)
    pace.add(60.0, 1)
    assert pace.per_second(60.0, workers) == pytest.approx(1 / 60)
    for tick in range(1, 100):
        now = 60.0 + tick / 4
        pace.add(now, 1 + 25 * tick)
        assert pace.per_second(now, workers) == pytest.approx(100.0)


def test_a_first_batch_that_takes_a_moment_is_not_fast() -> None:
    """Four workers take 25 seconds, and their updates come within one."""
    pace = Pace(0.0)
    for update in range(1, 5):
        pace.add(24.0 + update / 4, update)
        assert pace.per_second(24.0 + update / 4, workers=4) == pytest.approx(update / 25, rel=0.05)


def test_a_resumed_run_does_not_count_what_came_before() -> None:
    pace = Pace(1000.0, iteration=5000)
    assert pace.per_second(1003.0, workers=4) == 0.0
    pace.add(1025.0, 5004)
    assert pace.per_second(1030.0, workers=4) == pytest.approx(4 / 25)


def test_the_bar_says_how_long_it_takes() -> None:
    """rich would measure the last 30 seconds on its own, which no slow run fits into."""
    terminal = Terminal()
    terminal._console = Console(force_terminal=True, width=120, file=StringIO())
    terminal.on_start(live(0, 0.0))
    assert terminal._bar is not None
    terminal.on_progress(replace(live(10, 250.0), updates_per_second=0.04))
    with terminal._console.capture() as shown:
        terminal._console.print(terminal._bar.get_renderable())
    terminal.close()
    assert "37:30 left" in shown.get()
    assert "10/100  0.04/s" in shown.get()


# ---------------------------------------------------------------------------------------------- seen from outside


def look(path: Path, now: float | None = None) -> Any:
    with Watcher(path) if now is None else Watcher(path, lambda: now) as watcher:
        return watcher.look()


@pytest.mark.parametrize(("seconds", "shown"), [(25.0, "0.08"), (600.0, "0.003333"), (0.01, "200")])
@pytest.mark.parametrize("steps", [1, 40])
def test_watch_sees_the_same_rate(tmp_path: Path, seconds: float, shown: str, steps: int) -> None:
    """Read as it grows, or in one piece as after a resume."""
    task, times = asgd.tasks.quadratic(workers=2), asgd.durations.fixed([seconds, seconds])
    trace = asgd.simulate(task, asgd.async_sgd(0.1), times, iterations=1000).trace
    run = Scripted(tmp_path, trace)
    for t in np.linspace(0, 800, steps + 1).astype(int)[1:]:
        run.to(int(t))
    newest = max((tmp_path / name).stat().st_mtime for name in ("trace.log", "metrics.jsonl", "journal.jsonl"))
    for silent in (0.0, 0.9 * seconds):
        frame = look(tmp_path, newest + silent)
        assert frame.updates_per_second == pytest.approx(2 / seconds, rel=0.05)
        assert frame.left == pytest.approx(200 * seconds / 2, rel=0.05)
    frame = look(tmp_path, newest)
    assert f"{shown}/s" in line(frame)
    console = Console(width=120)
    with console.capture() as drawn:
        console.print(view(frame, 120))
    assert f"{shown} updates/s" in drawn.get()
    run.crash()


def test_watch_says_no_rate_before_the_first_update(tmp_path: Path) -> None:
    task, times = asgd.tasks.quadratic(workers=1), asgd.durations.fixed([600.0])
    run = Scripted(tmp_path, asgd.simulate(task, asgd.async_sgd(0.1), times, iterations=10).trace)
    frame = look(tmp_path)
    assert (frame.updates_per_second, frame.left) == (0.0, None)
    assert "/s" not in line(frame)
    console = Console(width=120)
    with console.capture() as drawn:
        console.print(view(frame, 120))
    assert "updates/s" not in drawn.get()
    run.crash()
