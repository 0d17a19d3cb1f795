"""A browser, and pages to open in it."""

import numpy as np
import pytest
from report.browser import Browser
from report.material import stormy
from report.test_page import EVIL

import asyncsgd as asgd
from asyncsgd.pages.run_page import compose
from asyncsgd.pages.sources import gather
from asyncsgd.run.view import RunView
from asyncsgd.trace import Trace


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.fixture(scope="session")
def storm():
    return stormy(400, workers=6, concurrency=11)


@pytest.fixture(scope="session")
def pages(tmp_path_factory, storm):
    """One page of every kind."""
    task = asgd.tasks.quadratic(workers=4, noise=0.1)
    speeds = asgd.durations.exponential([1.0, 1.0, 2.0, 9.0])
    methods = [asgd.minibatch_sgd(0.05), asgd.delay_adaptive(0.02), asgd.federated_async_sgd(0.01, concurrency=8)]
    runs = {method.name: asgd.simulate(task, method, speeds, iterations=600) for method in methods}
    metrics = {"iteration": np.arange(2.0), "time": np.arange(2.0), EVIL: np.array([1.0, 0.5])}
    history = Trace.from_history(workers=[0, 1, 1, 0], assigned=[0, 0, 1, 3], arrived=[2, 0, 1, -1])
    found = {
        "one": compose(gather(runs["delay_adaptive"], task)),
        "several": compose(gather({**runs, **{f"run {k}": runs["delay_adaptive"] for k in range(6)}})),
        "storm": compose(gather(storm)),
        "no clock": compose(gather(history)),
        "two clocks": compose(gather([history, storm])),
        "nothing": compose(gather(Trace.from_history(workers=[], assigned=[], arrived=[]))),
        "evil": compose([RunView(EVIL, storm, metrics, method=EVIL, recipe=EVIL, config={EVIL: EVIL})] * 2),
    }
    folder = tmp_path_factory.mktemp("pages")
    return {name: page.write(folder / f"{name}.html") for name, page in found.items()}
