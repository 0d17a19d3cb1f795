"""Bytes that a run sent: the same on the terminal, on the page, in the headline, from a run and from its directory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report.material import stormy

import asyncsgd as asgd
from asyncsgd.format import size
from asyncsgd.pages.run_page import compose
from asyncsgd.pages.sources import gather
from asyncsgd.run.callbacks.logger import finite
from asyncsgd.run.view import RunView

METHOD = asgd.async_sgd(0.01).compressed("int8", down="bfloat16")


def test_the_page_and_the_terminal_show_what_a_simulation_sent() -> None:
    task = asgd.tasks.quadratic(workers=2, dim=300)
    run = asgd.simulate(task, METHOD, asgd.durations.fixed([1.0, 2.0]), iterations=50)
    up, down = METHOD.message_bytes(300, "float64")
    assert (run.bytes_up, run.bytes_down) == (50 * up, 52 * down)
    text = compose(gather(run)).html()
    tiles = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", text))
    assert tiles["sent to the server"] == size(50 * up) == "15 kB"
    assert tiles["sent to workers"] == size(52 * down) == "31 kB"
    assert "sent: 15 kB of updates to the server, 31 kB of models to workers" in RunView.of(run).text()
    both = compose(gather({"one": run, "two": run})).html()
    assert both.count("15 kB") == both.count("31 kB") == 2


def test_a_trace_alone_does_not_know_its_bytes() -> None:
    view = RunView.of_trace(stormy(30), "trace")
    assert view.traffic is None
    assert view.headline()["bytes_up"] is None
    assert "sent:" not in view.text()
    assert "sent to the server" not in compose([view]).html()


@pytest.mark.processes
@pytest.mark.slow
def test_a_real_run_and_its_directory_agree(tmp_path: Path) -> None:
    task = asgd.tasks.quadratic(workers=2, dim=300)
    options = {"iterations": 30, "directory": tmp_path / "run", "progress": False}
    run = asgd.train(task, METHOD, asgd.engines.processes(2), **options)
    up, down = METHOD.message_bytes(300, "float64")
    assert (run.bytes_up, run.bytes_down) == (30 * up, len(run.trace) * down)
    rows = [RunView.of(run).headline(), RunView.read(tmp_path / "run").headline()]
    for row in rows:
        assert (row["bytes_up"], row["bytes_down"]) == (run.bytes_up, run.bytes_down)
        assert finite(row)["bytes_up"] == run.bytes_up  # what loggers write at the end


def test_a_code_of_another_package_leaves_the_bytes_unknown() -> None:
    task = asgd.tasks.quadratic(workers=2)
    run = asgd.simulate(task, METHOD, asgd.durations.fixed([1.0, 2.0]), iterations=5)
    view = RunView.of(run)
    parts = {**view.parts, "up": {"kind": "theirs.Code"}}
    stored = replace(view, run=None, config={"dimension": 10, "dtype": "float64"}, parts=parts)
    assert stored.traffic is None
    known = replace(stored, parts=view.parts)
    assert known.traffic == (5 * 14, 7 * 20)
