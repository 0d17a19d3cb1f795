"""Pages of run directories: ended, running, crashed, interrupted, damaged; and `asyncsgd report`."""

import fcntl
import json
import os
import pickle
import shutil
import sys

import numpy as np
import pytest
from report.material import Outline, data_of
from run.common import reseal, sealed

import asyncsgd as asgd
from asyncsgd import cli
from asyncsgd.core.errors import AsyncSGDError
from asyncsgd.pages.sources import gather
from asyncsgd.run import view
from asyncsgd.run.directory import in_use
from asyncsgd.run.read import config_text, read_config, read_lines
from asyncsgd.trace import Recorder, TraceLog

ITERATIONS = 60


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run by two worker processes."""
    return asgd.train(
        asgd.tasks.quadratic(workers=2),
        asgd.delay_adaptive(0.05),
        engine=asgd.engines.processes(2),
        iterations=ITERATIONS,
        every=10,
        directory=tmp_path_factory.mktemp("runs") / "mine",
        progress=False,
    )


@pytest.fixture
def directory(trained, tmp_path):
    """A copy to do harm to."""
    return shutil.copytree(trained.directory, tmp_path / "mine")


def lines(path):
    return read_lines(path.parent, path.name)


def rewrite(path, rows):
    path.write_bytes(sealed(*rows))
    reseal(path.parent)


def forget(directory, *events):
    """The journal, as if these had not been written."""
    path = directory / "journal.jsonl"
    rewrite(path, [row for row in lines(path) if row["event"] not in events])


def state(directory):
    (subject,) = gather(directory)
    return subject.state


# ---------------------------------------------------------------------------------------------- what there is


def test_a_directory_and_its_run_say_the_same(trained, directory):
    (kept,), (run,) = gather(directory), gather(trained)
    assert kept.trace == run.trace
    assert kept.diagnosis == run.diagnosis == trained.diagnosis
    assert kept.diagnosis.safe_step is not None
    assert (kept.method, kept.recipe, kept.parts, kept.task) == (run.method, run.recipe, run.parts, run.task)
    assert kept.state == run.state
    assert kept.elapsed == pytest.approx(run.elapsed)
    for name, values in kept.metrics.items():
        np.testing.assert_array_equal(values, run.metrics[name])
    text = trained.write_report().read_text("utf-8")
    assert (trained.directory / "report.html").exists()
    assert "version of numpy" in Outline(text).text
    assert data_of(text)["runs"][0]["jobs"]["iterations"] == ITERATIONS


def test_nothing_is_unpickled(directory):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (str(directory / "sprung"),)

    (directory / "job.pkl").write_bytes(pickle.dumps(Trap()))
    asgd.report(directory, directory / "report.html")
    assert not (directory / "sprung").exists()


def test_one_that_goes_on(directory):
    (directory / "trace.parquet").unlink()
    reseal(directory)
    forget(directory, "ended", "diagnosed")
    with (directory / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert state(directory) == f"running at iteration {ITERATIONS} of {ITERATIONS}"
        asgd.report(directory, directory / "report.html")
    assert state(directory).startswith("crashed at iteration")


def test_one_that_ends_while_it_is_read(directory, monkeypatch):
    """It lets go of the lock after its journal was read: it was there when the page was begun, so it is running."""
    forget(directory, "ended", "diagnosed")
    lock = (directory / ".lock").open()
    fcntl.flock(lock, fcntl.LOCK_EX)
    real = view.read_lines

    def read(path, name):
        rows = real(path, name)
        if name == "journal.jsonl":
            lock.close()
        return rows

    monkeypatch.setattr(view, "read_lines", read)
    assert state(directory) == f"running at iteration {ITERATIONS} of {ITERATIONS}"
    assert lock.closed


def test_a_lock_that_may_not_be_opened(directory, monkeypatch):
    def refused(path, *_):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(os, "open", refused)
    assert not in_use(directory)


def test_one_that_was_killed_in_the_middle_of_a_write(trained, directory):
    (directory / "trace.parquet").unlink()
    reseal(directory)
    forget(directory, "ended", "diagnosed")
    path = directory / "trace.log"
    path.unlink()
    log = TraceLog(path)
    for recorder in (Recorder.resume(trained.trace.until(30)), Recorder.resume(trained.trace)):
        log.flush(recorder)
    log.close()
    os.truncate(path, path.stat().st_size - 200)
    reseal(directory)
    with (directory / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 70, "ti')
    (subject,) = gather(directory)
    assert subject.trace.truncated
    assert subject.state == (
        f"crashed at iteration 30 of 60; resume it with: asyncsgd train --resume --directory {directory}"
    )
    assert subject.ending.colour == "bad"
    assert any(fact.startswith("delays: ") for fact in subject.diagnosis.facts)
    page = asgd.report(directory, directory / "report.html").read_text("utf-8")
    assert data_of(page)["runs"][0]["jobs"]["count"] == len(subject.trace)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"iterations": 1000}, "interrupted at iteration 60 of 1,000; resume it with: asyncsgd train --resume"),
        ({"iterations": 1000, "until": "loss <= 1e9"}, "reached loss <= 1e9 at iteration 0 of 1,000"),
        ({"until": "loss <= -1"}, "missed loss <= -1"),
        ({}, "done"),
    ],
)
def test_how_it_ended(directory, change, says):
    (directory / "run.json").write_text(config_text(read_config(directory) | change), "utf-8")
    assert state(directory).removesuffix(f" --directory {directory}") == says


def test_one_that_stopped_and_one_that_diverged(directory):
    path = directory / "journal.jsonl"
    before = lines(path)
    rewrite(path, [*before[:-1], {"event": "diverged", "iteration": 7, "seconds": 0.5}, before[-1]])
    assert state(directory) == "diverged at iteration 7 of 60"
    rewrite(path, [*before, {"event": "stopped", "reason": "no worker is left", "seconds": 1.0, "iteration": 60}])
    assert state(directory) == "stopped at iteration 60 of 60: no worker is left"
    rewrite(path, [*before, {"event": "resumed", "seconds": 1.0, "iteration": 60}])
    assert state(directory).startswith("crashed")


def test_faults_stand_beside_their_workers(directory):
    path = directory / "journal.jsonl"
    rewrite(path, [*lines(path), *({"event": "died", "worker": 1, "seconds": 1.0, "iteration": 9} for _ in range(2))])
    text = asgd.report(directory, directory / "report.html").read_text("utf-8")
    assert "<td>died 2×</td>" in text
    forget(directory, "diagnosed")
    (subject,) = gather(directory)
    assert any("2 workers replaced" in fact for fact in subject.diagnosis.facts)


def test_a_folder_of_runs_and_a_trace(directory, tmp_path):
    shutil.copytree(directory, tmp_path / "other")
    assert [subject.name for subject in gather(tmp_path)] == ["mine", "other"]
    (alone,) = gather(directory / "trace.parquet")
    assert (alone.name, alone.metrics) == ("trace", {})


# ---------------------------------------------------------------------------------------------- what is damaged


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("run.json", "{", "run.json is damaged"),
        ("run.json", "[1]", "run.json is damaged"),
        ("run.json", '{"format": 99}', "has run format 99"),
        ("run.json", config_text({"until": "soon"}), "until = 'soon' is not a target"),
        ("journal.jsonl", sealed({}), "journal.jsonl is damaged: line 1 lacks one of event, iteration, seconds"),
        (
            "journal.jsonl",
            sealed({"event": "ended", "iteration": 3, "seconds": "long"}),
            "journal.jsonl is damaged: line",
        ),
        ("metrics.jsonl", sealed({"time": 2}), "metrics.jsonl is damaged: line 1 lacks one of iteration, time"),
        ("metrics.jsonl", sealed({"iteration": 3, "time": float("nan")}), "metrics.jsonl is damaged: line 1"),
        ("trace.parquet", "nonsense", "begins with b'nonsense', so it is neither"),
    ],
)
def test_a_damaged_file_is_one_sentence(directory, name, content, says):
    (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    reseal(directory)
    with pytest.raises(AsyncSGDError) as raised:
        gather(directory)
    assert says in str(raised.value)
    assert "mine" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_without_a_trace_there_is_no_page(directory):
    for name in ("trace.parquet", "trace.log"):
        (directory / name).unlink()
    reseal(directory)
    with pytest.raises(AsyncSGDError, match="has no trace"):
        gather(directory)


def test_a_record_that_contradicts_itself_is_named(trained):
    jobs = trained.trace.jobs
    wrong = {name: getattr(jobs, name) for name in jobs.__dataclass_fields__}
    wrong["concurrency"] = jobs.concurrency + jobs.arrived
    with pytest.raises(AsyncSGDError, match=r"^mine: iteration 0: by the delays"):
        gather({"mine": asgd.Trace(type(jobs)(**wrong))})


# ---------------------------------------------------------------------------------------------- the command


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run it in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["asyncsgd", "report", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def test_the_page_goes_into_the_directory(command, directory):
    code, out, err = command("mine")
    assert (code, err) == (0, "")
    assert out == "mine: 60 updates, done\nPage: mine/report.html\n"
    assert "<title>delay_adaptive on Quadratic</title>" in (directory / "report.html").read_text("utf-8")


def test_several_runs_are_one_page_here(command, directory, tmp_path):
    shutil.copytree(directory, tmp_path / "other")
    code, out, _ = command("mine", "other", "--title", "Two <of them>")
    assert code == 0
    assert out.endswith("Page: report.html\n")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "<h1>Two &lt;of them&gt;</h1>" in text
    assert len(data_of(text)["runs"]) == 2


def test_json_is_for_programs(command, trained, directory):
    code, out, _ = command("mine", "--json", "--output", "page.html")
    assert code == 0
    found = json.loads(out)
    assert found["page"] == "page.html"
    (row,) = found["runs"]
    assert row["iterations"] == ITERATIONS
    assert row["maximum_delay"] == trained.trace.delays.maximum
    assert row["average_delay"] == trained.trace.delays.average
    assert row["metrics"]["loss"] == trained.metrics["loss"][-1]
    assert row["jobs"]["applied"] == ITERATIONS
    assert row["facts"] == list(trained.diagnosis.facts)


def test_mistakes_are_one_sentence(command, directory, tmp_path):
    (tmp_path / "empty").mkdir()
    for words, code, says in [
        (["nowhere"], 2, "DIR = 'nowhere' does not exist; pass a run directory, such as runs/task-1"),
        (["empty"], 2, "empty holds no run (no run.json); pass a run directory, such as runs/task-1"),
        (["mine", "--output", "empty"], 2, "--output = 'empty' cannot be written (Is a directory); pass another path"),
    ]:
        assert command(*words) == (code, "", f"asyncsgd: {says}\n")


def test_a_folder_of_the_paper_has_its_page_already(command, tmp_path):
    (tmp_path / "paper").mkdir()
    for name in ("claims.json", "index.html"):
        (tmp_path / "paper" / name).write_text("[]")
    assert command("paper") == (0, "Page: paper/index.html\n", "")
    assert json.loads(command("paper", "--json")[1]) == {"page": "paper/index.html", "runs": []}
    assert (tmp_path / "paper" / "index.html").read_text("utf-8") == "[]"
