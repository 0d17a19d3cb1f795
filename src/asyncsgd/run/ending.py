"""How a run ended: decided here alone, for the terminal, the page, `asyncsgd watch` and the loggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncsgd.run.target import Target

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun

RUNNING, ENDED, INTERRUPTED = "running", "ended", "interrupted"
STOPPED, DIVERGED, CRASHED = "stopped", "diverged", "crashed"

BAD = (STOPPED, DIVERGED, CRASHED)
"""How a run should not end. ``stopped``: by an error; ``crashed``: its process is gone and left no word why."""
RESUMABLE = (INTERRUPTED, STOPPED, CRASHED)
"""From these a run may be resumed."""


@dataclass(frozen=True)
class Ending:
    """How a run ended, or that it has not."""

    state: str
    """running, ended, interrupted, stopped, diverged or crashed."""
    iteration: int
    """Where it stands; of a target that was met, or a run that diverged, the iteration where that was seen."""
    wanted: int
    until: str | None = None
    """The target, if there was one."""
    reached: bool = False
    """Whether the target was met."""
    reason: str = ""
    """What stopped it."""
    by_flower: bool = False

    @property
    def tone(self) -> str:
        """``good``, ``warn`` or ``bad``."""
        if self.state in BAD:
            return "bad"
        return "good" if self.state == ENDED and (self.until is None or self.reached) else "warn"

    def words(self, directory: Path | None = None) -> str:
        """One sentence; with the directory, it says how to resume a run that can be resumed.

        >>> Ending(CRASHED, 30, 1000).words(Path("runs/a"))
        'crashed at iteration 30 of 1,000; resume it with: asyncsgd train --resume --directory runs/a'
        >>> Ending(ENDED, 4, 4000, "accuracy >= 0.9", reached=True).words()
        'reached accuracy >= 0.9 at iteration 4 of 4,000'
        """
        at = f"at iteration {self.iteration:,} of {self.wanted:,}"
        match self.state:
            case "ended" if self.until is None:
                return "ended"
            case "ended":
                return f"reached {self.until} {at}" if self.reached else f"missed {self.until}"
            case "stopped":
                return f"stopped {at}: {self.reason or 'the journal does not say why'}"
            case "crashed" | "interrupted" if directory is not None:
                command = f"asyncsgd train --resume --directory {directory}"
                how = (
                    "resume it with flower.serve(..., resume=True)" if self.by_flower else f"resume it with: {command}"
                )
                return f"{self.state} {at}; {how}"
        return f"{self.state} {at}"


def decide(
    config: Mapping[str, Any],
    iterations: int,
    *,
    met: int | None,
    diverged: int | None,
    stopped: str | None = None,
    said: bool = True,
    running: bool = False,
) -> Ending:
    """How a run ended that has made ``iterations``.

    Args:
        config: What was asked for: run.json.
        iterations: Updates that have arrived.
        met: The iteration whose model first met the target.
        diverged: The iteration whose model was found not to be finite.
        stopped: The error that stopped the run.
        said: Whether the run itself wrote that it has ended.
        running: Whether a process is training.
    """
    wanted = whole(config.get("iterations"))
    until = str(config["until"]) if config.get("until") else None
    engine = config.get("engine")
    by_flower = isinstance(engine, Mapping) and engine.get("engine") == "flower"

    def ending(state: str, at: int = iterations, **more: Any) -> Ending:
        return Ending(state, at, wanted, until, by_flower=by_flower, **more)

    if running:
        return ending(RUNNING)
    if stopped is not None:
        return ending(STOPPED, reason=stopped)
    if not said:
        return ending(CRASHED)
    if diverged is not None:
        return ending(DIVERGED, diverged)
    if until is not None and met is not None:
        return ending(ENDED, met, reached=True)
    return ending(INTERRUPTED if iterations < wanted else ENDED)


def of_run(run: TrainingRun) -> Ending:
    """How a run ended that is at hand."""
    rows = (dict(zip(run.metrics, row, strict=True)) for row in zip(*run.metrics.values(), strict=True))
    met = _met(run.config, rows)
    if met is None and run.reached:
        met = run.trace.iterations
    return decide(run.config, run.trace.iterations, met=met, diverged=run.diverged)


def of_records(
    config: Mapping[str, Any],
    journal: Iterable[Mapping[str, Any]],
    rows: Iterable[Mapping[str, Any]],
    iterations: int,
    *,
    running: bool,
) -> Ending:
    """How a run ended, from its files. Look whether it is ``running`` before you read them: it may end meanwhile."""
    since = {row.get("event"): row for row in since_start(journal)}
    return decide(
        config,
        iterations,
        met=_met(config, rows),
        diverged=whole(since["diverged"].get("iteration")) if "diverged" in since else None,
        stopped=str(since["stopped"].get("reason", "")) if "stopped" in since else None,
        said="ended" in since,
        running=running,
    )


def since_start(journal: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The journal since the run was begun or last resumed.

    A run that begins has an empty journal, and what was seen at its first evaluation comes before ``started``.
    """
    journal = list(journal)
    resumed = [place for place, row in enumerate(journal) if row.get("event") == "resumed"]
    return journal[resumed[-1] :] if resumed else journal


def whole(value: Any) -> int:
    """A whole number of a file that may be damaged; 0 if it is something else."""
    return value if isinstance(value, int) else 0


def _met(config: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> int | None:
    """The iteration of the first row that meets the target: any row counts, as updates arrive while one is measured."""
    if not config.get("until"):
        return None
    target = Target.parse(str(config["until"]))
    for row in rows:
        value = row.get(target.metric)
        if isinstance(value, int | float) and target.met({target.metric: value}):
            return int(row["iteration"])
    return None
