"""Which theorem covers which method, and the description of a method that a page reads instead of its repr."""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass, replace

import pytest
from core.checks import NEEDED

import asyncsgd as asgd
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.optimizers import Adam, Momentum
from asyncsgd.core.parts import describe, made
from asyncsgd.core.steps import Constant, Custom
from asyncsgd.core.transforms import Clip
from asyncsgd.core.work import LocalSteps
from asyncsgd.theory import theorem1, theorem2, theorem3
from asyncsgd.theory.coverage import Covered, bound, covering

PLAIN = asgd.async_sgd(0.1)
COVERED = {
    "async_sgd": (PLAIN, Covered("Theorem 1")),
    "minibatch_sgd": (asgd.minibatch_sgd(0.1), Covered("Theorem 1")),
    "Algorithm 2": (asgd.federated_async_sgd(0.1, concurrency=3), Covered("Theorem 3")),
    "delay-adaptive": (asgd.delay_adaptive(0.1), Covered("Theorem 2")),
    "drop": (asgd.delay_adaptive(0.1, rule="drop"), Covered("Theorem 2")),
    "buffer": (PLAIN.using(aggregation=Buffer(4)), Covered("Theorem 1", scale=4.0, late=3)),
    "rounds": (PLAIN.using(dispatch=FirstOf(4, ask=5), aggregation=Buffer(4)), Covered("Theorem 1", scale=4.0, late=0)),
    "momentum": (PLAIN.using(optimizer=Momentum(0.75)), Covered("Theorem 1", scale=0.25)),
}
NOT_COVERED = {
    "local": (PLAIN.using(work=LocalSteps(2, 0.1)), "are not gradients"),
    "clipped": (PLAIN.using(transforms=(Clip(1.0),)), "Clip changes the updates"),
    "mifa": (asgd.mifa(0.1), "Memory uses old updates again"),
    "adam": (PLAIN.using(optimizer=Adam()), "Adam chooses its own scale"),
    "fedbuff": (asgd.fedbuff(0.1, concurrency=2), "no theorem is about Polynomial"),
}


@pytest.mark.parametrize("name", COVERED)
def test_a_theorem_covers_it(name: str) -> None:
    method, expected = COVERED[name]
    covered = covering(method, heterogeneous=False)
    assert covered == expected
    assert covered
    assert covered.exact == (name not in ("buffer", "rounds", "momentum"))


@pytest.mark.parametrize("name", NOT_COVERED)
def test_no_theorem_covers_it(name: str) -> None:
    method, words = NOT_COVERED[name]
    for heterogeneous in (False, True):
        why = covering(method, heterogeneous=heterogeneous)
        assert not why
        assert words in str(why)


def test_data_that_differ_leave_what_favours_nobody() -> None:
    left = {name for name, (method, _) in COVERED.items() if covering(method, heterogeneous=True)}
    assert left == {name for name, (method, _) in COVERED.items() if not method.bias}
    assert left == {"minibatch_sgd", "Algorithm 2"}


def test_the_bound_is_that_of_the_theorem() -> None:
    known = {"smoothness": 2.0, "gap": 1.0, "noise_variance": 0.5}
    pair = (8.0, 70.0)
    spread = {"heterogeneity": [0.1, 0.2], "worker_delays": [3.0, 4.0]}
    assert bound(Covered("Theorem 1"), pair, **known) == theorem1(pair, **known)
    assert bound(Covered("Theorem 2"), pair, **known) == theorem2(pair, **known)
    assert bound(Covered("Theorem 3"), pair, **spread, **known) == theorem3(pair, **spread, **known)


# ------------------------------------------------------------------------------------------ described


RECIPES = {row["method"]: getattr(asgd.methods, row["method"]) for row in asgd.methods.table()}


def test_most_recipes_are_here() -> None:
    assert len(RECIPES) >= 12


@pytest.mark.parametrize("name", RECIPES)
def test_a_description_goes_through_json_and_back(name: str) -> None:
    """Of every recipe, with a value for each argument that has no default."""
    parameters = inspect.signature(RECIPES[name]).parameters.values()
    method = RECIPES[name](**{p.name: NEEDED[p.name] for p in parameters if p.default is p.empty})
    assert made(json.loads(json.dumps(describe(method)))) == method


@dataclass(frozen=True)
class Lookalike(Constant):
    """A part of another package."""


Lookalike.__name__ = Lookalike.__qualname__ = "Constant"


@pytest.mark.parametrize("step", [Lookalike(0.1), Custom(0.1, lambda arrival: 1.0)], ids=["other", "function"])
def test_a_part_of_another_package_is_described_but_not_made(step: Constant) -> None:
    described = json.loads(json.dumps(describe(replace(PLAIN, step=step))))
    assert described["step"]["kind"].endswith(f".{type(step).__qualname__}")
    with pytest.raises(BadParameter, match="is not a part of asyncsgd"):
        made(described)


@pytest.mark.parametrize(
    "change",
    [
        {"step": {"kind": "os.system"}},
        {"step": {}},
        {"step": {"kind": "Constant", "evil": 1}},
        {"evil": 1},
        {"step": 1},
    ],
    ids=str,
)
def test_a_damaged_description_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BadParameter):
        made({**describe(PLAIN), **change})
