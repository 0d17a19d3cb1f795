"""Schedules in real runs: fixed at the start, stored as plain data, resumed and replayed to the bit, by name too."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import sound, train
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd.cli import app
from asyncsgd.core.errors import BadParameter
from asyncsgd.run.lookup import method_options, named_method
from asyncsgd.run.stored import unpackage
from asyncsgd.run.view import RunView
from asyncsgd.testing.bench import Bowl

COSINE = asgd.schedules.cosine(0.05, warmup=10, final=0.2)


def halves(t: int) -> float:
    return 0.5 ** (t // 30)


def config(directory: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((directory / "run.json").read_text("utf-8"))
    return found


def test_a_longer_resume_keeps_the_total_of_the_start(tmp_path: Path) -> None:
    train(tmp_path, 60, asgd.async_sgd(COSINE))
    stored = config(tmp_path)
    assert stored["parts"]["step"]["stepsize"] == {
        "kind": "CosineSchedule",
        "peak": 0.05,
        "warmup": 10,
        "total": 60,
        "final": 0.2,
    }
    assert stored["job"]["method"] == "parts"
    run = train(tmp_path, 100, asgd.async_sgd(COSINE), resume=True)
    fixed = asgd.schedules.cosine(0.05, warmup=10, total=60, final=0.2)
    assert run.method.step.stepsize == fixed
    assert config(tmp_path)["parts"] == stored["parts"]
    assert run.trace.step.tolist() == [fixed.value(t) for t in range(100)]
    assert unpackage(tmp_path)[1] == run.method
    sound(run, 100)
    given = asgd.replay(tmp_path, task=Bowl(), method=asgd.async_sgd(COSINE))  # open as it was passed to train
    assert given.x.tobytes() == run.x.tobytes()


def test_a_stopped_run_goes_on_with_the_bits_of_one_that_did_not_stop(tmp_path: Path) -> None:
    """The engine answers in a fixed order, so both runs have the same arrivals."""
    method = asgd.delay_adaptive(asgd.schedules.linear(0.05, warmup=5, total=80)).using(
        optimizer=asgd.optimizers.momentum(0.5)
    )
    whole = train(tmp_path / "whole", 80, method)
    train(tmp_path / "parts", 40, method)
    resumed = train(tmp_path / "parts", 80, method, resume=True)
    assert np.array_equal(whole.trace.step[:40], resumed.trace.step[:40])
    assert resumed.trace.step[40:].tolist() == [
        min(1.0, 2 / max(2, int(delay))) * method.step.stepsize.value(t)
        for t, delay in zip(range(40, 80), resumed.trace.delay[40:], strict=True)
    ]
    sound(resumed, 80)


def test_a_function_is_kept_in_a_pickle_and_replayed(tmp_path: Path) -> None:
    method = asgd.fedbuff(asgd.schedules.custom(halves, peak=0.1), concurrency=2, buffer=3)
    train(tmp_path, 30, method)
    assert config(tmp_path)["job"]["method"] is None
    run = train(tmp_path, 90, method, resume=True)
    sound(run, 90)
    assert RunView.read(tmp_path).schedule == "custom(peak=0.1)"


def test_another_schedule_cannot_resume_a_run(tmp_path: Path) -> None:
    train(tmp_path, 40, asgd.async_sgd(COSINE))
    with pytest.raises(BadParameter, match="is not what the run started with"):
        train(tmp_path, 80, asgd.async_sgd(COSINE.with_peak(0.1)), resume=True)


def test_a_bad_schedule_leaves_no_directory(tmp_path: Path) -> None:
    with pytest.raises(BadParameter, match="is -1 at iteration 9"):
        train(tmp_path / "run", 20, asgd.async_sgd(asgd.schedules.custom(lambda t: -1.0 if t == 9 else 1.0)))
    assert not (tmp_path / "run" / "run.json").exists()


def test_the_summary_names_the_schedule(tmp_path: Path) -> None:
    run = train(tmp_path, 60, asgd.async_sgd(COSINE))
    view = RunView.of(run)
    assert view.schedule == "cosine(0.05, warmup=10, total=60, final=0.2)"
    assert view.headline()["schedule"] == view.schedule == RunView.read(tmp_path).schedule
    assert "step size: cosine(0.05, warmup=10, total=60, final=0.2) with the peak 0.05 is" in view.text()


@pytest.mark.processes
def test_worker_processes_follow_the_schedule(tmp_path: Path) -> None:
    run = train(tmp_path, 60, asgd.delay_adaptive(COSINE), engine=asgd.engines.processes(workers=2))
    jobs = run.trace.delays.concurrency
    sizes = COSINE.bind(60)
    assert run.trace.step.tolist() == [
        sizes.value(t) * (1.0 if delay <= jobs else jobs / int(delay)) for t, delay in enumerate(run.trace.delay)
    ]
    sound(run, 60)


# ------------------------------------------------------------------------------------------ by name


def test_options_make_a_schedule() -> None:
    given = {"stepsize": 3e-4, "schedule": "cosine", "warmup": 200, "total": 900, "final": 0.1}
    assert named_method("delay_adaptive", given) == asgd.delay_adaptive(
        asgd.schedules.cosine(3e-4, warmup=200, total=900, final=0.1)
    )
    pairs = ["schedule.decay=50"]
    options = method_options({"stepsize": 0.1, "schedule": "warmup_stable_decay", "warmup": 5}, pairs)
    assert named_method("async_sgd", options).step.stepsize == asgd.schedules.warmup_stable_decay(
        0.1, warmup=5, decay=50
    )
    assert named_method("fedavg", {"clients": 2, "schedule": "linear"}).step.stepsize == asgd.schedules.linear(1.0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"schedule": "cosin"}, "--schedule = 'cosin' is not a schedule; did you mean cosine"),
        ({"warmup": 3}, "--warmup = 3 is an option of a schedule"),
        ({"schedule": "cosine", "warmup": -3}, "--warmup = -3 must be an integer"),
        ({"schedule": "inverse_sqrt"}, "--warmup is missing"),
        ({"schedule": "warmup_stable_decay", "warmup": 1}, "--set schedule.decay is missing"),
        ({"schedule": "cosine", "final": 2.0}, "--final = 2.0 must lie in"),
    ],
)
def test_errors_spell_the_options_of_the_command_line(given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadParameter, match=says):
        named_method("async_sgd", {"stepsize": 0.1, **given})


@pytest.mark.slow
@pytest.mark.processes
def test_the_command_trains_with_a_schedule_and_resumes_it(tmp_path: Path) -> None:
    here = ["--directory", str(tmp_path / "run")]
    task = ["train", "asyncsgd.testing.bench:Bowl", "--workers", "2", "--stepsize", "0.05", "--iterations", "40"]
    done = CliRunner().invoke(app, [*task, "--schedule", "cosine", "--warmup", "10", "--final", "0.1", *here])
    assert done.exit_code == 0, done.output
    again = CliRunner().invoke(app, ["train", "--resume", "--iterations", "60", *here])
    assert again.exit_code == 0, again.output
    view = RunView.read(tmp_path / "run")
    assert view.schedule == "cosine(0.05, warmup=10, total=40, final=0.1)"
    assert asgd.replay(tmp_path / "run").compared == 60
    refused = CliRunner().invoke(app, ["train", "--resume", "--warmup", "5", *here])
    assert "cannot change in the middle of a run" in " ".join(str(refused.exception).split()) + refused.output
