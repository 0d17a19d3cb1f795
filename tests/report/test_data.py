"""What a page gives to its scripts: the numbers of the trace, and small."""

import numpy as np
import pytest
from report.material import begins, columns, data_of, stormy

import asyncsgd as asgd
from asyncsgd.core.events import Outcome
from asyncsgd.pages import page_data
from asyncsgd.pages.run_page import compose
from asyncsgd.pages.sources import gather
from asyncsgd.run.view import RunView
from asyncsgd.trace import Trace


def packed(trace, **options):
    subject = RunView("a run", trace, {})
    return page_data.jobs(subject, page_data.spans(subject), **options)


def check(trace, found):
    """Every number of every job that the page holds is the trace's."""
    jobs = trace.jobs
    cells = columns(found)
    rows = cells["job"].astype(int)
    ended = np.where(jobs.in_flight, trace.iterations, jobs.ended_iteration)[rows]
    assert [int(found["workers"][int(place)]) for place in cells["worker"]] == jobs.worker[rows].tolist()
    np.testing.assert_array_equal(cells["outcome"], jobs.outcome[rows])
    np.testing.assert_array_equal(cells["read"], jobs.assigned_iteration[rows])
    np.testing.assert_array_equal(cells["read"] + cells["delay"], ended)
    np.testing.assert_array_equal(cells["version"], jobs.assigned_version[rows])
    flying = jobs.in_flight[rows]
    np.testing.assert_array_equal((cells["version"] + cells["staleness"])[~flying], jobs.ended_version[rows][~flying])
    np.testing.assert_allclose(cells["step"], jobs.step[rows], rtol=1e-6)
    length = found["horizon"] - found["start"]
    close = {"rtol": 0, "atol": 1e-8 * length}
    np.testing.assert_allclose(cells["assigned"], jobs.assigned_time[rows], **close)
    np.testing.assert_allclose(cells["end"][~flying], jobs.ended_time[rows][~flying], **close)
    np.testing.assert_allclose(cells["end"][flying], found["horizon"], **close)
    np.testing.assert_allclose(cells["begin"], np.array(begins(trace))[rows], **close)


@pytest.mark.parametrize("seed", range(5))
def test_the_numbers_are_the_trace_s(seed):
    trace = stormy(400, seed=seed)
    assert all(trace.counts.values())
    found = packed(trace)
    assert found["count"] == found["total"] == 400
    assert found["iterations"] == trace.iterations
    check(trace, found)


@pytest.mark.parametrize(
    "method",
    [
        asgd.async_sgd(0.1),
        asgd.minibatch_sgd(0.1),
        asgd.delay_adaptive(0.1),
        asgd.federated_async_sgd(0.1, concurrency=7),
        asgd.ringmaster(0.1, limit=4, stops=True),
        asgd.fedbuff(0.1, buffer=3, concurrency=4),
    ],
    ids=lambda method: method.name,
)
def test_the_numbers_of_a_method_are_the_trace_s(method):
    speeds = asgd.durations.exponential([1.0, 1.0, 2.0, 9.0])
    run = asgd.simulate(asgd.tasks.quadratic(workers=4), method, speeds, iterations=300)
    check(run.trace, packed(run.trace))


def test_large_names_of_workers_stay_whole():
    """Federations number their workers with 64 bits."""
    trace = stormy(100, names=lambda worker: 2**62 + 3 * worker)
    found = packed(trace)
    assert found["workers"] == [str(2**62 + 3 * worker) for worker in range(5)]
    check(trace, found)


def test_of_a_long_run_the_end_is_shown_with_what_was_under_way():
    trace = stormy(600)
    found = packed(trace, most=200)
    rows = columns(found)["job"].astype(int)
    assert found["total"] == 600
    assert set(range(400, 600)) <= set(rows)
    since = trace.jobs.assigned_time[400]
    assert found["since"] == since
    assert found["start"] == trace.jobs.assigned_time[rows].min()
    until = np.where(trace.jobs.in_flight, np.inf, trace.jobs.ended_time)
    assert set(rows) == set(range(400, 600)) | set(np.flatnonzero(until > since))
    assert len(rows) > 200
    check(trace, found)


