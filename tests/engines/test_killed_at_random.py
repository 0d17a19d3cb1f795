"""Servers that a parent kills at a random moment, on both engines: resumed each time, and replayed bit for bit.

The parent draws a number of updates, watches the directory grow as ``asyncsgd watch`` does, and kills the server once
that many are in the trace. So a kill falls anywhere: into an update, an evaluation, a checkpoint or the best model.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from engines.subject import GUARD, Subject

import asyncsgd as asgd
from asyncsgd.core.errors import TraceError
from asyncsgd.run import TrainingRun, checkpoints
from asyncsgd.run.configuration import journal
from asyncsgd.run.verify import verify
from asyncsgd.tasks.model_file import read_facts
from asyncsgd.trace import log as logs

if TYPE_CHECKING:
    from engines.ray_nodes import Nodes

EXAMPLE = Path(__file__).parents[2] / "examples" / "language_model.py"
EPOCHS, BATCHES, KILLS = 4, 20, 2

# After the example's own classes and method, which are in __main__ then: workers need no file to import them from.
REST = f"""
import sys

def small():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text, cut = sources(13000), 4 * {BATCHES} * LENGTH + 1
    return asgd.tasks.torch(
        TinyGPT(vocab=256, layers=1, width=8, heads=2),
        step=lambda model, batch: model(batch["tokens"], labels=batch["labels"]).loss,
        data=Text(text[:cut]),
        batch_size=4,
        accumulate=2,
        sampling="epochs",
        test=Text(text[cut:]),
        derived={{"perplexity": lambda m: math.exp(m["loss"])}},
    )

directory, address = sys.argv[1:]
delays = {{"min_seconds": [0.02, 0.05]}}
if address:
    engine = asgd.engines.ray(2, address=address, start_timeout=600.0, **delays)
else:
    engine = asgd.engines.processes(2, threads=1, **delays)
asgd.train(
    small(),
    method(5),
    engine,
    epochs={EPOCHS},
    every=4,
    directory=directory,
    resume=True,
    callbacks=[asgd.callbacks.EarlyStopping("loss", patience=1000), asgd.callbacks.SaveBest("loss")],
    checkpoints=asgd.Checkpoints(every=7),
    progress=False,
)
"""


def updates(directory: Path) -> int:
    """The number of updates in the trace so far, as another process sees it."""
    try:
        return logs.read(directory / "trace.log")[0].iterations
    except (OSError, TraceError):  # the run has not begun, or the file is being cut for a resume
        return 0


def started(directory: Path) -> int | None:
    """When the run was last started or resumed: run.json is written anew after all files were cut."""
    try:
        return (directory / "run.json").stat().st_mtime_ns
    except OSError:
        return None


def saved(directory: Path) -> int:
    return max((int(path.stem) for path in checkpoints.listed(directory / "checkpoints")), default=0)


def kill_after(subject: Subject, directory: Path, wanted: int, before: int | None) -> None:
    """Kill the server once this many updates are in its trace; ``before`` is when the run was `started` before."""
    deadline = time.monotonic() + GUARD
    while started(directory) == before or updates(directory) < wanted:
        assert subject.process.poll() is None, f"it ended before the kill: {subject.end()}"
        assert time.monotonic() < deadline, "no update arrived"
        threading.Event().wait(0.002)
    os.kill(subject.process.pid, signal.SIGKILL)
    code, _, complaints = subject.end()
    assert code == -signal.SIGKILL, complaints
    subject.none_left()


def replayed(directory: Path) -> TrainingRun:
    """The run, which a replay has computed again to the last bit."""
    run = TrainingRun.read(directory)
    again = asgd.replay(directory)
    assert again.compared == run.trace.iterations
    assert again.model_compared
    assert again.x.tobytes() == run.x.tobytes()
    assert verify(directory) == []
    return run


def killed_at_random(folder: Path, address: str, seed: int) -> None:
    draw = random.Random(seed)
    example, _, _ = EXAMPLE.read_text("utf-8").partition('if __name__ == "__main__":')
    directory = folder / "run"
    reached: list[int] = []
    for number in range(KILLS + 1):
        before = started(directory)
        with Subject(example + REST, folder, arguments=(str(directory), address)) as subject:
            if number < KILLS:
                wanted = (reached[-1] if reached else 0) + draw.randrange(1, 25)
                kill_after(subject, directory, wanted, before)
                reached.append(saved(directory))
            else:
                code, _, complaints = subject.end(patience=600.0)
                assert code == 0, complaints
                subject.none_left()
    run = replayed(directory)
    run.trace.check()
    # A resume from the same checkpoint as the one before removes that one from the journal.
    resumed = [row["iteration"] for row in journal(directory) if row["event"] == "resumed"]
    assert resumed == sorted(set(reached))
    assert run.metrics["epoch"][-1] == EPOCHS
    assert int(run.trace.jobs.steps.sum()) == EPOCHS * BATCHES  # every mini-batch was handed out once
    # The file holds the best model of all, or a better one that was evaluated after the last checkpoint before a kill.
    assert float(read_facts(directory / "best.safetensors")["value"]) <= run.metrics["loss"].min()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", [0, 1])
def test_worker_processes(tmp_path: Path, seed: int) -> None:
    killed_at_random(tmp_path, "", seed)


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_ray(nodes: Nodes, tmp_path: Path) -> None:
    killed_at_random(tmp_path, nodes.address, seed=2)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_script_itself(tmp_path: Path) -> None:
    """examples/language_model.py as a user runs it, on less text."""
    script, directory = EXAMPLE.read_text("utf-8"), tmp_path / "gpt"
    options = ("--epochs", "1", "--workers", "2", "--warmup", "5", "--megabytes", "0.06", "--directory", str(directory))
    with Subject(script, tmp_path, arguments=options) as subject:
        kill_after(subject, directory, random.Random(3).randrange(1, 6), before=None)
    with Subject(script, tmp_path, arguments=(*options, "--resume")) as subject:
        code, said, complaints = subject.end(patience=600.0)
        assert code == 0, complaints
        assert "perplexity" in said
        subject.none_left()
    run = replayed(directory)
    assert run.metrics["epoch"][-1] == 1
    assert (tmp_path / "model.safetensors").exists()
