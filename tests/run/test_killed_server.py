"""The server is killed at many random instants, and resumed each time: the run ends, and its record is sound."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from engines.subject import Subject
from run.common import events

import asyncsgd as asgd
from asyncsgd.core.events import Outcome
from asyncsgd.run import checkpoints
from asyncsgd.run.read import read_lines, read_trace
from asyncsgd.run.verify import verify
from asyncsgd.tasks.model_file import read_facts

pytestmark = pytest.mark.processes

KILLS = 25 * int(os.environ.get("ASYNCSGD_CHAOS", "1"))
"""ASYNCSGD_CHAOS=20 looks twenty times as hard."""


@pytest.mark.slow
@pytest.mark.timeout(60 * KILLS)
@pytest.mark.parametrize("method", ["async_sgd", "fedbuff", "kept"])
def test_killed_at_random_instants(tmp_path: Path, method: str) -> None:
    program = (Path(__file__).parent / "killer.py").read_text("utf-8")
    directory = tmp_path / "run"
    arguments = (str(directory), method, str(KILLS), str(len(method)))
    with Subject(program, tmp_path, arguments=arguments) as subject:
        said, complaints = subject.process.communicate()
        assert subject.process.returncode == 0, complaints
        subject.none_left()
    iterations, advanced = map(int, said.split())
    assert advanced > KILLS // 8  # the kills did not all come before anything had happened
    trace = read_trace(directory)
    assert trace.iterations == iterations
    trace.check(early=False)
    assert len(np.unique(trace.job)) == iterations
    # Whatever was in flight at a kill is recorded as lost.
    assert trace.counts[Outcome.LOST] >= 2
    assert len(events(directory, "resumed")) >= 2
    rows = read_lines(directory, "metrics.jsonl")
    assert [row["iteration"] for row in rows] == list(range(0, iterations + 1, 5))
    # Callbacks know of exactly the evaluations that the run kept; the best model may come from one that it dropped.
    newest = checkpoints.read(checkpoints.listed(directory / "checkpoints")[0])
    states = json.loads(newest.state["callbacks"])
    losses = {row["loss"]: row["iteration"] for row in reversed(rows)}
    assert states["Seen"]["iterations"] == [row["iteration"] for row in rows]
    best = min(losses)
    assert (states["EarlyStopping"]["best"], states["EarlyStopping"]["iteration"]) == (best, losses[best])
    assert float(read_facts(directory / "best.safetensors")["value"]) <= best
    assert verify(directory) == []
    again = asgd.replay(directory)
    assert again.compared == iterations
    assert again.model_compared
    assert not list(directory.rglob("*.tmp"))
    assert not list(directory.rglob("*.damaged"))
