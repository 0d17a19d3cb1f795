"""Figures of benchmarks reach the page as they were measured, and pictures are what their scripts draw."""

import importlib.util
import json
import sys
from statistics import median

import pytest
from docs.pages import DOCS, ROOT


def load(path):
    """A script that is no part of a package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def figures():
    return load(DOCS / "site" / "figures.py")


def test_the_simulators_figures_are_those_of_the_file(figures):
    results = json.loads((ROOT / "benchmarks/simulate/results.json").read_text(encoding="utf-8"))
    table = figures.table("simulate", ROOT / "benchmarks/simulate/results.json")
    fast = results["schedule"]["schedule, 1000 workers / SimPy"][0]
    assert f"| schedule, 1000 workers | SimPy | {fast:.0f} |" in table
    widths = [line.count("|") for line in table.splitlines() if line.startswith("|")]
    assert sorted(set(widths)) == [3, 4]  # a second slash would have made a row longer than its heading
    assert f"Median of {results['rounds']} rounds on {results['machine']['cores']} cores" in table


def test_the_engines_figures_have_a_row_per_contestant(figures, tmp_path):
    one = {"ratio": 0.25, "ratios": [0.25], "updates_per_second": 10.0}
    sizes = {"10000": {"wanted": 0.1, "updates_per_second_of_the_yardstick": 40.0, "asyncsgd": one, "Ray": one}}
    results = {
        "machine": {"machine": "x86_64", "cores": 2, "python": "3.11"},
        "rounds": 5,
        "updates": sizes,
        "replacement": {"wanted_seconds": 0.2, "seconds_from_kill_to_joined": 0.05},
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    table = figures.table("engines", tmp_path / "results.json")
    assert "| | 10,000 parameters |" in table
    assert "| asyncsgd | 25% |" in table
    assert "| Ray | 25% |" in table
    assert "- 0.05 s: from kill to joined" in table


def test_a_peers_figures_are_those_of_the_file(figures):
    path = ROOT / "benchmarks/peers/results.json"
    results, table = json.loads(path.read_text(encoding="utf-8")), figures.table("peers", path)
    seconds, fast = results["seconds per 1000 updates"], results["times as fast as FLGo"]
    assert f"| FLGo | {seconds['FLGo']:.2g} | – |" in table
    assert all(f"| {name} | {seconds[name]:.2g} | " in table for name in fast)


def test_the_federated_figures_show_times_ratios_and_targets(figures, tmp_path):
    def row(times, sooner):
        level = {"times": times, "times as soon as FedAvg": sooner, "updates per unit of time": 1.5}
        return {"95%": level, "98%": {**level, "times": [None, None, 90.0]}}

    results = {
        "accuracy": {"seeds": 3, "contestants": {"FedBuff": row([30.0, 25.0, None], [0.5, 2.0, 3.0])}},
        "flower": {"contestants": {"FedBuff": {"times as soon as FedAvg": [1.5, 2.5]}}},
        "prediction": {"clients": 1000, "worst error": 0.083, "goal": 0.15},
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    table = figures.table("federated", tmp_path / "results.json")
    assert "| FedBuff | 30 | 2 (0.5 to 3) | not reached | 2 (0.5 to 3) | 1.5 |" in table
    assert "times as soon as FedAvg: FedBuff 2." in table
    assert "at most 8.3%; our target is 15%" in table


def test_the_federated_settings_and_apps_are_those_of_the_file(figures):
    path = ROOT / "benchmarks/federated/results.json"
    results, table = json.loads(path.read_text(encoding="utf-8")), figures.table("federated", path)
    assert table.count("\n| Dirichlet | ") == sum(one["split"] == "dirichlet" for one in results["when"]["settings"])
    for name, row in results["apps"]["apps"].items():
        [[some, whole]] = row["updates of the slow client, of all"]
        accuracies = [median(row[server]["accuracy at the end"]) for server in ("FedAvg", "asynchronous")]
        assert f"| {name} | {accuracies[0]:.1%} | {accuracies[1]:.1%} | " in table
        assert f" | {some} of {whole} |" in table
    tables = [part.splitlines() for part in table.split("\n\n") if part.startswith("|")]
    assert all(len({line.count("|") for line in lines}) == 1 for lines in tables)


def test_the_trainers_figures_are_those_of_the_file(figures, tmp_path):
    path = ROOT / "benchmarks/trainer/results.json"
    results, table = json.loads(path.read_text(encoding="utf-8")), figures.table("trainer", path)
    adamw = [results["optimizers"][size]["AdamW"]["of_torch"] for size in ("10000", "1000000", "10000000")]
    assert "| AdamW | " + " | ".join(f"{ratio:.2f}" for ratio in adamw) + " |" in table
    for name, row in results["fashion"].items():
        if "slowest worker" in name:
            assert f"| {name} | {row['gradients_per_second_over_ddp']:.2g} | {row['wanted']:.2g} | " in table
    tables = [part.splitlines() for part in table.split("\n\n") if part.startswith("|")]
    assert len(tables) == len(results) - ("tokens" in results)  # which is a sentence
    assert all(len({line.count("|") for line in lines}) == 1 for lines in tables)


def test_every_size_of_the_trainers_memory_has_rows(figures, tmp_path):
    one, stall = {"steady": 4.0, "peak": 6.04}, {"background": 0.17, "synchronous": 3.9, "ratio": 0.0436}
    part = {
        "machine": {"machine": "x86_64", "cores": 2, "python": "3.11"},
        "rounds": 7,
        "100000000": {"memory": {"sgd": one}, "stall": {"sgd": stall}},
        "20000000": {"memory": {"sgd": one, "torch": one}, "stall": {"sgd": stall}},
    }
    losses = {"iterations": 2800, "losses": {"a": [2.0, 2.1]}, "loss_over": {"a": 1.011}}
    language = {"wanted_loss": 1.02, "4": losses, "32": {**losses, "iterations": 700}}
    tokens = {"tokens_per_second_over_no_server": 0.95, "wanted_speed": 0.9}
    results = {
        "memory": part,
        "language": {"machine": part["machine"], "seeds": 3, **language},
        "tokens": {**part, **tokens},
    }
    (tmp_path / "results.json").write_text(json.dumps(results))
    table = figures.table("trainer", tmp_path / "results.json")
    assert "| 20,000,000, torch | 4.0 | 6.0 | – | – |\n| 100,000,000, sgd | 4.0 | 6.0 | 0.17 s | 4% |" in table
    assert "without a server: 0.95; our target is 0.9." in table
    assert "| | 4 rows, 2,800 updates | asynchronous over it | 32 rows, 700 updates | asynchronous over it |" in table
    assert "| a | 2.050 | 1.011 | 2.050 | 1.011 |" in table
    assert "7 rounds on 2 cores (x86_64)." in table
    assert "3 seeds on 2 cores (x86_64)." in table


def test_what_was_not_measured_is_said(figures, tmp_path):
    page = figures.filled("before\n<!-- figures: engines -->\nafter", tmp_path)
    assert page == "before\n*Not measured yet: run `make bench-engines`.*\nafter"


def test_the_picture_of_the_data_flow_is_what_its_script_draws():
    drawn = load(DOCS / "images" / "dataflow.py").picture()
    assert (DOCS / "images" / "dataflow.svg").read_text(encoding="utf-8") == drawn
