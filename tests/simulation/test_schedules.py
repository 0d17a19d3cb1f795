"""Schedules in simulations: the bits of the core, sweeps over the peak, labels, pages and progress."""

import warnings

import numpy as np
import pytest
from simulation.plain_clock import drive
from typer.testing import CliRunner

import asyncsgd as asgd
from asyncsgd.cli import app
from asyncsgd.cli.simulate import parse
from asyncsgd.core.errors import BadConfig, BadParameter
from asyncsgd.pages.sources import gather
from asyncsgd.simulation import compiled_replay

TASK = asgd.tasks.quadratic(dim=5, workers=3, noise=0.1)
SPEEDS = asgd.durations.exponential([1.0, 2.0, 5.0])
ALL = {
    "constant": asgd.schedules.constant(0.1, warmup=20),
    "linear": asgd.schedules.linear(0.1, final=0.1),
    "cosine": asgd.schedules.cosine(0.1, warmup=20),
    "short cosine": asgd.schedules.cosine(0.1, total=60),
    "inverse_sqrt": asgd.schedules.inverse_sqrt(0.1, warmup=10),
    "warmup_stable_decay": asgd.schedules.warmup_stable_decay(0.1, warmup=10, decay=40),
    "custom": asgd.schedules.custom(lambda t: 0.99**t, peak=0.1),
}
METHODS = {
    "async_sgd": asgd.async_sgd,
    "delay_adaptive": asgd.delay_adaptive,
    "fedbuff": lambda size: asgd.fedbuff(size, concurrency=4, buffer=3),
    "momentum": lambda size: asgd.async_sgd(size).using(optimizer=asgd.optimizers.momentum(0.5)),
}


@pytest.mark.parametrize("kind", METHODS)
@pytest.mark.parametrize("name", ALL)
def test_the_compiled_run_has_the_bits_of_the_server_and_its_steps(name, kind):
    method = METHODS[kind](ALL[name])
    run = asgd.simulate(TASK, method, SPEEDS, iterations=150, seed=2)
    assert run.compiled
    bound = method.bind(3, 150)
    assert run.method == bound
    server, trace, _ = drive(TASK, bound, SPEEDS, 150, 2, metadata={"method": method.name, "seed": "2"})
    assert run.x.tobytes() == server.output.tobytes()
    assert run.trace == trace
    if kind == "async_sgd":
        assert run.trace.step.tolist() == [bound.step.stepsize.value(t) for t in range(150)]


def test_a_method_without_compiled_form_follows_the_schedule_too():
    run = asgd.simulate(TASK, asgd.mifa(ALL["cosine"]), SPEEDS, iterations=60)
    assert not run.compiled
    started = run.trace.step > 0
    expected = [ALL["cosine"].bind(60).value(t) / 3 for t in np.flatnonzero(started)]
    assert run.trace.step[started].tolist() == expected


@pytest.mark.parametrize("name", ["cosine", "custom"])
def test_a_sweep_exchanges_the_peak(name):
    """Eighteen lanes: a full block of sixteen, and one that is filled up."""
    peaks, seeds = [0.02, 0.1, 9.0], [3, 7, 8, 9, 10, 11]
    method = asgd.delay_adaptive(ALL[name])
    speeds = asgd.durations.fixed([1.0, 2.0, 5.0])
    found = asgd.sweep(TASK, method, speeds, stepsizes=peaks, seeds=seeds, iterations=200)
    for row, peak in enumerate(peaks):
        for column, seed in enumerate(seeds[:2]):
            single = asgd.delay_adaptive(ALL[name].with_peak(peak))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", asgd.DivergenceWarning)
                run = asgd.simulate(TASK, single, speeds, iterations=200, seed=seed)
            assert found.diverged[row, column] == (run.diverged is not None)
            if run.diverged is None:
                assert found.final[row, column] == run.metrics["gradient_norm"][-1]


def test_a_recipe_of_the_peak_is_swept_in_lanes_of_one_block(monkeypatch):
    monkeypatch.setattr("asyncsgd.simulation._sweep._one_by_one", None)  # the slow way would fail
    recipe = lambda stepsize: asgd.async_sgd(asgd.schedules.linear(stepsize, warmup=5))  # noqa: E731
    found = asgd.sweep(TASK, recipe, SPEEDS, stepsizes=[0.01, 0.1, 5.0], iterations=100)
    same = asgd.sweep(TASK, recipe(1.0), SPEEDS, stepsizes=[0.01, 0.1, 5.0], iterations=100)
    assert np.array_equal(found.final, same.final, equal_nan=True)


