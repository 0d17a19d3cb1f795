"""Every recipe against its naive twin, bit for bit, after every event of random sequences."""

import random
from functools import partial

import numpy as np
import pytest
from core.twins import dispatch as rule
from core.twins import far_apart, federated, optimizers, successors
from core.twins import methods as twin
from core.twins.run import side_by_side
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from markers import examples

from asyncsgd import methods as m
from asyncsgd import optimizers as ours
from asyncsgd.core.dispatch import AlwaysBusy, Shuffled
from asyncsgd.core.steps import Custom


def always_busy(**options):
    return partial(rule.AlwaysBusy, **options)


def uniform(concurrency, **options):
    return partial(rule.Uniform, concurrency=concurrency, **options)


def custom(a):
    """Works for the server's Arrival and for the twin's: both call the delay and |C_t| differently."""
    delay = a.delay if hasattr(a, "delay") else a.tau
    return 0.0 if delay % 4 == 3 else 0.9**delay * (1 + a.worker) / a.concurrency


BUSY = always_busy()
FIXED = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8}

# name: (method, twin class, its numbers, naive dispatch[, size of the large coordinates])
CASES = {
    "async_sgd": (m.async_sgd(0.1), twin.AsyncSGD, {"eta": 0.1}, BUSY),
    "async_sgd, 2 at once": (m.async_sgd(0.1, concurrency=2), twin.AsyncSGD, {"eta": 0.1}, always_busy(concurrency=2)),
    "async_sgd, early": (
        m.async_sgd(0.1).using(dispatch=AlwaysBusy(sample_early=True)),
        twin.AsyncSGD,
        {"eta": 0.1},
        always_busy(early=True),
    ),
    "async_sgd, 3 at once, early, restart": (
        m.async_sgd(0.1).using(dispatch=AlwaysBusy(3, restart=2, sample_early=True)),
        twin.AsyncSGD,
        {"eta": 0.1},
        always_busy(concurrency=3, restart=2, early=True),
    ),
    "minibatch_sgd": (m.minibatch_sgd(0.3), twin.MinibatchSGD, {"eta": 0.3}, rule.Batch),
    "delay_adaptive, scale": (m.delay_adaptive(0.7), twin.DelayAdaptive, {"eta": 0.7, "rule": "scale"}, BUSY),
    "delay_adaptive, drop": (
        m.delay_adaptive(0.7, rule="drop"),
        twin.DelayAdaptive,
        {"eta": 0.7, "rule": "drop"},
        BUSY,
    ),
    "delay_adaptive, drop above 2": (
        m.delay_adaptive(0.7, rule="drop", threshold=2),
        twin.DelayAdaptive,
        {"eta": 0.7, "rule": "drop", "threshold": 2},
        BUSY,
    ),
    "delay_adaptive, drop above 2.5, 3 at once": (
        m.delay_adaptive(0.7, rule="drop", threshold=2.5, concurrency=3),
        twin.DelayAdaptive,
        {"eta": 0.7, "rule": "drop", "threshold": 2.5},
        always_busy(concurrency=3),
    ),
    "delay_adaptive, divide": (
        m.delay_adaptive(0.7, rule="divide"),
        twin.DelayAdaptive,
        {"eta": 0.7, "rule": "divide"},
        BUSY,
    ),
    "federated_async_sgd": (
        m.federated_async_sgd(0.1, concurrency=5),
        twin.FederatedAsyncSGD,
        {"eta": 0.1},
        uniform(5),
    ),
    "federated_async_sgd, early": (
        m.federated_async_sgd(0.1, concurrency=4, early=True),
        twin.FederatedAsyncSGD,
        {"eta": 0.1},
        uniform(4, early=True),
    ),
    "shuffled_async_sgd": (
        m.federated_async_sgd(0.1, concurrency=4, order="shuffled"),
        twin.ShuffledAsyncSGD,
        {"eta": 0.1},
        partial(rule.Shuffled, concurrency=4),
    ),
    "shuffled mishchenko": (
        m.delay_adaptive(0.1, rule="workers").using(dispatch=Shuffled(7)),
        twin.Mishchenko,
        {"eta": 0.1},
        partial(rule.Shuffled, concurrency=7),
    ),
    "local_sgd": (
        m.async_sgd(1.0).local(3, 0.05),
        twin.LocalSGD,
        {"eta": 1.0},
        BUSY,
    ),
    "local_sgd, scaled": (
        m.async_sgd(0.1, concurrency=3).local(4, 0.07, scaled=True),
        twin.LocalSGD,
        {"eta": 0.1},
        always_busy(concurrency=3),
    ),
    "fedbuff": (m.fedbuff(0.5, concurrency=6, buffer=3), twin.FedBuff, {"eta": 0.5, "K": 3}, uniform(6)),
    "fedbuff of ten": (m.fedbuff(0.5, concurrency=8), twin.FedBuff, {"eta": 0.5, "K": 10}, uniform(8)),
    "fedbuff, local steps, clip": (
        m.fedbuff(0.5, concurrency=6, buffer=3).local(2, 0.2).clipped(0.4),
        twin.FedBuff,
        {"eta": 0.5, "K": 3, "clip": 0.4},
        uniform(6),
    ),
    "fedbuff, clip, noise": (
        m.fedbuff(0.5, concurrency=6, buffer=2).clipped(0.9, noise=1.3),
        twin.FedBuff,
        {"eta": 0.5, "K": 2, "clip": 0.9, "z": 1.3},
        uniform(6),
    ),
    "over_selection": (
        m.fedavg(0.5, clients=3, ask=4),
        twin.OverSelection,
        {"eta": 0.5, "goal": 3},
        partial(rule.FirstOf, goal=3, ask=4),
    ),
    "over_selection, goal 1, ask 4": (
        m.fedavg(0.5, clients=1, ask=4),
        twin.OverSelection,
        {"eta": 0.5, "goal": 1},
        partial(rule.FirstOf, goal=1, ask=4),
    ),
    "over_selection, ask = goal": (
        m.fedavg(0.5, clients=4),
        twin.OverSelection,
        {"eta": 0.5, "goal": 4},
        partial(rule.FirstOf, goal=4, ask=4),
    ),
    "clipped async_sgd": (
        m.async_sgd(0.1).clipped(0.8),
        twin.clipped(twin.AsyncSGD),
        {"eta": 0.1, "G": 0.8},
        BUSY,
    ),
    "clipped async_sgd, noise": (
        m.async_sgd(0.1).clipped(0.8, noise=0.5),
        twin.NoisySGD,
        {"eta": 0.1, "G": 0.8, "z": 0.5},
        BUSY,
    ),
    "clipped delay_adaptive, drop": (
        m.delay_adaptive(0.1, rule="drop", threshold=3).clipped(0.8),
        twin.clipped(twin.DelayAdaptive),
        {"eta": 0.1, "rule": "drop", "threshold": 3, "G": 0.8},
        BUSY,
    ),
    "clipped mifa": (m.mifa(0.1).clipped(0.8), twin.clipped(twin.MIFA), {"eta": 0.1, "G": 0.8}, BUSY),
    "picky_sgd": (m.picky_sgd(0.1, threshold=0.3), twin.PickySGD, {"eta": 0.1, "threshold": 0.3}, BUSY),
    "adadelay": (m.adadelay(smoothness=1.5, c=0.7), twin.AdaDelay, {"eta": 1.0, "L": 1.5, "c": 0.7}, BUSY),
    "adadelay, coordinates": (
        m.adadelay(smoothness=1.5, coordinates=True, stepsize=0.8),
        twin.AdaDelayCoordinates,
        {"eta": 0.8, "L": 1.5},
        BUSY,
    ),
    "staleness_aware": (
        m.staleness_aware(0.1),
        twin.StalenessAware,
        {"eta": 0.1, "n": 5, "m": 5},
        BUSY,
    ),
    "staleness_aware, 2 splits of 5": (
        m.staleness_aware(0.1, splits=2).bind(5),
        twin.StalenessAware,
        {"eta": 0.1, "n": 5, "m": 2},
        BUSY,
    ),
    "dc_asgd": (m.dc_asgd(0.01), twin.DCASGD, {"eta": 0.01, "strength": 0.04, "adaptive": False}, BUSY, 30.0),
    "dc_asgd, adaptive": (
        m.dc_asgd(0.01, adaptive=True),
        twin.DCASGD,
        {"eta": 0.01, "strength": 2.0, "adaptive": True},
        BUSY,
        30.0,
    ),
    "dc_asgd, stronger": (
        m.dc_asgd(0.01, strength=0.3),
        twin.DCASGD,
        {"eta": 0.01, "strength": 0.3, "adaptive": False},
        BUSY,
        30.0,
    ),
    "delayed_average": (m.delayed_average(0.1), twin.DelayedAverage, {"eta": 0.1, "weights": "uniform"}, BUSY),
    "delayed_average, linear": (
        m.delayed_average(0.1, weights="linear"),
        twin.DelayedAverage,
        {"eta": 0.1, "weights": "linear"},
        BUSY,
    ),
    "mifa": (m.mifa(0.1), twin.MIFA, {"eta": 0.1}, BUSY),
    "mifa, uniform": (
        m.mifa(0.1).using(dispatch=m.fedbuff(1.0, concurrency=4).dispatch),
        twin.MIFA,
        {"eta": 0.1},
        uniform(4),
    ),
    "mishchenko": (m.delay_adaptive(0.1, rule="workers"), twin.Mishchenko, {"eta": 0.1}, BUSY),
    "fedasync, constant": (
        m.fedasync(0.6, concurrency=5, weighting="constant").local(2, 0.1),
        successors.FedAsync,
        {"alpha": 0.6, "weighting": "constant"},
        uniform(5),
    ),
    "fedasync, polynomial, proximal": (
        m.fedasync(0.6, concurrency=5).local(3, 0.1, proximal=0.3),
        successors.FedAsync,
        {"alpha": 0.6, "weighting": "polynomial"},
        uniform(5),
    ),
    "fedasync, hinge": (
        m.fedasync(0.9, concurrency=12, weighting="hinge").local(1, 0.1),
        successors.FedAsync,
        {"alpha": 0.9, "weighting": "hinge"},
        uniform(12),
    ),
    "rennala": (m.rennala(0.4, batch=4), successors.Rennala, {"eta": 0.4, "B": 4}, BUSY),
    "rennala of one": (m.rennala(0.4, batch=1), successors.Rennala, {"eta": 0.4, "B": 1}, BUSY),
    "ringmaster": (m.ringmaster(0.4, limit=3), successors.Ringmaster, {"eta": 0.4, "R": 3}, BUSY),
    "ringmaster, stops": (
        m.ringmaster(0.4, limit=3, stops=True),
        successors.Ringmaster,
        {"eta": 0.4, "R": 3},
        always_busy(restart=3),
    ),
    "ringmaster of one, stops": (
        m.ringmaster(0.4, limit=1, stops=True),
        successors.Ringmaster,
        {"eta": 0.4, "R": 1},
        always_busy(restart=1),
    ),
    "momentum": (
        m.async_sgd(0.1).using(optimizer=ours.momentum(0.8)),
        optimizers.MomentumSGD,
        {"eta": 0.1, "beta": 0.8, "nesterov": False},
        BUSY,
    ),
    "momentum, nesterov": (
        m.async_sgd(0.1).using(optimizer=ours.momentum(0.8, nesterov=True)),
        optimizers.MomentumSGD,
        {"eta": 0.1, "beta": 0.8, "nesterov": True},
        BUSY,
    ),
    "momentum, fedbuff": (
        m.fedbuff(0.5, concurrency=6, buffer=2).using(optimizer=ours.momentum(0.8)),
        optimizers.MomentumFedBuff,
        {"eta": 0.5, "K": 2, "beta": 0.8, "nesterov": False},
        uniform(6),
    ),
    "adam": (
        m.async_sgd(0.1).using(optimizer=ours.adamw()),
        optimizers.AdamSGD,
        {"eta": 0.1, **FIXED, "amsgrad": False},
        BUSY,
    ),
    "adam, amsgrad": (
        m.async_sgd(0.1).using(optimizer=ours.adamw(0.5, 0.7, epsilon=1e-3, amsgrad=True)),
        optimizers.AdamSGD,
        {"eta": 0.1, "beta1": 0.5, "beta2": 0.7, "epsilon": 1e-3, "amsgrad": True},
        BUSY,
    ),
    "adamw": (
        m.async_sgd(0.1).using(optimizer=ours.adamw(weight_decay=0.5)),
        optimizers.AdamSGD,
        {"eta": 0.1, **FIXED, "amsgrad": False, "decay": 0.5},
        BUSY,
    ),
    "adamw, excluded, delay_adaptive": (
        m.delay_adaptive(0.7)
        .using(optimizer=ours.adamw(weight_decay=0.5, exclude="bias", amsgrad=True))
        .bind_layout((("bias", 0, ()), ("weight", 1, (3,)))),
        optimizers.AdamDelayAdaptive,
        {"eta": 0.7, "rule": "scale", **FIXED, "amsgrad": True, "decay": 0.5, "spared": (0,)},
        BUSY,
    ),
    "adam, fedbuff": (
        m.fedbuff(0.5, concurrency=6, buffer=2).using(optimizer=ours.adamw(amsgrad=True)),
        optimizers.AdamFedBuff,
        {"eta": 0.5, "K": 2, **FIXED, "amsgrad": True},
        uniform(6),
    ),
    "adam, rennala": (
        m.rennala(0.4, batch=3).using(optimizer=ours.adamw()),
        optimizers.AdamRennala,
        {"eta": 0.4, "B": 3, **FIXED, "amsgrad": False},
        BUSY,
    ),
    "adam, mifa": (
        m.mifa(0.1).using(optimizer=ours.adamw()),
        optimizers.AdamMIFA,
        {"eta": 0.1, **FIXED, "amsgrad": False},
        BUSY,
    ),
    "momentum, mifa": (
        m.mifa(0.1).using(optimizer=ours.momentum(0.8, nesterov=True)),
        optimizers.MomentumMIFA,
        {"eta": 0.1, "beta": 0.8, "nesterov": True},
        BUSY,
    ),
    "adam, delay_adaptive": (
        m.delay_adaptive(0.7).using(optimizer=ours.adamw()),
        optimizers.AdamDelayAdaptive,
        {"eta": 0.7, "rule": "scale", **FIXED, "amsgrad": False},
        BUSY,
    ),
    "custom step": (
        m.async_sgd(0.1).using(step=Custom(0.2, custom)),
        twin.CustomStep,
        {"eta": 0.2, "rule": custom},
        BUSY,
    ),
    **far_apart.CASES,
    **federated.CASES,
}
IN_FLOAT32 = [
    "async_sgd", "async_sgd, 2 at once", "federated_async_sgd, early", "minibatch_sgd", "delay_adaptive, scale",
    "fedbuff", "fedbuff, clip, noise", "clipped async_sgd", "rennala", "momentum", "momentum, nesterov",
    "momentum, fedbuff", "adam", "adamw", "adamw, excluded, delay_adaptive", "adam, fedbuff", "delayed nesterov",
    "look-ahead", "look-ahead, ahead", *federated.IN_FLOAT32,
]  # fmt: skip

