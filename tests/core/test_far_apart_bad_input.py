"""What the methods for workers far apart refuse, and what they warn of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd import compression, methods, optimizers
from asyncsgd.core.errors import BadParameter, LocalWorkWarning
from asyncsgd.core.outer_optimizers import DelayedNesterov, Muon
from asyncsgd.core.work import LocalSteps

NAN = float("nan")
NO_COUNT = [0, -1, 1.5, 2.0, NAN, "2", True]
NO_STEP = [-0.1, 0, NAN, float("inf"), "0.1", None, True]
NO_FRACTION = [1, 1.5, -0.1, NAN, "0.5", True, None]
LAYOUT = (("weight", 0, (2, 3)), ("bias", 6, (2,)))

# name of the parameter, good value, bad values, how it is passed
PARAMETERS: list[tuple[str, Any, list[Any], Callable[[Any], Any]]] = [
    ("steps", 20, [*NO_COUNT, None], lambda value: methods.diloco(steps=value)),
    ("steps", 20, [*NO_COUNT, None], lambda value: methods.async_diloco(steps=value)),
    ("steps", 20, [*NO_COUNT, None], lambda value: methods.decoupled_diloco(steps=value)),
    ("inner_stepsize", 0.1, NO_STEP, lambda value: methods.diloco(inner_stepsize=value)),
    ("inner_stepsize", 0.1, NO_STEP, lambda value: methods.async_diloco(inner_stepsize=value)),
    ("inner_stepsize", 0.1, NO_STEP, lambda value: methods.decoupled_diloco(inner_stepsize=value)),
    ("momentum", 0, NO_FRACTION, lambda value: methods.diloco(momentum=value)),
    ("momentum", 0, NO_FRACTION, lambda value: methods.async_diloco(momentum=value)),
    ("momentum", 0, NO_FRACTION, lambda value: methods.decoupled_diloco(momentum=value)),
    ("quorum", None, NO_COUNT, lambda value: methods.decoupled_diloco(quorum=value)),
    ("every", None, NO_COUNT, lambda value: methods.async_diloco(every=value)),
    ("every", 3, NO_COUNT, lambda value: optimizers.delayed_nesterov(every=value)),
    ("activation", 0.25, [-0.01, 0.26, NAN, "0", None, True], lambda value: DelayedNesterov(0.9, 4, value)),
    ("activation", 1.0, [-0.01, 1.01, NAN], lambda value: optimizers.delayed_nesterov(activation=value)),
    ("activation", 0.25, [0.26, 1.0], lambda value: methods.async_diloco(activation=value).bind(workers=4)),
    ("beta", 0.5, NO_FRACTION, optimizers.delayed_nesterov),
    ("gamma", 0.5, NO_FRACTION, optimizers.look_ahead),
    ("beta", 0.5, NO_FRACTION, optimizers.muon),
    ("others", ("head",), [3, None, ("",), (1,)], lambda value: optimizers.muon(others=value)),
    ("muon", ("head",), [("weight",)], lambda value: optimizers.muon(others=value).bind_layout(LAYOUT)),
    ("muon", LAYOUT, [None, LAYOUT[1:]], lambda value: optimizers.muon().bind_layout(value)),
    ("muon", ((0, 1, 2),), [None], lambda value: Muon(matrices=value).init(np.zeros(2))),
    ("every", 1, [None], lambda value: DelayedNesterov(every=value).init(np.zeros(2))),
    ("state", "kept", ["lost", "", None, 1], lambda value: LocalSteps(2, 0.1, state=value)),
    ("optimizer", optimizers.adamw(), [None, "adamw", 3], lambda value: LocalSteps(2, 0.1, optimizer=value)),
    (
        "optimizer", optimizers.momentum(),
        [
            optimizers.delayed_nesterov(), optimizers.look_ahead(),
            methods.delayed_average(0.1).optimizer, methods.adadelay(smoothness=1.0, coordinates=True).optimizer,
        ],
        lambda value: methods.async_sgd(0.1).local(2, 0.1, optimizer=value),
    ),
    ("clip", None, [0, -1.0, NAN, "1"], lambda value: LocalSteps(2, 0.1, clip=value)),
    ("scaled", False, [True], lambda value: LocalSteps(2, 0.1, value, optimizer=optimizers.adamw())),
    ("scaled", False, [True], lambda value: LocalSteps(2, asgd.schedules.linear(0.1), value)),
    (
        "per_worker", "speed",
        [3, "slow", "", [2, 0], [2.0, 1], (True,), {0: 3}],
        lambda value: methods.async_diloco(per_worker=value),
    ),
    (
        "per_worker", np.array([20, 30, 20]),
        [[20, 30], [20, 30, 20, 20], []],
        lambda value: methods.async_diloco(per_worker=value).bind(workers=3),
    ),
    ("fraction", 1, [0, 0.0, -0.1, 1.01, NAN, "0.1", None, True], compression.top_k),
    ("decay", 0, [-0.1, 1.01, NAN, "1", None], lambda value: compression.top_k(0.1, decay=value)),
    ("block", 1, [*NO_COUNT, None], compression.int4),
    ("down", "int8", ["top_k", "int9", 3], lambda value: methods.diloco().compressed("int4", down=value)),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(PARAMETERS)), ids=lambda k: f"{k}-{PARAMETERS[k][0]}")
def test_impossible_hyper_parameter(place: int) -> None:
    name, good, bad, make = PARAMETERS[place]
    make(good)
    for value in bad:
        with pytest.raises(BadParameter) as caught:
            make(value)
        error = caught.value
        assert error.name == name, f"{value!r} was blamed on {error.name}"
        assert error.fix, "no fix"
        assert str(error).endswith(f"; {error.fix}")


def test_an_activation_that_fits_only_few_workers_names_the_limit() -> None:
    with pytest.raises(BadParameter, match=r"^activation = 0.3 must lie in \[0, 1/4\]; pass 0 <= activation <= 1/4$"):
        methods.async_diloco(activation=0.3).bind(workers=4)
    assert methods.async_diloco(activation=0.3).bind(workers=3).optimizer == DelayedNesterov(0.9, 3, 0.3)


def test_noise_and_compression_are_refused_together() -> None:
    base, reason = methods.fedbuff(0.1, concurrency=2), "cannot be together with compression: what a worker could not"
    with pytest.raises(BadParameter, match=reason):
        base.clipped(1.0, noise=0.5).compressed("int8")
    with pytest.raises(BadParameter, match=reason):
        base.compressed("int8").clipped(1.0, noise=0.5)
    base.clipped(1.0, noise=0.5).compressed(down="bfloat16")  # the model is public anyway


@pytest.mark.parametrize("name", ["diloco", "async_diloco", "decoupled_diloco"])
def test_few_steps_of_a_fresh_adam_are_warned_of(name: str) -> None:
    with pytest.warns(LocalWorkWarning, match=r"steps = 19 of an Adam that starts afresh .* take 20 or more"):
        getattr(methods, name)(steps=19)
    assert getattr(methods, name)(steps=20).work.steps == 20  # a warning would be an error here
    kept = getattr(methods, name)().local(5, 0.1, optimizer=optimizers.adamw(), state="kept")
    assert kept.work.keeps


def test_few_steps_of_one_worker_are_warned_of() -> None:
    with pytest.warns(LocalWorkWarning, match="steps = 5 of an Adam"):
        methods.async_sgd(1.0).local(50, 0.1, optimizer=optimizers.adamw(), per_worker=[50, 5])
    pytest.importorskip("torch")
    with pytest.warns(LocalWorkWarning, match="steps = 5 of an Adam"):
        methods.async_sgd(1.0).local(5, 0.1, optimizer=optimizers.torch("AdamW"))
    methods.async_sgd(1.0).local(5, 0.1, optimizer=optimizers.torch("SGD", momentum=0.9))


def test_torchs_muon_points_to_ours() -> None:
    pytest.importorskip("torch")
    with pytest.raises(BadParameter, match=r"use asgd.optimizers.muon\(\)"):
        optimizers.torch("Muon")
