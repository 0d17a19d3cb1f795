"""The method of examples/language_model.py with everything on, on both engines: killed twice, resumed, replayed.

The server kills itself at an event: when a checkpoint was written, and right after an update between two checkpoints.
"""

from __future__ import annotations

import json
import signal
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from engines.subject import Subject

import asyncsgd as asgd
from asyncsgd.run import TrainingRun, checkpoints
from asyncsgd.run.configuration import journal
from asyncsgd.tasks.model_file import read_facts

if TYPE_CHECKING:
    from engines.ray_nodes import Nodes

EXAMPLE = Path(__file__).parents[2] / "examples" / "language_model.py"
EPOCHS, BATCHES, WARMUP = 3, 10, 5

# After the example's own classes and method, which are in __main__ then: workers need no file to import them from.
REST = f"""
import os, signal, sys
from asyncsgd.run import evaluator

evaluator.QUICK = 60.0  # every evaluation is waited for, so that no metric is missing

def small():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text, cut = sources(7000), 4 * {BATCHES} * LENGTH + 1
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

class Die(asgd.Callback):
    def __init__(self, event, at):
        self.event, self.at = event, int(at)

    def on_checkpoint(self, view, path):
        if self.event == "checkpoint" and int(path.stem) >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)

    def on_update(self, view, control):
        if self.event == "update" and view.iteration >= self.at:
            os.kill(os.getpid(), signal.SIGKILL)

directory, address, event, at = sys.argv[1:]
engine = asgd.engines.ray(2, address=address, start_timeout=600.0) if address else asgd.engines.processes(2, threads=1)
asgd.train(
    small(),
    method({WARMUP}),
    engine,
    epochs={EPOCHS},
    every=4,
    directory=directory,
    resume=True,
    callbacks=[asgd.callbacks.EarlyStopping("loss"), asgd.callbacks.SaveBest("loss"), Die(event, at)],
    checkpoints=asgd.Checkpoints(every=5),
    progress=False,
)
"""


def killed_resumed_and_replayed(folder: Path, address: str) -> None:
    example, _, _ = EXAMPLE.read_text("utf-8").partition('if __name__ == "__main__":')
    directory = folder / "run"
    reached = []
    for event, at in (("checkpoint", 5), ("update", 13), ("never", 0)):
        with Subject(example + REST, folder, arguments=(str(directory), address, event, str(at))) as subject:
            code, _, complaints = subject.end(patience=600.0)
            assert code == (0 if event == "never" else -signal.SIGKILL), complaints
            subject.none_left()
        reached.append(checkpoints.read(checkpoints.listed(directory / "checkpoints")[0]).iteration)
    check(directory, reached)


def check(directory: Path, reached: list[int]) -> None:
    """The run stood at these iterations after each part of it, and is one run to its last bit."""
    assert 5 <= reached[0] <= reached[1] < reached[2]
    resumed = [row["iteration"] for row in journal(directory) if row["event"] == "resumed"]
    # If no checkpoint was written between the two kills, the first resume is cut off with all that followed it.
    assert resumed == list(dict.fromkeys(reached[:2]))
    # Everything continued where the last checkpoint stood: epochs, the schedule, the callbacks.
    run = TrainingRun.read(directory)
    trace = run.trace
    trace.check()
    assert run.metrics["epoch"][-1] == EPOCHS
    assert int(trace.jobs.steps.sum()) == EPOCHS * BATCHES  # every mini-batch was handed out once
    assert reached[2] == trace.iterations >= EPOCHS * BATCHES - 4  # two jobs in flight at most are lost by a kill
    values = np.array([run.method.step.size(t) for t in range(trace.iterations)])
    shares = trace.step / values
    assert ((shares > 0) & (shares <= 1 + 1e-12)).all()
    newest = checkpoints.read(checkpoints.listed(directory / "checkpoints")[0])
    state = json.loads(newest.state["callbacks"])
    losses = run.metrics["loss"]
    best = int(np.argmin(losses))
    expected = {"best": losses[best], "iteration": run.metrics["iteration"][best], "waited": len(losses) - 1 - best}
    assert {name: state["EarlyStopping"][name] for name in expected} == expected
    assert float(read_facts(directory / "best.safetensors")["value"]) <= losses[best]  # or a better one that was lost
    # And a replay computes every update and the final model again, bit for bit.
    again = asgd.replay(directory)
    assert again.compared == trace.iterations
    assert again.model_compared
    assert again.x.tobytes() == run.x.tobytes()


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_worker_processes(tmp_path: Path) -> None:
    killed_resumed_and_replayed(tmp_path, "")


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed")
def test_ray(nodes: Nodes, tmp_path: Path) -> None:
    killed_resumed_and_replayed(tmp_path, nodes.address)