def test_compare_names_the_schedule():
    methods = [asgd.async_sgd(0.1), asgd.async_sgd(ALL["cosine"]), asgd.async_sgd(ALL["linear"])]
    rows = asgd.compare(TASK, methods, SPEEDS, iterations=100).rows()
    assert [(row["method"], row["stepsize"], row["schedule"]) for row in rows] == [
        ("async_sgd(0.1)", 0.1, None),
        ("async_sgd(cosine(0.1, warmup=20))", 0.1, "cosine(0.1, warmup=20, total=100)"),
        ("async_sgd(linear(0.1, final=0.1))", 0.1, "linear(0.1, total=100, final=0.1)"),
    ]
    best = asgd.compare(TASK, methods, SPEEDS, iterations=100, stepsizes=[0.01, 0.1, 5.0])
    assert list(best.runs) == [
        "async_sgd",
        "async_sgd(schedule=cosine(warmup=20))",
        "async_sgd(schedule=linear(final=0.1))",
    ]
    assert [run.method.step.peak for run in best.runs.values()] == [sweep.best for sweep in best.sweeps.values()]
    assert best.runs["async_sgd(schedule=cosine(warmup=20))"].method.step.schedule.warmup == 20


def test_compare_refuses_two_peaks_of_one_schedule_under_a_grid():
    methods = [asgd.async_sgd(ALL["cosine"]), asgd.async_sgd(ALL["cosine"].with_peak(0.3))]
    with pytest.raises(BadParameter, match="are the same method once stepsizes"):
        asgd.compare(TASK, methods, SPEEDS, iterations=50, stepsizes=[0.1])


def test_divergence_names_the_schedule_and_its_peak():
    method = asgd.async_sgd(asgd.schedules.linear(50.0, final=1.0))
    with pytest.warns(asgd.DivergenceWarning, match=r"stepsize linear\(50.0, .*\)\): try a smaller peak") as caught:
        asgd.simulate(TASK, method, SPEEDS, iterations=3000)
    assert caught[0].filename == __file__  # the line of the caller
    with pytest.warns(asgd.EdgeWarning) as caught:
        asgd.sweep(TASK, asgd.async_sgd, SPEEDS, stepsizes=[0.001, 0.002], iterations=50)
    assert caught[0].filename == __file__


def test_compare_without_a_seed_is_refused():
    with pytest.raises(BadParameter, match="seeds"):
        asgd.compare(TASK, [asgd.async_sgd], SPEEDS, stepsizes=[0.1], seeds=[], iterations=20)


def test_the_view_and_the_page_have_the_schedule_and_the_steps_that_were_used(tmp_path):
    for method, shown in (
        (asgd.async_sgd(ALL["cosine"]), "cosine(0.1, warmup=20, total=100)"),
        (asgd.async_sgd(ALL["custom"]), "custom(peak=0.1)"),
    ):
        run = asgd.simulate(TASK, method, SPEEDS, iterations=100)
        (view,) = gather(run, TASK)
        assert (view.stepsize, view.schedule) == (0.1, shown)
        assert (view.headline()["stepsize"], view.headline()["schedule"]) == (0.1, shown)
        page = run.write_report(tmp_path / "page.html", task=TASK).read_text("utf-8")
        assert f"the step size follows {shown}" in page
        assert "Steps of the updates that arrived" in page
    (plain,) = gather(asgd.simulate(TASK, asgd.async_sgd(0.1), SPEEDS, iterations=100), TASK)
    assert (plain.stepsize, plain.schedule) == (0.1, None)


# ------------------------------------------------------------------------------------------ files


def tables(**method):
    return {
        "task": {"kind": "quadratic", "dim": 4, "workers": 2},
        "durations": {"kind": "fixed", "seconds": [1.0, 4.0]},
        "method": {"kind": "async_sgd", **method},
        "run": {"iterations": 50},
    }


