"""Metrics of clients: any value is survived, and valid metrics are averaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.flower.messages import MOST, Means, ReportedMetrics, hear, read_metrics
from asyncsgd.flower.records import records_of

VALUES = st.one_of(
    st.floats(allow_nan=True), st.integers(-(2**70), 2**70), st.lists(st.floats(), max_size=3), st.text(max_size=3)
)


@given(st.dictionaries(st.text(max_size=90), st.dictionaries(st.text(max_size=90), VALUES, max_size=4), max_size=3))
def test_anything_may_be_said(records: dict[str, dict[str, Any]]) -> None:
    reported = read_metrics(records, "num-examples")
    if reported is not None:
        assert reported.weight > 0
        assert np.isfinite(list(reported.values.values())).all()
        means = Means()
        for worker in range(3):
            means.add(worker, reported)
        row = means.row()
        assert np.isfinite([*row["metrics"].values(), row["examples"]]).all()
        assert all(len(name) <= 100 and name.isprintable() for name in reported.values)


@given(st.lists(st.tuples(st.integers(1, 1000), st.floats(-1e6, 1e6)), min_size=1, max_size=20))
def test_means_are_weighted(reported: list[tuple[int, float]]) -> None:
    means = Means()
    for worker, (examples, value) in enumerate(reported):
        means.add(worker, ReportedMetrics(float(examples), {"loss": value}))
    row = means.row()
    weights, values = np.array([w for w, _ in reported]), np.array([v for _, v in reported])
    assert row["metrics"]["loss"] == pytest.approx(np.average(values, weights=weights), rel=1e-9, abs=1e-6)
    assert (row["lowest"]["loss"], row["highest"]["loss"]) == (values.min(), values.max())
    assert (row["clients"], row["replies"], row["examples"]) == (len(reported), len(reported), weights.sum())


@pytest.mark.parametrize(
    "record",
    [
        {"num-examples": 0, "loss": 1.0},
        {"num-examples": -5, "loss": 1.0},
        {"num-examples": float("inf"), "loss": 1.0},
        {"num-examples": float("nan"), "loss": 1.0},
        {"num-examples": 10**400, "loss": 1.0},
        {"num-examples": 10**12, "loss": 1.0},
        {"num-examples": 1, "loss": 1e300},
        {"num-examples": 1, "loss": float("nan")},
        {"num-examples": 1, "\x1b[2J": 1.0},
        {"num-examples": 1, **{str(n): 1.0 for n in range(MOST + 1)}},
        {"num-examples": 1, "many": [0.0] * (MOST + 1)},
        {"num-examples": 1},
    ],
)
def test_what_cannot_be_averaged_is_left_alone(record: dict[str, Any]) -> None:
    assert read_metrics({"metrics": record}, "num-examples") is None


def test_one_bad_metric_takes_no_other_with_it() -> None:
    record = {
        "num-examples": 4,
        "loss": 1.0,
        "auc": float("nan"),
        "far": 1e300,
        "\x1b[2J": 1.0,
        "per class": [0.5, np.nan],
    }
    reported = read_metrics({"metrics": record}, "num-examples")
    assert reported is not None
    assert (reported.weight, reported.values) == (4.0, {"loss": 1.0, "per class.0": 0.5})
    assert reported.left_out == ("auc", "far", "\x1b[2J", "per class.1")


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"loss": 1.0, "auc": float("nan")}, "auc, which is not a finite number"),
        ({"loss": 1.0, **{f"m{n}": float("inf") for n in range(5)}}, "m0, m1, m2, ..., which is not a finite number"),
        ({"many": [0.0] * 2000}, "2,000 numbers, more than 1,000"),
        ({"loss": float("nan")}, "metrics without a finite number"),
        ({"loss": 1.0, "num-examples": 0}, "a weight that is not above 0"),
        ({"loss": 1.0, "per class": [0.5] * 999}, ""),
        ({"num-examples": 5}, ""),
        ({}, ""),
    ],
    ids=str,
)
def test_what_is_left_out_is_said(record: dict[str, Any], words: str) -> None:
    from flwr.app import MetricRecord, RecordDict

    told = hear(records_of(RecordDict({"metrics": MetricRecord(record)})), "num-examples")
    assert words in told.left_out
    assert bool(words) == bool(told.left_out)
    assert (told.records is None) == ("many" in record)


def test_inventing_names_does_not_fill_the_memory() -> None:
    means = Means()
    for number in range(3 * MOST):
        means.add(0, ReportedMetrics(1.0, {f"name {number}": 1.0}))
    assert len(means.row()["metrics"]) == MOST
