"""What recipes say of options that they do not have, and of a step that is a function."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd import methods, optimizers
from asyncsgd.core.errors import BadParameter

STEPPED = [name for name in methods.__all__ if name != "table"]
OPTIMIZERS = {name: getattr(optimizers, name) for name in ("sgd", "momentum", "adamw")}
RECIPES = {**{name: getattr(methods, name) for name in STEPPED}, **OPTIMIZERS}
LATE = {"concurrency": 2, "clients": 2, "threshold": 1.0, "smoothness": 1.0, "batch": 2, "limit": 2}


def needed(recipe: Any) -> dict[str, Any]:
    """Values for what has no default, but for the step."""
    parameters = inspect.signature(recipe).parameters.values()
    return {p.name: LATE[p.name] for p in parameters if p.default is p.empty and p.name in LATE}


@pytest.mark.parametrize("word", ["lr", "learning_rate", "eta", "step", "step_size", "LR"])
@pytest.mark.parametrize("name", STEPPED)
def test_the_step_under_another_name(name: str, word: str) -> None:
    RECIPES[name](stepsize=0.1, **needed(RECIPES[name]))
    with pytest.raises(BadParameter) as caught:
        RECIPES[name](**{word: 0.1, **needed(RECIPES[name])})
    assert (
        str(caught.value) == f"{word} = 0.1 is not an option of {name}; the step size is called stepsize: stepsize=0.1"
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_have_no_step(name: str) -> None:
    with pytest.raises(
        BadParameter, match=r"^lr = 0.1 is not an option of .*; the step size is the method's: pass it as"
    ):
        RECIPES[name](lr=0.1)


@pytest.mark.parametrize("name", [name for name in RECIPES if name != "sgd"])
def test_an_unknown_option_names_those_there_are(name: str) -> None:
    with pytest.raises(BadParameter, match=f"^zebra = 3 is not an option of {name}; pass one of: ") as caught:
        RECIPES[name](zebra=3)
    assert str(caught.value).endswith(", ".join(inspect.signature(RECIPES[name]).parameters))


def test_a_mistyped_option_is_guessed() -> None:
    with pytest.raises(BadParameter, match=r"local_steps = 3 is not an option of local; did you mean steps\?"):
        asgd.async_sgd(0.1).local(local_steps=3)  # type: ignore[call-arg]
    with pytest.raises(BadParameter, match=r"aggregate = 3 is not a part of a method; did you mean aggregation\?"):
        asgd.async_sgd(0.1).using(aggregate=3)
    with pytest.raises(BadParameter, match=r"concurency = 3 is not an option of async_sgd; did you mean concurrency\?"):
        asgd.async_sgd(0.1, concurency=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(("given", "shown"), [("AdamW", "'AdamW'"), (3, "'int'"), (object(), "'object'")])
def test_an_optimizer_of_another_library_is_refused_with_the_way_that_works(given, shown):
    words = rf"optimizer = {shown} is not an optimizer of the server; pass .*asgd\.optimizers\.torch\(\"AdamW\"\)"
    with pytest.raises(BadParameter, match=words):
        asgd.async_sgd(0.1).using(optimizer=given)


def test_recipes_remain_what_they_were() -> None:
    for name, recipe in RECIPES.items():
        assert recipe.__name__ == name
        assert pickle.loads(pickle.dumps(recipe)) is recipe
        assert "options" not in inspect.signature(recipe).parameters
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'stepsize'"):
        asgd.async_sgd()  # type: ignore[call-arg]
    with pytest.raises(asgd.errors.BadParameter, match=r"adadelay.*lambda stepsize"):
        asgd.sweep(asgd.tasks.quadratic(workers=1), asgd.methods.adadelay, asgd.durations.fixed([1.0]), stepsizes=[0.1])


def decaying(t: int) -> float:
    return 0.1 / (1 + t)


@pytest.mark.parametrize("name", STEPPED)
def test_a_step_that_is_a_function_points_to_the_way_that_works(name: str) -> None:
    with pytest.raises(BadParameter, match=r"^stepsize = <function decaying.*> is a function; pass a number") as caught:
        RECIPES[name](stepsize=decaying, **needed(RECIPES[name]))
    assert "or a schedule: asgd.schedules.custom(function)" in str(caught.value)


def test_the_way_that_works() -> None:
    method = asgd.async_sgd(asgd.schedules.custom(decaying))
    run = asgd.simulate(asgd.tasks.quadratic(workers=2), method, asgd.durations.fixed([1.0, 2.0]), iterations=5)
    assert run.trace.step == pytest.approx([decaying(t) for t in range(5)])


@pytest.mark.parametrize("step", [np.array([0.1]), np.array(0.1), [0.1]])
def test_a_step_in_an_array_is_refused(step: Any) -> None:
    with pytest.raises(BadParameter, match="must be a positive finite number"):
        asgd.async_sgd(step)
