"""One line of a plan: a candidate, how it did on the simulated clock, what formulas and theorems say of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncsgd.core.check import positive
from asyncsgd.core.errors import UsageError
from asyncsgd.core.method import Method
from asyncsgd.planning.accuracy import Accuracy, favours_fast
from asyncsgd.planning.candidates import ADAPTIVE, Candidate
from asyncsgd.planning.formulas import Formula
from asyncsgd.planning.rehearsal import Rehearsal

FILLED = 0.9
"""A run faster than this share of the formula for the long run, whose error is smaller, has queues still to fill."""
FAIR = 0.95
"""A group with less than this share of its due is neglected."""


@dataclass(frozen=True, eq=False)
class Row:
    """A candidate and all that is known about it."""

    candidate: Candidate
    rehearsal: Rehearsal
    formula: Formula
    accuracy: Accuracy | None
    """None where no theorem promises the solution, because the data differ and the rule favours fast workers."""

    @property
    def label(self) -> str:
        """What it is called in a table."""
        return self.candidate.label

    @property
    def concurrency(self) -> int:
        """Jobs in flight."""
        return self.candidate.concurrency

    @property
    def seconds(self) -> float:
        """Per gradient that reaches the model, simulated."""
        return self.rehearsal.seconds

    @property
    def settled(self) -> bool:
        """Whether the simulated run shows the long run: queues on slow workers may take very long to fill."""
        least = self.formula.least
        return self.rehearsal.settled and (least is None or self.seconds >= FILLED * least)

    @property
    def seconds_to_target(self) -> float | None:
        """Seconds to the target, up to the constants of the proofs: good for comparing, not a forecast."""
        return None if self.accuracy is None else self.seconds * self.accuracy.gradients

    @property
    def guaranteed_seconds(self) -> float | None:
        """Seconds after which the theorem guarantees the target, every constant included."""
        return None if self.accuracy is None else self.seconds * self.accuracy.guaranteed

    @property
    def biased(self) -> bool:
        """Whether it favours fast workers by its rule, and did so in the simulated run.

        With few jobs in flight, workers that take turns are heard alike although nothing makes sure of it.
        """
        seen, candidate = self.rehearsal, self.candidate
        if candidate.workers < candidate.total:
            return True
        heard = all(group.share >= FAIR * group.workers / candidate.total for group in seen.groups)
        weighed = candidate.method == ADAPTIVE and seen.delays.maximum > seen.delays.concurrency
        return favours_fast(candidate) and (weighed or not heard)

    def method(self, smoothness: float) -> Method:
        """The method, with the largest step that its theorem allows for this L; refused where no theorem covers it."""
        positive("smoothness", smoothness)
        if self.accuracy is None:
            raise UsageError(
                f"no theorem allows {self.label} a step where the data differ between workers, as it favours fast "
                "ones; choose a step yourself and pass it to row.candidate.build(stepsize)"
            )
        return self.candidate.build(self.accuracy.step / smoothness)

    def to_dict(self, baseline: float | None) -> dict[str, Any]:
        """Plain numbers and words; ``baseline`` is the time to the target that ``relative`` refers to."""
        candidate, seen, told = self.candidate, self.rehearsal, self.accuracy
        time = self.seconds_to_target
        return {
            "method": candidate.method,
            "label": self.label,
            "concurrency": candidate.concurrency,
            "workers": candidate.workers,
            "goal": candidate.goal,
            "seconds_per_gradient": seen.seconds,
            "standard_error": seen.error,
            "settled": self.settled,
            "simulated_gradients": seen.iterations,
            "lemma": self.formula.lemma,
            "queued": self.formula.queued,
            "floor": self.formula.floor,
            "average_delay": seen.delays.average,
            "maximum_delay": seen.delays.maximum,
            "groups": [vars(group) for group in seen.groups],
            "biased": self.biased,
            "theorem": None if told is None else told.theorem,
            "step": None if told is None else told.step,
            "seconds_to_target": time,
            "relative": None if time is None or baseline is None else time / baseline,
            "guaranteed_seconds": self.guaranteed_seconds,
            "recipe": None if told is None else candidate.recipe(told.step),
        }
