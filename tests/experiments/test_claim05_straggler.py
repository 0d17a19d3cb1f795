from dataclasses import replace

import pytest

from asyncsgd.experiments.claim05_straggler import EXPECTED, RULES, check, judge, measure
from asyncsgd.experiments.common import Verdict


@pytest.fixture(scope="module")
def rows():
    return [measure(iterations, rule) for iterations in (50, 500) for rule in RULES]


def test_the_average_delay_is_one_and_the_conclusion_stands(rows):
    verdict, why = judge(rows)
    assert verdict == Verdict.CORRECTED
    assert "not 2" in why
    for row in rows:
        assert row.maximum_delay == row.iterations
        assert row.average_delay == pytest.approx(1, abs=0.05)
        assert row.remark == pytest.approx(2)
        assert 0 < row.measured <= row.bound


def test_the_papers_own_number_would_hold(rows):
    assert judge([replace(row, average_delay=2.0) for row in rows]) == (Verdict.HOLDS, "")


@pytest.mark.parametrize("rule", RULES)
def test_a_mean_that_falls_otherwise_is_a_failure(rows, rule):
    wrong = EXPECTED[rule] + 0.5
    bent = [replace(row, measured=1e-9 * row.iterations**wrong) if row.rule == rule else row for row in rows]
    verdict, why = judge(bent)
    assert verdict == Verdict.FAILS
    assert rule in why


def test_a_mean_above_its_bound_is_a_failure(rows):
    verdict, why = judge([replace(rows[0], bound=0.5 * rows[0].measured), *rows[1:]])
    assert verdict == Verdict.FAILS
    assert "1 exceed their bound" in why


def test_delays_that_grow_are_a_failure(rows):
    assert judge([replace(row, average_delay=5.0) for row in rows])[0] == Verdict.FAILS
    assert judge([replace(row, maximum_delay=7) for row in rows])[0] == Verdict.FAILS


def test_a_small_run_of_the_claim():
    claim = check(lambda share: None, lengths=(50, 500))
    assert claim.verdict == Verdict.CORRECTED
    assert claim.values["exponents"]["Theorem 1"] == pytest.approx(-0.5, abs=0.1)
    assert len(claim.tables[0].rows) == 2
