"""What the update rules may know about an arrival."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from asyncsgd.core.events import Vector
from asyncsgd.core.vectors import norm


@dataclass(slots=True)
class Arrival:
    """One gradient as it arrives at iteration t, before anything is changed.

    A step rule sees all of it. ``delay`` τ_t = t - s counts iterations, ``staleness`` counts versions.
    """

    worker: int
    job: int
    iteration: int
    """t: how many gradients arrived before this one."""
    delay: int
    """τ_t = t - s, for a gradient computed at x^(s)."""
    staleness: int
    """How many times the model has changed since x^(s)."""
    version: int
    concurrency: int
    """|C_t|, this job included."""
    max_concurrency: int
    """τ_C: the largest |C_t| so far."""
    workers: int
    """n: workers present."""
    x: Vector
    """The model as it is now (read-only)."""
    point: Vector
    """The point this gradient was computed at (read-only)."""
    present: Collection[int] | None = None
    """Who is there, where that is known: a recorded trace tells only how many."""
    slot: int | None = None
    """Where the point lies among the server's own buffers."""

    @property
    def drift(self) -> float:
        """``‖x - point‖``: how far the model has moved since the job was handed out."""
        return norm(self.x - self.point)
