"""Runs of epochs whose server is killed with SIGKILL and resumed: every row is used once per epoch, or is skipped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from engines.subject import Subject
from run.rows import Rows
from run.test_epochs import SKIPPED, complete, used

import asyncsgd as asgd
from asyncsgd.core.events import Outcome
from asyncsgd.run.read import read_trace

pytestmark = [pytest.mark.processes, pytest.mark.slow]

PROGRAM = f"""
import os, signal, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
import asyncsgd as asgd
from run.rows import Rows

class Die(asgd.Callback):
    def on_update(self, view, control):
        if view.iteration % 5 == 0:
            control.scale_step(0.5) if view.iteration % 10 == 0 else control.scale_step(2.0)
        if view.iteration == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

asgd.train(
    Rows(50, 4), asgd.async_sgd(1.0), asgd.engines.processes(2), epochs=2, directory=sys.argv[1], resume=True,
    checkpoints=asgd.Checkpoints(every=3), callbacks=[Die()], progress=False,
)
"""


@pytest.mark.timeout(600)
def test_killed_in_mid_epoch_and_resumed(tmp_path: Path) -> None:
    """What was in flight at the last checkpoint is skipped; what came after it is forgotten and handed out again."""
    task, directory = Rows(50, 4), tmp_path / "run"
    for at in (4, 11, 17, 1000):
        with Subject(PROGRAM, tmp_path, arguments=(str(directory), str(at))) as subject:
            _, complaints = subject.process.communicate()
            assert subject.process.returncode == (0 if at == 1000 else -9), complaints
            subject.none_left()
    trace = read_trace(directory)
    assert used(task, trace, (Outcome.APPLIED, *SKIPPED)) == [2] * 50
    assert trace.counts[Outcome.LOST] >= 3
    factors = np.ones(trace.iterations)
    for t in range(5, trace.iterations, 5):
        factors[t:] *= 0.5 if t % 10 == 0 else 2.0
    assert trace.step.tolist() == factors.tolist()
    again = asgd.replay(directory)
    assert again.model_compared
    assert again.compared == trace.iterations
    finished = asgd.train(
        task, asgd.async_sgd(1.0), asgd.engines.processes(2), epochs=2, directory=directory, resume=True, progress=False
    )
    complete(finished, task, 2)
    assert finished.skipped_rows == sum(used(task, trace, SKIPPED))
