"""A run that diverges: the last model that was good is its answer, and what is said about it makes sense."""

from __future__ import annotations

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import METHOD, Notes, events, sound, train
from run.tasks import Exploding, FarOff
from safetensors import safe_open

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.vectors import Vector
from asyncsgd.run import TrainingRun, checkpoints, last_good
from asyncsgd.run.last_good import LARGE, LastGood
from asyncsgd.run.view import RunView
from asyncsgd.testing.bench import Bowl
from asyncsgd.theory.coverage import estimate_smoothness

TIMES = asgd.durations.fixed([1.0, 2.0])


def test_the_answer_is_the_last_model_with_finite_metrics(tmp_path: Path) -> None:
    run = train(tmp_path, task=Exploding(at=25.0), iterations=1000)
    good = run.metrics["iteration"][-1]
    assert run.diverged == good + 10
    assert run.x_iteration == good
    assert Bowl().evaluate(run.x)["loss"] == run.metrics["loss"][-1]
    assert run.x.tobytes() == asgd.replay(tmp_path, stop=int(good)).x.tobytes()
    assert RunView.of(run).headline()["x_iteration"] == good
    kept = tmp_path / "last_finite.safetensors"
    words = f"  x is the model of iteration {good}, the last one with finite metrics; it is stored in {kept}"
    assert words in RunView.of(run).text().splitlines()
    with safe_open(kept, framework="numpy") as file:
        assert file.metadata()["iteration"] == str(good)
        assert file.get_tensor("x").tobytes() == run.x.tobytes()
    train(tmp_path, iterations=1000, resume=True)
    assert not kept.exists()  # the run went on without diverging


def test_a_run_that_is_fine_answers_with_its_last_model(tmp_path: Path) -> None:
    run = train(tmp_path)
    assert run.x_iteration is None
    assert not (tmp_path / "last_finite.safetensors").exists()
    assert "the last one with finite metrics" not in RunView.of(run).text()


def test_after_a_resume_the_model_of_the_checkpoint_is_known_to_be_good(tmp_path: Path) -> None:
    train(tmp_path, iterations=20, task=FarOff(), method=asgd.async_sgd(0.05))
    before = checkpoints.read(checkpoints.listed(tmp_path / "checkpoints")[0])
    points = before.state["update"]["points"]
    run = train(tmp_path, 1000, task=Exploding(at=1e9), method=asgd.async_sgd(0.05), resume=True)
    assert run.x_iteration == 20
    assert run.x.tobytes() == points["live"][points["current"]].tobytes()


def test_a_large_model_is_taken_from_the_last_checkpoint_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(last_good, "LARGE", 1)
    run = train(tmp_path, task=Exploding(at=0.5), iterations=1000, every=7)
    good = run.metrics["iteration"][-1]
    saved = [int(path.stem) for path in checkpoints.listed(tmp_path / "checkpoints")]
    assert run.x_iteration == max(iteration for iteration in saved if iteration <= good)
    assert run.x_iteration not in run.metrics["iteration"]
    assert run.x.tobytes() == asgd.replay(tmp_path, stop=run.x_iteration).x.tobytes()
    kept = tmp_path / "last_finite.safetensors"
    words = f"  x is the model of iteration {run.x_iteration}, from the last good checkpoint; it is stored in {kept}"
    assert words in RunView.of(run).text().splitlines()
    again = TrainingRun.read(tmp_path)
    assert (again.x_iteration, again.x.tobytes()) == (run.x_iteration, run.x.tobytes())


def test_the_average_is_taken_if_the_method_averages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_good, "LARGE", 1)
    run = train(tmp_path, 1000, METHOD.using(average=True), task=Exploding(at=0.5), every=7)
    assert run.x_iteration
    assert run.x.tobytes() == asgd.replay(tmp_path, stop=run.x_iteration).x.tobytes()


def test_a_large_model_without_a_directory_stays_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(last_good, "LARGE", 1)
    run = train(None, task=Exploding(at=25.0), iterations=1000)
    assert run.x_iteration == run.metrics["iteration"][-1]
    assert Bowl().evaluate(run.x)["loss"] == run.metrics["loss"][-1]


