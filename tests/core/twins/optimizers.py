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
    """m, v running means of d, d²; x ← (1 - η λ) x - η m̂/(√v̂ + ε). With AMSGrad the largest v so far.

    The coordinates in ``spared`` do not decay.
    """

    decay = 0.0
    spared = ()

    def descend(self, step, d):
        number = self.number
        if not hasattr(self, "m"):
            self.m, self.v, self.largest = ([number(0.0)] * len(d) for _ in range(3))
            self.count = 0
        self.count += 1
        beta1, beta2, epsilon = number(self.beta1), number(self.beta2), number(self.epsilon)
        rest1, rest2 = number(1 - self.beta1), number(1 - self.beta2)
        correction1, correction2 = number(1 - self.beta1**self.count), number(1 - self.beta2**self.count)
        direction = []
        for j in range(len(d)):
            self.m[j] = beta1 * self.m[j] + rest1 * d[j]
            self.v[j] = beta2 * self.v[j] + rest2 * d[j] * d[j]
            self.largest[j] = max(self.largest[j], self.v[j])
            v = self.largest[j] if self.amsgrad else self.v[j]
            mean = self.m[j] / correction1
            direction.append(mean / (number(math.sqrt(v / correction2)) + epsilon))
        keep = number(1 - step * self.decay)
        self.x = [x if j in self.spared else x * keep for j, x in enumerate(self.x)]
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
