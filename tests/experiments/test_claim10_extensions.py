from dataclasses import replace

import numpy as np
import pytest

from asyncsgd.experiments import claim10_extensions as claim10
from asyncsgd.experiments.claim import Verdict
from asyncsgd.experiments.claim10_extensions import EARLY, PLAIN, SETTINGS, VARIANTS, Row

ONE, TWO = (setting.name for setting in SETTINGS[1:])
DELAYS = (4, 16, 64)


def row(variant, slope, setting=ONE):
    return Row(setting, variant, DELAYS, tuple(100 * (d / 4) ** slope for d in DELAYS))


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


def test_the_longest_delay_is_that_of_the_slow_worker():
    assert claim10.measure(replace(SETTINGS[0], slower=(4, 8)), PLAIN, steps=16).delays == (4, 8)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("variant", VARIANTS)
def test_variants_differ_in_what_they_are_called_after(setting, variant):
    plain = claim10.methods(setting, PLAIN)[0]
    for method in claim10.methods(setting, variant):
        different = {name for name in ("dispatch", "gather", "work") if getattr(method, name) != getattr(plain, name)}
        kind = {"local": "work", "buffer": "gather", EARLY: "dispatch"}
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


def test_the_verdict_follows_the_numbers():
    rows = [row(PLAIN, 0.6), row("2 local steps", 0.7), row(PLAIN, 0.3, TWO), row("buffer of 2", 0.2, TWO)]
    assert claim10.judge(rows) == (Verdict.HOLDS, "")
    verdict, why = claim10.judge([*rows, row("buffer of 2", 0.3), row(EARLY, 0.2)])
    assert verdict == Verdict.CORRECTED
    assert f"{ONE}: buffer of 2 0.30, re-sampled early 0.20 (0.60)." in why
    for slope in (0.05, 0.6, np.nan):
        verdict, why = claim10.judge([*rows, row("5 local steps", slope, TWO)])
        assert verdict == Verdict.FAILS
        assert f"{TWO}: 5 local steps {slope:.2f} (0.30)." in why


def test_the_figure_has_one_panel_per_setting():
    pytest.importorskip("matplotlib")
    from asyncsgd.report import figures

    with figures.figure(columns=2) as (fig, axes):
        claim10.draw(fig, axes, [row(PLAIN, 0.6), row(PLAIN, 0.7, TWO)])
        assert axes[0].get_title() == ONE.replace(", ", ",\n")
        assert [tick.get_text() for tick in axes[0].get_xticklabels()] == ["5", "10", "20", "50"]
        figures.svg(fig, "claim10")
