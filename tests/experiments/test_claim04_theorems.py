from dataclasses import replace

import numpy as np
import pytest

from asyncsgd import methods
from asyncsgd.experiments import theorem_bounds
from asyncsgd.experiments.claim04_theorems import EXPECTED, judge
from asyncsgd.experiments.common import Verdict, record, squares
from asyncsgd.experiments.theorem_bounds import Cell, Need, bounded, exponents, literal, need, one_slow, quadratics
from asyncsgd.simulation import durations, simulate
from asyncsgd.tasks import quadratic

CELLS = [Cell("Theorem 1", "equal", 0.0, 0.0, 0.1, measured=0.5, bound=1.0)] * 3
SLOPES = {name: (9.0, power, 0.7) for name, power in EXPECTED.items()} | {("τ_max", "drop"): (0.0, 0.0, 0.0)}


def test_the_statement_of_theorem_2_decides_between_holds_and_corrected():
    assert judge(CELLS, SLOPES, 0.5)[0] == Verdict.HOLDS
    verdict, why = judge(CELLS, SLOPES, float("inf"))
    assert verdict == Verdict.CORRECTED
    assert "diverges" in why


def test_one_mean_above_its_bound_is_a_failure():
    above = [*CELLS, replace(CELLS[0], measured=1.01)]
    verdict, why = judge(above, SLOPES, 0.5)
    assert verdict == Verdict.FAILS
    assert "1 of 4 means exceed their bound" in why
    assert judge([replace(CELLS[0], measured=float("nan"))], SLOPES, 0.5)[0] == Verdict.FAILS


@pytest.mark.parametrize("name", list(EXPECTED))
@pytest.mark.parametrize("more", [0.3, float("nan")])
def test_a_need_that_grows_faster_than_promised_is_a_failure(name, more):
    promised, needed = EXPECTED[name], EXPECTED[name] + more
    verdict, why = judge(CELLS, {**SLOPES, name: (promised, needed, promised)}, 0.5)
    assert verdict == Verdict.FAILS
    assert f"{name[1]} in {name[0]} ({needed:.2f})" in why


def test_the_exponent_of_the_theorems_own_step_is_not_judged():
    """It follows from the step, whatever the delays do; nor is it a failure to need less than promised."""
    own = {name: (7.0, power - 0.5, 7.0) for name, power in EXPECTED.items()} | {("τ_max", "drop"): (0.0, 0.0, 0.0)}
    assert judge(CELLS, own, 0.5)[0] == Verdict.HOLDS


@pytest.mark.slow
def test_all_five_bounds_hold_on_a_small_grid(monkeypatch):
    monkeypatch.setattr(theorem_bounds, "NOISES", (0.0, 10.0))
    monkeypatch.setattr(theorem_bounds, "HETEROGENEITIES", (0.0, 5.0))
    monkeypatch.setattr(theorem_bounds, "BATCHES", (1,))
    cells = [*quadratics(200, range(2)), *bounded(200, range(2))]
    assert len({cell.theorem for cell in cells}) == 5
    assert all(0 < cell.measured <= cell.bound for cell in cells)
    noisy = [cell.measured / cell.bound for cell in cells if cell.theorem == "Theorem 1" and cell.noise]
    quiet = [cell.measured / cell.bound for cell in cells if cell.theorem == "Theorem 1" and not cell.noise]
    assert 0.4 < max(quiet) <= 0.5  # Σ η‖∇f‖² = r0 to first order, and the bound has 2 r0
    assert min(noisy) < 0.3


def test_theorem_2_at_the_step_of_its_statement():
    assert literal(workers=64, iterations=1000) > 1
    assert literal(workers=2, iterations=1000) < 1


def test_the_paths_are_those_of_single_runs():
    task, speeds = quadratic(dim=3, workers=3, noise=0.5), durations.fixed([1.0, 2.0, 7.0])
    trace, weights = record(task, methods.delay_adaptive, speeds, 60)
    path = squares(trace, task, methods.delay_adaptive(1.0), [0.02, 0.1], seeds=[4, 5])
    assert path.shape == (61, 2, 2)
    alone = simulate(task, methods.delay_adaptive(0.1), speeds, iterations=60, every=1, seed=5)
    assert np.array_equal(path[:, 1, 1], alone.metrics["gradient_norm"] ** 2)
    assert weights == pytest.approx(np.minimum(1, 3 / np.maximum(trace.delay, 1)), rel=1e-12)


@pytest.mark.slow
def test_what_a_rule_needs():
    few, many = (need("constant", one_slow(x), "τ_max", 8000, 4000, points=21) for x in (4.0, 16.0))
    assert (few.varied, many.varied) == (12.0, 48.0)
    assert 1.8 < many.promised / few.promised < 2.4  # √4
    assert 0.8 < many.tuned / few.tuned < 1.25
    assert many.tiny > 1.5 * few.tiny
    dropped = need("drop", one_slow(16.0), "τ_max", 8000, 4000, points=21)
    assert dropped.tiny < few.tiny


def test_exponents_of_made_up_needs():
    needs = [Need("constant", x, 3 * x**0.5, 7.0, x) for x in (1.0, 10.0, 100.0)]
    assert exponents(needs)["constant"] == pytest.approx((0.5, 0.0, 1.0))
