"""Record a run while it trains: trace, metrics, journal, checkpoints, callbacks.

The loop decides what happens; a `Recording` only follows. It holds an `Evaluator`, a `Checkpointer`, a `JournalWriter`
and a `Progress`, all of which live in the loop's thread. The first two have a thread each for what takes long.
"""

from __future__ import annotations

import math
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from asyncsgd.core.errors import UsageError
from asyncsgd.core.events import Changed, Ended, Outcome, Reply
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import Vector
from asyncsgd.run.callbacks.base import SHOWN_ONCE, Control, Hooks, LiveView
from asyncsgd.run.checkpoints import Checkpointer
from asyncsgd.run.checksums import fingerprint
from asyncsgd.run.diagnosis import Diagnosis, Observed, judge
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.epochs import EpochCount, expected
from asyncsgd.run.evaluator import Evaluator, Measured, Missed
from asyncsgd.run.journal import (
    DIAGNOSED,
    DIVERGED,
    EVALUATION_FAILED,
    STEP_CHANGED,
    STOPPED_EARLY,
    FaultCounter,
    where,
)
from asyncsgd.run.last_good import LastGood
from asyncsgd.run.options import RunRequest
from asyncsgd.run.progress import Progress
from asyncsgd.trace import Recorder, Trace
from asyncsgd.trace.labels import PLAIN

ALL_ROUNDS = "evaluate_every=1 evaluates every round"


class JournalWriter:
    """Writes the journal, and passes notes on to the callbacks."""

    def __init__(self, files: RunDirectory | None, hooks: Hooks) -> None:
        self._files, self._hooks = files, hooks

    def add(self, event: str, **details: Any) -> None:
        """Add one line, if there is a directory."""
        if self._files is not None:
            self._files.add_line("journal.jsonl", {"event": event, **details})

    def note(self, text: str) -> None:
        """Report something that a user should know."""
        for hook in self._hooks.note:
            hook(text)


