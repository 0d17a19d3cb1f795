from dataclasses import replace

import pytest

from asyncsgd.experiments.claim03_speed_up import Row, check, drawn, judge
from asyncsgd.experiments.common import Verdict

CLAIMED = [
    Row(c, 15.0, 15.0, 15.0, 0.06 * c, lemma, lemma, 15.0, lemma)
    for c, lemma in ((1, 15.0), (10, 42.57), (100, 60.0), (1000, 60.0))
]


def change(concurrency, **fields):
    return [replace(row, **fields) if row.concurrency == concurrency else row for row in CLAIMED]


def test_the_lemma_everywhere_would_hold():
    assert judge(CLAIMED) == (Verdict.HOLDS, "")


def test_queues_are_a_correction():
    verdict, why = judge(change(100, simulated=17.0))
    assert verdict == Verdict.CORRECTED
    assert "17.0 s in place of 15 s at τ_C = 100" in why
    assert "across the readings" not in why


def test_like_is_compared_with_like():
    """Algorithm 2, which draws with replacement, may be slower than a round of different workers."""
    verdict, why = judge(change(1000, simulated=64.0, minibatch_queued=254.0))
    assert verdict == Verdict.CORRECTED
    assert "at τ_C = 1000 Algorithm 2 takes 64 s and a round of as many different workers 60 s" in why


@pytest.mark.parametrize(
    ("slower", "reading"), [({"simulated": 64.0}, "with replacement"), ({"idle": 61.0}, "different workers")]
)
def test_slower_than_mini_batch_under_the_same_rule_is_a_failure(slower, reading):
    verdict, why = judge(change(1000, **slower))
    assert verdict == Verdict.FAILS
    assert f"slower than mini-batch SGD at τ_C = 1000 ({reading})" in why


@pytest.mark.parametrize(
    "wrong",
    [
        {"simulated": 16.0},
        {"idle": 14.0},
        {"minibatch": 40.0},
        {"minibatch_queued": float("nan")},
        {"minibatch_lemma": 41.0, "minibatch": 41.0, "minibatch_queued": 41.0},
    ],
)
def test_a_wrong_example_is_a_failure(wrong):
    assert judge(change(10, **wrong))[0] == Verdict.FAILS


def test_a_small_run_of_the_claim():
    claim = check(lambda share: None, concurrencies=(3, 10, 300), arrivals=400_000, many=10_000)
    assert claim.verdict == Verdict.CORRECTED
    example = claim.values["rows"][1]
    assert example["lemma"] == 15.0
    assert example["minibatch_lemma"] == pytest.approx(42.566, abs=1e-3)
    assert claim.values["rows"][2]["simulated"] == pytest.approx(24.1, rel=0.02)
    assert claim.values["rows"][2]["idle"] == pytest.approx(12.6, rel=0.02)
    assert claim.values["queue_formula_error"] < 0.02


def test_a_worker_that_is_drawn_twice_works_twice():
    assert drawn(3000, 20) > 300  # no worker is slower than 60 s
