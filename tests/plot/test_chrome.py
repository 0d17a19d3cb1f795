"""Chrome's trace events: valid, and what the trace says."""

from __future__ import annotations

import gzip
import json
import sys
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import train
from run.tasks import Rubbish

import asyncsgd as asgd
from asyncsgd import cli
from asyncsgd.core.events import Outcome
from asyncsgd.trace import Trace
from asyncsgd.trace.timeline import spans

KEYS = {
    "X": {"pid", "tid", "ts", "dur", "name", "cat", "args"},
    "M": {"pid", "name", "args"},
    "C": {"pid", "tid", "ts", "name", "args"},
    "i": {"pid", "tid", "ts", "name", "s"},
    "s": {"pid", "tid", "ts", "name", "cat", "id"},
    "t": {"pid", "tid", "ts", "name", "cat", "id", "bp"},
    "f": {"pid", "tid", "ts", "name", "cat", "id", "bp"},
    "b": {"pid", "tid", "ts", "name", "cat", "id"},
    "e": {"pid", "tid", "ts", "name", "cat", "id"},
}
"""What each kind must have, by the format's description."""


def simulated(method: asgd.Method) -> asgd.Run:
    speeds = asgd.durations.exponential([1.0, 2.0, 5.0])
    return asgd.simulate(asgd.tasks.quadratic(workers=3), method, speeds, iterations=150)


METHODS = {
    "plain": asgd.async_sgd(0.05),
    "queues": asgd.federated_async_sgd(0.05, concurrency=7),
    "buffer": asgd.fedbuff(0.1, concurrency=5, buffer=3),
    "cancelled": asgd.fedavg(0.1, clients=2, ask=3),
}


@pytest.fixture(params=METHODS)
def run(request: pytest.FixtureRequest) -> asgd.Run:
    return simulated(METHODS[request.param])


def written(trace: Trace, path: Path, **metrics: Any) -> list[dict[str, Any]]:
    trace.write_timeline(path, **metrics)
    return json.loads(path.read_text("utf-8"))["traceEvents"]


def of(events: list[dict[str, Any]], kind: str, process: int | None = None) -> list[dict[str, Any]]:
    return [event for event in events if event["ph"] == kind and process in (None, event["pid"])]


def test_events_are_whole(run: asgd.Run, tmp_path: Path) -> None:
    events = written(run.trace, tmp_path / "out.json", metrics=run.metrics)
    for event in events:
        assert KEYS[event["ph"]] <= set(event), event
        assert all(isinstance(event[key], int) and event[key] >= 0 for key in ("ts", "dur") if key in event)
        assert event["pid"] > 0
        assert event.get("tid", 1) > 0
    names = {event["tid"]: event["args"]["name"] for event in of(events, "M", 2) if event["name"] == "thread_name"}
    assert sorted(names.values()) == [f"worker {worker}" for worker in np.unique(run.trace.jobs.worker)]
    rows = {(event["pid"], event["tid"]) for event in events if "tid" in event}
    assert len({row for _, row in rows}) == len(rows)  # numbers of rows are unique over all processes


def test_every_job_is_there_once(run: asgd.Run, tmp_path: Path) -> None:
    trace = run.trace
    events = written(trace, tmp_path / "out.json")
    names = {event["tid"]: event["args"]["name"] for event in of(events, "M", 2) if event["name"] == "thread_name"}
    shown = {event["args"]["job"]: event for event in (*of(events, "X", 2), *of(events, "i", 2))}
    assert len(shown) == len(of(events, "X", 2)) + len(of(events, "i", 2)) == len(trace)
    found, jobs = spans(trace), trace.jobs
    for job, event in shown.items():
        args = event["args"]
        outcome = Outcome(jobs.outcome[job])
        assert names[event["tid"]] == f"worker {jobs.worker[job]}"
        assert args["outcome"] == outcome.name.lower().replace("_", " ")
        assert args["version"] == jobs.assigned_version[job]
        assert args["read_iteration"] == jobs.assigned_iteration[job]
        end = event["ts"] + event.get("dur", 0)
        assert end == round(1e6 * found.end[job])
        if event["ph"] == "X":
            assert event["ts"] == round(1e6 * found.begin[job])
        else:
            assert found.begin[job] == found.end[job]
            assert not outcome.arrived
            assert event["name"].endswith("never started")
    for t in range(trace.iterations):
        args = shown[int(trace.job[t])]["args"]
        found_here = (args["iteration"], args["delay"], args["staleness"], args["step"])
        assert found_here == (t, trace.delay[t], trace.staleness[t], trace.step[t])


def test_slices_of_a_row_do_not_overlap(run: asgd.Run, tmp_path: Path) -> None:
    """A viewer would nest them, or drop them."""
    rows = defaultdict(list)
    for event in of(written(run.trace, tmp_path / "out.json"), "X"):
        rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for slices in rows.values():
        slices.sort()
        assert all(before[1] <= after[0] for before, after in pairwise(slices))


