"""`asyncsgd plan`: what it prints, what it writes, and what it says about files that cannot be meant."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncsgd as asgd
from asyncsgd import cli

EXAMPLE = Path(__file__).parents[2] / "examples" / "durations.csv"


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run it in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["asyncsgd", "plan", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def numbers(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        return [number for part in value for number in numbers(part)]
    return [value] if isinstance(value, float) else []


# ------------------------------------------------------------------------- what it prints


@pytest.mark.slow
def test_the_example_is_planned_drawn_and_written(command, tmp_path):
    code, out, err = command(EXAMPLE)
    assert (code, err) == (0, "")
    plan = asgd.plan(EXAMPLE)
    words = " ".join(out.split())
    assert plan.reason in words
    assert plan.recipe in out
    assert "durations.csv: 12 workers, 282 jobs measured" in out
    for mark in "■◆▲●":
        assert mark in out
    for heading in ("lemma", "queues", "simulated", "floor", "τ avg", "τ max", "to ε"):
        assert heading in out
    assert "Page: plan.html" in out
    assert (tmp_path / "plan.html").read_text("utf-8").startswith("<!doctype html>")
    assert max(map(len, out.splitlines())) <= 80


def test_json_is_everything_and_nothing_else(command, tmp_path):
    code, out, err = command(EXAMPLE, "--json", "--concurrency", "12,4", "--seed", "3")
    assert (code, err) == (0, "")
    assert list(tmp_path.iterdir()) == []  # no page unless asked for
    found = json.loads(out)
    assert found == asgd.plan(EXAMPLE, concurrency=[4, 12], seed=3).to_dict()
    assert all(math.isfinite(number) for number in numbers(found))
    assert set(found) == {
        "format",
        "source",
        "workers",
        "samples",
        "seconds_per_job",
        "groups",
        "target",
        "seed",
        "rows",
        "recommended",
        "reason",
        "limit",
        "network",
        "notes",
    }
    assert set(found["seconds_per_job"]) == {"fastest", "median", "mean", "slowest"}
    assert set(found["target"]) == {"epsilon", "noise", "heterogeneous", "heterogeneity"}
    assert set(found["limit"]) == {"seconds", "workers", "ratio"}
    keys = {
        "method",
        "label",
        "concurrency",
        "workers",
        "goal",
        "seconds_per_gradient",
        "standard_error",
        "settled",
        "simulated_gradients",
        "lemma",
        "queued",
        "floor",
        "average_delay",
        "maximum_delay",
        "groups",
        "biased",
        "theorem",
        "step",
        "seconds_to_target",
        "relative",
        "guaranteed_seconds",
        "recipe",
    }
    for row in found["rows"]:
        assert set(row) == keys
        for group in row["groups"]:
            assert set(group) == {"name", "workers", "share", "average_delay", "maximum_delay"}
    chosen = found["rows"][found["recommended"]["row"]]
    assert found["recommended"] == {"row": found["recommended"]["row"], **{k: chosen[k] for k in keys - {"groups"}}}
    assert {row["concurrency"] for row in found["rows"] if row["method"] == "federated_async_sgd"} == {4, 12}
    assert (found["format"], found["workers"], found["samples"], found["seed"]) == (1, 12, 282, 3)


@pytest.mark.slow
def test_heterogeneous_data_change_the_advice(command):
    _, alike, _ = command(EXAMPLE, "--json")
    code, differ, _ = command(EXAMPLE, "--json", "--heterogeneous", "--heterogeneity", "20", "--noise", "50")
    assert code == 0
    one, two = json.loads(alike)["recommended"], json.loads(differ)["recommended"]
    assert one["biased"]
    assert not two["biased"]
    assert json.loads(differ)["target"] == {
        "epsilon": 0.01,
        "noise": 50.0,
        "heterogeneous": True,
        "heterogeneity": 20.0,
    }
    code, out, _ = command(EXAMPLE, "--heterogeneous", "--no-page")
    assert "biased" in out
    assert "ζ²" in out


@pytest.mark.slow
def test_the_page_goes_where_it_is_asked_for(command, tmp_path):
    code, out, err = command(EXAMPLE, "--page", "out/mine.html", "--json", "--concurrency", "12")
    assert code == 0
    assert json.loads(out)
    assert err == "Page: out/mine.html\n"
    assert (tmp_path / "out" / "mine.html").is_file()
    code, out, err = command(EXAMPLE, "--no-page", "--concurrency", "12")
    assert "Page" not in out + err
    assert not (tmp_path / "plan.html").exists()


def test_without_matplotlib_it_says_how_to_get_the_page_and_goes_on(command, tmp_path, monkeypatch):
    monkeypatch.setattr("asyncsgd.planning.page.find_spec", lambda name: None)
    code, out, _ = command(EXAMPLE, "--concurrency", "12")
    assert code == 0
    assert out.splitlines()[-1] == (
        "No page: the page needs matplotlib; install it with: pip install 'asyncsgd[report]'"
    )
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_one_sentence(command, tmp_path):
    code, _, err = command(EXAMPLE, "--concurrency", "12", "--page", tmp_path)
    assert code == 2
    assert err.startswith(f"asyncsgd: --page = '{tmp_path}' cannot be written (Is a directory); pass another path")


def test_a_parquet_trace_of_a_run(command, tmp_path):
    speeds = asgd.durations.exponential([1.0, 1.0, 1.0, 8.0])
    run = asgd.simulate(asgd.tasks.quadratic(workers=4), asgd.async_sgd(0.1), speeds, iterations=400)
    run.trace.write(tmp_path / "run.parquet")
    code, out, _ = command("run.parquet", "--json")
    assert code == 0
    found = json.loads(out)
    assert (found["workers"], found["samples"]) == (4, 400)
    assert found["seconds_per_job"]["slowest"] > 4 * found["seconds_per_job"]["fastest"]


# ------------------------------------------------------------------------- what cannot be meant


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty; write one column per worker under a header"),
        (
            "a\n1.0\n2.0\n",
            "has only one worker, so there is nothing to compare; pass the durations of two",
        ),
        ("worker,duration\n7,1.0\n7,2.0\n", "has only one worker"),
        ("a,b\n1.0,2.0\n1.0,0\n", "line 3, column 'b' = 0.0 is not a duration; pass positive finite seconds"),
        ("a,b\n-1.0,2.0\n", "line 2, column 'a' = -1.0 is not a duration; pass positive finite seconds"),
        ("a,b\n1.0,2.0\n1.0,nan\n", "line 3, column 'b' = nan is not a duration; pass positive finite seconds"),
        ("a,b\n1.0,inf\n", "line 2, column 'b' = inf is not a duration"),
        ("a,b\n1.0,2.0\nfast,2.0\n", "line 3, column 'a' = 'fast' is not a number; pass positive finite seconds"),
        ("a,b\n1.0,2.0\n1.0,2.0,3.0\n", "line 3 = ['1.0', '2.0', '3.0'] has 3 cells under 2 names"),
        ("a,b,c\n1,2,3\n1,2\n", "line 3 = ['1', '2'] has 2 cells under 3 names; write all commas"),
        ("a,b\n1,2\n,2\n1,2\n", "line 4, column 'a' = '1' follows an empty cell (line 3)"),
        ("a,b\n1,\n", "has no duration in column 'b'; give each worker a sample"),
        ("a,b\n", "has no duration in column 'a'"),
        ("worker,duration\n", "has a header and nothing below"),
        ("worker,duration\n0,1.0\n1,slow\n", "line 3, column 'duration' = 'slow' is not a number"),
        ("worker,duration\n0,1.0\n1\n", "line 3 = ['1'] is not a worker and a duration"),
        ("1.5,2.5\n1.0,2.0\n", "line 1 = '1.5' is data, not a header"),
        ("a;b\n1;2\n", "line 1 = 'a;b' is one cell; separate cells by commas"),
        ("a,a\n1,2\n", "line 1 = 'a' names two columns"),
        ("a,b\n1e-300,1\n", "has mean 1e-300 for worker 0; pass seconds whose mean lies between"),
    ],
)
def test_a_bad_csv_is_one_sentence_with_line_and_fix(command, tmp_path, text, says):
    (tmp_path / "d.csv").write_text(text)
    code, out, err = command("d.csv")
    assert code == 2
    assert out == ""
    assert err.startswith("asyncsgd: ")
    assert says in err
    assert "d.csv" in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == [tmp_path / "d.csv"]


@pytest.mark.parametrize(
    ("name", "data", "says"),
    [
        ("d.csv", b"\x89PNG\r\n\x1a\n\x00\xff\xfe", "is not readable as CSV"),
        ("d.parquet", b"no parquet at all", "is not readable as Parquet"),
        ("d.parquet", b"", "is empty"),
        ("d.csv", b"PAR1" + bytes(50), "is not readable as Parquet"),
        ("d.csv", b"\xff\xff\xff\xff" + bytes(50), "d.csv"),
    ],
)
def test_a_file_of_another_kind_is_one_sentence(command, tmp_path, name, data, says):
    (tmp_path / name).write_bytes(data)
    code, out, err = command(name)
    assert (code, out) == (2, "")
    assert err.startswith("asyncsgd: ")
    assert says in err
    assert err.count("\n") == 1


def test_bad_parquet_tables_are_one_sentence(command, tmp_path):
    pq.write_table(pa.table({"a": [1.0], "b": ["x"]}), tmp_path / "d.parquet")
    assert command("d.parquet")[0::2] == (
        2,
        "asyncsgd: d.parquet, column 'b' = 'string' does not hold seconds; write one column per worker under a header, "
        "or rows under the header worker,duration\n",
    )
    pq.write_table(pa.table({"a": [1.0], "b": [-2.0]}), tmp_path / "d.parquet")
    code, _, err = command("d.parquet")
    assert (code, err) == (
        2,
        "asyncsgd: d.parquet, row 0, column 'b' = -2.0 is not a duration; pass positive finite seconds\n",
    )


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("nowhere.csv",), "DURATIONS = 'nowhere.csv' does not exist; check the path"),
        ((".",), "is a directory"),
        ((EXAMPLE, "--concurrency", "10;100"), "--concurrency = '10;100' is not a list of numbers; pass whole numbers"),
        ((EXAMPLE, "--concurrency", "0"), "--concurrency = 0 must be an integer of at least 1"),
        ((EXAMPLE, "--noise", "-1"), "--noise = -1.0"),
        ((EXAMPLE, "--epsilon", "0"), "--epsilon = 0.0"),
        (
            (EXAMPLE, "--heterogeneity", "1"),
            "--heterogeneity = 1.0 has no meaning if the data are alike; pass --heterogeneous too",
        ),
    ],
)
def test_bad_options_are_one_sentence(command, words, says):
    code, out, err = command(*words)
    assert (code, out) == (2, "")
    assert says in err
    assert err.count("\n") == 1


def test_the_installed_command_shows_no_traceback(tmp_path):
    (tmp_path / "d.csv").write_text("a,b\n1,x\n")
    words = [sys.executable, "-m", "asyncsgd", "plan", "d.csv"]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", cwd=tmp_path, timeout=240, check=False)
    assert done.returncode == 2
    assert done.stderr == "asyncsgd: d.csv, line 2, column 'b' = 'x' is not a number; pass positive finite seconds\n"
