"""Decide how a run ended, for the terminal, the page, ``asyncsgd watch``, the loggers and ``--json``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncsgd.run.journal import DIVERGED, DRAINED, ENDED, RESUMED, STOPPED, STOPPED_EARLY
from asyncsgd.run.options import Target

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun


class End(StrEnum):
    """The ways in which a run can end, and what else a view can show."""

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
    """Its process ended without writing a reason."""
    SIMULATED = "simulated"
    TRACE = "trace"
    """A trace without a run directory."""


GOOD = (End.DONE, End.REACHED, End.EARLY)
BAD = (End.STOPPED, End.DIVERGED, End.CRASHED)
RESUMABLE = (End.EARLY, End.INTERRUPTED, End.STOPPED, End.CRASHED)


@dataclass(frozen=True)
class Ending:
    """How a run ended, or that it is still running."""

    kind: End
    iteration: int = 0
    """The last iteration; if the target was met or the run diverged, the iteration where that was found."""
    wanted: int = 0
    """The number of iterations requested; 0 if unknown."""
    until: str | None = None
    """The target, if there was one."""
    reason: str = ""
    """What stopped the run: an error, a callback's reason, a signal."""
    by_flower: bool = False

    @property
    def bad(self) -> bool:
        """Whether this ending is a failure."""
        return self.kind in BAD

    @property
    def resumable(self) -> bool:
        """Whether the run may be resumed from here."""
        return self.kind in RESUMABLE

    @property
    def colour(self) -> str:
        """``good``, ``warn``, ``bad``, or empty."""
        if self.kind in (End.SIMULATED, End.TRACE):
            return "warn" if self.reason else ""
        return "bad" if self.bad else "good" if self.kind in GOOD else "warn"

    def sentence(self, directory: Path | None = None) -> str:
        """Return one sentence; with the directory, it includes the command that resumes the run.

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
                return f"{self.kind} {at}: {self.reason or 'reason unknown'}"
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
        return f"; resume it with{' AsyncStrategy(..., resume=True)' if self.by_flower else command}"


@dataclass(frozen=True)
class Known:
    """What is known about the end of a run."""

    iterations: int
    """The number of updates that arrived."""
    met: int | None = None
    """The iteration whose model first met the target."""
    diverged: int | None = None
    """The iteration whose model was found not to be finite."""
    stopped: str | None = None
    """The error that stopped the run."""
    early: str | None = None
    """The reason that a callback gave to stop it."""
    signal: str = ""
    """The signal that stopped it."""
    ended: bool = True
    """Whether the run wrote that it has ended."""
    running: bool = False
    """Whether a process is training."""
    drained: bool = False
    """Whether every mini-batch of every epoch was handed out. If the run has epochs, that decides whether it is done:
    lost jobs make the updates fewer, and shorter jobs of slow workers make them more."""


def decide(config: Mapping[str, Any], known: Known) -> Ending:
    """Return how the run of this run.json ended. Only this function decides it."""
    wanted = 0 if config.get("estimated") else whole(config.get("iterations"))
    until = str(config["until"]) if config.get("until") else None
    engine = config.get("engine")
    by_flower = isinstance(engine, Mapping) and engine.get("engine") == "flower"

    def ending(kind: End, at: int = known.iterations, reason: str = "") -> Ending:
        return Ending(kind, at, wanted, until, reason, by_flower)

    if known.running:
        return ending(End.RUNNING)
    if known.stopped is not None:
        return ending(End.STOPPED, reason=known.stopped)
    if not known.ended:
        return ending(End.CRASHED)
    if known.diverged is not None:
        return ending(End.DIVERGED, known.diverged)
    if until is not None and known.met is not None:
        return ending(End.REACHED, known.met)
    complete = known.drained and not known.signal and known.early is None
    if complete or (config.get("epochs") is None and known.iterations >= wanted):
        return ending(End.DONE if until is None else End.MISSED)
    if known.early is not None:
        return ending(End.EARLY, reason=known.early)
    return ending(End.INTERRUPTED, reason=known.signal)


def ending_of_run(run: TrainingRun) -> Ending:
    """Return how a run object ended."""
    rows = (dict(zip(run.metrics, row, strict=True)) for row in zip(*run.metrics.values(), strict=True))
    met = _met(run.config, rows)
    if met is None and run.reached:
        met = run.trace.iterations
    done, signal = run.trace.iterations, run.interrupted or ""
    drained = run.config.get("epochs") is not None and not run.trace.jobs.in_flight.any()
    known = Known(done, met, run.diverged, early=run.stopped_early, signal=signal, drained=drained)
    return decide(run.config, known)


def ending_of_files(
    config: Mapping[str, Any],
    journal: Iterable[Mapping[str, Any]],
    rows: Iterable[Mapping[str, Any]],
    iterations: int,
    *,
    running: bool,
) -> Ending:
    """Return how a run ended, from its files. Determine ``running`` before reading them: the run may end meanwhile."""
    since = {row.get("event"): row for row in since_start(journal)}

    def reason(event: str) -> str | None:
        return str(since[event].get("reason", "")) if event in since else None

    known = Known(
        iterations,
        met=_met(config, rows),
        diverged=whole(since[DIVERGED].get("iteration")) if DIVERGED in since else None,
        stopped=reason(STOPPED),
        early=reason(STOPPED_EARLY),
        signal=str(since.get(ENDED, {}).get("signal") or ""),
        ended=ENDED in since,
        running=running,
        drained=DRAINED in since,
    )
    return decide(config, known)


def since_start(journal: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the journal since the run was started or last resumed.

    A new run has an empty journal, and events of its first evaluation come before ``started``.
    """
    journal = list(journal)
    resumed = [place for place, row in enumerate(journal) if row.get("event") == RESUMED]
    return journal[resumed[-1] :] if resumed else journal


def whole(value: Any) -> int:
    """Return a value of a file if it is a whole number, else 0."""
    return value if isinstance(value, int) else 0


def _met(config: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> int | None:
    """Return the iteration of the first row that meets the target. Later rows may miss it again."""
    if not config.get("until"):
        return None
    target = Target.parse(str(config["until"]))
    for row in rows:
        value = row.get(target.metric)
        if isinstance(value, int | float) and target.met({target.metric: value}):
            return int(row["iteration"])
    return None
