"""A user's mistake: one sentence with the fix and exit code 2, never a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import Notes, sound, train
from torch import nn

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, NoRun, UsageError
from asyncsgd.run.lookup import named_method, named_task

MODULE = """
import time
import numpy as np

class Mine:
    def initial(self):
        return np.ones(4)
    def update(self, x, worker, seed):
        return x
    def evaluate(self, x):
        return {"loss": float(x @ x)}

class Ends(Mine):
    def evaluate(self, x):
        raise EOFError("the data end here")

class Slow(Mine):
    def __init__(self):
        self.loaded = False
    def __setstate__(self, state):
        with open("loading", "w") as file:
            file.write("now")
        time.sleep(600)

def net():
    return Mine()
"""
COMMAND = (sys.executable, "-P", "-m", "asyncsgd")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mytask.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def call(*arguments: str) -> tuple[int, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, encoding="utf-8", timeout=120)
    return done.returncode, done.stderr


# ---------------------------------------------------------------------------------------------- slips


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ({"workers": 2}, r"workers = 2 is not an option of train; the engine has them: pass .*processes\(workers=2\)"),
        ({"iteration": 5}, "iteration = 5 is not an option of train; did you mean iterations"),
        ({"lr": 0.1}, r"the step size is the method's: pass it as async_sgd\(stepsize=0\.1\)"),
    ],
)
def test_an_option_that_train_does_not_have(option: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        asgd.train(asgd.tasks.quadratic(), asgd.async_sgd(0.1), **option)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"min_seconds": 0.1}, r"min_seconds = 0\.1 is not a list of numbers; give one per worker: \[0\.1\] \* 2"),
        ({"slowdown": 2}, r"slowdown = 2 is not a list of numbers; give one per worker: \[2\] \* 2"),
        ({"slowdown": "ab"}, r"slowdown = 'ab' is not a list of numbers; give one per worker: \[1\] \* 2"),
        ({"slowdown": [None, 1]}, "is not a list of numbers"),
    ],
)
def test_how_slow_workers_are(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        asgd.engines.processes(2, **options)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"directory": 3}, 'directory = 3 is not a path; pass one such as "runs/first"'),
        ({"until": 3}, "until = 3 is not a target; write a metric"),
        ({"callbacks": None}, "callbacks = None is not a list; pass .*, or leave it out"),
        ({"callbacks": Notes()}, "callbacks = .* is not a list; pass"),
        ({"callbacks": [3]}, r"callbacks = 3 is not a callback; .* asgd\.Callback"),
        ({"callbacks": [Notes]}, "callbacks = .*Notes.* is not a callback; pass an object"),
    ],
)
def test_what_train_is_given(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        train(**{"directory": None, **options})


def test_what_replay_is_given(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="directory = 3 is not a path"):
        asgd.replay(3)  # type: ignore[arg-type]
    (tmp_path / "file").touch()
    with pytest.raises(NoRun, match="file holds no run"):
        asgd.replay(tmp_path / "file")
    train(tmp_path / "run", iterations=20)
    for stop in (-1, 1.5, True):
        with pytest.raises(BadParameter, match=r"stop = .* is not an iteration; pass 0\.\.19"):
            asgd.replay(tmp_path / "run", stop=stop)  # type: ignore[arg-type]
    assert asgd.replay(tmp_path / "run", stop=0).iterations == 0


def test_a_resume_cannot_go_back(tmp_path: Path) -> None:
    train(tmp_path, iterations=60)
    before = (tmp_path / "run.json").read_bytes()
    with pytest.raises(BadParameter, match=r"iterations = 10 is too few: .* has 60 already; pass more"):
        train(tmp_path, iterations=10, resume=True)
    assert (tmp_path / "run.json").read_bytes() == before
    sound(train(tmp_path, iterations=60, resume=True), 60)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "mytask:net",
            "does not take a stepsize; name a method, or",
        ),
        ("mytask:Mine", "name a method"),
        ("mytask:np", "is a module; name a method"),
        ("./mytask:net", "is not a module and a name; write module:method"),
        ("torch.nn.functional:relu", "name a method, or a function of the stepsize"),
    ],
)
def test_what_is_no_method(here: Path, monkeypatch: pytest.MonkeyPatch, name: str, words: str) -> None:
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    with pytest.raises(BadParameter, match=words):
        named_method(name, {"stepsize": 0.1})


def test_a_model_is_no_method(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can be called, with anything at all."""
    (here / "mymodel.py").write_text("from torch import nn\nnet = nn.Linear(2, 2)\n", "utf-8")
    monkeypatch.setattr(sys, "path", [str(here), *sys.path])
    with pytest.raises(BadParameter, match="is a Linear; name a method such as"):
        named_method("mymodel:net", {"stepsize": 0.1})


