from dataclasses import replace

import pytest

from asyncsgd.experiments import claim07_adaptive as claim07
from asyncsgd.experiments.common import Verdict


def row(rule, **changes):
    good = claim07.Row(5, 0.1, rule, 0.0, 1.0, 1e-5, 1.0, 1e-6, 1.0, (1.0, 0.1, 1e-5))
    return replace(good, **changes)


def test_one_faster_worker_makes_the_literal_rules_lose_nearly_everything():
    rows = {r.rule: r for r in claim07.measure(5, 0.1, n=40, iterations=12_000, seeds=[0, 1])}
    assert list(rows) == list(claim07.RULES)
    share = 5 / (39 + 5)
    assert rows[claim07.LITERAL].dropped == pytest.approx(1 - share, abs=0.01)
    assert rows[claim07.LITERAL].kept == pytest.approx(share, abs=0.01)
    assert rows["drop above 2τ_C"].dropped == 0
    assert rows["η/τ above τ_C"].dropped == 0
    assert rows["η/τ above τ_C"].kept < 1.5 * share
    assert rows[claim07.SAFE].kept == pytest.approx(40 / 43, abs=0.01)  # the slow ones have τ = 43
    assert rows[claim07.LITERAL].worse > 5
    assert rows[claim07.LITERAL].tuned_worse > 3
    assert rows[claim07.SAFE].worse < 1.5
    assert claim07.judge(list(rows.values()))[0] == Verdict.FAILS


@pytest.mark.parametrize("faster", [3, 5])
def test_the_share_of_late_gradients_is_that_of_the_slow_workers(faster):
    (share,) = claim07.dropped_by_size(faster, [30])
    assert share == pytest.approx(1 - faster / (29 + faster), abs=0.02)


def test_a_worker_twice_as_fast_is_not_enough():
    assert claim07.dropped_by_size(2, [30]) == [0.0]


def test_the_verdict_follows_the_numbers():
    safe, literal = row(claim07.SAFE, kept=0.9), row(claim07.LITERAL, dropped=0.95, worse=900.0)
    assert claim07.judge([safe, replace(literal, dropped=0.4)]) == (Verdict.HOLDS, "")
    assert claim07.judge([safe, replace(literal, worse=1.5)])[0] == Verdict.CORRECTED
    verdict, why = claim07.judge([safe, literal])
    assert verdict == Verdict.FAILS
    assert "our default" in why
    for broken in (replace(safe, kept=0.7), replace(safe, worse=2.0)):
        verdict, why = claim07.judge([broken, replace(literal, worse=1.5)])
        assert verdict == Verdict.FAILS
        assert "our default" not in why


def test_the_figure_names_every_rule():
    pytest.importorskip("matplotlib")
    from asyncsgd.pages import figures

    rows = [row(rule) for rule in claim07.RULES]
    with figures.figure(columns=2) as (fig, axes):
        claim07.draw(fig, axes, rows, {5: [0.5] * len(claim07.SIZES)})
        assert len(axes[0].get_legend().get_texts()) == len(claim07.RULES)
        figures.svg(fig, "claim07")
