"""What is put on top of a recipe, and the public names of the parts."""

from __future__ import annotations

import ast
import inspect
import pickle

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core import aggregation, dispatch, robust, steps
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.work import Gradient, LocalSteps

SPACES = {asgd.steps: (steps,), asgd.dispatch: (dispatch,), asgd.aggregation: (aggregation, robust)}
INSIDE = {robust.Robust}


@pytest.mark.parametrize("space", SPACES, ids=lambda space: space.__name__)
def test_every_part_of_the_core_has_a_public_name(space: object) -> None:
    parts = {
        kind
        for core in SPACES[space]
        for name, kind in vars(core).items()
        if inspect.isclass(kind) and kind.__module__ == core.__name__ and not name.startswith("_")
    }
    assert {getattr(space, name) for name in space.__all__} == parts - INSIDE
    for name in space.__all__:
        kind = getattr(space, name)
        assert name.replace("_", "") == (name if inspect.isabstract(kind) else kind.__name__.lower())


def test_the_order_in_which_things_are_put_on_top_does_not_matter() -> None:
    base, momentum = asgd.fedbuff(0.5, concurrency=4, buffer=3), asgd.optimizers.momentum(0.5)
    one = base.local(3, 0.1).clipped(1.0).using(optimizer=momentum).compressed("float16")
    other = base.compressed(asgd.compression.float16()).using(optimizer=momentum).clipped(1.0).local(3, 0.1)
    assert one == other
    assert (one.work, one.name) == (LocalSteps(3, 0.1), "clipped_fedbuff")
    assert (base.work, base.transforms, base.up, base.down) == (
        Gradient(),
        (),
        None,
        None,
    )  # the recipe stays as it was
    assert pickle.loads(pickle.dumps(one)) == one


def test_noise_is_a_multiple_of_the_norm() -> None:
    assert asgd.async_sgd(0.1).clipped(0.5, noise=3.0).aggregation == asgd.aggregation.buffer(1, noise=1.5)
    assert asgd.async_sgd(0.1).clipped(0.5).aggregation == asgd.aggregation.each()


def test_a_method_is_bound_once() -> None:
    free = asgd.methods.staleness_aware(0.1, splits=2)
    bound = free.bind(workers=9, iterations=100)
    assert bound.aggregation == asgd.aggregation.buffer(4)
    assert bound.bind(workers=50, iterations=1) == bound
    assert asgd.delay_adaptive(0.1).bind(workers=9) == asgd.delay_adaptive(0.1)
    with pytest.raises(BadParameter, match="splits = 2 leaves no arrival to wait for with 1 workers"):
        free.bind(workers=1)
    with pytest.raises(BadParameter, match=r"splits = 2 needs the number of workers; give the server method.bind"):
        asgd.Server(np.zeros(2), free)


def test_a_simulation_and_a_sweep_bind() -> None:
    task, speeds = asgd.tasks.quadratic(workers=4), asgd.durations.fixed([1.0, 1.0, 2.0, 3.0])
    run = asgd.simulate(task, asgd.methods.staleness_aware(0.1, splits=2), speeds, iterations=40)
    assert run.method.aggregation == asgd.aggregation.buffer(2)
    recipe = lambda stepsize: asgd.methods.staleness_aware(stepsize, splits=2)  # noqa: E731
    found = asgd.sweep(task, recipe, speeds, stepsizes=[0.1, 0.3, 3.0], iterations=40)
    assert found.final[0, 0] == run.metrics["gradient_norm"][-1]


def test_the_table_names_papers_and_variants() -> None:
    rows = {row["method"]: row for row in asgd.methods.table()}
    assert set(rows) == set(asgd.methods.__all__) - {"table"}
    for name, row in rows.items():
        assert row["paper"].split()[-1].isdigit()
        for call in row["variants"].values():
            function = ast.parse(call.split(" with ")[0], mode="eval").body
            assert call.startswith(f"{name}("), function
    assert any("Mishchenko" in paper for paper in rows["delay_adaptive"]["variants"])
