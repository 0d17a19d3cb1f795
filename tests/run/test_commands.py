"""``asyncsgd train`` and ``asyncsgd replay``, as a user calls them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.run import checkpoints
from asyncsgd.run.lookup import named_engine, named_method, named_task, settings

pytestmark = pytest.mark.processes

MODULE = """
import numpy as np

class Mine:
    def initial(self):
        return np.ones(4)
    def update(self, x, worker, seed):
        return x + 0.1 * np.random.default_rng(seed).standard_normal(4)
    def evaluate(self, x):
        print("evaluated", flush=True)
        return {"loss": float(x @ x)}

def factory(size=3):
    return Mine()

def wants(size):
    return Mine()

made = Mine()
number = 3
"""

# As the installed command: Python itself does not look for modules in the current directory.
COMMAND = (sys.executable, "-P", "-m", "asyncsgd")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mine_alone.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "mine_alone", raising=False)
    return tmp_path


def call(*arguments: str) -> tuple[int, str, str]:
    done = subprocess.run([*COMMAND, *arguments], capture_output=True, encoding="utf-8", timeout=120)
    return done.returncode, done.stdout.replace("evaluated\n", ""), done.stderr


@pytest.mark.slow
def test_train_replay_and_resume(here: Path) -> None:
    """The task's class is in a module beside the run, and every command finds it there."""
    code, said, complaints = call(
        "train", "mine_alone:Mine", "--stepsize", "0.1", "--iterations", "40", "--workers", "2"
    )
    assert (code, complaints) == (0, "")
    assert "delay_adaptive done: 40 iterations" in said
    assert "saved in runs/Mine-1" in said
    code, said, complaints = call("replay", "runs/Mine-1")
    assert (code, complaints) == (0, "")
    assert "All 40 updates match, and the final model is bit-for-bit identical." in said
    options = ("--iterations", "60", "--workers", "3", "--min-seconds", "0,0,0.01", "--json")
    code, said, complaints = call("train", "--resume", "--directory", "runs/Mine-1", *options)
    assert (code, complaints) == (0, "")
    row = json.loads(said)
    assert (row["iterations"], row["concurrency"], row["state"]) == (60, 3, "done")
    engine = json.loads((here / "runs/Mine-1/run.json").read_text("utf-8"))["engine"]
    assert (engine["workers"], engine["min_seconds"]) == (3, [0, 0, 0.01])
    code, said, _ = call("replay", "runs/Mine-1", "--stop", "45", "--json")
    assert (code, json.loads(said)["iterations"]) == (0, 45)


@pytest.mark.slow
def test_resuming_a_finished_run_says_how_to_continue(here: Path) -> None:
    start = ("train", "mine_alone:Mine", "--stepsize", "0.1", "--workers", "2", "--every", "5", "--directory", "run")
    assert call(*start, "--iterations", "400", "--until", "loss <= 1")[0] == 0
    [newest, *_] = checkpoints.listed(here / "run" / "checkpoints")
    reached = checkpoints.read(newest).iteration
    assert reached < 400
    before = {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()}
    for options in ((), ("--iterations", "400")):
        code, said, notes = call("train", "--resume", "--directory", "run", *options)
        words = (
            f"already reached loss <= 1.0 at iteration {reached}; pass --until TARGET with another target to continue"
        )
        assert (code, notes.splitlines()) == (0, [words])
        assert f"delay_adaptive reached loss <= 1.0 at iteration {reached} of 400: {reached} iterations" in said
    assert {path: path.read_bytes() for path in (here / "run").rglob("*") if path.is_file()} == before
    code, said, _ = call("train", "--resume", "--directory", "run", "--iterations", "405", "--json")  # more than before
    assert (code, json.loads(said)["iterations"]) == (0, 405)
    code, said, notes = call("train", "--resume", "--directory", "run")
    assert (code, notes) == (0, "already at 405 iterations; pass --iterations N to continue\n")


EPOCHS = """
from asyncsgd.tasks import rows_of_batch
import numpy as np

class Walk:
    uses_batch = True
    batches_per_epoch, epoch_rows = 7, 20
    def initial(self):
        return np.zeros(20)
    def update(self, x, worker, seed, batch):
        g = np.zeros(20)
        g[rows_of_batch(batch, 3, 20, 0)] = -1.0
        return g
    def evaluate(self, x):
        return {"least": float(x.min()), "most": float(x.max())}
"""


