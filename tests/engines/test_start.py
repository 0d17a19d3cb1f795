"""How and from where the engine is started, and what is refused before anything starts."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.subject import GUARD, Subject

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.core.work import Gradient
from asyncsgd.engines import EngineError, processes
from asyncsgd.testing.bench import Bowl

pytestmark = pytest.mark.processes

# A task of its own module, no guard: a worker that ran this file again would start workers, and so on.
PROGRAM = """
import numpy as np
import asyncsgd as asgd

print("begin", __name__)
SCALE = 2.0

def scaled(x):
    return SCALE * x

class Mine:
    def initial(self):
        return np.ones(4)
    def update(self, x, worker, seed):
        return scaled(x)
    def evaluate(self, x):
        return {"loss": float(x @ x)}

run = asgd.train(Mine(), asgd.async_sgd(0.1), engine=asgd.engines.processes(2), iterations=30, directory="run",
                 progress=False)
print(run.trace.iterations, asgd.replay("run"))
"""

# What a notebook does: cells run one after the other in __main__, which has no file.
NOTEBOOK = """
import code, sys, __main__
del __main__.__file__
with open("cells.txt") as file:
    cells = [part for part in file.read().split("#---") if part.strip()]
shell = code.InteractiveInterpreter(__main__.__dict__)
for cell in cells:
    shell.runcode(compile(cell, "<cell>", "exec"))
"""


@pytest.mark.slow
@pytest.mark.parametrize("how", ["file", "stdin", "-c"])
def test_from_anywhere(tmp_path: Path, how: str) -> None:
    with Subject(PROGRAM, tmp_path, how=how) as subject:
        code, said, complaints = subject.end()
        assert (code, complaints) == (0, "")
        assert said.splitlines() == [
            "begin __main__",
            "30 <Replay: 30 arrivals, 30 updates as in the run, the model bit for bit>",
        ]
        subject.none_left()


@pytest.mark.slow
def test_from_a_notebook(tmp_path: Path) -> None:
    (tmp_path / "cells.txt").write_text(PROGRAM.replace("\nSCALE", "\n#---\nSCALE").replace("\nrun =", "\n#---\nrun ="))
    with Subject(NOTEBOOK, tmp_path) as subject:
        code, said, complaints = subject.end()
        assert (code, complaints) == (0, "")
        assert "30 <Replay: 30 arrivals, 30 updates as in the run, the model bit for bit>" in said
        subject.none_left()


@pytest.mark.slow
def test_from_a_module_beside_the_script(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text(PROGRAM.partition("run =")[0])
    program = "from beside import *\n" + "run =" + PROGRAM.partition("run =")[2]
    with Subject(program, tmp_path) as subject:
        code, said, complaints = subject.end()
        assert (code, complaints) == (0, "")
        # The module prints where it is imported: here, and in the process that workers are forked from.
        assert said.count("begin beside") == 2
        subject.none_left()


@pytest.mark.slow
def test_what_a_worker_prints_is_seen(tmp_path: Path) -> None:
    """Workers print line by line even into a pipe: they are killed in the end, and do not flush then."""
    program = PROGRAM.replace("        return scaled(x)", "        print('in a worker')\n        return scaled(x)")
    (tmp_path / "program.py").write_text(program, "utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    command = [sys.executable, "program.py"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, encoding="utf-8", timeout=GUARD)
    assert done.stdout.count("in a worker") >= 30
    assert done.stdout.count("begin __main__") == 1


def test_from_a_thread() -> None:
    found: list[Any] = []

    def work() -> None:
        found.append(
            asgd.train(Bowl(), asgd.async_sgd(0.1), engine=processes(2), iterations=20, progress=False).trace.iterations
        )

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [20]


# ---------------------------------------------------------------------------------------------- what cannot work


class Locked(Bowl):
    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()


class Starting(Bowl):
    """Does something as it is loaded."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what = what

    def __setstate__(self, state: dict[str, Any]) -> None:
        import os

        if state["what"] == "exit":
            os._exit(7)
        if state["what"] == "hang":
            threading.Event().wait()
        raise RuntimeError("the data are not there")


def start(task: Any, **options: Any) -> None:
    processes(2, **options).start(task, Gradient(), task.initial()).close()


