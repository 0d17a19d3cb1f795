"""A program: it trains in a child that kills itself at a random instant, resumes, and so on; then it ends the run.

An instant is a call of a function, of Python or of C, so that a kill can fall between any two of them: between writing
a file and renaming it, in the middle of resuming, of starting workers, of handling an event.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

import numpy as np

import asyncsgd as asgd
from asyncsgd.run import checkpoints, evaluator
from asyncsgd.testing.bench import WritingBowl

CALLS = Path("calls")
evaluator.QUICK = 60.0  # every evaluation is waited for, so that the metrics show what was lost

METHODS = {
    "async_sgd": asgd.async_sgd(0.05),
    "fedbuff": asgd.fedbuff(0.3, concurrency=5, buffer=3),
    "kept": asgd.async_sgd(1.0)
    .local(2, 0.05, optimizer=asgd.optimizers.adamw(), state="kept")
    .compressed("int4", down="bfloat16"),
}


class Seen(asgd.Callback):
    """Remembers the iterations of all evaluations, over all resumes."""

    def __init__(self) -> None:
        self.iterations: list[int] = []

    def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
        self.iterations.append(view.iteration)

    def state(self) -> dict[str, Any]:
        return {"iterations": self.iterations}

    def load(self, state: dict[str, Any]) -> None:
        self.iterations = state["iterations"]


def train(directory: Path, method: str, iterations: int) -> None:
    asgd.train(
        WritingBowl(50, np.float32),
        METHODS[method],
        engine=asgd.engines.processes(2),
        iterations=iterations,
        directory=directory,
        resume=True,
        every=5,
        checkpoints=asgd.Checkpoints(every=10, keep=2),
        callbacks=[Seen(), asgd.callbacks.EarlyStopping("loss", patience=10**6), asgd.callbacks.SaveBest("loss")],
        progress=False,
    )


def attempt(instant: int, *arguments: Any) -> bool:
    """Whether it came to its end."""
    child = os.fork()
    if child == 0:
        calls = 0

        def count(frame: Any, event: str, argument: Any) -> None:
            nonlocal calls
            calls += event in ("call", "c_call")
            if calls == instant:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            threading.setprofile(count)  # in threads that are started from here on: evaluations and checkpoints
            sys.setprofile(count)
            train(*arguments)
            sys.setprofile(None)
            threading.setprofile(None)
            CALLS.write_text(str(calls), "utf-8")
        except BaseException:
            sys.setprofile(None)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"attempt with instant {instant} ended with {code}")
    return code == 0


def length(folder: Path, method: str, iterations: int) -> int:
    """How many calls a run of so many iterations takes."""
    attempt(0, folder / str(iterations), method, iterations)
    return int(CALLS.read_text("utf-8"))


def newest(directory: Path) -> int:
    return max((int(path.stem) for path in checkpoints.listed(directory / "checkpoints")), default=-1)


def main(directory: Path, method: str, kills: int, seed: int) -> None:
    scratch = directory.parent / "scratch"
    train(scratch / "first", method, 10)  # whatever is loaded when first used is loaded now, and not in every child
    start, whole = length(scratch, method, 3), length(scratch, method, 60)
    draw = random.Random(seed)
    saved, advanced = -1, 0
    for _ in range(kills):
        # Half of them soon after the start: that is where a run is taken up again.
        latest = draw.choice((2 * start, whole))
        if attempt(draw.randrange(1, latest), directory, method, 10**9):
            sys.exit("the run should never have ended")
        reached = newest(directory)
        if reached < saved:
            sys.exit(f"a checkpoint was lost: {reached} after {saved}")
        advanced += reached > saved
        saved = reached
    end = max(saved, 0) + 40
    if not attempt(0, directory, method, end):
        sys.exit("the last attempt was killed")
    print(end, advanced)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
