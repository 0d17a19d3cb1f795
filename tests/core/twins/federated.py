"""Naive twins of weights by examples, of calibrated FedBuff (CA²FL) and of the robust rules for buffers."""

import math
import statistics
from functools import partial

from core.twins import dispatch as rule
from core.twins.ledger import Twin, norm
from core.twins.methods import MIFA, Buffered, DelayAdaptive, add_up
from core.twins.successors import FedAsync

from asyncsgd import aggregation
from asyncsgd import methods as m

# ---------------------------------------------------------------------------------------- weights by examples


class Reporting(Twin):
    """a_i = n_i / mean of all workers' last n, each at most ``most`` times the median; 1 if the worker says nothing."""

    most = 10.0

    def counted(self, a):
        """(n_i in a round, a_i)."""
        reports = self.__dict__.setdefault("reports", {})
        if a.examples is None:
            return (max(1, round(statistics.fmean(reports.values()))) if reports else 1), 1.0
        if a.examples == 0:
            return 0, 0.0
        reports[a.worker] = a.examples
        cap = math.inf if self.most is None else int(self.most * statistics.median(reports.values()))
        all_capped = [min(n, cap) for n in reports.values()]
        return a.examples, min(a.examples, cap) * len(all_capped) / sum(all_capped)


class WeightedSGD(Reporting):
    """x ← x - η a_i g."""

    def receive(self, g, a):
        step = self.eta * self.counted(a)[1]
        self.descend(step, g)
        return step


class WeightedDelayAdaptive(Reporting, DelayAdaptive):
    """x ← x - η w(τ) a_i g; what w drops is not even counted as a report."""

    def receive(self, g, a):
        weight = self.weight(a)
        if weight == 0.0:
            return None
        step = self.eta * (weight * self.counted(a)[1])
        self.descend(step, g)
        return step


class WeightedFedBuff(Reporting, Buffered):
    """x ← x - η (1/K) Σ w(s_i) a_i g_i."""

    power = 0.5

    def receive(self, g, a):
        weight = 1.0 / math.sqrt(1 + a.staleness) if self.power else 1.0
        return self.keep(weight * self.counted(a)[1], g)


class WeightedRounds(Reporting):
    """x ← x - η Σ n_i g_i / Σ n_i over a round."""

    def start(self):
        self.round = []

    def receive(self, g, a):
        n, relative = self.counted(a)
        self.round.append((n, [self.number(n) * value for value in g]))
        if len(self.round) == self.K:
            total, examples = add_up([g for _, g in self.round]), sum(n for n, _ in self.round)
            self.round = []
            self.descend(self.eta, [value / self.number(examples or 1) for value in total])
        return self.eta * relative / self.K


class WeightedMIFA(Reporting, MIFA):
    """MIFA with a_i G_i in place of G_i."""

    def receive(self, g, a):
        relative = self.counted(a)[1]
        eta, step = self.eta, super().receive([relative * value for value in g], a)
        return eta * relative / len(self.last) if step else 0.0


class WeightedFedAsync(Reporting, FedAsync):
    """α_t = min(1, α w(s) a_i)."""

    def receive(self, g, a):
        weight = self.weight(a.staleness) * self.counted(a)[1]
        if self.alpha * weight > 1:
            weight = 1 / self.alpha
        step = self.alpha * weight
        self.descend(step, [d + (x - y) for d, x, y in zip(g, self.x, a.point, strict=True)])
        return step


# ---------------------------------------------------------------------------------------- calibration


class CA2FL(Twin):
    """D += Δ - h_i; h_i ← Δ. After K: x ← x - η (D/K + h), then h ← (1/n) Σ h_i and D ← 0.

    The sum behind h is kept by differences, as that of MIFA.
    """

    def start(self):
        zero = self.number(0.0)
        self.h, self.held = {}, []
        self.total, self.mean = [zero] * len(self.x), [zero] * len(self.x)

    def receive(self, g, a):
        return self.take(g, a, 1.0)

    def take(self, g, a, relative):
        old = self.h.get(a.worker)
        change = list(g) if old is None else [new - before for new, before in zip(g, old, strict=True)]
        self.h[a.worker] = g
        self.total = [t + c for t, c in zip(self.total, change, strict=True)]
        self.held.append(change)
        if len(self.held) == self.K:
            size, n = self.number(self.K), self.number(max(a.n, len(self.h)))
            direction = [d / size + h for d, h in zip(add_up(self.held), self.mean, strict=True)]
            self.held, self.mean = [], [value / n for value in self.total]
            self.descend(self.eta, direction)
        return self.eta * relative / self.K


class WeightedCA2FL(Reporting, CA2FL):
    """The same with a_i Δ_i in place of Δ_i."""

    def receive(self, g, a):
        relative = self.counted(a)[1]
        return self.take([relative * value for value in g], a, relative)


# ---------------------------------------------------------------------------------------- robust rules


class Robust(Twin):
    """After K arrivals x ← x - η · merged(w_1 g_1, ..., w_K g_K), with FedBuff's w."""

    def start(self):
        self.held = []

    def receive(self, g, a):
        weight = 1.0 / math.sqrt(1 + a.staleness)
        self.held.append([self.number(weight) * value for value in g])
        if len(self.held) == self.K:
            rows, self.held = self.held, []
            self.descend(self.eta, self.merged(rows))
        return self.eta * weight / self.K


