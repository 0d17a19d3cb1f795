"""One run: what it refuses, what it reports, and that all paths report alike."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.steps import Constant

SPEEDS = asgd.durations.fixed([1.0, 2.0])
TASK = asgd.tasks.quadratic(workers=2)


class Wrapped:
    """The same task without a compiled form."""

    def __init__(self, task):
        self._task = task
        self.workers = task.workers

    def initial(self):
        return self._task.initial()

    def update(self, x, worker, seed):
        return self._task.update(x, worker, seed)

    def evaluate(self, x):
        return self._task.evaluate(x)


@pytest.mark.parametrize("task", [TASK, Wrapped(TASK)], ids=["compiled", "core"])
def test_every_path_measures_the_end_and_cuts_a_diverged_run_where_it_broke(task):
    run = asgd.simulate(task, asgd.async_sgd(0.05), SPEEDS, iterations=1999)
    assert run.metrics["iteration"][-1] == 1999
    assert run.metrics["time"][-1] == run.trace.time[-1]
    assert run.metrics["loss"][-1] == task.evaluate(run.x)["loss"]
    with pytest.warns(asgd.DivergenceWarning, match="smaller stepsize"):
        broken = asgd.simulate(task, asgd.async_sgd(50.0), SPEEDS, iterations=1000)
    assert broken.trace.iterations == broken.diverged == 20
    assert len(broken.metrics["loss"]) == 2


def test_metrics_beyond_the_usual_ones_are_kept():
    task = asgd.tasks.softmax(workers=2, batch=8)
    run = asgd.simulate(task, asgd.async_sgd(0.1), SPEEDS, iterations=50, every=25)
    assert run.compiled
    assert run.metrics["accuracy"].shape == (3,)
    assert run.metrics["accuracy"][-1] == task.evaluate(run.x)["accuracy"]


def test_a_subclass_with_its_own_rule_or_gradient_is_not_taken_for_its_parent():
    class Half(Constant):
        def weight(self, arrival):
            return 0.5

    run = asgd.simulate(TASK, asgd.async_sgd(0.1).using(step=Half(0.1)), SPEEDS, iterations=20)
    assert not run.compiled
    assert set(run.trace.step) == {0.05}

    class Other(asgd.tasks.Quadratic):
        def update(self, x, worker, seed):
            return np.zeros_like(x)

    fields = {name: getattr(TASK, name) for name in TASK.__dataclass_fields__}
    still = asgd.simulate(Other(**fields), asgd.async_sgd(0.1), SPEEDS, iterations=20)
    assert not still.compiled
    assert np.array_equal(still.x, TASK.initial())


def test_a_trace_recorded_with_early_resampling_is_replayed_by_any_method():
    early = asgd.federated_async_sgd(0.05, concurrency=3, early=True)
    recorded = asgd.simulate(TASK, early, SPEEDS, iterations=100).trace
    assert asgd.simulate(TASK, asgd.async_sgd(0.05), recorded).trace.iterations == 100


def bad_task(**parts):
    class Task:
        def initial(self):
            return np.zeros(2)

        def update(self, x, worker, seed):
            return np.zeros(2)

        def evaluate(self, x):
            return {"loss": 0.0}

    for name, value in parts.items():
        setattr(Task, name, value)
    return Task()


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"durations": asgd.durations.fixed([1.0])}, asgd.errors.BadParameter, "1 workers and the task is for 2"),
        ({"durations": asgd.durations.fixed([1.0] * 3)}, asgd.errors.BadParameter, "3 workers and the task is for 2"),
        ({"durations": [1.0, 2.0]}, asgd.errors.BadParameter, r"durations.*is a list; make them with"),
        ({"method": asgd.async_sgd}, asgd.errors.BadParameter, "method.*call the recipe"),
        ({"task": asgd.tasks.quadratic}, asgd.errors.BadParameter, "task.*lacks initial"),
        ({"task": bad_task(evaluate=None)}, asgd.errors.BadParameter, "task.*lacks"),
        ({"task": bad_task(initial=lambda self: [0.0])}, asgd.errors.BadParameter, "'list' is not a flat model"),
        ({"task": bad_task(update=lambda *_: [0.0, 0.0])}, asgd.errors.WrongType, "is a list"),
        ({"task": bad_task(update=lambda *_: np.zeros(1))}, asgd.errors.WrongLength, "length 1"),
        ({"task": bad_task(update=lambda *_: np.zeros(2, np.float32))}, asgd.errors.WrongDtype, "float32"),
        ({"task": bad_task(evaluate=lambda *_: None)}, asgd.errors.BadParameter, "task.evaluate.*is a NoneType"),
        ({"task": bad_task(evaluate=lambda *_: {"loss": "a"})}, asgd.errors.BadParameter, "loss.*is not a number"),
        (
            {
                "task": bad_task(update=lambda *_: np.zeros(3)),
                "method": asgd.async_sgd(0.1).local(2, 0.1),
            },
            asgd.errors.WrongLength,
            "a gradient has length 3",
        ),
        ({"seed": "a"}, asgd.errors.BadParameter, "seed = 'a' is not an integer"),
        ({"iterations": None}, asgd.errors.BadParameter, "iterations is missing"),
        ({"iterations": 1e3}, asgd.errors.BadParameter, "iterations = 1000.0"),
        ({"every": 0}, asgd.errors.BadParameter, "every = 0"),
    ],
)
def test_bad_requests_are_named(change, error, says):
    request = {"task": TASK, "method": asgd.async_sgd(0.1), "durations": SPEEDS, "iterations": 10, **change}
    with pytest.raises(error, match=says):
        asgd.simulate(**request)


def test_an_unsound_trace_is_refused_before_anything_runs():
    unsound = asgd.Trace.from_history([0, 1, 0], [0, 0, 500_000], [0, 1, 2])
    with pytest.raises(asgd.errors.TraceError):
        asgd.simulate(TASK, asgd.async_sgd(0.1), unsound)


def test_a_worker_below_zero_is_refused():
    recorded = asgd.simulate(TASK, asgd.async_sgd(0.1), SPEEDS, iterations=30).trace
    columns = {name: getattr(recorded.jobs, name).copy() for name in recorded.jobs.__dataclass_fields__}
    columns["worker"][7] = -5
    broken = asgd.Trace(type(recorded.jobs)(**columns), recorded.metadata, recorded.final_concurrency)
    with pytest.raises(asgd.errors.TraceError, match="worker -5"):
        asgd.simulate(TASK, asgd.async_sgd(0.1), broken)


@pytest.mark.parametrize("task", [TASK, Wrapped(TASK)], ids=["compiled", "core"])
def test_the_last_measurement_is_judged_too(task):
    with pytest.warns(asgd.DivergenceWarning):
        run = asgd.simulate(task, asgd.async_sgd(50.0), SPEEDS, iterations=60, every=1000)
    assert run.diverged == 60


def test_a_sweep_measures_the_end_on_both_paths():
    task = asgd.tasks.quadratic(workers=2, noise=0.2)
    options = {"stepsizes": [0.002, 0.01, 0.2], "iterations": 301}
    compiled, plain = (asgd.sweep(t, asgd.async_sgd, SPEEDS, **options) for t in (task, Wrapped(task)))
    assert np.array_equal(compiled.final, plain.final)
    assert (
        compiled.final[1, 0]
        == asgd.simulate(task, asgd.async_sgd(0.01), SPEEDS, iterations=301).metrics["gradient_norm"][-1]
    )
