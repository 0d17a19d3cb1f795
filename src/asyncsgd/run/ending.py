"""How a run ended: decided here alone, for the terminal, the page, ``asyncsgd watch``, the loggers and ``--json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncsgd.run.options import Target

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun


class End(StrEnum):
    """How a run ended, or what it is."""

    RUNNING = "running"
    DONE = "done"
    REACHED = "reached"
    """Its target was met."""
    MISSED = "missed"
    """It made all its iterations without meeting its target."""
    EARLY = "stopped early"
    """A callback stopped it."""
    INTERRUPTED = "interrupted"
    """A signal stopped it: Ctrl-C, SIGTERM."""
    STOPPED = "stopped"
    """An error stopped it."""
    DIVERGED = "diverged"
    CRASHED = "crashed"
    """Its process is gone and wrote no reason."""
    SIMULATED = "simulated"
    TRACE = "trace"
    """A record alone, without a run around it."""


GOOD = (End.DONE, End.REACHED, End.EARLY)
BAD = (End.STOPPED, End.DIVERGED, End.CRASHED)
RESUMABLE = (End.EARLY, End.INTERRUPTED, End.STOPPED, End.CRASHED)


@dataclass(frozen=True)
class Ending:
    """How a run ended, or that it has not."""

    kind: End
    iteration: int = 0
    """Where it stands; of a target that was met, or a run that diverged, the iteration where that was seen."""
    wanted: int = 0
    """The iterations that were asked for; 0 if nobody knows."""
    until: str | None = None
    """The target, if there was one."""
    reason: str = ""
    """What stopped it: an error, a callback's reason, a signal."""
    by_flower: bool = False

    @property
    def bad(self) -> bool:
        """Whether a run should not end like this."""
        return self.kind in BAD

    @property
    def resumable(self) -> bool:
        """Whether the run may be resumed from here."""
        return self.kind in RESUMABLE

    @property
    def colour(self) -> str:
        """``good``, ``warn``, ``bad``, or nothing."""
        if self.kind in (End.SIMULATED, End.TRACE):
            return "warn" if self.reason else ""
        return "bad" if self.bad else "good" if self.kind in GOOD else "warn"

    def sentence(self, directory: Path | None = None) -> str:
        """Return one sentence; with the directory, it says how to resume a run that can be resumed.

        >>> Ending(End.CRASHED, 30, 1000).sentence(Path("runs/a"))
        'crashed at iteration 30 of 1,000; resume it with: asyncsgd train --resume --directory runs/a'
        >>> Ending(End.REACHED, 4, 4000, "accuracy >= 0.9").sentence()
        'reached accuracy >= 0.9 at iteration 4 of 4,000'
        """
        at = f"at iteration {self.iteration:,}" + (f" of {self.wanted:,}" if self.wanted else "")
        match self.kind:
            case End.DONE | End.SIMULATED:
                return str(self.kind)
            case End.TRACE:
                return self.reason or "a trace"
            case End.REACHED:
                return f"reached {self.until} {at}"
            case End.MISSED:
                return f"missed {self.until}"
            case End.STOPPED | End.EARLY:
                return f"{self.kind} {at}: {self.reason or 'the journal does not say why'}"
            case End.CRASHED | End.INTERRUPTED:
                by = f" by {self.reason}" if self.reason else ""
                return f"{self.kind}{by} {at}{self._how_to_resume(directory)}"
            case End.DIVERGED if not self.iteration:
                return "diverged at the initial model"
        return f"{self.kind} {at}"

    def _how_to_resume(self, directory: Path | None) -> str:
        if directory is None:
            return ""
        command = f": asyncsgd train --resume --directory {directory}"
        return f"; resume it with{' flower.serve(..., resume=True)' if self.by_flower else command}"


def decide(
    config: Mapping[str, Any],
    iterations: int,
    *,
    met: int | None = None,
    diverged: int | None = None,
    stopped: str | None = None,
    early: str | None = None,
    signal: str = "",
    said: bool = True,
    running: bool = False,
) -> Ending:
    """Return how a run ended that has made ``iterations``: the only place that decides it.

    Args:
        config: What was asked for: run.json.
        iterations: Updates that have arrived.
        met: The iteration whose model first met the target.
        diverged: The iteration whose model was found not to be finite.
        stopped: The error that stopped the run.
        early: The reason for which a callback stopped it.
        signal: The signal that stopped it.
        said: Whether the run itself wrote that it has ended.
        running: Whether a process is training.
    """
    wanted = whole(config.get("iterations"))
    until = str(config["until"]) if config.get("until") else None
    engine = config.get("engine")
    by_flower = isinstance(engine, Mapping) and engine.get("engine") == "flower"

    def ending(kind: End, at: int = iterations, reason: str = "") -> Ending:
        return Ending(kind, at, wanted, until, reason, by_flower)

    if running:
        return ending(End.RUNNING)
    if stopped is not None:
        return ending(End.STOPPED, reason=stopped)
    if not said:
        return ending(End.CRASHED)
    if diverged is not None:
        return ending(End.DIVERGED, diverged)
    if until is not None and met is not None:
        return ending(End.REACHED, met)
    if iterations >= wanted:
        return ending(End.DONE if until is None else End.MISSED)
    return ending(End.INTERRUPTED, reason=signal) if early is None else ending(End.EARLY, reason=early)


def ending_of_run(run: TrainingRun) -> Ending:
    """Return how a run ended that is at hand."""
    rows = (dict(zip(run.metrics, row, strict=True)) for row in zip(*run.metrics.values(), strict=True))
    met = _met(run.config, rows)
    if met is None and run.reached:
        met = run.trace.iterations
    done, signal = run.trace.iterations, run.interrupted or ""
    return decide(run.config, done, met=met, diverged=run.diverged, early=run.stopped_early, signal=signal)


def ending_of_files(
    config: Mapping[str, Any],
    journal: Iterable[Mapping[str, Any]],
    rows: Iterable[Mapping[str, Any]],
    iterations: int,
    *,
    running: bool,
) -> Ending:
    """Return how a run ended, from its files. Look whether it is ``running`` before reading: it may end meanwhile."""
    since = {row.get("event"): row for row in since_start(journal)}

    def reason(event: str) -> str | None:
        return str(since[event].get("reason", "")) if event in since else None

    return decide(
        config,
        iterations,
        met=_met(config, rows),
        diverged=whole(since["diverged"].get("iteration")) if "diverged" in since else None,
        stopped=reason("stopped"),
        early=reason("stopped_early"),
        signal=str(since.get("ended", {}).get("signal") or ""),
        said="ended" in since,
        running=running,
    )


def since_start(journal: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the journal since the run was started or last resumed.

    A run that starts has an empty journal, and what was seen at its first evaluation comes before ``started``.
    """
    journal = list(journal)
    resumed = [place for place, row in enumerate(journal) if row.get("event") == "resumed"]
    return journal[resumed[-1] :] if resumed else journal


def whole(value: Any) -> int:
    """Return a whole number of a file that may be damaged; 0 if it is something else."""
    return value if isinstance(value, int) else 0


def _met(config: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the iteration of the first row that meets the target. Any row counts: updates arrive while one is made."""
    if not config.get("until"):
        return None
    target = Target.parse(str(config["until"]))
    for row in rows:
        value = row.get(target.metric)
        if isinstance(value, int | float) and target.met({target.metric: value}):
            return int(row["iteration"])
    return None
