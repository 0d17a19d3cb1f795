"""What a server leaves behind that is killed, interrupted or terminated."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from engines.subject import Subject

import asyncsgd as asgd
from asyncsgd.run import checkpoints, configuration
from asyncsgd.testing.bench import Bowl

pytestmark = pytest.mark.processes

PROGRAM = """
import sys
import asyncsgd as asgd
from asyncsgd.run import Callback
from asyncsgd.testing.bench import Bowl

class Tell(Callback):
    def on_evaluation(self, view, metrics, control):
        print(view.iteration)

engine = asgd.engines.processes(3, {options})
try:
    asgd.train(Bowl(), asgd.async_sgd(0.01), engine=engine, iterations=10**9, every=20,
               checkpoints=asgd.Checkpoints(every=50), directory="run", callbacks=[Tell()], progress=False)
except KeyboardInterrupt as stop:
    print("stopped:", stop)
    sys.exit(130)
"""


def started(folder: Path, options: str = "") -> Subject:
    subject = Subject(PROGRAM.format(options=options), folder)
    while int(subject.line()) < 120:  # the checkpoint of 100 was begun, so that of 50 is written
        pass
    return subject


def resumed(folder: Path, least: int) -> None:
    """The run resumes from its checkpoint, and can be replayed as a whole."""
    [newest, *_] = checkpoints.listed(folder / "run" / "checkpoints")
    saved = checkpoints.read(newest).iteration
    assert saved >= least
    engine = asgd.engines.processes(2)
    run = asgd.train(
        Bowl(), asgd.async_sgd(0.01), engine=engine, iterations=saved + 30, directory=folder / "run", resume=True,
        progress=False,
    )  # fmt: skip
    assert run.trace.iterations == saved + 30
    again = asgd.replay(folder / "run")
    assert again.model_compared
    assert again.compared == saved + 30


# Busy in Python, and busy in a call that does not look at signals.
@pytest.mark.slow
@pytest.mark.parametrize("options", ["", "min_seconds=[0, 0, 3600]"])
def test_a_killed_server_leaves_no_process_and_no_memory(tmp_path: Path, options: str) -> None:
    with started(tmp_path, options) as subject:
        family = subject.relatives()
        assert len(family) == 5  # the server, the fork server, three workers
        for process in family:
            assert "/dev/shm" not in Path(f"/proc/{process}/maps").read_text("utf-8")
        os.kill(subject.process.pid, signal.SIGKILL)
        subject.process.wait()
        subject.none_left()
    before = asgd.replay(tmp_path / "run")  # up to what was flushed
    assert before.compared >= 50
    resumed(tmp_path, least=50)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_saves_and_ends(tmp_path: Path, number: signal.Signals, code: int) -> None:
    with started(tmp_path) as subject:
        os.killpg(subject.process.pid, number)  # to the whole group, as a terminal does
        returned, said, complaints = subject.end()
        assert returned == code, complaints
        if number is signal.SIGINT:
            last = said.splitlines()[-1]
            assert "stopped by SIGINT at iteration" in last
            assert "continue with resume=True" in last
        assert complaints == ""
        subject.none_left()
    [ended] = [row for row in configuration.journal(tmp_path / "run") if row["event"] == "ended"]
    saved = checkpoints.read(checkpoints.listed(tmp_path / "run" / "checkpoints")[0])
    assert saved.iteration == ended["iteration"]  # the very last one
    assert (tmp_path / "run" / "trace.parquet").exists()
    resumed(tmp_path, least=100)


@pytest.mark.slow
def test_a_second_interrupt_acts_at_once(tmp_path: Path) -> None:
    """The first one waits for an evaluation that never ends. Two that come before Python handles one count as one."""
    program = """
import os, sys, threading
import asyncsgd as asgd
from asyncsgd.run.interrupts import Interrupts
from asyncsgd.testing.bench import Bowl

note = Interrupts._note

def heard(self, number, frame):
    note(self, number, frame)
    os.write(1, b"heard\\n")

Interrupts._note = heard

class Slow(Bowl):
    def evaluate(self, x):  # in a thread of its own
        if x[0] != 1:
            print("evaluating")
            threading.Event().wait()
        return {}

try:
    asgd.train(Slow(), asgd.async_sgd(0.01), engine=asgd.engines.processes(2), iterations=100, directory="run",
               every=10, checkpoints=asgd.Checkpoints(every=5), progress=False)
except KeyboardInterrupt:
    sys.exit(130)
"""
    with Subject(program, tmp_path) as subject:
        for said in ("evaluating", "heard"):
            assert subject.line() == said
            os.killpg(subject.process.pid, signal.SIGINT)
        returned, _, complaints = subject.end()
        assert returned == 130, complaints
        subject.none_left()
    [newest, *_] = checkpoints.listed(tmp_path / "run" / "checkpoints")
    assert checkpoints.read(newest).iteration >= 5  # updates arrive during the evaluation


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_end_while_starting_leaves_nothing(tmp_path: Path, number: signal.Signals) -> None:
    """The task is being loaded, and that takes for ever."""
    program = """
import asyncsgd as asgd

class Slow:
    def __init__(self):
        self.state = 1
    def initial(self):
        import numpy
        return numpy.ones(3)
    def update(self, x, worker, seed):
        return x
    def evaluate(self, x):
        return {}
    def __setstate__(self, state):
        print("loading", flush=True)
        import threading
        threading.Event().wait()

asgd.train(Slow(), asgd.async_sgd(0.1), engine=asgd.engines.processes(2), iterations=5, progress=False)
"""
    with Subject(program, tmp_path) as subject:
        assert subject.line() == "loading"
        os.killpg(subject.process.pid, number)
        returned, _, complaints = subject.end()
        assert returned == -number
        assert ("KeyboardInterrupt" in complaints) == (number == signal.SIGINT)
        subject.none_left()