SCRIPTS = st.lists(st.tuples(st.integers(0, 17), st.integers(0, 999), st.integers(0, 999)), max_size=70)


def play(name, script, *, seed=0, **options):
    method, cls, numbers, make_dispatch, *large = CASES[name]

    def make_twin(x, seed, number):
        return cls(x, make_dispatch(seed), seed, number, **numbers)

    if large:
        options.setdefault("large", large[0])
    return side_by_side(method, make_twin, script, seed=seed, **options)


def long_script(seed, length):
    """Mostly arrivals; somebody joins, leaves or loses a job every twentieth event or so.

    Every fiftieth event the steps change or the server drains; four events later it hands out jobs again.
    """
    draw = random.Random(seed)
    script = [
        (draw.choice([12, 12, 13, 14, 15]) if draw.random() < 0.06 else 0, draw.randrange(1000), draw.randrange(10**6))
        for _ in range(length)
    ]
    for place in range(50, length - 4, 50):
        script[place : place + 5 : 4] = (16, seed, 4 * place + 2), (16, 0, 0)
        script[place + 2] = 17, 0, place
    return script


@pytest.mark.parametrize("name", CASES)
@examples(30, database=None, suppress_health_check=list(HealthCheck))
@given(script=SCRIPTS, start=st.integers(1, 6), dim=st.integers(1, 4), seed=st.integers(0, 2**64 - 1))
def test_a_recipe_equals_its_twin(name, script, start, dim, seed):
    play(name, script, start=start, dim=dim, seed=seed)


@pytest.mark.parametrize("name", CASES)
def test_a_recipe_equals_its_twin_in_a_long_run(name):
    """Long enough for large delays, full buffers and many rounds; one run each with 3 and with 8 workers.

    Saved and restored on the way, the server still goes on with the same bits.
    """
    for start in (3, 8):
        server, _ = play(name, long_script(start, 250), start=start, dim=2, seed=start, restore_every=83)
        assert server.version > 5


@pytest.mark.parametrize("name", IN_FLOAT32)
def test_a_float32_model_equals_its_twin(name):
    for seed in range(3):
        server, _ = play(name, long_script(seed, 120), start=4, dim=3, seed=seed, dtype=np.float32, large=1e3)
        assert server.x.dtype == np.float32


@pytest.mark.parametrize("name", ["clipped async_sgd", "picky_sgd", "fedbuff, clip, noise", "clipped mifa"])
@pytest.mark.parametrize("dim", [1023, 1025, 2500])
def test_methods_with_a_norm_equal_their_twins_on_long_vectors(name, dim):
    play(name, long_script(dim, 25), start=4, dim=dim, seed=1, large=10.0)
