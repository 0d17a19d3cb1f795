"""Naive twins of the methods for workers far apart: DiLoCo, asynchronous and decoupled DiLoCo, look-ahead."""

from dataclasses import replace
from functools import partial

from core.twins import dispatch as rule
from core.twins.ledger import Twin
from core.twins.methods import AsyncSGD, Buffered, DelayAdaptive, add_up
from core.twins.optimizers import Momentum, MomentumSGD

from asyncsgd import methods as m
from asyncsgd import optimizers as ours


class DiLoCo(Momentum, Buffered):
    """Δ = the mean of K updates; m ← β m + Δ; x ← x - η (Δ + β m)."""

    nesterov = True

    def receive(self, g, a):
        return self.keep(1.0, g)


class DelayedNesterovStep(Twin):
    """B ← B + g; every N-th time m ← β m + B/N, B ← 0.

    x ← x - η (share β m + g/N), where the share is c in between, and 1 - cN + c at the N-th one.
    """

    def start(self):
        self.m = [self.number(0.0)] * len(self.x)
        self.bucket = []

    def descend(self, step, d):
        number, n, c = self.number, self.N, self.c
        share = c
        self.bucket.append(d)
        if len(self.bucket) == n:
            share = 1 - c * n + c if n > 1 else 1.0
            total, self.bucket = add_up([[number(0.0)] * len(d), *self.bucket]), []
            self.m = [number(self.beta) * m + b / number(n) for m, b in zip(self.m, total, strict=True)]
        move = [value / number(n) for value in d]
        if share:
            move = [number(share * self.beta) * m + value for m, value in zip(self.m, move, strict=True)]
        super().descend(step, move)


class DelayedNesterov(DelayedNesterovStep, AsyncSGD):
    pass


class DelayedNesterovAdaptive(DelayedNesterovStep, DelayAdaptive):
    pass


class Decoupled(Momentum):
    """Δ_i = x - x_i for the present x; after K arrivals Δ = Σ u_i Δ_i / Σ u_i, then Nesterov.

    u = examples · examples/steps, or the steps if the examples are unknown.
    """

    nesterov = True

    def start(self):
        self.held = []

    def receive(self, g, a):
        u = float(a.steps) if a.examples is None else a.examples * (a.examples / a.steps)
        delta = [d + (x - y) for d, x, y in zip(g, self.x, a.point, strict=True)]
        self.held.append((u, [self.number(u) * value for value in delta]))
        if len(self.held) == self.K:
            weight, total = 0.0, add_up([delta for _, delta in self.held])
            for u, _ in self.held:
                weight = weight + u
            self.held = []
            self.descend(self.eta, [value / self.number(weight or 1.0) for value in total])
        return self.eta / self.K


class LookAhead(Twin):
    """m ← γ m + (1-γ) g; θ ← θ - η (g + γ m). Workers get θ, or with ``ahead`` θ - η γ m; the output is θ."""

    def start(self):
        self.m = [self.number(0.0)] * len(self.x)
        self.model = list(self.x)

    @property
    def output(self):
        return self.model

    def receive(self, g, a):
        gamma, rest, eta = self.number(self.gamma), self.number(1 - self.gamma), self.number(self.eta)
        self.m = [gamma * m + rest * value for m, value in zip(self.m, g, strict=True)]
        self.model = [x - eta * (v + gamma * m) for x, v, m in zip(self.model, g, self.m, strict=True)]
        if self.ahead:
            self.become([x - eta * (gamma * m) for x, m in zip(self.model, self.m, strict=True)])
        else:
            self.become(list(self.model))
        return self.eta


def short(method, steps=2):
    """The same method with few local steps, which would warn if a user asked for them."""
    return method.using(work=replace(method.work, steps=steps))


# name: (method, twin class, its numbers, naive dispatch), as in test_twins.py
CASES = {
    "diloco": (
        short(m.diloco(0.7)).bind(workers=3),
        DiLoCo,
        {"eta": 0.7, "K": 3, "beta": 0.9},
        rule.Batch,
    ),
    "async_diloco": (
        short(m.async_diloco(0.7, per_worker=None)).bind(workers=4),
        DelayedNesterov,
        {"eta": 0.7, "beta": 0.9, "N": 4, "c": 0.0},
        rule.AlwaysBusy,
    ),
    "async_diloco, activation": (
        short(m.async_diloco(0.7, every=3, activation=0.2, momentum=0.5, per_worker=None)),
        DelayedNesterov,
        {"eta": 0.7, "beta": 0.5, "N": 3, "c": 0.2},
        rule.AlwaysBusy,
    ),
    "decoupled_diloco": (
        short(m.decoupled_diloco(0.7, quorum=3)),
        Decoupled,
        {"eta": 0.7, "K": 3, "beta": 0.9},
        rule.AlwaysBusy,
    ),
    "delayed nesterov, one": (
        m.async_sgd(0.1).using(optimizer=ours.delayed_nesterov(0.8, every=1)),
        MomentumSGD,
        {"eta": 0.1, "beta": 0.8, "nesterov": True},
        rule.AlwaysBusy,
    ),
    "delayed nesterov": (
        m.delay_adaptive(0.1).using(optimizer=ours.delayed_nesterov(0.8, every=4, activation=0.1)),
        DelayedNesterovAdaptive,
        {"eta": 0.1, "beta": 0.8, "N": 4, "c": 0.1, "rule": "scale"},
        rule.AlwaysBusy,
    ),
    "look-ahead": (
        m.async_sgd(0.1).using(optimizer=ours.look_ahead(0.8)),
        LookAhead,
        {"eta": 0.1, "gamma": 0.8, "ahead": False},
        rule.AlwaysBusy,
    ),
    "look-ahead, ahead": (
        m.async_sgd(0.1, concurrency=3).using(optimizer=ours.look_ahead(0.8, ahead=True)),
        LookAhead,
        {"eta": 0.1, "gamma": 0.8, "ahead": True},
        partial(rule.AlwaysBusy, concurrency=3),
    ),
    "look-ahead of zero": (
        m.async_sgd(0.1).using(optimizer=ours.look_ahead(0.0)),
        AsyncSGD,
        {"eta": 0.1},
        rule.AlwaysBusy,
    ),
}