class Recording:
    """The record of one call of `train`. It decides only whether the model has diverged or met its target."""

    def __init__(
        self, request: RunRequest, hooks: Hooks, files: RunDirectory | None, config: Mapping[str, Any]
    ) -> None:
        self._request, self._hooks, self.files, self._config = request, hooks, files, config
        self.evaluator = Evaluator(request.task, request.evaluation, request.limits.evaluation_seconds)
        self.fault_counter = FaultCounter()
        self.control = Control()
        self.diverged: int | None = None
        """The iteration whose model, or loss, was found not to be finite."""
        self.resumed_at: int | None = None
        self.step_changes: list[tuple[int, float]] = []
        """The iterations at which callbacks multiplied the step, and the factors."""
        self.epochs = EpochCount(request.task)
        self._journal = JournalWriter(files, hooks)
        self._checkpointer = None if files is None else Checkpointer(request.checkpoints, files)
        self._stop_written = False
        self._blown_up = False
        self._smoothness: float | None = None  # the largest L found so far
        self._good = LastGood(None if files is None else files.path)
        self._start = time.monotonic()
        self.should_stop: Callable[[], bool] = lambda: False
        """Whether a signal has asked the run to stop."""
        self.label: Callable[[int], str] = PLAIN
        """How texts name a worker."""

    def open(self, server: Server, recorder: Recorder, seconds: float, *, resumed: bool = False) -> None:
        """Record this server from now on; ``seconds`` had passed before it was ``resumed``."""
        self._server, self._recorder = server, recorder
        if resumed:
            self._good.keep(server.iteration, server.output, changes=True)
        self._progress = Progress(server.iteration)
        self._start = time.monotonic() - seconds

    def begin(self) -> None:
        """Count from now on: the loop starts."""
        now = time.monotonic()
        self._progress.begin(now, self._server.iteration)
        if self._checkpointer is not None:
            self._checkpointer.begin(now)

    @property
    def seconds(self) -> float:
        """Seconds since the start, without the time between a stop and a resume."""
        return time.monotonic() - self._start

    @property
    def jobs(self) -> int:
        """Number of jobs handed out so far."""
        return len(self._recorder)

    # ------------------------------------------------------------------------------------------ one event

    def event(self, reply: Reply, update: Vector | None = None) -> None:
        """Record what the server did with an event; ``update`` is that of an arrival."""
        self._recorder.record(self.seconds, reply.commands, reply.ended)
        for ended in reply.ended:
            if ended.outcome is not Outcome.APPLIED:
                self.epochs.add(ended.outcome, ended.job.worker, ended.job.steps, ended.job.batch)
        if update is not None and self.files is not None:
            self.files.add_fingerprint(fingerprint(update))

    def arrived(self, ended: Ended) -> None:
        """Call hooks, evaluate and save after an arrival. Its commands were sent before, so workers are busy."""
        iteration = self._server.iteration
        self._progress.arrived(ended.iteration - ended.job.iteration)
        self.fault_counter.fine(ended.job.worker)
        if self._hooks.update:
            view = self.view()
            for hook in self._hooks.update:
                hook(view, self.control)
            self._heed()
        if self.evaluator.due(iteration):
            self.measure(background=True)
        if self._checkpointer is not None and self._checkpointer.due_after(iteration):
            self.save(wait=False)

    def worker(self, worker: int, what: str, **details: Any) -> None:
        """Journal what happened to a worker, and report it."""
        self.journal(what, worker=worker, **details)
        if self._hooks.worker:
            view = self.view()
            for hook in self._hooks.worker:
                hook(view, worker, what)

    def replied(self, worker: int, kind: str, records: Callable[[], Any]) -> None:
        """Pass on what a worker's answer contained beside its update, which ``records`` builds. Nothing is recorded."""
        if self._hooks.reply:
            view, built = self.view(), records()
            for hook in self._hooks.reply:
                hook(view, worker, kind, built)

    def note(self, text: str) -> None:
        """Report something that a user should know."""
        self._journal.note(text)

    def journal(self, event: str, **details: Any) -> None:
        """Add one line to the journal."""
        self._journal.add(event, **{"iteration": self._server.iteration, "seconds": self.seconds, **details})

    def stop(self, reason: str) -> None:
        """End the run as a callback would."""
        self.control.stop(reason)
        self._heed()

    def _heed(self) -> None:
        """Do what callbacks asked for, and journal it. The loop reads ``control`` to know that it must stop.

        The server changes its step at once, before the next arrival and before any checkpoint.
        """
        for factor, reason in self.control.take_factors():
            self._server.handle(Changed(factor))
            self.step_changes.append((self._server.iteration, factor))
            self.journal(STEP_CHANGED, factor=factor, reason=reason)
        if self.control.reason is not None and not self._stop_written:
            self._stop_written = True
            self.journal(STOPPED_EARLY, reason=self.control.reason)

    # ------------------------------------------------------------------------------------------ periodic work

    def view(self) -> LiveView:
        """Return how the run stands."""
        server, progress = self._server, self._progress
        epoch = self.epochs.progress(server)
        return LiveView(
            config=self._config,
            directory=None if self.files is None else self.files.path,
            resumed_at=self.resumed_at,
            iteration=server.iteration,
            wanted=expected(self._config, server.iteration, epoch),
            seconds=self.seconds,
            updates_per_second=progress.per_second,
            workers=len(server.workers),
            average_delay=progress.average_delay(server.iteration),
            maximum_delay=progress.maximum_delay,
            metrics=self.evaluator.metrics,
            model=lambda: server.output,
            task=self._request.task,
            epoch=epoch,
            epochs=self._request.epochs,
        )

    def announce(self, event: str) -> None:
        """Report and journal that the run was ``started`` or ``resumed``."""
        view = self.view()
        for hook in self._hooks.start:
            hook(view)
        engine = self._request.engine
        self.journal(event, threads=engine.threads, jobs=self.jobs)

    def look_ahead(self) -> Mapping[str, float] | None:
        """Evaluate the initial model before there is a server; return its metrics. `measure` records them."""
        x = self._request.task.initial().copy()
        x.flags.writeable = False
        self._good.keep(0, x)
        self.evaluator.begin(0, 0.0, x, epoch=None if self.epochs.per_epoch is None else 0.0)
        return self.evaluator.peek()

    def measure(self, at: float | None = None, *, background: bool = False) -> None:
        """Evaluate a copy of the model, and wait for the result; in the ``background``, only a moment.

        ``at``: the time of the evaluation before the run, which must not fail.
        """
        evaluator, iteration = self.evaluator, self._server.iteration
        waits = self._request.evaluation.federated and self._request.evaluation.share is None
        if at is not None and evaluator.busy:  # `look_ahead` has begun it
            self._fetch(math.inf, required=True)
            return
        self.catch_up(wait=not background or waits)
        if evaluator.busy:
            if background and not waits:
                evaluator.skip(iteration)
            return  # else the run is about to stop, and only one evaluation runs at a time
        if background and not evaluator.affordable(iteration, self.seconds):
            return
        x = self._server.output.copy()
        x.flags.writeable = False
        if not self._good.known:
            self._good.keep(iteration, x)
        evaluator.begin(iteration, self.seconds if at is None else at, x, epoch=self.epochs.progress(self._server))
        patience = 0.0 if self._request.evaluation.federated else evaluator.patience
        self._fetch(patience if background else math.inf, required=at is not None)

    def catch_up(self, *, wait: bool = True) -> None:
        """Record the evaluation that is under way; without ``wait``, only if it has ended."""
        if self.evaluator.busy:
            self._fetch(math.inf if wait else 0.0)

    def _fetch(self, patience: float, *, required: bool = False) -> None:
        # If clients evaluate, a run that must stop does not wait for them. Else a second signal ends the wait.
        should_stop = self.should_stop if self._request.evaluation.federated else None
        found = self.evaluator.finished(patience=patience, should_stop=should_stop)
        if isinstance(found, Measured):
            self._enter(found)
        elif found is not None:
            self._missed(found, required=required)

    def _missed(self, missed: Missed, *, required: bool) -> None:
        """Record an evaluation that raised or took too long; raise if the user asked for that, or if ``required``."""
        error = missed.error
        if error is not None and required:
            raise error
        self.fault_counter.missed_evaluation()
        self.journal(EVALUATION_FAILED, iteration=missed.iteration, reason=missed.reason.partition("\n")[0])
        if error is None:
            self.note(f"the evaluation of iteration {missed.iteration} failed: {missed.reason}; the run continues")
            return
        wrong = isinstance(error, UsageError) or not isinstance(error, Exception)
        if wrong or self._request.limits.evaluation_errors == "raise":
            raise error
        text = "".join(traceback.format_exception(error))
        if self.fault_counter.first(where(text)):
            head = f"the evaluation of iteration {missed.iteration} raised {SHOWN_ONCE}; the run continues"
            self.note(f"{head}\n{text}")

    def _enter(self, measured: Measured) -> None:
        if self.evaluator.problem:
            self.diverge(measured.iteration)
            return
        self._good.keep(measured.iteration, measured.x)
        if self.files is not None:
            self.files.add_line("metrics.jsonl", measured.row)
        self.evaluator.judge(measured.row)
        if self._hooks.evaluation:
            at, seconds = measured.iteration, measured.seconds
            epoch = measured.row.get("epoch")
            view = replace(self.view(), iteration=at, seconds=seconds, epoch=epoch, model=lambda: measured.x)
            for hook in self._hooks.evaluation:
                hook(view, self.evaluator.metrics, self.control)
            self._heed()
        if self.evaluator.blown_up and not self._blown_up:
            self._blown_up = True
            seen = self.diagnose(self.trace(), self._server.x)
            self.note("the loss is blowing up:\n" + "\n".join(f"  {line}" for line in (*seen.problems, *seen.facts)))

    def diverge(self, iteration: int) -> None:
        """Record that the model of this iteration, or its loss, is not finite."""
        self.diverged = iteration
        # It may be older than the server's iteration: updates arrive during an evaluation.
        self.journal(DIVERGED, iteration=iteration)

    def save(self, *, wait: bool = True, rescue: bool = False) -> None:
        """Save a checkpoint, unless the run has diverged; the initial model is always saved.

        Without ``wait``, another thread writes it; errors are raised by `tick` or by the next call. At most one is
        written at a time, so a checkpoint that is due waits for the one before. In a ``rescue`` after an error, no hook
        is called: it may have raised the error.
        """
        if self._checkpointer is None:
            return
        self._saved(wait=True)
        sound = self.diverged is None or self._server.iteration == 0
        callbacks = self._hooks.state(rescue=rescue)
        self._checkpointer.save(self._server, self._recorder, self.seconds, callbacks, sound=sound)
        self._saved(wait=wait, rescue=rescue)

    def _saved(self, *, wait: bool, rescue: bool = False) -> None:
        """Report the checkpoint that another thread has written."""
        path = None if self._checkpointer is None else self._checkpointer.written(wait=wait)
        if path is not None and self._hooks.checkpoint and not rescue:
            view = self.view()
            for hook in self._hooks.checkpoint:
                hook(view, path)

    def flush(self) -> None:
        """Write everything recorded so far, without a checkpoint."""
        if self.files is not None:
            self.files.flush(self._recorder)

    def tick(self) -> None:
        """Report progress and do what is due by the clock. Most calls return at once."""
        self.catch_up(wait=False)
        self._saved(wait=False)
        now = time.monotonic()
        if not self._progress.due(now):
            return
        self._progress.tick(now, self._server.iteration, len(self._server.workers))
        if self._hooks.progress:
            view = self.view()
            for hook in self._hooks.progress:
                hook(view)
        if self._checkpointer is not None and self._checkpointer.due_at(now, busy=self._hooks.writing):
            self.save(wait=False)
        else:
            self.flush()
        self._progress.ticked(time.monotonic())

    # ------------------------------------------------------------------------------------------ the end

    def trace(self) -> Trace:
        """Return the trace so far."""
        if self.files is not None:
            return self.files.trace(self._recorder, self._server.concurrency)
        return self._recorder.trace(final_concurrency=self._server.concurrency)

    def diagnose(self, trace: Trace, x: Vector, *, interrupted: bool = False) -> Diagnosis:
        """Return why the run does not learn, if it does not."""
        if self.diverged == 0 and not trace.iterations:
            fix = "check the initial parameters, the data and the loss"
            return Diagnosis(problems=(f"{self.evaluator.problem} at the initial model, before any update; {fix}",))
        observed = Observed(
            trace,
            self.evaluator.columns(),
            self.fault_counter.faults,
            self._request.method,
            self._request.task,
            x,
            diverged=self.diverged is not None,
            known=self._smoothness,
            step_changes=self.step_changes,
            label=self.label,
        )
        seen = judge(observed, interrupted=interrupted, hung=self.evaluator.hung > 0)
        self._smoothness = seen.smoothness
        facts = [*seen.facts, *self.epochs.facts()]
        if skipped := self.evaluator.skipped:
            who = "1 evaluation was" if skipped == 1 else f"{skipped:,} evaluations were"
            facts.append(f"{who} skipped, because the one before was still under way; a larger every= asks for fewer")
        if spared := self.evaluator.spared:
            rounds = "1 round was" if spared == 1 else f"{spared:,} rounds were"
            facts.append(f"{rounds} not evaluated, so that evaluations take little of the time; {ALL_ROUNDS}")
        return replace(seen, facts=tuple(facts))

    def close(self, trace: Trace, *, interrupted: bool) -> tuple[Vector, int | None, Diagnosis]:
        """End the record; return the model, its iteration if that is not the last one, and the diagnosis."""
        kept = None if self.diverged is None else self._good.model()
        if self.files is not None:
            self.files.finish(trace, kept)
        good, x = (None, self._server.output.copy()) if kept is None else kept
        seen = self.diagnose(trace, x, interrupted=interrupted)
        if self.files is not None:  # for reports; a resume drops it like everything after its checkpoint
            self.journal(DIAGNOSED, **asdict(seen))
            self.files.flush(self._recorder)
        return x, good, seen
