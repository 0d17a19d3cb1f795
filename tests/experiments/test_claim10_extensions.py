from dataclasses import replace

import numpy as np
import pytest

from asyncsgd.experiments import claim10_extensions as claim10
from asyncsgd.experiments.claim10_extensions import EARLY, PLAIN, SETTINGS, VARIANTS, Row
from asyncsgd.experiments.common import Verdict

ONE, TWO = (setting.name for setting in SETTINGS[1:])
DELAYS = (4, 16, 64)


def row(variant, slope, setting=ONE):
    return Row(setting, variant, DELAYS, tuple((100 * (d / 4) ** slope,) for d in DELAYS))


def roots(variant, added, *, start=100.0, noise=(-5.0, 5.0), setting=TWO):
    """T = start + added·√τ_max, and a little chance in how fast it grows, one value per seed."""
    return Row(setting, variant, DELAYS, tuple(tuple(start + (added + n) * np.sqrt(d) for n in noise) for d in DELAYS))


def test_early_sampling_and_buffers_flatten_t_in_algorithm_1_and_local_steps_do_not():
    setting = replace(SETTINGS[0], slower=(4, 16, 64))
    slopes = {
        variant: claim10.measure(setting, variant, steps=32).slope
        for variant in (PLAIN, "5 local steps", "buffer of 5", EARLY)
    }
    assert 0.5 < slopes[PLAIN] < 0.75
    assert abs(slopes["5 local steps"] - slopes[PLAIN]) < 0.2
    assert slopes["buffer of 5"] < slopes[PLAIN] - 0.2
    assert slopes[EARLY] < slopes[PLAIN] - 0.2


def test_early_sampling_changes_little_in_algorithm_2():
    setting = replace(SETTINGS[2], slower=(4, 32), seeds=2)
    plain, early = (claim10.measure(setting, variant, steps=24) for variant in (PLAIN, EARLY))
    assert plain.delays == early.delays
    assert abs(plain.slope - early.slope) < 0.2
    assert 0.5 < claim10.against(early, plain).mean < 1.5


def test_the_longest_delay_is_that_of_the_slow_worker():
    assert claim10.measure(replace(SETTINGS[0], slower=(4, 8)), PLAIN, steps=16).delays == (4, 8)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_differ_in_what_they_are_called_after(setting, variant):
    plain = claim10.methods(setting, PLAIN)[0]
    for method in claim10.methods(setting, variant):
        different = {
            name for name in ("dispatch", "aggregation", "work") if getattr(method, name) != getattr(plain, name)
        }
        kind = {"local": "work", "buffer": "aggregation", EARLY: "dispatch"}
        assert different == {part for word, part in kind.items() if word in variant}


def naive(step, slow, fast_early, slow_early, target=1e-10):
    """Two workers on a diagonal quadratic, straight from Algorithm 1; iterations until ‖∇f‖ stays below the target."""
    curvature = np.linspace(1, 2, 10) ** 2
    x = at_fast = at_slow = np.full(10, 2.0)
    norms, window = [], 3 * (slow + 1)
    for time in range(1, 4000):
        before, x = x, x - step * curvature * at_fast
        at_fast = before if fast_early else x
        norms.append(np.linalg.norm(curvature * x))
        if time % slow == 0:
            before, x = x, x - step * curvature * at_slow
            at_slow = before if slow_early else x
            norms.append(np.linalg.norm(curvature * x))
        if norms[-1] > 1e6:
            break
        if len(norms) > window and max(norms[-window:]) <= target:
            return len(norms) - window
    return np.inf


@pytest.mark.slow
def test_it_is_the_slow_workers_own_echo():
    """What the claim says of the reason: early for the slow worker alone is enough, for the fast one it is useless."""

    def best(slow, **early):
        return min(naive(step, slow, **early) for step in np.geomspace(0.01, 0.5, 25))

    for early, low, high in (
        ({"fast_early": False, "slow_early": False}, 3.0, 9.0),
        ({"fast_early": True, "slow_early": False}, 3.0, 9.0),
        ({"fast_early": False, "slow_early": True}, 0.8, 1.5),
    ):
        assert low < best(64, **early) / best(4, **early) < high


def test_a_cost_that_delays_do_not_change_is_no_effect_of_delays():
    """A buffer that takes 300 iterations more at every delay bends the slope on log-log axes, and that is all."""
    plain, buffered = roots(PLAIN, 50.0), roots("buffer of 10", 50.0, start=400.0)
    assert plain.slope - buffered.slope > claim10.SLOPE
    assert claim10.against(buffered, plain).mean == pytest.approx(1.0)
    assert claim10.judge([plain, buffered]) == (Verdict.HOLDS, "")


def test_the_verdict_follows_the_numbers():
    rows = [roots(PLAIN, 50.0, setting=ONE), roots("2 local steps", 40.0, setting=ONE), roots(PLAIN, 50.0)]
    assert claim10.judge([*rows, roots("buffer of 2", 45.0)]) == (Verdict.HOLDS, "")
    early = roots(EARLY, 10.0, setting=ONE)
    verdict, why = claim10.judge([*rows, early, roots("buffer of 2", 30.0, start=400.0, noise=(-3.0, 3.0))])
    assert verdict == Verdict.CORRECTED
    assert f"{ONE}: {EARLY} 0.20×" in why
    assert "less for: buffer of 2" in why
    assert "Judged by the slope of log T, they would not be the same (buffer of 2 0." in why
    for added in (10.0, 200.0, np.nan):
        verdict, why = claim10.judge([*rows, roots("5 local steps", added)])
        assert verdict == Verdict.FAILS
        assert f"{TWO}: 5 local steps {added / 50:.2f}×" in why


def test_a_ratio_that_is_not_sure_enough_is_a_failure():
    noisy = roots("buffer of 5", 50.0, noise=(40.0, -40.0))
    assert claim10.against(noisy, roots(PLAIN, 50.0)).mean == pytest.approx(1.0)
    assert claim10.judge([roots(PLAIN, 50.0), noisy])[0] == Verdict.FAILS


def test_the_figure_has_one_panel_per_setting():
    pytest.importorskip("matplotlib")
    from asyncsgd.pages import figures

    with figures.figure(columns=2) as (fig, axes):
        claim10.draw(fig, axes, [row(PLAIN, 0.6), row(PLAIN, 0.7, TWO)])
        assert axes[0].get_title() == ONE.replace(", ", ",\n")
        assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["5", "10", "20", "50"]
        figures.svg(fig, "claim10")
