"""Parameters by name: which ranges of the flat model a pattern means, and what is refused."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.layout import layout_of, matching
from asyncsgd.core.parts import describe, made

LAYOUT = (
    ("embed.weight", 0, (5, 2)),
    ("layers.0.weight", 10, (2, 3)),
    ("layers.0.bias", 16, (3,)),
    ("layers.1.norm.weight", 19, ()),
    ("empty.bias", 20, (0, 3)),
    ("layers.1.bias", 20, (4,)),
    ("head", 24, (2,)),
)


@pytest.mark.parametrize(
    ("patterns", "ranges"),
    [
        (("bias",), ((16, 19), (20, 24))),
        (("bias", "norm"), ((16, 24),)),
        (("layers.*.bias",), ((16, 19), (20, 24))),
        (("layers.?.bias", "embed*"), ((0, 10), (16, 19), (20, 24))),
        (("*",), ((0, 26),)),
        (("empty",), ()),
    ],
)
def test_a_pattern_is_a_part_of_a_name_or_matches_it_whole(patterns, ranges):
    assert matching("exclude", patterns, LAYOUT) == ranges
    assert matching("exclude", patterns, LAYOUT[::-1]) == ranges


def test_what_matches_nothing_is_refused_with_the_names():
    with pytest.raises(BadParameter, match=r"exclude = 'bais' matches no parameter; .*layers.0.bias") as caught:
        matching("exclude", ("weight", "bais"), LAYOUT)
    assert caught.value.name == "exclude"
    with pytest.raises(BadParameter, match=r"matches no parameter; .*p19, … \(50 in all\)"):
        matching("exclude", ("*.bias",), tuple((f"p{k}", k, ()) for k in range(50)))


@pytest.mark.parametrize("exclude", [3, ("bias", 3), ("",), None, {"bias"}])
def test_patterns_are_texts(exclude):
    with pytest.raises(BadParameter, match=r"exclude = .* is not a list of name patterns"):
        asgd.optimizers.adamw(exclude=exclude)


def test_one_text_is_one_pattern():
    assert asgd.optimizers.adamw(weight_decay=0.1, exclude="bias").exclude == ("bias",)
    assert asgd.optimizers.adamw(weight_decay=0.1, exclude=["bias", "norm"]).exclude == ("bias", "norm")


def test_exclude_without_weight_decay_is_refused():
    with pytest.raises(BadParameter, match=r"exclude = .* has no effect, because weight_decay is 0; pass"):
        asgd.optimizers.adamw(exclude="bias")


def test_a_task_without_names_is_refused_before_anything_runs():
    method = asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.adamw(weight_decay=0.1, exclude="bias"))
    task = asgd.tasks.quadratic(dim=3, workers=2)
    speeds = asgd.durations.fixed([1.0, 2.0])
    for call in (
        lambda: asgd.simulate(task, method, speeds, iterations=3),
        lambda: asgd.sweep(task, method, speeds, stepsizes=[0.1], iterations=3),
        lambda: asgd.train(task, method, asgd.engines.processes(2), iterations=3, progress=False),
    ):
        with pytest.raises(BadParameter, match=r"exclude = \('bias',\) needs names, .* have none; leave exclude out"):
            call()
    assert layout_of(task) is None


def test_a_server_refuses_names_and_ranges_that_do_not_fit():
    method = asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.adamw(weight_decay=0.1, exclude="bias"))
    with pytest.raises(BadParameter, match=r"needs the layout of the model; give the server method.bind_layout"):
        asgd.Server(np.ones(26), method)
    with pytest.raises(BadParameter, match="beyond a model of length 20"):
        asgd.Server(np.ones(20), method.bind_layout(LAYOUT))


def test_a_bound_method_is_plain_data():
    method = asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.adamw(weight_decay=0.1, exclude="bias"))
    bound = method.bind_layout(LAYOUT)
    assert bound.optimizer.ranges == ((16, 19), (20, 24))
    assert made(describe(bound)) == bound
    assert bound.bind_layout(LAYOUT) == bound
    assert bound.bind_layout(None) == bound  # a replay with a task that has no names
    assert asgd.async_sgd(0.1).bind_layout(None) == asgd.async_sgd(0.1)


class Named:
    """½‖x - 1‖² with two named parameters."""

    def initial(self):
        return np.zeros(4)

    def update(self, x, worker, seed):
        return x - 1.0

    def evaluate(self, x):
        return {"loss": 0.5 * float((x - 1) @ (x - 1))}

    def layout(self):
        return [("weight", 0, [3]), ("bias", 3, [1])]


def test_a_simulation_takes_the_names_of_its_task():
    method = asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.adamw(weight_decay=3.0, exclude="bias"))
    run = asgd.simulate(Named(), method, asgd.durations.fixed([1.0, 1.0]), iterations=300)
    assert run.x[3] == pytest.approx(1.0, abs=0.05)
    assert (run.x[:3] < 0.6).all()
