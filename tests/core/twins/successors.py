"""Naive twins of the successors that users ask for by name."""

import math

from core.twins.ledger import Twin
from core.twins.methods import average


class FedAsync(Twin):
    """x ← (1-α_t) x + α_t x_worker, as x - α_t (Δ + (x - x_assigned)) with Δ = x_assigned - x_worker."""

    def weight(self, s):
        if self.weighting == "constant":
            return 1.0
        if self.weighting == "polynomial":
            return 1.0 / math.sqrt(1 + s)
        return 1.0 if s <= 6 else 1.0 / (10.0 * (s - 6) + 1)

    def receive(self, g, a):
        step = self.alpha * self.weight(a.staleness)
        self.descend(step, [d + (x - y) for d, x, y in zip(g, self.x, a.point, strict=True)])
        return step


class Rennala(Twin):
    """Collect B gradients computed at the present x, then x ← x - γ · their mean; others are discarded."""

    def start(self):
        self.batch = []

    def receive(self, g, a):
        if a.assigned_version != self.version:  # computed at an older x
            return None
        self.batch.append(g)
        if len(self.batch) == self.B:
            mean, self.batch = average(self.batch), []
            self.descend(self.eta, mean)
        return self.eta / self.B


class Ringmaster(Twin):
    """Apply iff the staleness is below R."""

    def receive(self, g, a):
        if not a.staleness < self.R:
            return None
        self.descend(self.eta, g)
        return self.eta
