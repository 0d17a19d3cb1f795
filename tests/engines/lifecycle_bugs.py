"""Lifecycles with one deliberate bug each: the smallest change that makes a correct one wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncsgd.core.events import Assign, Cancel, Left
from asyncsgd.engines.lifecycle import Action, Kill, Lifecycle, Stage, Stop


class JoinsInTheListThatItLeft(Lifecycle):
    def went(self, worker: int) -> None:
        super().went(worker)
        self._left.clear()


class LeavesUnknown(Lifecycle):
    def went(self, worker: int) -> None:
        if worker not in self.present:
            self.report(Left(worker))
        super().went(worker)


class StaysLate(Lifecycle):
    """A worker that died while it was late joins all the same."""

    def went(self, worker: int) -> None:
        late = worker in self._late
        super().went(worker)
        if late:
            self._late.add(worker)


class RetiredComesBack(Lifecycle):
    def ready(self, worker: int, now: float) -> None:
        self.retired.discard(worker)
        super().ready(worker, now)


class RetiredMustNotSpeak(Lifecycle):
    def dismiss(self, worker: int) -> None:
        super().dismiss(worker)
        self.workers[worker].sent.clear()


class TakesJobsForTheAbsent(Lifecycle):
    def assign(self, command: Assign) -> bool:
        self._wanted[command.job.id] = self.workers[command.job.worker]
        self.workers[command.job.worker].waiting.append(command)
        return True


class KeepsJobsOfTheDead(Lifecycle):
    def died(self, worker: int, reason: str, now: float) -> bool:
        waiting = list(self.workers[worker].waiting)
        at_once = super().died(worker, reason, now)
        self.workers[worker].waiting.extend(waiting)
        return at_once


class KeepsCancelledJobs(Lifecycle):
    def cancel(self, command: Cancel) -> int | None:
        waiting = self.workers[command.job.worker].waiting
        found = super().cancel(command)
        self.workers[command.job.worker].waiting = waiting
        return found


class CancelForgetsAnotherJob(Lifecycle):
    """The answer to another job of that worker is not wanted any more."""

    def cancel(self, command: Cancel) -> int | None:
        found = super().cancel(command)
        for job, worker in list(self._wanted.items()):
            if worker.number == command.job.worker:
                del self._wanted[job]
                break
        return found


class CancelEmptiesTheQueue(Lifecycle):
    """The other jobs that wait for that worker are wanted, but never sent."""

    def cancel(self, command: Cancel) -> int | None:
        found = super().cancel(command)
        self.workers[command.job.worker].waiting.clear()
        return found


class ReadyEndsDeaths(Lifecycle):
    def ready(self, worker: int, now: float) -> None:
        super().ready(worker, now)
        self.workers[worker].deaths = 0


class OnlyUpdatesEndDeaths(Lifecycle):
    def answered(self, worker: int, job: int, now: float, seconds: float | None = None) -> tuple[Any, bool]:
        deaths = self.workers[worker].deaths
        found = super().answered(worker, job, now, seconds)
        if seconds is None:
            self.workers[worker].deaths = deaths
        return found


class OneClockForAllJobs(Lifecycle):
    def answered(self, worker: int, job: int, now: float, seconds: float | None = None) -> tuple[Any, bool]:
        since = self.workers[worker].since
        found = super().answered(worker, job, now, seconds)
        self.workers[worker].since = since
        return found


class TheClockOfAJobBeginsEarly(Lifecycle):
    def sent(self, worker: int, kept: Any, now: float) -> bool:
        since = self.workers[worker].since
        used = super().sent(worker, kept, now)
        self.workers[worker].since = since
        return used


class UnwantedJobsCount(Lifecycle):
    def answered(self, worker: int, job: int, now: float, seconds: float | None = None) -> tuple[Any, bool]:
        self.longest = max(self.longest, seconds or 0.0)
        return super().answered(worker, job, now, seconds)


class ReasonOfTheSystem(Lifecycle):
    def died(self, worker: int, reason: str, now: float) -> bool:
        self.workers[worker].condemned = ""
        return super().died(worker, reason, now)


class KillsTwice(Lifecycle):
    def condemn(self, worker: int, reason: str) -> None:
        self.workers[worker].reason = reason


class SendsAheadOfKeptState(Lifecycle):
    def peek(self, worker: int) -> Assign | None:
        it = self.workers[worker]
        return it.waiting[0] if it.waiting and it.stage is Stage.READY and not it.condemned else None


class CancelledIsUsed(Lifecycle):
    def cancel(self, command: Cancel) -> int | None:
        found = super().cancel(command)
        if found is not None:
            self.workers[found].used = True
        return found


class ForgetsVerdicts(Lifecycle):
    def judged(self, worker: int, job: int, applied: bool) -> None:
        super().judged(worker, job, False)


class VerdictOfAnotherJob(Lifecycle):
    """A worker gets the verdict on the update that was judged before its own."""

    before = False

    def judged(self, worker: int, job: int, applied: bool) -> None:
        super().judged(worker, job, self.before)
        self.before = applied


class VerdictSurvivesADeath(Lifecycle):
    """The update was reported, its worker died, and then the server applied it."""

    def judged(self, worker: int, job: int, applied: bool) -> None:
        self._undecided.pop(worker, None)
        self.workers[worker].used = applied


class KnownVerdictSurvivesADeath(Lifecycle):
    """The server applied the update, and then the worker died."""

    def died(self, worker: int, reason: str, now: float) -> bool:
        used = self.workers[worker].used
        at_once = super().died(worker, reason, now)
        self.workers[worker].used = used
        return at_once


class VerdictForEveryJob(Lifecycle):
    """The verdict on one update goes out with all later jobs."""

    def sent(self, worker: int, kept: Any, now: float) -> bool:
        used = super().sent(worker, kept, now)
        self.workers[worker].used = used
        return used


class SendsBeforeTheVerdict(Lifecycle):
    def answered(self, worker: int, job: int, now: float, seconds: float | None = None) -> tuple[Any, bool]:
        found = super().answered(worker, job, now, seconds)
        self._undecided.clear()
        return found


class NeverBacksOff(Lifecycle):
    def died(self, worker: int, reason: str, now: float) -> bool:
        at_once = super().died(worker, reason, now)
        self.workers[worker].start_at = now
        return at_once


class StopsOnlyOnce(Lifecycle):
    def tick(self, now: float) -> list[Action]:
        return [action for action in super().tick(now) if not isinstance(action, Stop)]


class NeverGivesUp(Lifecycle):
    def tick(self, now: float) -> list[Action]:
        return [action for action in super().tick(now) if not isinstance(action, Kill)]


@dataclass(frozen=True)
class Bug:
    """``words`` is a pattern of the error of the state machine."""

    kind: type[Lifecycle]
    words: str


BUGS: dict[str, Bug] = {
    bug.kind.__name__: bug
    for bug in (
        Bug(JoinsInTheListThatItLeft, "left and joined again in the same list"),
        Bug(LeavesUnknown, "left, but it was not present"),
        Bug(StaysLate, "present: it is not ready|joined twice"),
        Bug(RetiredComesBack, "retired"),
        Bug(RetiredMustNotSpeak, "jobs: others were sent"),
        Bug(TakesJobsForTheAbsent, "jobs: |state: "),
        Bug(KeepsJobsOfTheDead, "jobs: one waits that is not wanted"),
        Bug(KeepsCancelledJobs, "jobs: one waits that is not wanted|sending: "),
        Bug(CancelForgetsAnotherJob, "jobs: one was forgotten|answer: |cancel: "),
        Bug(CancelEmptiesTheQueue, "jobs: one was forgotten"),
        Bug(ReadyEndsDeaths, "deaths: counted otherwise"),
        Bug(OnlyUpdatesEndDeaths, "deaths: counted otherwise"),
        Bug(OneClockForAllJobs, "clock: "),
        Bug(TheClockOfAJobBeginsEarly, "clock: "),
        Bug(UnwantedJobsCount, "clock: "),
        Bug(ReasonOfTheSystem, "death: another reason"),
        Bug(KillsTwice, "clock: "),
        Bug(SendsAheadOfKeptState, "sending: too many jobs at once"),
        Bug(CancelledIsUsed, "state: "),
        Bug(ForgetsVerdicts, "state: other jobs than those applied"),
        Bug(VerdictOfAnotherJob, "state: "),
        Bug(VerdictSurvivesADeath, "state: a verdict, but on no update of this process"),
        Bug(KnownVerdictSurvivesADeath, "state: a verdict, but on no update of this process"),
        Bug(VerdictForEveryJob, "state: "),
        Bug(SendsBeforeTheVerdict, "state: |sending: the verdict on the last update is not known"),
        Bug(NeverBacksOff, "clock: "),
        Bug(StopsOnlyOnce, "clock: "),
        Bug(NeverGivesUp, "clock: "),
    )
}
