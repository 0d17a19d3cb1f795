import numpy as np
import pytest

from asyncsgd.experiments.claim01_figures import CRITERIA, LONG, SHORT, Curve, Point, again, measure, power
from asyncsgd.experiments.claim01_figures import judge as judge_curves
from asyncsgd.experiments.common import Interval, Verdict
from asyncsgd.tasks import paper_quadratic

HALF = Interval(0.5, 0.45, 0.55)


def curve(law, edge=False):
    return Curve(tuple(Point(x, float(law(x)), 0.1, edge and x == 16) for x in (*SHORT, *LONG)))


def curves(literal, sustained, edge=False):
    pairs = zip(CRITERIA, (literal, sustained), strict=True)
    return {("quadratic", criterion): curve(law, edge) for criterion, law in pairs}


def judge(curves, found=HALF):
    return judge_curves(curves, {"quadratic": found})


def root(x):
    return 100 * np.sqrt(x)


def test_a_root_everywhere_is_what_the_paper_says():
    verdict, why = judge(curves(root, root))
    assert (verdict, why) == (Verdict.HOLDS, "")


def test_a_collapse_is_found():
    verdict, why = judge(curves(lambda x: root(x) if x <= 64 else 88, root))
    assert verdict == Verdict.CORRECTED
    assert "falls: to 88 for the quadratic" in why
    assert "faster than √τ_max" not in why


def test_a_tail_that_turns_linear_is_found():
    verdict, why = judge(curves(root, lambda x: root(x) if x <= 64 else 12.5 * x))
    assert verdict == Verdict.CORRECTED
    assert "exponent 1.00 for the quadratic" in why


@pytest.mark.parametrize("law", [lambda x: 100 * x**3, lambda x: 500 + 200 * np.sin(x)])
def test_no_line_is_no_reproduction(law):
    verdict, why = judge(curves(law, root))
    assert verdict == Verdict.FAILS
    assert "('quadratic', 'literal')" in why


def test_a_best_step_on_the_edge_spoils_the_figure():
    verdict, why = judge(curves(root, root, edge=True))
    assert verdict == Verdict.FAILS
    assert "edge" in why


def test_a_target_that_is_never_reached_is_a_failure():
    verdict, why = judge(curves(root, lambda x: root(x) if x < 1000 else np.inf))
    assert verdict == Verdict.FAILS
    assert "never reached: [('quadratic', 'sustained')]" in why


@pytest.mark.parametrize("slope", [0.3, 0.37, 0.63, 0.75])
def test_a_straight_line_with_another_exponent_is_no_reproduction(slope):
    """All of these pass R² >= 0.98 against √τ_max."""
    bent = curves(lambda x: 100 * x**slope, lambda x: 100 * x**slope)
    found = power([bent["quadratic", "literal"]])
    assert found.mean == pytest.approx(slope)
    assert all(one.line.r2 >= 0.98 for one in bent.values())
    verdict, why = judge(bent, found)
    assert verdict == Verdict.FAILS
    assert "exponent not within 0.5 ± 0.12: {'quadratic'" in why


@pytest.mark.parametrize("found", [Interval(0.4, 0.37, 0.43), Interval(0.5, 0.2, 0.8), Interval(*[np.nan] * 3)])
def test_an_exponent_that_is_not_sure_enough_is_no_reproduction(found):
    assert judge(curves(root, root), found)[0] == Verdict.FAILS


def test_other_random_functions_are_tuned_near_the_steps_of_the_first():
    first = Curve((measure(paper_quadratic(), 4, "literal", points=71), measure(paper_quadratic(), 128, "literal", 71)))
    (other,) = again("quadratic", first, [1])
    assert [point.slow for point in other.points] == [4]  # short delays alone
    assert 180 <= other.points[0].iterations <= 250
    assert not other.points[0].on_edge


def test_one_point_of_the_figure():
    """T = 212 with 141 steps; a coarser grid finds a little more."""
    point = measure(paper_quadratic(), 4, "literal", points=71)
    assert 212 <= point.iterations <= 250
    assert not point.on_edge
    trapped = measure(paper_quadratic(), 128, "literal", points=71)
    honest = measure(paper_quadratic(), 128, "sustained", points=71)
    assert trapped.iterations < 100 < 1000 < honest.iterations
