from dataclasses import replace

import pytest

from asyncsgd.experiments import claim09_clipping as claim09
from asyncsgd.experiments.common import Verdict

PLAIN = claim09.Row(0.01, None, (13.0, 150.0, 860.0, 860.0), 2e7)
CLIPPED = claim09.Row(0.01, 1.0, (60.0, 130.0, 135.0, 135.0), 2e5)


def test_clipping_near_the_target_flattens_t_and_costs_at_short_delays():
    delays = (2, 128, 2048)
    plain = claim09.measure(0.03, None, delays, steps=48)
    tight = claim09.measure(0.03, 1.0, delays, steps=48)
    assert plain.growth > 10
    assert tight.growth < 3
    assert tight.iterations[0] > 1.5 * plain.iterations[0]
    assert tight.iterations[-1] < plain.iterations[-1] / 2
    assert tight.bound < plain.bound


def test_a_norm_that_no_gradient_reaches_changes_nothing():
    delays = (4, 16)
    assert claim09.measure(0.1, 10.0, delays, steps=24).iterations == claim09.measure(0.1, None, delays, 24).iterations


@pytest.mark.parametrize("delay", [2, 32, 512])
def test_the_average_delay_does_not_see_the_longest(delay):
    assert claim09.average_delay(delay) == pytest.approx(1.0, abs=0.05)


def test_the_verdict_follows_the_numbers():
    assert claim09.judge([PLAIN, replace(CLIPPED, iterations=(60.0,) * 4)]) == (Verdict.HOLDS, "")
    verdict, why = claim09.judge([PLAIN, CLIPPED])
    assert verdict == Verdict.CORRECTED
    assert "by a factor 6.4" in why
    assert "4.6 times as long" in why
    growing = replace(CLIPPED, iterations=(60.0, 130.0, 200.0, 400.0))
    assert claim09.judge([PLAIN, growing])[0] == Verdict.FAILS
    useless = replace(CLIPPED, iterations=(60.0, 130.0, 800.0, 800.0))
    assert claim09.judge([PLAIN, useless])[0] == Verdict.FAILS


def test_the_figure_can_be_drawn():
    pytest.importorskip("matplotlib")
    from asyncsgd.pages import figures

    times = tuple(float(t) for t in range(10, 10 + len(claim09.DELAYS)))
    rows = [claim09.Row(target, level, times, 1e5) for target in claim09.TARGETS for level in (None, 1.0)]
    with figures.figure(columns=2) as (fig, axes):
        claim09.draw(fig, axes, rows)
        figures.svg(fig, "claim09")
