"""One naive class per recipe, in the order of `asyncsgd.methods`; each formula stands in the class's docstring.

Coordinates are plain Python floats (IEEE doubles) in lists. Where a formula may be rounded in two orders, the twin
takes the one the parts' docstrings show: η_t = η · weight; a mean is a sum, one after the other, divided by its number.
An optimizer (`optimizers.py`) stands where the formula has "x ← x - η d", and gets that d and that η.
"""

import math

import numpy as np
from core.twins.ledger import Twin, norm

from asyncsgd.core.random import derive

# ---------------------------------------------------------------------------------------- the paper's own


class AsyncSGD(Twin):
    """x ← x - η g."""

    def receive(self, g, a):
        self.descend(self.eta, g)
        return self.eta


class MinibatchSGD(AsyncSGD):
    """The same rule: Example 1 differs in who works when."""


class FederatedAsyncSGD(AsyncSGD):
    """The same rule: Algorithm 2 differs in who works when."""


class ShuffledAsyncSGD(AsyncSGD):
    """The same rule along random orders."""


class LocalSGD(AsyncSGD):
    """The same rule; the update is what Q local steps moved."""


class DelayAdaptive(Twin):
    """η_t = η min(1, τ_C/τ); or 0 above the threshold (2 τ_C); or η/τ above τ_C."""

    threshold = None

    def weight(self, a):
        if self.rule == "scale":
            return 1.0 if a.tau == 0 else min(1.0, a.tau_c / a.tau)
        if self.rule == "drop":
            threshold = 2 * a.tau_c if self.threshold is None else self.threshold
            return 0.0 if a.tau > threshold else 1.0
        return 1.0 / a.tau if a.tau > a.tau_c else 1.0

    def receive(self, g, a):
        weight = self.weight(a)
        if weight == 0.0:
            return None
        self.descend(self.eta * weight, g)
        return self.eta * weight


# ---------------------------------------------------------------------------------------- extensions it names


class Buffered(Twin):
    """After K arrivals Δ = (Σ w_i g_i + noise)/K and x ← x - η Δ, then an empty buffer (FedBuff's Algorithm 1)."""

    sigma = 0.0

    def start(self):
        self.buffer = []

    def keep(self, weight, g):
        factor = self.number(weight)
        self.buffer.append([factor * value for value in g])
        if len(self.buffer) == self.K:
            total, self.buffer = add_up(self.buffer), []
            if self.sigma:
                for i, z in enumerate(self.draw_noise(len(total))):
                    total[i] = total[i] + self.number(self.sigma * z)
            self.descend(self.eta, [value / self.number(self.K) for value in total])
        return self.eta * weight / self.K

    def draw_noise(self, n):
        """The one thing shared with the implementation: N(0, 1), seeded by (run, version)."""
        key = derive(derive(self.seed), 0x4015E, self.version)
        return [float(z) for z in np.random.Generator(np.random.Philox(key=key)).standard_normal(n)]


class FedBuff(Buffered):
    """w(s) = 1/√(1+s); Δ clipped to norm G, N(0, (zG)²) on the sum."""

    clip = None
    z = 0.0

    def receive(self, g, a):
        if self.clip is not None:
            g = clip(g, self.clip)
            self.sigma = self.z * self.clip
        return self.keep(1.0 / math.sqrt(1 + a.staleness), g)


def add_up(vectors):
    """Their sum, one after the other (the built-in sum compensates from Python 3.12 on)."""
    total = list(vectors[0])
    for vector in vectors[1:]:
        for i, value in enumerate(vector):
            total[i] = total[i] + value
    return total


def average(vectors):
    """Their mean, coordinate by coordinate."""
    return [value / type(value)(len(vectors)) for value in add_up(vectors)]


class OverSelection(Twin):
    """x ← x - η · mean of the first ``goal`` updates of the round; all of a round are computed at the same x."""

    def start(self):
        self.round = []

    def receive(self, g, a):
        assert a.staleness == 0, "an update of an earlier round came in"
        self.round.append(g)
        if len(self.round) == self.goal:
            mean, self.round = average(self.round), []
            self.descend(self.eta, mean)
        return self.eta / self.goal


def clip(g, bound):
    """g · min(1, G/‖g‖)."""
    length = norm(g)
    if length <= bound:
        return g
    scale = type(g[0])(bound / length)
    return [value * scale for value in g]


def clipped(twin):
    """The twin of a method with every update clipped to ``G`` first."""

    class Clipped(twin):
        def receive(self, g, a):
            return super().receive(clip(g, self.G), a)

    return Clipped


class NoisySGD(Buffered):
    """x ← x - η (clip(g) + N(0, (zG)²)): a buffer of one."""

    K = 1

    def receive(self, g, a):
        self.sigma = self.z * self.G
        return self.keep(1.0, clip(g, self.G))


