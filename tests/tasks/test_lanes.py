"""Every lane is a single run, bit for bit, whatever the width."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples
from tasks.zoo import ZOO

from asyncsgd.tasks import kernels

WIDTHS = (1, 16)
"""Those that the compiled replay uses: one run, or a block of them."""


def same(a, b):
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def test_all_tasks_have_the_same_compiled_types():
    from numba import typeof

    assert len({typeof(task.lowered) for task in ZOO.values()}) == 1


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ZOO)
@examples(12)
@given(data=st.data())
def test_lanes_equal_single_runs(name, width, data):
    task = ZOO[name]
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    scale = data.draw(st.sampled_from([0.0, 1e-8, 1.0, 30.0, 1e6]))
    worker = data.draw(st.integers(0, task.workers - 1))
    x = scale * random.standard_normal((task.dimension, width))
    seeds = random.integers(0, 2**64, width, dtype=np.uint64)
    out, full, scratch = np.full_like(x, np.nan), np.full_like(x, np.nan), np.full((task.scratch_rows, width), np.nan)
    losses, norms, zeros = np.empty(width), np.empty(width), (0,) * width
    kernels.gradient(task.lowered, x, worker, seeds, out, scratch, zeros)
    kernels.full_gradient(task.lowered, x, full, scratch, zeros)
    kernels.loss(task.lowered, x, losses, scratch, zeros)
    kernels.norm(full, task.dimension, norms, zeros)
    for lane in range(width):
        assert same(out[:, lane], task.update(x[:, lane], worker, int(seeds[lane])))
        values = task.evaluate(x[:, lane])
        assert same(losses[lane], np.float64(values["loss"]))
        assert same(norms[lane], np.float64(values["gradient_norm"]))
    if task.deterministic:
        assert same(out, full)


def test_some_tasks_are_deterministic():
    assert {name for name, task in ZOO.items() if task.deterministic} == {
        "quadratic",
        "quadratic on the axes",
        "paper's quadratic",
        "least squares",
        "logistic",
    }


@pytest.mark.slow
def test_nan_and_infinity_stay_in_their_lane():
    for task in ZOO.values():
        x = np.ones((task.dimension, 8))
        x[0, 3], x[0, 5] = np.nan, np.inf
        out, scratch = np.empty_like(x), np.empty((task.scratch_rows, 8))
        kernels.full_gradient(task.lowered, x, out, scratch, (0,) * 8)
        assert not np.isfinite(out[:, 3]).all()
        assert np.isfinite(np.delete(out, [3, 5], axis=1)).all()
