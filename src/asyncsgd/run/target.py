"""When a run has got where it was to go: ``"accuracy >= 0.95"``."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from asyncsgd.core.check import nearest
from asyncsgd.core.errors import BadParameter


@dataclass(frozen=True)
class Target:
    """A metric and a bound on it.

    >>> Target.parse("loss <= 0.1").met({"loss": 0.05})
    True
    """

    metric: str
    at_least: bool
    bound: float
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.metric} {'>' if self.at_least else '<'}{'' if self.strict else '='} {self.bound!r}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """From words such as ``accuracy >= 0.95``."""
        found = re.fullmatch(r"\s*([\w.-]+)\s*(<=|>=|<|>)\s*(\S+)\s*", text) if isinstance(text, str) else None
        try:
            bound = float(found[3]) if found else math.nan
        except ValueError:
            bound = math.nan
        if found is None or not math.isfinite(bound):
            fix = 'write a metric, one of <= >= < >, and a number: "accuracy >= 0.95"'
            raise BadParameter("until", text, "is not a target", fix)
        return cls(found[1], found[2].startswith(">"), bound, strict="=" not in found[2])

    def met(self, row: Mapping[str, Any]) -> bool:
        """Whether these metrics are there."""
        if self.metric not in row:
            fix = nearest(self.metric, [name for name in row if name not in ("iteration", "time")])
            raise BadParameter("until", self.metric, "is not among the task's metrics", fix)
        value = float(row[self.metric])
        beyond = value > self.bound if self.at_least else value < self.bound
        return beyond or (value == self.bound and not self.strict)