@pytest.mark.slow
def test_train_for_epochs(here: Path) -> None:
    (here / "walk_alone.py").write_text(EPOCHS, "utf-8")
    start = ("train", "walk_alone:Walk", "--method", "async_sgd", "--stepsize", "1", "--workers", "2")
    code, said, complaints = call(*start, "--epochs", "2", "--directory", "run", "--json")
    assert (code, complaints) == (0, "")
    row = json.loads(said)
    assert (row["iterations"], row["epochs"], row["skipped_rows"], row["state"]) == (14, 2, 0, "done")
    assert row["metrics"] == {"least": 2.0, "most": 2.0}
    code, _, notes = call("train", "--resume", "--directory", "run")
    assert (code, notes) == (0, "already at 2 epochs; pass --epochs N to continue\n")
    code, said, _ = call("train", "--resume", "--directory", "run", "--epochs", "3", "--json")
    assert (code, json.loads(said)["metrics"]) == (0, {"least": 3.0, "most": 3.0})
    code, said, _ = call("replay", "run")
    assert code == 0
    assert "All 21 updates match, and the final model is bit-for-bit identical." in said
    code, _, complaints = call(*start, "--epochs", "2", "--iterations", "5")
    assert code == 2
    assert "were both given; pass one of them" in complaints
    code, _, complaints = call("train", "mine_alone:Mine", "--stepsize", "0.1", "--epochs", "2")
    assert code == 2
    assert "needs a task that walks its data in epochs, and Mine draws its rows" in complaints


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_saves_sums_up_and_ends(here: Path, number: signal.Signals, code: int) -> None:
    options = ("--stepsize", "0.01", "--iterations", "1000000000", "--every", "10", "--workers", "2")
    command = [*COMMAND, "train", "mine_alone:made", "--directory", "run", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", start_new_session=True
    ) as process:
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline() == "evaluated\n"
        os.killpg(process.pid, number)
        _, complaints = process.communicate(timeout=120)
    assert process.returncode == code, complaints
    first, *others = complaints.splitlines()
    assert f"delay_adaptive interrupted by {number.name} at iteration " in first
    assert "Traceback" not in complaints
    assert any("delays: " in line for line in others)
    assert others[-1] == "  saved in run: resume with --resume"
    [newest, *_] = checkpoints.listed(here / "run" / "checkpoints")
    assert f" {checkpoints.read(newest).iteration} iterations in " in first
    end = str(checkpoints.read(newest).iteration + 20)
    assert call("train", "--resume", "--directory", "run", "--iterations", end)[0] == 0
    assert asgd.replay("run", task=named_task("mine_alone:made"), method=asgd.delay_adaptive(0.01)).model_compared


# ---------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("name", ["Mine", "factory", "made", "made.__class__"])
def test_a_task_is_named(here: Path, name: str) -> None:
    assert named_task(f"mine_alone:{name}").initial().tolist() == [1.0] * 4


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine_alone", "is missing the task name; write module:task"),
        ("mine_alone.py:made", "names a file; name the module: mine_alone:made"),
        ("sub/mine_alone.py:made", "name the module: sub.mine_alone:made"),
        ("mine_alnoe:made", r"no module 'mine_alnoe'\); run this where mine_alnoe.py is"),
        ("mine_alone:mdae", r"mine_alone has no 'mdae'\); did you mean made\?"),
        ("mine_alone:number", "is a int; name a task"),
        ("mine_alone:wants", r"cannot be called without arguments \(missing a required argument: 'size'\); give its"),
    ],
)
def test_what_is_no_task(here: Path, name: str, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        named_task(name)


def test_a_module_that_needs_another(here: Path) -> None:
    (here / "needs_more.py").write_text("import not_installed_at_all", "utf-8")
    with pytest.raises(UsageError, match="No module named 'not_installed_at_all'; install the missing module"):
        named_task("needs_more:task")


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("0.5", 0.5), ("true", True), ("True", True), ("False", False), ("None", None), ("linear", "linear")],
)
def test_a_setting(text: str, value: Any) -> None:
    found = settings([f"name={text}"])["name"]
    assert (found, type(found)) == (value, type(value))


@pytest.mark.parametrize("pair", ["concurrency", "=4", "con currency=4"])
def test_what_is_no_setting(pair: str) -> None:
    with pytest.raises(BadParameter, match="is not a setting; write name=value"):
        settings([pair])


def test_a_method_says_what_it_takes() -> None:
    with pytest.raises(BadParameter, match="--concurrency is missing; federated_async_sgd needs it: pass one"):
        named_method("federated_async_sgd", {"stepsize": 0.1})
    with pytest.raises(BadParameter, match=r"--method = 'x' is not a method; pass one of: .*async_sgd"):
        named_method("x", {"stepsize": 0.1})


def test_the_engine_of_a_resumed_run() -> None:
    before = asgd.engines.processes(2, slowdown=[1, 5], threads=2, job_timeout=9.0)
    described = json.loads(json.dumps(before.describe()))
    assert named_engine(described, {}) == before
    assert named_engine(described, {"job_timeout": 3.0}) == asgd.engines.processes(
        2, slowdown=[1, 5], threads=2, job_timeout=3.0
    )
    assert named_engine(described, {"workers": 3}) == asgd.engines.processes(3, threads=2, job_timeout=9.0)
    with pytest.raises(UsageError, match=r"engine 'mine' cannot be started from the command line; .*pass --workers"):
        named_engine({"engine": "mine", "workers": 3}, {})
    assert named_engine({"engine": "mine", "workers": 3}, {"workers": 2}) == asgd.engines.processes(2)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "MODULE:TASK is missing; pass module:task, or --resume --directory DIR"),
        (("mine_alone:made", "--iterations", "5"), "--stepsize is missing; delay_adaptive needs it: pass one"),
        (("mine_alone:made", "--stepsize", "1"), "--iterations is missing"),
        (("mine_alone:made", "--stepsize", "1", "--iterations", "5", "--resume"), "pass --directory DIR"),
        (("--resume", "--directory", "nowhere"), r"nowhere holds no run \(no run.json\)"),
        (("--resume", "--directory", "x", "--stepsize", "1"), "--stepsize = 1.0 cannot change in the middle of a run"),
        (
            ("--resume", "--directory", "x", "--seed", "1"),
            "--seed = 1 cannot change in the middle of a run; leave it out",
        ),
        (
            ("mine_alone:made", "--stepsize", "1", "--iterations", "5", "--min-seconds", "1;2"),
            "is not a list of numbers",
        ),
    ],
)
def test_what_cannot_be_trained(here: Path, arguments: tuple[str, ...], words: str) -> None:
    from typer.testing import CliRunner

    from asyncsgd.cli import app

    found = CliRunner().invoke(app, ["train", *arguments])
    assert found.exit_code == 1  # `main` makes 2 of it where it is the user's mistake
    with pytest.raises(asgd.AsyncSGDError, match=words):
        raise found.exception or AssertionError("nothing was wrong")
    assert not (here / "runs").exists()
