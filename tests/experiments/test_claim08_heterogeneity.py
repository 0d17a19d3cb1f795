import math
from dataclasses import replace

import numpy as np
import pytest

from asyncsgd.experiments import bias, late_workers
from asyncsgd.experiments.bias import ADAPTIVE, BUSY, FAIR, OVER, SAME, Bias
from asyncsgd.experiments.claim08_heterogeneity import judge
from asyncsgd.experiments.common import Verdict
from asyncsgd.experiments.late_workers import Placement

LATE = Placement("slow", True, 59.0, 300, 1.0, 0.40, 0.01, 0.1, 0.5)
OTHER = replace(LATE, on_late=False, delay=5.0, error=0.37)
SPREAD = "1 to 8 s, fixed"


def test_who_is_away_in_bursts_costs_more_and_steady_slowness_does_not():
    rows = {
        (pattern, on_late): late_workers.measure(pattern, on_late, iterations=15_000, seeds=range(4))
        for pattern in ("4× slower, fixed", "away 20 % of the time")
        for on_late in (True, False)
    }
    slow, others = rows["4× slower, fixed", True], rows["4× slower, fixed", False]
    assert slow.delay > 5 * others.delay
    assert slow.error < 0.95 * others.error
    assert slow.burstiness < 0.9 * others.burstiness
    away, others = rows["away 20 % of the time", True], rows["away 20 % of the time", False]
    assert away.error > 1.1 * others.error
    assert away.burstiness > 1.1 * others.burstiness
    assert all(row.mean < row.bound for row in rows.values())


@pytest.mark.parametrize("method", [FAIR, ADAPTIVE, OVER, BUSY])
def test_a_method_ends_where_its_trace_says(method):
    found = bias.measure(SPREAD, method, steps=[1e-2, 1e-3], seeds=range(4))
    assert found.distances[-1] == pytest.approx(found.predicted, abs=0.02)
    if method == FAIR:
        assert found.distances[-1] < 2 * found.noise
        assert found.imbalance < 0.05
    else:
        assert found.distances[-1] > 2 * found.noise


def test_weights_that_are_alike_are_no_bias():
    found = bias.measure(SPREAD, "mini-batch", steps=[1e-2], seeds=[0])
    assert found.imbalance == pytest.approx(0, abs=1e-9)
    assert found.predicted == pytest.approx(0, abs=1e-9)


def test_imbalance_of_over_selection_with_fixed_durations():
    """Worker i of 50 is heard if at most 7 of the other 9 asked are faster: hypergeometric, without a simulation."""
    n, asked, goal = bias.WORKERS, bias.ASKED, bias.GOAL
    heard = [
        sum(math.comb(i, k) * math.comb(n - 1 - i, asked - 1 - k) for k in range(goal)) / math.comb(n - 1, asked - 1)
        for i in range(n)
    ]
    share = np.array(heard) / sum(heard)
    found = bias.measure(SPREAD, OVER, steps=[1e-3], seeds=range(4))
    assert found.imbalance == pytest.approx(np.sqrt(n * ((share - 1 / n) ** 2).sum()), rel=0.05)


def test_over_selection_does_not_ask_everyone():
    """If it asked all workers, it would discard the same slowest in every round and could only lose."""
    assert bias.METHODS[OVER](0.1).dispatch.asked == bias.ASKED <= bias.WORKERS / 5


def ends(**changed):
    """What was found, roughly; ``changed`` exchanges the distance (and prediction) of a method at SPREAD or SAME."""
    found = {FAIR: 0.004, ADAPTIVE: 0.12, OVER: 0.19} | changed.get("spread", {})
    alike = {FAIR: 0.004, ADAPTIVE: 0.004, OVER: 0.002} | changed.get("same", {})
    return [
        Bias(pattern, method, (1e-2, 1e-4), (0.06, end), 0.005, end, 0.2)
        for pattern, row in ((SPREAD, found), (SAME, alike))
        for method, end in row.items()
    ]


def test_the_verdict_follows_the_numbers():
    follows = replace(LATE, delay=11.0, error=0.60)
    assert judge([follows, OTHER], ends()) == (Verdict.HOLDS, "")
    verdict, why = judge([LATE, OTHER], ends())
    assert verdict == Verdict.CORRECTED
    assert "slow: τ^i_avg + 1 is 10.0 times as large, the error 1.08 times" in why
    for more in (0.25, 0.189):  # more, and not less by more than chance
        verdict, why = judge([follows, OTHER], ends(spread={ADAPTIVE: more}))
        assert verdict == Verdict.CORRECTED
        assert f"1 to 8 s, fixed: {more:.3f} against 0.190" in why


@pytest.mark.parametrize(
    ("placements", "biases", "says"),
    [
        ([replace(LATE, mean=0.6), OTHER], ends(), "above Theorem 3's bound: slow"),
        ([LATE, OTHER, replace(OTHER, error=0.5)], ends(), "τ_max matters"),
        ([replace(LATE, mean=np.nan), OTHER], ends(), "above Theorem 3's bound: slow"),
        ([LATE, OTHER], ends(spread={FAIR: np.nan}), "Algorithm 2 biased"),
        ([LATE, OTHER], ends(spread={OVER: np.nan}), "not at the predicted limit"),
        ([LATE, OTHER], ends(spread={FAIR: 0.05}), "Algorithm 2 biased"),
        ([LATE, OTHER], ends(spread={ADAPTIVE: 0.005}), "delay-adaptive steps not biased"),
        ([LATE, OTHER], ends(same={ADAPTIVE: 0.1}), "biased though no worker is slower"),
        ([LATE, OTHER], [replace(row, predicted=row.predicted + 0.1) for row in ends()], "not at the predicted limit"),
        ([LATE, OTHER], [replace(row, distances=(0.004, 0.004)) for row in ends()[:1]] + ends()[1:], "not shrink"),
    ],
)
def test_it_fails_where_a_number_says_so(placements, biases, says):
    verdict, why = judge(placements, biases)
    assert verdict == Verdict.FAILS
    assert says in why


def test_the_figures_can_be_drawn():
    pytest.importorskip("matplotlib")
    from asyncsgd.pages import figures

    with figures.figure(columns=2) as (fig, axes):
        rows = [Bias(SPREAD, method, (1e-2, 1e-4), (0.06, 0.02), 0.005, 0.02, 0.2) for method in bias.METHODS]
        bias.draw(fig, axes, rows, SPREAD)
        figures.svg(fig, "bias")
    with figures.figure() as (fig, axes):
        late_workers.draw(fig, axes, [LATE, OTHER])
        figures.svg(fig, "late")