def test_which_checkpoint_a_large_model_comes_from(tmp_path: Path) -> None:
    """The newest one that is not after the last good evaluation and can be read, else the oldest one."""
    train(tmp_path, checkpoints=asgd.Checkpoints(every=20, keep=9))
    x = np.zeros(LARGE // 8)
    kept, gone = LastGood(tmp_path), weakref.ref(x)
    assert kept.model() is None
    kept.keep(45, x)
    del x
    assert gone() is None  # else the server would hold a vector more
    iteration, found = kept.model() or (-1, None)
    assert iteration == 40
    assert found is not None
    assert found.tobytes() == asgd.replay(tmp_path, stop=40).x.tobytes()
    paths = {int(path.stem): path for path in checkpoints.listed(tmp_path / "checkpoints")}
    assert sorted(paths) == [0, 20, 40, 60]
    paths[40].write_bytes(b"damaged")
    assert (kept.model() or [-1])[0] == 20
    paths[0].unlink()
    paths[20].unlink()
    assert (kept.model() or [-1])[0] == 60
    paths[60].unlink()
    assert kept.model() is None


def test_a_diverged_run_leaves_something_to_save(tmp_path: Path) -> None:
    """Also where no evaluation and no checkpoint came in between."""
    run = train(tmp_path, 10**6, asgd.async_sgd(1e200), every=10**6, checkpoints=asgd.Checkpoints(every=10**6))
    assert run.diverged is not None
    assert run.x_iteration == 0
    assert run.x.tobytes() == Bowl().initial().tobytes()
    assert checkpoints.read(checkpoints.listed(tmp_path / "checkpoints")[0]).iteration == 0


# ---------------------------------------------------------------------------------------------- simulations


@pytest.mark.parametrize(
    "method",
    [
        asgd.async_sgd(5.0),
        asgd.mifa(9.0),
        asgd.ringmaster(5.0, limit=50, stops=True),
        asgd.methods.picky_sgd(5.0, threshold=1e300),
    ],
    ids=lambda method: method.name,
)
def test_a_simulation_keeps_the_last_good_model_too(method: Any) -> None:
    task = asgd.tasks.quadratic(workers=2)
    with pytest.warns(asgd.DivergenceWarning, match=r"; x is the model of iteration \d+"), np.errstate(all="ignore"):
        run = asgd.simulate(task, method, TIMES, iterations=5000)
    assert run.x_iteration == run.metrics["iteration"][-1] < run.diverged
    assert task.evaluate(run.x)["loss"] == pytest.approx(run.metrics["loss"][-1], rel=1e-12)


class Bad(Bowl):
    """Its loss is not finite at the initial model."""

    loss = np.nan

    def evaluate(self, x: Vector) -> dict[str, Any]:
        return {"loss": self.loss}


def test_a_simulation_refuses_a_loss_that_is_not_finite_at_the_start() -> None:
    words = "task.evaluate: loss = nan is not finite at the initial model; check the initial parameters, the data and"
    with pytest.raises(BadParameter, match=words):
        asgd.simulate(Bad(), asgd.async_sgd(0.1), TIMES, iterations=10)


# ---------------------------------------------------------------------------------------------- at the start


@pytest.mark.parametrize("loss", [np.nan, np.inf])
def test_a_loss_that_is_not_finite_at_the_start_is_said_to_be_that(tmp_path: Path, loss: float) -> None:
    class Worse(Bad):
        pass

    Worse.loss = loss
    notes = Notes()
    run = train(tmp_path, task=Worse(), callbacks=[notes])
    assert (run.diverged, run.x_iteration, run.trace.iterations) == (0, 0, 0)
    [problem] = run.diagnosis.problems
    assert problem == (
        f"loss = {loss} at the initial model, before any update; check the initial parameters, the data and the loss"
    )
    said = RunView.of(run).text()
    assert "async_sgd diverged at the initial model: 0 iterations" in said
    assert problem in said
    assert [row["event"] for row in events(tmp_path, "diverged")] == ["diverged"]
    sound(train(tmp_path, resume=True), 60)  # with a loss that is right


# ---------------------------------------------------------------------------------------------- L


class Quartic(Bowl):
    """x⁴/4: its curvature 3x² is without bounds, so that of a model that has blown up says nothing."""

    def initial(self) -> Vector:
        return np.ones(4)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        return x**3

    def evaluate(self, x: Vector) -> dict[str, Any]:
        return {"loss": float(np.sum(x**4) / 4)}


def test_the_advice_is_not_from_where_the_model_blew_up() -> None:
    with np.errstate(all="ignore"):
        run = train(None, 1000, asgd.async_sgd(2.5), task=Quartic(), every=1, engine=Inline(2))
    assert run.diverged is not None
    assert run.metrics["loss"][-1] > 1e6
    assert run.diagnosis.smoothness == pytest.approx(3.0, rel=0.05)
    assert any("the step is too large: try stepsize=0.1" in problem for problem in run.diagnosis.problems)


class Linear(Bowl):
    """Its gradient is the same everywhere."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        return np.full_like(x, 0.1)

    def evaluate(self, x: Vector) -> dict[str, Any]:
        return {"loss": 1e3 + float(np.sum(x)) / 10}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_is_not_curvature(dtype: Any) -> None:
    task = Linear(100, dtype)
    assert estimate_smoothness(task, task.initial() * 0.7, [0, 1]) == 0.0
    run = train(None, task=task, method=asgd.async_sgd(1e-3))
    assert run.diagnosis.safe_step is None
    assert "the step cannot be judged: no curvature was found: gradients are the same everywhere" in run.diagnosis.facts
    assert not any("stepsize" in problem for problem in run.diagnosis.problems)
