"""Deliberate bugs in weights by examples, in calibration and in the robust rules; a twin of test_twins.py sees each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from asyncsgd.core.aggregation import Calibrated
from asyncsgd.core.robust import Krum, Median, TrimmedMean
from asyncsgd.core.update import Update
from asyncsgd.core.weights import Reports, WeightedRound

Patch = pytest.MonkeyPatch


def reports_ignored(patch: Patch) -> None:
    """Every update counts the same."""
    patch.setattr(Reports, "take", lambda self, worker, examples: (1, 1.0))


def reports_counted_by_arrival(patch: Patch) -> None:
    """A worker that answers often counts often in the mean."""

    def record(self: Reports, worker: int, examples: int) -> None:
        self._last[len(self._last)] = examples
        self.__init__(self._limit, self._last)  # type: ignore[misc]

    patch.setattr(Reports, "_record", record)


def claims_without_limit(patch: Patch) -> None:
    """A worker gets any weight that it claims."""
    patch.setattr(Reports, "_sum", lambda self: (None, self._total))


def limit_of_the_worker_alone(patch: Patch) -> None:
    """The claim is limited, but the mean still contains all of it: every other worker loses its weight."""
    right = Reports._sum
    patch.setattr(Reports, "_sum", lambda self: (right(self)[0], self._total))


def old_reports_kept(patch: Patch) -> None:
    """The mean goes on with what a worker reported first."""
    right = Reports._sum

    def total(self: Reports) -> tuple[int | None, int]:
        self._capped = getattr(self, "first", None) if len(self._last) > 2 else None
        found = right(self)
        if len(self._last) > 2:
            self.first = found  # type: ignore[attr-defined]
        return found

    patch.setattr(Reports, "_sum", total)


def reports_not_restored(patch: Patch) -> None:
    """A restored server starts with no report."""
    right = Update.load

    def load(self: Update, state: dict[str, Any]) -> None:
        right(self, state)
        self._memory["weights"] = {"last": {}}
        self._count_reports()

    patch.setattr(Update, "load", load)


def weights_of_the_last_round_kept(patch: Patch) -> None:
    """A round divides by the examples of all rounds so far."""
    right = WeightedRound.add

    def add(self: WeightedRound, state: dict[str, Any], *rest: Any, **options: Any) -> Any:
        before = state.get("sum", 0.0)
        move = right(self, state, *rest, **options)
        if move is None:
            return None
        state["sum"] = before + state["weights"]
        return move[0] * (state["weights"] or 1.0) / (state["sum"] or 1.0), move[1]

    patch.setattr(WeightedRound, "add", add)


def mixes_past_the_model(patch: Patch) -> None:
    """A large weight moves the model past that of the worker."""
    right = Update.__init__

    def init(self: Update, *given: Any, **options: Any) -> None:
        right(self, *given, **options)
        self._mixes = False

    patch.setattr(Update, "__init__", init)


def _calibrated(patch: Patch, change: Callable[[dict[str, Any], dict[str, Any], Any], None]) -> None:
    right = Calibrated.add

    def add(self: Calibrated, state: dict[str, Any], g: Any, stepsize: float, weight: float, arrival: Any) -> Any:
        before = {"last": {worker: h.copy() for worker, h in state["last"].items()}, "mean": state["mean"].copy()}
        move = right(self, state, g, stepsize, weight, arrival)
        change(state, before, move)
        return move

    patch.setattr(Calibrated, "add", add)


def second_update_compared_with_an_old_one(patch: Patch) -> None:
    """h_i becomes the update only if the buffer is full."""

    def change(state: dict[str, Any], before: dict[str, Any], move: Any) -> None:
        if move is None:
            state["last"] |= before["last"]

    _calibrated(patch, change)


def mean_of_every_arrival(patch: Patch) -> None:
    """h follows every arrival, not every move."""

    def change(state: dict[str, Any], before: dict[str, Any], move: Any) -> None:
        np.divide(state["total"], max(1, len(state["last"])), out=state["mean"])

    _calibrated(patch, change)


def mean_forgotten(patch: Patch) -> None:
    """The direction is D/K alone."""

    def change(state: dict[str, Any], before: dict[str, Any], move: Any) -> None:
        if move is not None:
            move[0][:] -= before["mean"]

    _calibrated(patch, change)


def upper_median(patch: Patch) -> None:
    """An even number of updates gives the larger one of the two in the middle."""

    def merge(self: Median, rows: Any, out: Any, kernels: Any) -> None:
        out[:] = np.sort(np.stack(rows), axis=0)[len(rows) // 2]

    patch.setattr(Median, "merge", merge)


def trimmed_at_one_end(patch: Patch) -> None:
    """Only the smallest values are left out."""

    def merge(self: TrimmedMean, rows: Any, out: Any, kernels: Any) -> None:
        out[:] = np.sort(np.stack(rows), axis=0)[self.trimmed :].mean(axis=0)

    patch.setattr(TrimmedMean, "merge", merge)


def farthest_update(patch: Patch) -> None:
    """Krum sums up the distances to all others, so one far update decides."""
    right = Krum.merge

    def merge(self: Krum, rows: Any, out: Any, kernels: Any) -> None:
        others = object.__new__(Krum)
        for name, value in {"size": self.size, "keep": self.keep, "byzantine": -1}.items():
            object.__setattr__(others, name, value)
        right(others, rows, out, kernels)

    patch.setattr(Krum, "merge", merge)


BUGS: dict[str, tuple[Callable[[Patch], None], str]] = {
    "reports_ignored": (reports_ignored, "async_sgd, weighted"),
    "reports_counted_by_arrival": (reports_counted_by_arrival, "federated_async_sgd, weighted, any claim"),
    "claims_without_limit": (claims_without_limit, "federated_async_sgd, weighted, limit 1.5"),
    "limit_of_the_worker_alone": (limit_of_the_worker_alone, "federated_async_sgd, weighted, limit 1.5"),
    "old_reports_kept": (old_reports_kept, "async_sgd, weighted"),
    "reports_not_restored": (reports_not_restored, "async_sgd, weighted"),
    "weights_of_the_last_round_kept": (weights_of_the_last_round_kept, "fedavg, weighted"),
    "mixes_past_the_model": (mixes_past_the_model, "fedasync, weighted"),
    "second_update_compared_with_an_old_one": (second_update_compared_with_an_old_one, "fedbuff, calibrated"),
    "mean_of_every_arrival": (mean_of_every_arrival, "fedbuff, calibrated"),
    "mean_forgotten": (mean_forgotten, "fedbuff, calibrated"),
    "upper_median": (upper_median, "median of four"),
    "trimmed_at_one_end": (trimmed_at_one_end, "trimmed mean"),
    "farthest_update": (farthest_update, "krum"),
}
"""By name: what plants the bug, and the case of test_twins.py whose twin sees it."""
