import json
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncsgd.cli.application import app
from asyncsgd.cli.simulate import load, parse
from asyncsgd.core.errors import BadConfig, UsageError

EXAMPLES = Path(__file__).parents[2] / "examples"


def tables(**changes):
    base = {
        "task": {"kind": "quadratic", "dim": 4, "workers": 2},
        "durations": {"kind": "fixed", "seconds": [1.0, 4.0]},
        "method": {"kind": "async_sgd", "stepsize": 0.1},
        "run": {"iterations": 50},
    }
    return {key: value for key, value in {**base, **changes}.items() if value is not None}


def asyncsgd(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "asyncsgd", *map(str, arguments)], capture_output=True, encoding="utf-8", timeout=240
    )


def test_a_whole_file():
    config = parse(
        tables(
            method=[
                {"kind": "delay_adaptive", "stepsize": 0.1, "momentum": 0.5},
                {"kind": "async_sgd", "stepsize": 0.1, "clip": 1.0, "name": "mine"},
                {"kind": "fedbuff", "stepsize": 0.1, "concurrency": 2, "clip": 1.0, "noise": 0.5},
            ],
            durations={"kind": "exponential", "means": [1.0, 2.0], "communication": {"down": 0.5}},
            sweep={"stepsizes": {"low": 0.01, "high": 1.0, "points": 3}, "target": 0.1},
        )
    )
    assert list(config.methods) == ["delay_adaptive", "mine", "fedbuff"]
    adaptive = config.methods["delay_adaptive"]
    assert adaptive(None).step.stepsize == 0.1
    assert adaptive(0.7).step.stepsize == 0.7
    assert adaptive(None).optimizer.beta == 0.5
    assert config.methods["fedbuff"](None).aggregation.noise == 0.5
    assert config.durations.lowered.down.tolist() == [0.5, 0.5]
    assert list(config.sweep["stepsizes"]) == pytest.approx([0.01, 0.1, 1.0])


FIXED = {"kind": "fixed", "seconds": [1, 2]}


def test_a_network():
    config = parse(
        tables(durations={"kind": "fixed", "seconds": [1, 2], "network": {"bandwidth": 1e6, "latency": 0.1}})
    )
    assert config.durations.networked
    assert config.durations.lowered.up.tolist() == [0.1, 0.1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"tsk": {}}, r"\[tsk\] is not known; did you mean task"),
        ({"task": None}, r"\[task\] is missing"),
        ({"task": {"dim": 3}}, r"task\.kind is missing"),
        ({"task": {"kind": "quadratc"}}, "task.kind = 'quadratc' is not known; did you mean quadratic"),
        ({"task": {"kind": "quadratic", "dims": 3}}, r"task\.dims is not known; did you mean dim"),
        ({"task": 3}, r"task = 3 is not a table; write \[task\]"),
        ({"durations": {"kind": "fixed"}}, r"durations\.seconds is missing"),
        ({"durations": {"kind": "fixed", "seconds": [1.0, -1.0]}}, r"durations\.seconds.*-1\.0"),
        ({"durations": {"kind": "fixed", "seconds": []}}, r"durations\.seconds"),
        (
            {"durations": {"kind": "fixed", "seconds": [1, 2], "network": {"latency": 1.0}}},
            "network.bandwidth is missing",
        ),
        ({"durations": {"kind": "fixed", "seconds": [1, 2], "network": {"bandwidth": 0}}}, "network.bandwidth = 0"),
        (
            {
                "durations": {
                    "kind": "fixed",
                    "seconds": [1, 2],
                    "network": {"bandwidth": 1},
                    "communication": {"up": 1},
                }
            },
            "network replaces durations.communication; give one of the two",
        ),
        ({"method": {"kind": "async_sgd", "stepsize": -1}}, r"method\.stepsize = -1 must be a positive"),
        (
            {"method": {"kind": "async_sgd", "stepsize": 1, "concurency": 3}},
            "method.concurency = 3 is not an option of async_sgd; did you mean concurrency",
        ),
        ({"method": {"kind": "clipped", "stepsize": 1}}, "method.kind = 'clipped' is not a method"),
        ({"method": {"kind": "fedasyn"}}, "method.kind = 'fedasyn' is not a method; did you mean fedasync"),
        ({"method": {"kind": "async_sgd", "stepsize": 1, "noise": 1.0}}, "clip is missing"),
        ({"run": {"iteratons": 3}}, r"run\.iteratons is not known; did you mean iterations"),
        ({"run": {"iterations": "abc"}}, r"run\.iterations = 'abc' is of the wrong type; write a whole number"),
        ({"run": {"iterations": True}}, "of the wrong type"),
        ({"run": {}}, r"run\.iterations is missing"),
        ({"run": {"iterations": 5, "seed": "a"}}, r"run\.seed = 'a'"),
        ({"sweep": {"seeds": 3}}, r"sweep\.seeds = 3 is of the wrong type; write a list"),
        ({"sweep": {"stepsizes": 0.1}}, r"sweep\.stepsizes = 0\.1"),
        ({"sweep": {"target": "a"}}, r"sweep\.target = 'a'"),
        ({"task": {"kind": ["a"]}}, r"task\.kind = \['a'\] is not known"),
        ({"method": {"kind": ["a"]}}, r"method\.kind = \['a'\] is not a method"),
        ({"sweep": {"stepsizes": {"low": 1.0}}}, r"sweep\.stepsizes\.high is missing"),
    ],
)
def test_every_mistake_is_named_with_its_key_and_the_fix(changes, says):
    with pytest.raises(BadConfig, match=says):
        parse(tables(**changes))