@pytest.mark.parametrize(
    "given",
    [
        {"schedule": "cosine", "warmup": 5, "final": 0.1},
        {"schedule": {"kind": "cosine", "warmup": 5, "final": 0.1}},
        {"schedule": {"kind": "cosine", "final": 0.1}, "warmup": 5},
    ],
)
def test_a_file_describes_a_schedule(given):
    (recipe,) = parse(tables(stepsize=0.1, **given)).methods.values()
    assert recipe(None).step.stepsize == asgd.schedules.cosine(0.1, warmup=5, final=0.1)
    assert recipe(0.7).step.stepsize == asgd.schedules.cosine(0.7, warmup=5, final=0.1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"schedule": "cosin"}, "method.schedule = 'cosin' is not a schedule; did you mean cosine"),
        ({"schedule": 3}, "method.schedule = 3 is not a schedule"),
        ({"schedule": {"warmup": 3}}, "method.schedule.kind is missing; pass one of constant"),
        ({"warmup": 3}, "method.warmup = 3 is an option of a schedule; pass schedule too"),
        ({"schedule": "cosine", "warmup": -3}, "method.warmup = -3 must be an integer"),
        ({"schedule": {"kind": "cosine", "warmup": -3}}, "method.schedule.warmup = -3 must be .* pass schedule.warmup"),
        ({"schedule": {"kind": "cosine", "warmup": 3}, "warmup": 4}, "method.warmup = 4 contradicts schedule"),
        ({"schedule": {"kind": "cosine", "peak": 3}}, "method.schedule.peak = 3 is not an option of cosine"),
        ({"schedule": "inverse_sqrt"}, "method.warmup is missing; inverse_sqrt needs it"),
        ({"schedule": "warmup_stable_decay", "warmup": 3}, "method.schedule.decay is missing"),
        ({"schedule": "constant", "final": 0.5}, "method.final = 0.5 has no meaning for a constant schedule"),
    ],
)
def test_a_bad_schedule_in_a_file_is_named(given, says):
    with pytest.raises(BadConfig, match=says):
        parse(tables(stepsize=0.1, **given))


FILE = """
[task]
kind = "quadratic"
workers = 2
[durations]
kind = "fixed"
seconds = [1, 2]
[[method]]
kind = "async_sgd"
stepsize = 0.1
schedule = {kind = "warmup_stable_decay", warmup = 5, decay = 10}
[[method]]
kind = "async_sgd"
stepsize = 0.1
[run]
iterations = 40
[sweep]
stepsizes = [0.05, 0.2, 0.4]
"""


@pytest.mark.parametrize("command", ["simulate", "sweep"])
def test_the_commands_run_a_schedule_of_a_file(command, tmp_path):
    file = tmp_path / "schedule.toml"
    file.write_text(FILE)
    done = CliRunner().invoke(app, [command, str(file), "--json"])
    assert done.exit_code == 0, done.output
    assert '"async_sgd(warmup_stable_decay(0.1, warmup=5, decay=10))"' in done.output


# ------------------------------------------------------------------------------------------ progress


class Counted:
    """In place of the bar: remembers what is done."""

    made: list = []  # noqa: RUF012

    def __init__(self, total, what):
        self.total, self.what, self.done = total, what, 0
        Counted.made.append(self)

    def __enter__(self):
        return self.advance

    def advance(self, done):
        self.done += done

    def __exit__(self, *_):
        pass


CALLS = {
    "simulating": lambda **how: asgd.simulate(TASK, asgd.async_sgd(0.1), SPEEDS, iterations=60, **how),
    "sweeping": lambda **how: asgd.sweep(TASK, asgd.async_sgd, SPEEDS, stepsizes=[0.1, 0.2], iterations=60, **how),
    "comparing": lambda **how: asgd.compare(TASK, [asgd.async_sgd(0.1), asgd.mifa(0.1)], SPEEDS, iterations=60, **how),
    "simulating plans": lambda **how: asgd.plan([1.0, 2.0, 3.0], **how),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.filterwarnings("ignore::asyncsgd.EdgeWarning")
def test_progress_is_a_bool_and_the_bar_gets_full(name, monkeypatch):
    monkeypatch.setattr(compiled_replay, "Bar", Counted)
    monkeypatch.setattr(Counted, "made", [])
    CALLS[name](progress=False)
    assert not Counted.made
    CALLS[name](progress=True)
    (bar,) = Counted.made
    assert bar.what == name.partition(" ")[0]
    assert bar.done == bar.total > 0
    with pytest.raises(BadParameter, match=r"progress = .* is not True or False; pass progress=True"):
        CALLS[name](progress=print)