# ---------------------------------------------------------------------------------------- related work it names


class PickySGD(Twin):
    """Apply iff ‖x_t - x_{t-τ}‖ <= threshold."""

    def receive(self, g, a):
        if norm([x - y for x, y in zip(self.x, a.point, strict=True)]) > self.threshold:
            return None
        self.descend(self.eta, g)
        return self.eta


class Averaged(Twin):
    """The answer is the mean of the versions x^(1), x^(2), ..., recomputed from all of them every time."""

    @property
    def output(self):
        mean = list(self.versions[0])
        for k, x in enumerate(self.versions[1:], start=1):
            mean = [m + (value - m) / k for m, value in zip(mean, x, strict=True)]
        return mean


class AdaDelay(Averaged):
    """η_t = η/(L + c √(t+τ)), t from 1."""

    def receive(self, g, a):
        step = self.eta * (1.0 / (self.L + self.c * math.sqrt(a.t + 1 + a.tau)))
        self.descend(step, g)
        return step


class AdaDelayCoordinates(Averaged):
    """x_j ← x_j - η g_j/(L + c_j √(t+τ)), c_j = √(mean over i = 1..t of i/(i+τ_i) g_ij²)."""

    def start(self):
        self.past = []

    def receive(self, g, a):
        t = a.t + 1
        self.past.append((t, a.tau, g))
        new = []
        for j, x in enumerate(self.x):
            total = 0.0
            for i, tau, old in self.past:
                total = total + (i / (i + tau)) * old[j] * old[j]
            c = math.sqrt(total / t)
            new.append(x - self.eta * (g[j] / (self.L + c * math.sqrt(t + a.tau))))
        self.become(new)
        return self.eta


class StalenessAware(Buffered):
    """After c = ⌊n/m⌋ arrivals x ← x - (1/c) Σ η/max(1, s_i) g_i, s in versions."""

    def start(self):
        super().start()
        self.K = self.n // self.m

    def receive(self, g, a):
        return self.keep(1.0 / max(1, a.staleness), g)


class DCASGD(Twin):
    """x ← x - η (g + λ g⊙g⊙(x - x_assigned)), λ constant or λ0/√(mean square + 1e-7)."""

    def start(self):
        self.mean_square = [0.0] * len(self.x)

    def receive(self, g, a):
        d = []
        for j in range(len(g)):
            strength = self.strength
            if self.adaptive:
                self.mean_square[j] = 0.95 * self.mean_square[j] + (1 - 0.95) * g[j] * g[j]
                strength = self.strength / math.sqrt(self.mean_square[j] + 1e-7)
            d.append(g[j] + strength * g[j] * g[j] * (self.x[j] - a.point[j]))
        self.descend(self.eta, d)
        return self.eta


class DelayedAverage(Twin):
    """w ← w - η α_s g, x_t = Σ_{i<=t} α_i w_i / Σ_{i<=t} α_i, α_t = 1 or t + 1."""

    def start(self):
        self.ws = [list(self.x)]  # w_0, w_1, ...

    def alpha(self, t):
        return float(t + 1) if self.weights == "linear" else 1.0

    def receive(self, g, a):
        factor = self.eta * self.alpha(a.s)
        self.ws.append([w - factor * value for w, value in zip(self.ws[-1], g, strict=True)])
        average, total = list(self.ws[0]), self.alpha(0)
        for t, w in enumerate(self.ws[1:], start=1):  # from all the w there ever were
            total = total + self.alpha(t)
            share = self.alpha(t) / total
            average = [m + share * (value - m) for m, value in zip(average, w, strict=True)]
        self.become(average)
        return self.eta


class MIFA(Twin):
    """G_i = last update of worker i; x ← x - η mean_i G_i, once all who are present were heard.

    The sum behind the mean is kept by differences, one per arrival.
    """

    def start(self):
        self.last = {}
        self.total = [0.0] * len(self.x)
        self.started = False

    def receive(self, g, a):
        old = self.last.get(a.worker)
        for j in range(len(g)):
            self.total[j] = self.total[j] + (g[j] if old is None else g[j] - old[j])
        self.last[a.worker] = g
        if all(worker in self.last for worker in self.present):
            self.started = True
        if not self.started:
            return 0.0
        self.descend(self.eta, [value / len(self.last) for value in self.total])
        return self.eta / len(self.last)


class Mishchenko(Twin):
    """η_t = η n / max(n, τ)."""

    def receive(self, g, a):
        step = self.eta * (a.n / max(a.n, a.tau))
        self.descend(step, g)
        return step


class CustomStep(Twin):
    """η_t = η · rule(delay), dropped where that is 0."""

    def receive(self, g, a):
        weight = self.rule(a)
        if weight == 0:
            return None
        self.descend(self.eta * weight, g)
        return self.eta * weight
