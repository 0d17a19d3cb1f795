import numpy as np
import pytest

from asyncsgd.core.errors import BadParameter
from asyncsgd.theory import limits


@pytest.mark.parametrize(("noise", "optimum", "workers"), [(0.01, 3898, 15), (1.0, 32353, 1046)])
def test_the_optimum_for_square_root_durations(noise, optimum, workers):
    tau = np.sqrt(np.arange(1, 10_001))
    found = limits(tau, smoothness=1, gap=1, epsilon=1e-3, noise_variance=noise)
    assert (round(found.optimum), found.optimum_workers) == (optimum, workers)


def test_against_plain_loops_over_random_workers():
    random = np.random.default_rng(0)
    for _ in range(20):
        tau = list(random.uniform(0.1, 9, random.integers(1, 30)))
        smooth, gap, eps, noise = random.uniform(0.1, 3, 4)
        found = limits(tau, smoothness=smooth, gap=gap, epsilon=eps, noise_variance=noise)
        tau.sort()
        n, a, v = len(tau), smooth * gap / eps, noise * smooth * gap / eps**2
        harmonic = [m / sum(1 / t for t in tau[:m]) for m in range(1, n + 1)]
        times = [h * (a + v / (m + 1)) for m, h in enumerate(harmonic)]
        waits = [t * (a + v / (m + 1)) for m, t in enumerate(tau)]
        assert found.optimum == pytest.approx(min(times))
        assert found.optimum_workers == times.index(min(times)) + 1
        assert found.delay_adaptive == pytest.approx(times[-1])
        assert found.minibatch == pytest.approx(waits[-1])
        assert found.best_synchronous == pytest.approx(min(waits))
        assert found.best_synchronous_workers == waits.index(min(waits)) + 1
        assert found.constant_step == pytest.approx((tau[-1] * harmonic[-1]) ** 0.5 * a + harmonic[-1] * v / n)
        assert found.heterogeneous_optimum == pytest.approx(tau[-1] * a + sum(tau) / n * v / n)
        assert found.optimum <= found.delay_adaptive <= found.minibatch * (1 + 1e-12)


@pytest.mark.parametrize("bad", [[], [1.0, 0.0], [1.0, -2.0], [float("nan")], [float("inf")]])
def test_bad_durations_are_named(bad):
    with pytest.raises(BadParameter, match="durations"):
        limits(bad, smoothness=1, gap=1, epsilon=1, noise_variance=1)
