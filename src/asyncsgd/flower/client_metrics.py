"""Numbers that clients report: taken with care, averaged by how many examples stand behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

MOST = 100
"""Numbers that one reply may report; a reply with more is not averaged."""
LONGEST = 80
"""Characters of a name."""
EXAMPLES, LARGEST = 1e9, 1e100
"""More examples, or a larger number, than anybody has: such a reply is not averaged, as it would drown the others."""


@dataclass(frozen=True)
class Told:
    """What one client reported."""

    weight: float
    values: dict[str, float]


def read(records: Mapping[str, Any], weighted_by: str) -> Told | None:
    """The metrics of a reply, lists spread out as ``name.0``, ``name.1``; None if they are not fit for a mean.

    The weight is the number of examples, 1 if the client does not tell. Names and numbers come from a stranger: too
    many, too long or not finite, and they are left alone.

    >>> read({"metrics": {"num-examples": 20, "loss": 0.5, "per class": [0.1, 0.9]}}, "num-examples")
    Told(weight=20.0, values={'loss': 0.5, 'per class.0': 0.1, 'per class.1': 0.9})
    >>> read({"metrics": {"num-examples": -1, "loss": 0.5}}, "num-examples") is None
    True
    """
    found: dict[str, float] = {}
    for record in records.values():
        for name, value in record.items():
            several = isinstance(value, list)
            for place, number in enumerate(value[: MOST + 1] if several else [value]):
                found[f"{name}.{place}" if several else name] = number
            if len(found) > MOST:
                return None
    weight = found.pop(weighted_by, 1.0)
    names = all(len(name) <= LONGEST and name.isprintable() for name in found)
    try:
        values = {name: float(number) for name, number in found.items()}
        weight = float(weight)
    except (TypeError, ValueError, OverflowError):
        return None
    if not names or not all(abs(value) <= LARGEST for value in values.values()) or not 0 < weight <= EXAMPLES:
        return None  # NaN is neither
    return Told(weight, values) if values else None


@dataclass
class Means:
    """Weighted means, and the lowest and highest value, of what several clients told."""

    clients: set[int] = field(default_factory=set)
    replies: int = 0
    examples: float = 0.0
    _sums: dict[str, tuple[float, float]] = field(default_factory=dict)  # name -> (Σ w v, Σ w)
    _lowest: dict[str, float] = field(default_factory=dict)
    _highest: dict[str, float] = field(default_factory=dict)

    def add(self, worker: int, told: Told) -> None:
        """One reply more."""
        self.clients.add(worker)
        self.replies += 1
        self.examples += told.weight
        for name, value in told.values.items():
            if name not in self._sums and len(self._sums) >= MOST:
                continue  # clients that invent names must not fill the memory
            total, weight = self._sums.get(name, (0.0, 0.0))
            self._sums[name] = total + told.weight * value, weight + told.weight
            self._lowest[name] = min(value, self._lowest.get(name, value))
            self._highest[name] = max(value, self._highest.get(name, value))

    def row(self) -> dict[str, Any]:
        """For the journal.

        >>> means = Means()
        >>> means.add(0, Told(1.0, {"accuracy": 0.5}))
        >>> means.add(1, Told(3.0, {"accuracy": 0.9}))
        >>> means.row()["metrics"], means.row()["lowest"]
        ({'accuracy': 0.8}, {'accuracy': 0.5})
        """
        return {
            "clients": len(self.clients),
            "replies": self.replies,
            "examples": self.examples,
            "metrics": {name: total / weight for name, (total, weight) in self._sums.items()},
            "lowest": dict(self._lowest),
            "highest": dict(self._highest),
        }