def test_a_file_that_is_not_there_or_not_toml(tmp_path):
    with pytest.raises(BadConfig, match=r"nowhere\.toml.*TOML"):
        load(tmp_path / "nowhere.toml")
    bad = tmp_path / "bad.toml"
    bad.write_text("[task\n")
    with pytest.raises(BadConfig, match=r"bad\.toml: not TOML"):
        load(bad)


@pytest.mark.slow
def test_the_command_simulates_an_example_and_prints_json():
    done = asyncsgd("simulate", EXAMPLES / "straggler.toml", "--json")
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [row["method"] for row in rows] == ["minibatch_sgd", "async_sgd", "delay_adaptive"]
    assert rows[0]["seconds"] > 2 * rows[1]["seconds"]
    table = asyncsgd("simulate", EXAMPLES / "straggler.toml")
    assert "delay_adaptive" in table.stdout


@pytest.mark.slow
def test_the_command_sweeps_an_example():
    done = asyncsgd("sweep", EXAMPLES / "paper_figure.toml", "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)
    assert 300 < row["iterations_to_target"] < 600
    assert row["on_edge"] is False


def test_a_mistake_in_a_file_is_one_sentence_and_exit_code_2(tmp_path):
    bad = tmp_path / "bad.toml"
    bad.write_text('[task]\nkind = "quadratic"\n[durations]\nkind = "fixed"\nsecond = [1]\n[method]\nkind = "mifa"\n')
    done = asyncsgd("simulate", bad)
    assert done.returncode == 2
    assert done.stderr.strip() == f"asyncsgd: {bad}: the key durations.second is not known; did you mean seconds?"
    done = asyncsgd("simulate", EXAMPLES / "missing.toml")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


TWICE = [{"kind": "async_sgd", "stepsize": 0.1}, {"kind": "async_sgd", "stepsize": 0.3}]


def test_a_method_given_twice_is_labelled_by_its_step():
    named = {"kind": "delay_adaptive", "stepsize": 0.1, "name": "mine"}
    assert list(parse(tables(method=[*TWICE, named])).methods) == ["async_sgd(0.1)", "async_sgd(0.3)", "mine"]
    alike = [{"kind": "fedbuff", "stepsize": 0.1, "concurrency": 2, "buffer": size} for size in (2, 4)]
    assert list(parse(tables(method=alike)).methods) == ["fedbuff(0.1, size=2)", "fedbuff(0.1, size=4)"]
    without_step = [{"kind": "async_sgd"}, {"kind": "async_sgd", "concurrency": 1}]
    names = list(parse(tables(method=without_step)).methods)
    assert names == ["async_sgd(concurrency=None)", "async_sgd(concurrency=1)"]


def test_a_sweep_refuses_methods_that_differ_in_the_step_alone(tmp_path):
    path = tmp_path / "twice.toml"
    methods = "".join(f"[[method]]\nkind = 'async_sgd'\nstepsize = {step}\n" for step in (0.1, 0.3))
    path.write_text(
        f"{methods}[task]\nkind = 'quadratic'\nworkers = 2\n[durations]\nkind = 'fixed'\nseconds = [1.0, 4.0]\n"
        "[run]\niterations = 20\n[sweep]\nstepsizes = [0.01, 0.1]\n"
    )
    said = CliRunner().invoke(app, ["sweep", str(path)])
    assert said.exit_code
    assert isinstance(said.exception, UsageError)
    assert "are the same method once stepsizes" in str(said.exception)
    assert "async_sgd(0.3)" in str(said.exception)