def test_a_task_that_cannot_be_pickled() -> None:
    with pytest.raises(UsageError, match=r"cannot be sent to worker processes \(TypeError: cannot pickle .*lock.*keep"):
        start(Locked())


def test_a_task_that_cannot_be_imported_there(monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType("nowhere_to_be_found")
    module.Hidden = type("Hidden", (Bowl,), {"__module__": "nowhere_to_be_found"})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "nowhere_to_be_found", module)
    with pytest.raises(UsageError, match=r"(?s)cannot be loaded in a worker.*No module named 'nowhere_to_be_found'"):
        start(module.Hidden())


def test_a_task_that_fails_to_load() -> None:
    with pytest.raises(UsageError, match=r"(?s)cannot be loaded in a worker process.*the data are not there"):
        start(Starting("raise"))


def test_a_process_that_ends_while_loading() -> None:
    with pytest.raises(EngineError, match="ended with exit code 7"):
        start(Starting("exit"))


def test_loading_has_a_time() -> None:
    with pytest.raises(EngineError, match=r"was not loaded in 0\.5 s; pass a larger start_timeout"):
        start(Starting("hang"), start_timeout=0.5)


@pytest.mark.parametrize(
    ("arguments", "options", "words"),
    [
        ((0,), {}, "workers = 0"),
        ((2.5,), {}, "workers = 2.5"),
        ((2,), {"threads": 0}, "threads = 0"),
        ((2,), {"job_timeout": 0}, "job_timeout = 0"),
        ((2,), {"job_timeout": -1}, "job_timeout = -1"),
        ((2,), {"start_timeout": float("nan")}, "start_timeout = nan"),
        ((2,), {"slowdown": [1, 2, 3]}, r"slowdown = \[1, 2, 3\] has 3 values for 2 workers; give one per worker"),
        ((2,), {"slowdown": {2: 3}}, r"slowdown = \{2: 3\} names worker 2, which does not exist; name workers 0..1"),
        ((2,), {"slowdown": [1, 0.5]}, "slowdown = 0.5 makes no worker slower; pass a number of at least 1"),
        ((2,), {"min_seconds": [0, -1]}, "min_seconds = -1.0 makes no worker slower; pass a number of at least 0"),
        ((2,), {"min_seconds": [0, float("inf")]}, "min_seconds = inf"),
    ],
)
def test_wrong_parameters(arguments: tuple[Any, ...], options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        processes(*arguments, **options)


def test_more_workers_than_data() -> None:
    task = asgd.tasks.quadratic(dim=3, workers=2, heterogeneity=1.0)
    method = asgd.federated_async_sgd(0.1, concurrency=2)
    with pytest.raises(BadParameter, match=r"workers = 3 are more than the task has data for \(2\); start 2 workers"):
        asgd.train(task, method, engine=processes(3), iterations=5, progress=False)


def test_fewer_workers_than_data() -> None:
    """The data of the others would never be used, and nobody would know."""
    task = asgd.tasks.quadratic(dim=3, workers=4, heterogeneity=1.0)
    method = asgd.federated_async_sgd(0.1, concurrency=2)
    with pytest.raises(
        BadParameter, match=r"workers = 2 are fewer than the task has data for \(4\), so the other data"
    ):
        asgd.train(task, method, engine=processes(2), iterations=5, progress=False)


@pytest.mark.processes
def test_without_an_engine_every_part_of_the_data_has_a_worker() -> None:
    task = asgd.tasks.quadratic(dim=3, workers=3, heterogeneity=1.0)
    run = asgd.train(task, asgd.federated_async_sgd(0.1, concurrency=3), iterations=9, progress=False)
    assert run.config["engine"]["workers"] == 3


def test_no_engine() -> None:
    with pytest.raises(BadParameter, match=r"engine = 4 is a int; pass asgd\.engines\.processes"):
        asgd.train(Bowl(), asgd.async_sgd(0.1), engine=4, iterations=5)  # type: ignore[arg-type]


def test_what_the_record_says() -> None:
    engine = processes(3, slowdown={1: 2}, threads=2)
    assert engine.describe() == {
        "engine": "processes",
        "workers": 3,
        "devices": (),
        "threads_each": 2,
        "start_timeout": 120.0,
        "slowdown": (1.0, 2.0, 1.0),
        "min_seconds": (),
    }
    assert engine.threads == 2
    assert np.isfinite(processes(64).threads)
    assert processes(64).threads == 1