def test_without_a_clock_iterations_stand_for_it():
    trace = Trace.from_history(workers=[0, 1, 1, 0], assigned=[0, 0, 1, 3], arrived=[2, 0, 1, -1])
    found = packed(trace)
    cells = columns(found)
    assert not found["clock"]
    assert cells["begin"].round(6).tolist() == [0, 0, 1, 3]
    assert cells["end"].round(6).tolist() == [3, 1, 2, 4]


def test_an_empty_trace_is_no_reason_to_fail():
    trace = Trace.from_history(workers=[], assigned=[], arrived=[])
    text = compose([RunView("nothing", trace, {})]).html()
    assert data_of(text)["runs"][0]["jobs"]["count"] == 0


# ---------------------------------------------------------------------------------------------- the other numbers


def test_lines_and_bars_are_the_trace_s():
    trace = stormy(3000, workers=9, concurrency=20)
    run = data_of(compose([RunView("a run", trace, {})]).html())["runs"][0]
    for name, values in (("delay", trace.delay), ("step", trace.step)):
        line = run[name]
        width = -(-len(values) // page_data.POINTS)
        parts = [np.asarray(values[k : k + width], float) for k in range(0, len(values), width)]
        np.testing.assert_allclose(line["value"], [part.mean() for part in parts])
        np.testing.assert_allclose(line["low"], [part.min() for part in parts])
        np.testing.assert_allclose(line["high"], [part.max() for part in parts])
        middles = [k * width + (len(part) - 1) // 2 for k, part in enumerate(parts)]
        assert line["iteration"] == middles
        np.testing.assert_allclose(line["time"], trace.time[middles])
    delays = trace.delays
    assert sum(run["histogram"]) == len(delays.values)
    assert run["delays"] == {
        "average": delays.average,
        "maximum": delays.maximum,
        "concurrency": delays.concurrency,
        "mean_concurrency": delays.mean_concurrency,
    }


@pytest.mark.parametrize("largest", [0, 1, 27, 28, 29, 100, 12_345])
@pytest.mark.parametrize("typical", [0.01, 0.9])
def test_every_delay_has_one_bar(largest, typical):
    delays = np.array([int(typical * largest)] * 9 + [0, largest])
    ranges = page_data.bins(delays)
    assert [k for first, last in ranges for k in range(first, last + 1)] == list(range(largest + 1))
    assert len(ranges) <= page_data.BARS
    counts = page_data.histogram(delays, ranges)
    assert counts.tolist() == [sum(first <= delay <= last for delay in delays) for first, last in ranges]


def test_shares_of_workers_are_the_trace_s():
    trace = stormy(500)
    subject = RunView("a run", trace, {})
    for worker in page_data.workers(subject, page_data.spans(subject)):
        mine = trace.jobs.worker == worker.worker
        assert worker.jobs == mine.sum()
        assert worker.mean_delay == trace.delays.per_worker[worker.worker]
        assert worker.outcomes[Outcome.LOST] == (mine & (trace.jobs.outcome == Outcome.LOST)).sum()
        steps = trace.step[trace.worker == worker.worker].sum()
        assert worker.share == pytest.approx(steps / trace.step.sum())
        assert 0 < worker.busy <= 1


def test_many_metrics_keep_their_extremes():
    value = np.sin(np.arange(20_000) / 300.0)
    value[12_345] = 9.0
    found = page_data.thinned({"iteration": np.arange(20_000.0), "value": value})
    assert len(found["value"]) < 2000
    assert found["value"].max() == 9.0
    assert (found["iteration"][0], found["iteration"][-1]) == (0, 19_999)
    assert (value[found["iteration"].astype(int)] == found["value"]).all()


def test_a_hundred_thousand_jobs_are_a_small_page():
    rng = np.random.default_rng(0)
    task = asgd.tasks.quadratic(workers=1000)
    speeds = asgd.durations.lognormal(rng.lognormal(0, 0.8, 1000), 0.4)
    run = asgd.simulate(task, asgd.delay_adaptive(0.001), speeds, iterations=100_000)
    text = compose(gather(run)).html()
    assert len(text.encode()) < 6e6
    check(run.trace, data_of(text)["runs"][0]["jobs"])