def test_arrows_lead_from_the_version_read_to_the_version_made(run: asgd.Run, tmp_path: Path) -> None:
    events = written(run.trace, tmp_path / "out.json")
    slices = of(events, "X", 1)
    versions = sorted((event["ts"], event["ts"] + event["dur"], event["args"]["version"]) for event in slices)
    assert [version for _, _, version in versions] == sorted({version for _, _, version in versions})
    shown = {event["args"]["job"]: event for event in of(events, "X", 2)}
    arrows = defaultdict(dict)
    for kind in "stf":
        for event in of(events, kind):
            arrows[event["id"]][kind] = event
    assert set(arrows) == set(shown)
    jobs = run.trace.jobs

    def current(ts: int) -> set[int]:
        """The versions that a time belongs to: two where one ends and the next begins."""
        return {version for begin, end, version in versions if begin <= ts <= end}

    for job, arrow in arrows.items():
        assert int(jobs.assigned_version[job]) in current(arrow["s"]["ts"])
        assert arrow["s"]["pid"] == 1
        arrived = bool(jobs.arrived[job])
        at_worker = arrow["t" if arrived else "f"]
        assert (at_worker["tid"], at_worker["ts"]) == (shown[job]["tid"], shown[job]["ts"])
        if arrived:
            assert arrow["f"]["pid"] == 1
            assert arrow["f"]["ts"] == shown[job]["ts"] + shown[job]["dur"]
            assert int(jobs.ended_version[job]) in current(arrow["f"]["ts"])


def test_waiting_is_shown_beside(tmp_path: Path) -> None:
    trace = simulated(METHODS["queues"]).trace
    events = written(trace, tmp_path / "out.json")
    found = spans(trace)
    begins, ends = ({event["id"]: event["ts"] for event in of(events, kind)} for kind in "be")
    waited = np.flatnonzero(found.waited)
    assert len(waited) > 10
    assert begins == {int(job): round(1e6 * found.assigned[job]) for job in waited}
    assert ends == {int(job): round(1e6 * found.begin[job]) for job in waited}


def test_counters(run: asgd.Run, tmp_path: Path) -> None:
    trace = run.trace
    metrics = {**run.metrics, "odd": np.full(len(run.metrics["time"]), np.nan)}
    events = of(written(trace, tmp_path / "out.json", metrics=metrics), "C")
    tracks = defaultdict(list)
    for event in events:
        tracks[event["name"]].append((event["ts"], event["args"][event["name"]]))
    times = [round(1e6 * time) for time in trace.time]
    assert tracks["jobs in flight"] == list(zip(times, trace.concurrency.tolist(), strict=True))
    assert tracks["delay"] == list(zip(times, trace.delay.tolist(), strict=True))
    measured = [round(1e6 * time) for time in run.metrics["time"]]
    assert tracks["loss"] == list(zip(measured, run.metrics["loss"].tolist(), strict=True))
    assert "odd" not in tracks  # JSON knows no NaN


def test_a_trace_without_a_clock(tmp_path: Path) -> None:
    trace = Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1])
    events = written(trace, tmp_path / "out.json")
    assert [(event["name"], event["ts"], event["dur"]) for event in of(events, "X", 2)] == [
        ("job 0", 0, 2000),
        ("job 1", 0, 1000),
        ("job 2 in flight", 1000, 1000),
    ]


def test_an_empty_trace(tmp_path: Path) -> None:
    events = written(Trace.from_history(workers=[], assigned=[], arrived=[]), tmp_path / "out.json")
    assert not of(events, "X", 2)


# ---------------------------------------------------------------------------------------------- the command


def export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["asyncsgd", "export", *map(str, words)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_real_run_with_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = train(tmp_path / "run", task=Rubbish(worker=1))
    out = tmp_path / "new" / "out.json.gz"
    code, said, err = export(monkeypatch, capsys, tmp_path / "run", "--chrome", out)
    assert (code, err) == (0, "")
    assert said.startswith(f"{out}: {len(run.trace)} jobs; open it in https://ui.perfetto.dev")
    events = json.loads(gzip.decompress(out.read_bytes()))["traceEvents"]
    outcomes = [event["args"]["outcome"] for event in events if event["ph"] in "Xi" and event["pid"] == 2]
    counts = {o.name.lower().replace("_", " "): n for o, n in run.trace.counts.items() if n}
    assert {word: outcomes.count(word) for word in set(outcomes)} == counts
    assert counts["rejected"] >= 1
    losses = [event["args"]["loss"] for event in of(events, "C") if event["name"] == "loss"]
    assert losses == run.metrics["loss"].tolist()


def test_without_arrows_and_for_a_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = simulated(METHODS["plain"]).trace
    trace.write(tmp_path / "trace.parquet")
    out = tmp_path / "out.json"
    words = (tmp_path / "trace.parquet", "--chrome", out, "--no-arrows", "--json")
    code, said, _ = export(monkeypatch, capsys, *words)
    assert code == 0
    assert json.loads(said) == {"path": str(out), "jobs": len(trace), "iterations": 150}
    events = json.loads(out.read_text("utf-8"))["traceEvents"]
    assert {event["ph"] for event in events} == {"M", "X", "C"}


def test_several_runs_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("a", "b"):
        train(tmp_path / name, iterations=20)
    code, _, err = export(monkeypatch, capsys, tmp_path, "--chrome", tmp_path / "out.json")
    assert code == 2
    assert "holds 2 runs; pass one of them, such as a" in err


def test_a_file_that_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulated(METHODS["plain"]).trace.write(tmp_path / "trace.parquet")
    (tmp_path / "folder").mkdir()
    words = (tmp_path / "trace.parquet", "--chrome", tmp_path / "folder")
    code, said, err = export(monkeypatch, capsys, *words)
    assert (code, said) == (2, "")
    assert (
        err == f"asyncsgd: --chrome = '{tmp_path / 'folder'}' cannot be written (Is a directory); pass another path\n"
    )
