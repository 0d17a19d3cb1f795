"""`asyncsgd watch`: what it prints, when it leaves, and what it says of mistakes."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console
from watch.common import Scripted, simulated

from asyncsgd import cli
from asyncsgd.cli.inspect import watch_run as watch
from asyncsgd.core.errors import BadParameter


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    def run(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["asyncsgd", "watch", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return int(ended.value.code or 0), said.out, said.err

    return run


def screen(terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=100, height=40, force_terminal=terminal, highlight=False)


def said(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def pauses(*steps: Callable[[], object]) -> Callable[[float], None]:
    """What happens while the watcher waits; it is not to wait more often."""
    left = list(steps)

    def pause(seconds: float) -> None:
        assert seconds == 0.5
        left.pop(0)()

    return pause


def leave() -> None:
    raise KeyboardInterrupt


# ---------------------------------------------------------------------------------------------- the command


def test_once(tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    run = Scripted(tmp_path, simulated(20))
    run.to(10)
    code, out, err = command(tmp_path, "--once")
    assert (code, err) == (0, "")
    assert "10 of 20" in out
    run.end()
    code, out, _ = command(tmp_path, "--once", "--json")
    row = json.loads(out)
    assert (code, row["state"], row["iterations"]) == (0, "done", 20)
    assert row["average_delay"] == run.trace.delays.average
    assert row["metrics"]["loss"] == 1 / 21
    assert [worker["worker"] for worker in row["per_worker"]] == [0, 1, 2, 3]


def test_a_run_that_crashed(tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    run = Scripted(tmp_path, simulated(20))
    run.to(10)
    run.crash()
    for words in ((), ("--once",), ("--json",), ("--once", "--json")):
        code, out, err = command(tmp_path, *words)
        assert (code, err) == (1, "")
        assert "crashed at iteration 10 of 20" in out


@pytest.mark.parametrize("there", [True, False])
def test_no_run(tmp_path: Path, command: Callable[..., tuple[int, str, str]], there: bool) -> None:
    path = tmp_path if there else tmp_path / "nowhere"
    code, out, err = command(path, "--once")
    assert (code, out) == (2, "")
    assert "holds no run (no run.json)" in err if there else "does not exist" in err
    assert err.endswith("pass a run directory, such as runs/task-1, or --wait for a run that starts later\n")


def test_a_speed_that_makes_no_sense(tmp_path: Path, command: Callable[..., tuple[int, str, str]]) -> None:
    code, _, err = command(tmp_path, "--seconds", 0)
    assert code == 2
    assert "--seconds = 0.0" in err


# ---------------------------------------------------------------------------------------------- going on


def test_it_draws_until_the_end(tmp_path: Path) -> None:
    run = Scripted(tmp_path, simulated(20))
    console = screen()
    pause = pauses(lambda: run.to(10), lambda: run.to(15), run.end)
    assert watch(tmp_path, seconds=0.5, console=console, pause=pause)
    text = said(console)
    assert all(f"{t} of 20" in text for t in (0, 10, 15, 20))
    after = text.rpartition("\x1b[?1049l")[2]  # where the screen of its own is left
    assert "20 of 20" in after
    assert "✓ done" in after
    assert "\x1b[?25h" in text  # the cursor is back


def test_ctrl_c_leaves_the_last_frame(tmp_path: Path) -> None:
    run = Scripted(tmp_path, simulated(20))
    console = screen()
    assert watch(tmp_path, seconds=0.5, console=console, pause=pauses(lambda: run.to(10), leave))
    text = said(console)
    assert "10 of 20" in text.rpartition("\x1b[?1049l")[2]
    assert "\x1b[?25h" in text
    run.crash()


def test_where_nothing_can_be_redrawn(tmp_path: Path) -> None:
    run = Scripted(tmp_path, simulated(20))
    console = screen(terminal=False)
    pause = pauses(lambda: run.to(10), lambda: None, run.end)
    assert watch(tmp_path, seconds=0.5, console=console, pause=pause)
    lines = said(console).splitlines()
    assert "  running  0/20  " in lines[0]
    assert "  running  10/20  " in lines[1]
    assert "done" in lines[2]  # nothing was new in between


def test_json_is_one_object_per_line(tmp_path: Path) -> None:
    run = Scripted(tmp_path, simulated(20))
    console = screen(terminal=False)
    pause = pauses(lambda: run.to(10), run.end)
    assert watch(tmp_path, as_json=True, seconds=0.5, console=console, pause=pause)
    rows = [json.loads(line) for line in said(console).splitlines()]
    assert [(row["state"], row["iterations"]) for row in rows] == [("running", 0), ("running", 10), ("done", 20)]


def test_waiting_for_a_run_to_begin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs: list[Scripted] = []
    console = screen(terminal=False)
    path = tmp_path / "later"
    pause = pauses(lambda: None, lambda: runs.append(Scripted(path, simulated(20))), lambda: runs[0].end())
    assert watch(path, wait=True, seconds=0.5, console=console, pause=pause)
    assert "done" in said(console)
    assert capsys.readouterr().err.splitlines()[0].startswith("waiting for a run in ")


def test_a_run_that_is_starting_is_waited_for(tmp_path: Path) -> None:
    """Its process holds the lock, but its workers are not there yet."""
    from asyncsgd.run.directory import RunDirectory

    files = RunDirectory(tmp_path)
    with pytest.raises(BadParameter, match="holds no run"):
        watch(tmp_path, seconds=0.5, console=screen(), pause=pauses(lambda: None, files.close))


def test_waiting_for_a_run_to_be_resumed(tmp_path: Path) -> None:
    """With --wait a crash is not the end."""
    run = Scripted(tmp_path, simulated(20))
    run.to(10)
    run.crash()
    console = screen(terminal=False)
    runs: list[Scripted] = []
    pause = pauses(lambda: runs.append(Scripted(tmp_path, simulated(20))), lambda: runs[0].end())
    assert watch(tmp_path, wait=True, seconds=0.5, console=console, pause=pause)
    lines = said(console).splitlines()
    assert "  crashed  10/20  " in lines[0]
    assert "  running  0/20  " in lines[1]