class Median(Robust):
    """The middle value of every coordinate, or half of each of the two in the middle."""

    def merged(self, rows):
        half, k = self.number(0.5), len(rows)
        columns = [sorted(column) for column in zip(*rows, strict=True)]
        return [c[k // 2] if k % 2 else half * c[k // 2 - 1] + half * c[k // 2] for c in columns]


class TrimmedMean(Robust):
    """The mean of what is left without the b smallest and the b largest values of every coordinate."""

    def merged(self, rows):
        merged = []
        for column in zip(*rows, strict=True):
            kept = sorted(column)[self.b : len(rows) - self.b]
            total = kept[0]
            for value in kept[1:]:
                total = total + value
            merged.append(total / self.number(len(kept)))
        return merged


class Krum(Robust):
    """The ``keep`` rows with the least sums of squared distances to the K - f - 2 nearest others, their mean."""

    keep = 1

    def merged(self, rows):
        def score(i):
            lengths = []
            for j in range(len(rows)):
                if j != i:
                    length = norm([a - b for a, b in zip(rows[max(i, j)], rows[min(i, j)], strict=True)])
                    lengths.append(length * length)
            total = 0.0
            for length in sorted(lengths)[: len(rows) - self.f - 2]:
                total = total + length
            return total

        best = sorted(sorted(range(len(rows)), key=lambda i: (score(i), i))[: self.keep])
        total = add_up([rows[i] for i in best])
        return total if self.keep == 1 else [value / self.number(self.keep) for value in total]


def uniform(concurrency):
    return partial(rule.Uniform, concurrency=concurrency)


def buffered(aggregation):
    return m.fedbuff(0.5, concurrency=6).using(aggregation=aggregation)


# name: (method, twin class, its numbers, naive dispatch), as in test_twins.py
CASES = {
    "federated_async_sgd, buffer": (
        m.federated_async_sgd(0.5, concurrency=5, buffer=3),
        WeightedFedBuff,
        {"eta": 0.5, "K": 3, "power": 0, "counted": lambda a: (1, 1.0)},
        uniform(5),
    ),
    "async_sgd, weighted": (m.async_sgd(0.1).weighted(), WeightedSGD, {"eta": 0.1}, rule.AlwaysBusy),
    "federated_async_sgd, weighted, any claim": (
        m.federated_async_sgd(0.1, concurrency=5).weighted(limit=None),
        WeightedSGD,
        {"eta": 0.1, "most": None},
        uniform(5),
    ),
    "federated_async_sgd, weighted, limit 1.5": (
        m.federated_async_sgd(0.1, concurrency=5).weighted(limit=1.5),
        WeightedSGD,
        {"eta": 0.1, "most": 1.5},
        uniform(5),
    ),
    "federated_async_sgd, weighted, buffer": (
        m.federated_async_sgd(0.5, concurrency=5, buffer=3).weighted(),
        WeightedFedBuff,
        {"eta": 0.5, "K": 3, "power": 0},
        uniform(5),
    ),
    "delay_adaptive, drop, weighted": (
        m.delay_adaptive(0.7, rule="drop", threshold=2).weighted(),
        WeightedDelayAdaptive,
        {"eta": 0.7, "rule": "drop", "threshold": 2},
        rule.AlwaysBusy,
    ),
    "fedbuff, weighted": (
        m.fedbuff(0.5, concurrency=6, buffer=3).weighted(),
        WeightedFedBuff,
        {"eta": 0.5, "K": 3},
        uniform(6),
    ),
    "fedavg, weighted": (
        m.fedavg(0.5, clients=3, ask=4).weighted(),
        WeightedRounds,
        {"eta": 0.5, "K": 3},
        partial(rule.FirstOf, goal=3, ask=4),
    ),
    "minibatch_sgd, weighted": (m.minibatch_sgd(0.3).weighted(), WeightedSGD, {"eta": 0.3}, rule.Batch),
    "mifa, weighted": (m.mifa(0.1).weighted(), WeightedMIFA, {"eta": 0.1}, rule.AlwaysBusy),
    "fedasync, weighted": (
        m.fedasync(0.6, concurrency=5).local(2, 0.1).weighted(),
        WeightedFedAsync,
        {"alpha": 0.6, "weighting": "polynomial"},
        uniform(5),
    ),
    "fedbuff, calibrated": (
        m.fedbuff(0.5, concurrency=6, buffer=3, calibrated=True),
        CA2FL,
        {"eta": 0.5, "K": 3},
        uniform(6),
    ),
    "fedbuff, calibrated, weighted": (
        m.fedbuff(0.5, concurrency=6, buffer=3, calibrated=True).weighted(),
        WeightedCA2FL,
        {"eta": 0.5, "K": 3},
        uniform(6),
    ),
    "median of five": (buffered(aggregation.median(5)), Median, {"eta": 0.5, "K": 5}, uniform(6)),
    "median of four": (buffered(aggregation.median(4)), Median, {"eta": 0.5, "K": 4}, uniform(6)),
    "trimmed mean": (
        buffered(aggregation.trimmed_mean(6, fraction=0.34)),
        TrimmedMean,
        {"eta": 0.5, "K": 6, "b": 2},
        uniform(6),
    ),
    "krum": (buffered(aggregation.krum(5)), Krum, {"eta": 0.5, "K": 5, "f": 1}, uniform(6)),
    "multi-krum": (
        buffered(aggregation.krum(6, byzantine=1, keep=3)),
        Krum,
        {"eta": 0.5, "K": 6, "f": 1, "keep": 3},
        uniform(6),
    ),
}
IN_FLOAT32 = ["federated_async_sgd, weighted, buffer", "fedbuff, calibrated", "median of four", "trimmed mean", "krum"]
