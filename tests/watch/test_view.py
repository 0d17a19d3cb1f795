"""What the terminal shows: the numbers of the frame, inside its width and height."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console
from watch.common import Scripted, simulated

from asyncsgd.cli.watch_view import view
from asyncsgd.run.ending import End, Ending
from asyncsgd.run.live import Frame, Note, Watcher, WorkerSeen

MANY = tuple(
    WorkerSeen(worker, f"worker {worker}", "working", 50 + worker % 7, 3.0 + worker / 50, 1, 0.3, 0, 0)
    for worker in range(1000)
)


@pytest.fixture
def frame(tmp_path: Path) -> Frame:
    run = Scripted(tmp_path, simulated(200))
    run.note("died", 5, worker=2, reason="was killed by SIGKILL, perhaps because memory ran out")
    for t in range(0, 160, 10):
        run.to(t)
    with Watcher(tmp_path, now=lambda: 0.0) as watcher:
        found = watcher.look()
    run.crash()
    return replace(found, directory="runs/a")


def drawn(frame: Frame, width: int, height: int | None = None) -> list[str]:
    console = Console(file=io.StringIO(), width=width, height=height or 100, highlight=False, record=True)
    console.print(view(frame, width, height))
    return console.export_text().splitlines()


def workers(lines: list[str]) -> list[int]:
    """Whose rows are drawn."""
    below = lines[next(place for place, line in enumerate(lines) if line.startswith("worker ")) + 1 :]
    return [int(line.split(" ")[0]) for line in below if line.split(" ")[0].isdecimal()]


@pytest.mark.parametrize("width", [80, 120])
def test_the_numbers_are_there(frame: Frame, width: int) -> None:
    lines = drawn(frame, width)
    text = "\n".join(lines)
    assert max(map(len, lines)) <= width
    assert "runs/a   federated_async_sgd on Quadratic" in lines[0]
    assert lines[0].rstrip().endswith("● running")
    assert "150 of 200" in text
    assert f"τ avg {frame.average_delay:.4g}, max {frame.maximum_delay}, {frame.in_flight} in flight" in text
    assert f"{frame.metrics['loss'][-1]:.4g}" in text
    assert "1 death" in text
    assert "worker 2 was killed by SIGKILL, perhaps because memory ran out" in text
    for row in frame.workers:
        [line] = [line for line in lines if line.startswith(f"{row.worker} ") and row.state in line]
        assert f" {row.jobs} " in line
        assert f" {row.mean_delay:.4g} " in line
    # Side by side where there is room, one below the other where there is not.
    [place] = [place for place, line in enumerate(lines) if "delays" in line]
    assert lines[place].startswith("delays") == (width == 80)


def test_jobs_that_an_ended_run_left_behind_are_not_shown_as_running(frame: Frame) -> None:
    ended = replace(frame, ending=Ending(End.DONE, 200, 200, None))
    assert f"{frame.in_flight} in flight at the end" in "\n".join(drawn(ended, 120))
    assert "at the end" not in "\n".join(drawn(frame, 120))


@pytest.mark.parametrize("width", [56, 79, 80, 109, 110, 200])
def test_no_heading_is_cut(frame: Frame, width: int) -> None:
    big = tuple(replace(row, worker=1000 + row.worker, jobs=1_000_000) for row in frame.workers)
    [heading] = [line for line in drawn(replace(frame, workers=big), width) if line.startswith("worker ")]
    assert "…" not in heading
    assert ("in flight" in heading, "deaths" in heading) == (width >= 80, width >= 110)


@pytest.mark.parametrize("width", [60, 80, 120, 200])
@pytest.mark.parametrize("height", [24, 30, 50])
@pytest.mark.parametrize("state", ["running", "crashed"])
def test_a_thousand_workers_fit(frame: Frame, width: int, height: int, state: str) -> None:
    notes = tuple(Note(1.0 * k, k, f"worker {k} was killed" + "!" * 200) for k in range(50))
    ending = Ending(End(state), 1494, 4000, "loss <= 0.1")
    much = replace(frame, workers=MANY, notes=notes, ending=ending, silent=42.0)
    much = replace(much, histogram=tuple((delay, 5) for delay in range(0, 10_000, 7)))
    lines = drawn(much, width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    text = "\n".join(lines)
    assert f"and {1000 - len(workers(lines))} more, with " in text
    assert "nothing new for 42 s" in text or state == "crashed"


def test_who_is_shown_of_many(frame: Frame) -> None:
    """Those in trouble, then those with the longest delays."""
    dead = replace(MANY[3], deaths=2)
    gone = replace(MANY[5], state="gone")
    lines = drawn(replace(frame, workers=(*MANY[:3], dead, MANY[4], gone, *MANY[6:]), notes=()), 80, 30)
    shown = workers(lines)
    assert shown[:2] == [3, 5]
    assert shown[2:] == list(range(1002 - len(shown), 1000))


@pytest.mark.parametrize("width", [80, 120])
def test_a_run_that_has_just_begun(tmp_path: Path, width: int) -> None:
    run = Scripted(tmp_path, simulated(20))
    (tmp_path / "metrics.jsonl").write_text("", "utf-8")
    with Watcher(tmp_path, now=lambda: 0.0) as watcher:
        text = "\n".join(drawn(watcher.look(), width))
    assert "no evaluation yet" in text
    assert "0 of 20" in text
    run.crash()


def test_metrics_that_are_no_numbers(frame: Frame) -> None:
    nan = float("nan")
    odd = replace(frame, metrics={"iteration": (0.0, 1.0), "time": (0.0, 1.0), "loss": (nan, nan), "a": (1.0, nan)})
    [line] = [line for line in drawn(odd, 80) if line.startswith("loss")]
    assert line.split() == ["loss", "–", "–"]
