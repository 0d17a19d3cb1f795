from dataclasses import replace

from asyncsgd.experiments.claim02_average_delay import check, judge, measure
from asyncsgd.experiments.common import Verdict
from asyncsgd.trace import Trace


def rows():
    """Two workers; by hand: T = 2, arrivals with τ = 0 and 0, in flight s = 0 (τ = 2, which comes next) and s = 2."""
    trace = Trace.from_history(workers=[0, 1, 1, 1], assigned=[0, 0, 1, 2], arrived=[2, 0, 1, -1])
    return [measure(trace, 2, "by hand")]


def test_a_run_counted_by_hand():
    (row,) = rows()
    assert row.jobs == (1 + 1) + (3 + 1) == row.active
    assert row.average == 0.0  # the job in flight since x_0 is j_T, the other one has τ = 0
    assert row.remark == 6 / 3
    assert row.expected == (2 + 2 + 2) / 3


def test_the_verdict_follows_the_numbers():
    assert judge(rows())[0] == Verdict.CORRECTED
    (row,) = rows()
    assert judge([replace(row, average=row.remark)])[0] == Verdict.HOLDS
    assert judge([row, replace(row, jobs=row.jobs + 1)])[0] == Verdict.FAILS  # a delay counted one too high
    verdict, why = judge([row, replace(row, average=row.average + 0.5)])
    assert verdict == Verdict.FAILS
    assert "not explained in 1" in why


def test_a_small_run_of_the_claim():
    seen = []
    claim = check(seen.append, sizes=(1, 3), lengths=(40,), seeds=(0,))
    assert claim.verdict == Verdict.CORRECTED
    assert claim.values["identity_exact"] == claim.values["runs"] == 2 * 4 * 4
    low, high = claim.values["too_large_by"]
    assert 1 < low <= high < 2
    assert seen == [0.5, 1.0]