class Locked(nn.Linear):
    def __init__(self) -> None:
        super().__init__(2, 2)
        self.lock = threading.Lock()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"model": Locked()},
            r"model = 'Locked' cannot be copied \(.*lock.*\); keep open files, locks and connections out",
        ),
        (
            {"loss": nn.CrossEntropyLoss},
            r"loss = 'CrossEntropyLoss' is a class; pass an object of it: CrossEntropyLoss\(\)",
        ),
        ({"metrics": {"far": nn.MSELoss}}, r"metrics\['far'\] = 'MSELoss' is a class; pass an object"),
        ({"split": "iid"}, r"split = 'iid' is a str; pass asgd.tasks.split\("),
    ],
)
def test_what_a_torch_task_is_made_of(options: dict[str, Any], words: str) -> None:
    given = {"model": nn.Linear(2, 2), "loss": nn.CrossEntropyLoss(), "data": (np.ones((8, 2)), np.arange(8) % 2)}
    with pytest.raises(BadParameter, match=words):
        asgd.tasks.torch(**{**given, **options})


# ---------------------------------------------------------------------------------------------- the command line


@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("replay", "mytask.py"), "mytask.py holds no run (no run.json); pass a run directory, such as runs/task-1"),
        (("train", "--resume", "--directory", "mytask.py"), "mytask.py holds no run (no run.json)"),
        (("watch", "mytask.py"), "DIR = 'mytask.py' holds no run (no run.json)"),
        (("train", "--resume", "--directory", "run", "--every", "0"), "--every = 0 must be an integer of at least 1"),
        (("train", "--resume", "--directory", "run", "--iterations", "0"), "--iterations = 0 must be an integer"),
        (("train", "--resume", "--directory", "run", "--iterations", "10"), "--iterations = 10 is too few: run has 20"),
        (("train", "--resume", "--directory", "run", "--until", ""), "--until = '' is not a target"),
        (("replay", "run", "--stop", "-1"), "--stop = -1 is not an iteration; pass 0..19"),
        (
            ("train", "mytask:Mine", "--stepsize", "1", "--iterations", "5", "--until", "acc >= 1", "--workers", "1"),
            "--until = 'acc' is not among the task's metrics; pass one of: loss",
        ),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(here: Path, arguments: tuple[str, ...], words: str) -> None:
    train(here / "run", iterations=20, engine=asgd.engines.processes(1))
    code, said = call(*arguments)
    assert code == 2, said
    assert said.startswith(f"asyncsgd: {words}")
    assert said.count("\n") == 1
    assert not (here / "runs").exists()


@pytest.mark.slow
def test_ctrl_c_while_workers_load_leaves_a_word_and_no_directory(here: Path) -> None:
    os.mkfifo("loading")
    command = [*COMMAND, "train", "mytask:Slow", "--stepsize", "1", "--iterations", "5", "--workers", "1"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, encoding="utf-8") as process:
        assert (here / "loading").read_text("utf-8") == "now"
        assert (here / "runs" / "Slow-1" / ".lock").exists()
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=120)
    assert (process.returncode, said) == (130, "asyncsgd: stopped by Ctrl-C\n")
    assert not (here / "runs").exists()


@pytest.mark.slow
def test_an_end_of_file_is_no_abort(here: Path) -> None:
    """click takes EOFError for Ctrl-D at a prompt."""
    train(here / "run", iterations=10)
    (here / "run" / "job.pkl").write_bytes(b"")
    code, words = call("replay", "run")
    assert code == 1
    assert words.startswith("asyncsgd: run/job.pkl is damaged (it does not match its checksum)")
    code, words = call("train", "mytask:Ends", "--stepsize", "1", "--iterations", "5", "--workers", "1")
    assert code == 1
    assert words.endswith("EOFError: the data end here\n")
    assert "Aborted" not in words
    assert not (here / "runs").exists()


def test_a_function_that_raises_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_broken.py").write_text("def task():\n    raise RuntimeError('no data here')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        UsageError, match=r"^mine_broken:task: calling it failed with RuntimeError: no data here \(.*2\)"
    ):
        named_task("mine_broken:task")
