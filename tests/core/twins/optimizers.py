"""Naive twins of the server optimizers: each replaces the step ``descend`` of a method."""

import math

from core.twins.ledger import Twin
from core.twins.methods import MIFA, AsyncSGD, DelayAdaptive, FedBuff
from core.twins.successors import Rennala


class Momentum(Twin):
    """m ← β m + d; x ← x - η m, or with Nesterov x ← x - η (d + β m). Mix it in before a method."""

    def descend(self, step, d):
        beta = self.number(self.beta)
        if not hasattr(self, "m"):
            self.m = [self.number(0.0)] * len(d)
        self.m = [beta * m + value for m, value in zip(self.m, d, strict=True)]
        look = self.m
        if self.nesterov:
            look = [value + beta * m for m, value in zip(self.m, d, strict=True)]
        super().descend(step, look)


class Adam(Twin):
    """m, v running means of d, d²; x ← x - η m̂/(√v̂ + ε). With AMSGrad the largest v so far."""

    def descend(self, step, d):
        if not hasattr(self, "m"):
            self.m, self.v, self.largest, self.count = [0.0] * len(d), [0.0] * len(d), [0.0] * len(d), 0
        self.count += 1
        direction = []
        for j in range(len(d)):
            self.m[j] = self.beta1 * self.m[j] + (1 - self.beta1) * d[j]
            self.v[j] = self.beta2 * self.v[j] + (1 - self.beta2) * d[j] * d[j]
            self.largest[j] = max(self.largest[j], self.v[j])
            v = self.largest[j] if self.amsgrad else self.v[j]
            mean = self.m[j] / (1 - self.beta1**self.count)
            direction.append(mean / (math.sqrt(v / (1 - self.beta2**self.count)) + self.epsilon))
        super().descend(step, direction)


class MomentumSGD(Momentum, AsyncSGD):
    pass


class MomentumFedBuff(Momentum, FedBuff):
    pass


class AdamSGD(Adam, AsyncSGD):
    pass


class AdamFedBuff(Adam, FedBuff):
    pass


class AdamRennala(Adam, Rennala):
    pass


class AdamMIFA(Adam, MIFA):
    pass


class MomentumMIFA(Momentum, MIFA):
    pass


class AdamDelayAdaptive(Adam, DelayAdaptive):
    pass
