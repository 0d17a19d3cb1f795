"""The only loop over an engine: take the workers' reports, ask the server, send its commands, record everything."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from asyncsgd.compiled.kernels import ready
from asyncsgd.core.errors import EndedJob, UnknownJob, WorkerError, WorkersFailed
from asyncsgd.core.events import Arrived, Drain, Event, Joined, Left, Lost, Outcome
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import is_finite
from asyncsgd.engines.base import LATE, Died, Exhausted, Failed, Note, Rejected, Replied, Report, WorkerPool
from asyncsgd.run import configuration, stored
from asyncsgd.run.callbacks.base import SHOWN_ONCE, Hooks, culprit
from asyncsgd.run.callbacks.best import Best, described
from asyncsgd.run.checkpoints import Checkpoint, model_of
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.evaluator import TICK
from asyncsgd.run.interrupts import Interrupts
from asyncsgd.run.journal import (
    DIED,
    DRAINED,
    ENDED,
    FAILED,
    JOINED,
    LEFT,
    REJECTED,
    RESUMED,
    RETIRED,
    STARTED,
    STEP_CHANGED,
    STOPPED,
    where,
)
from asyncsgd.run.memory import remembered
from asyncsgd.run.options import RunRequest
from asyncsgd.run.read import read_lines
from asyncsgd.run.recording import Recording
from asyncsgd.run.results import TrainingRun, finished
from asyncsgd.tasks.base import batches_of
from asyncsgd.trace import Recorder
from asyncsgd.trace.columns import WHEN


class Loop:
    """One call of `train`: the server, the workers, and the recording of what they do."""

    def __init__(self, request: RunRequest, hooks: Hooks, files: RunDirectory | None) -> None:
        self._request, self._hooks, self._files = request, hooks, files
        self._config = configuration.describe(request)
        until = None if request.evaluation.target is None else str(request.evaluation.target)
        self._config |= {"every": request.evaluation.every, "until": until}
        self._config |= described(hooks.callbacks)
        self._drained = False  # whether the journal says that the last mini-batch was handed out
        self._record = Recording(request, hooks, files, self._config)

    # ------------------------------------------------------------------------------------------ from start to end

    def run(self) -> TrainingRun:
        """Start the workers, run the loop, and return the result."""
        request = self._request
        checkpoint = self._find_checkpoint()
        if checkpoint is not None and self._files is not None:
            done = finished(self._files.path, request, checkpoint)
            if done is not None:  # start and write nothing, so that no logger opens its run again
                self._record.note(done[1])
                return done[0]
        self._check_metrics(checkpoint)
        for opening in filter(None, (request.engine.opening, remembered(request))):
            self._record.note(opening)
        with request.engine.start(request.task, request.method.job, request.task.initial()) as pool:
            self._begin(pool, checkpoint)
            pool.clock, self._record.label = (lambda: self._record.seconds), pool.label
            checkpoint = None  # its arrays were copied into the server
            with Interrupts() as interrupts:
                self._record.should_stop = lambda: interrupts.received is not None
                with self._rescued():
                    self._loop(pool, interrupts)
                    self._settle(pool, interrupts)
                interrupted = interrupts.received
        run = self._summary(interrupted)
        self._hooks.ended(run)
        if interrupted is not None:
            interrupts.raise_it(interrupted, self._server.iteration, None if self._files is None else self._files.path)
        return run

    def _find_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint to resume from, if any. Refuse a resume that cannot work before workers start."""
        checkpoint = None
        if self._files is not None and self._files.begun:
            before = configuration.read(self._files.path)
            configuration.check_same(self._config, before)
            self._config["bound"] = before.get("bound", self._config["bound"])
            checkpoint, complaints = self._files.newest()
            for complaint in complaints:
                self._record.note(complaint)
        return checkpoint

    def _check_metrics(self, checkpoint: Checkpoint | None) -> None:
        """Refuse a target or a callback that follows a metric that the task does not have, before workers start.

        Clients that evaluate are not there yet, so a federated run finds out later.
        """
        evaluation, record = self._request.evaluation, self._record
        followers = [callback for callback in self._hooks.callbacks if isinstance(callback, Best)]
        if evaluation.federated or (evaluation.target is None and not followers):
            return
        if checkpoint is None:
            row = record.look_ahead()
        else:
            assert self._files is not None
            row = next(reversed(read_lines(self._files.path, "metrics.jsonl")), None)
        if row is None:
            return
        if evaluation.target is not None:
            evaluation.target.require([row])
        if checkpoint is not None and any(callback.metric not in row for callback in followers):
            row = record.evaluator.now(checkpoint.iteration, model_of(checkpoint))  # the task may have more metrics now
        for callback in followers:
            callback.require({name: value for name, value in row.items() if name not in WHEN})

    def _begin(self, pool: WorkerPool, checkpoint: Checkpoint | None) -> None:
        request, config, record = self._request, self._config, self._record
        package = initial = None
        if self._files is not None:
            entry, package = stored.package(request.task, request.method)
            config = {**config, "job": entry}
            # A resume keeps the initial model, unless the run was stored without it.
            if entry.get("parameters") is not None or (checkpoint is None and stored.needs_initial(entry)):
                initial = request.task.initial()
        fast = ready(request.method, pool.dtype)
        noise = secrets.randbits(64) if getattr(request.method.aggregation, "noise", 0.0) else None
        if noise is not None and self._files is not None:
            self._files.make_private()
        if checkpoint is not None and self._files is not None:
            # First, while nothing has changed: a callback that cannot load its state must not replace it.
            for note in self._hooks.load(checkpoint.state.get("callbacks", "")):
                record.note(note)
            self._server = Server.restore(checkpoint.state, request.method, pool.allocate, fast)
            recorder = self._files.resume(checkpoint, config, package, initial)
            record.open(self._server, recorder, checkpoint.seconds, resumed=True)
            with self._rescued():  # from here on, the files belong to the resumed run
                pool.resumed(record.trace())
                self._resume(self._files, noise)
            return
        counted = batches_of(request.task)
        self._server = Server(request.task.initial(), request.method, request.seed, pool.allocate, fast, counted)
        self._server.handle(Drain(request.batches))
        recorder = Recorder(metadata={"method": request.method.name, "seed": str(request.seed)})
        record.open(self._server, recorder, 0.0)
        record.announce(STARTED)
        record.measure(at=0.0)
        if self._files is not None:  # only now: a task that cannot be evaluated leaves no directory
            self._files.begin(config, package, recorder, initial)
        record.open(self._server, recorder, 0.0)  # start the clock again: the first evaluation does not count
        self._reseed(noise)
        record.save()  # before any job, so that a directory without a checkpoint must have lost it (`check_resumable`)

    def _resume(self, files: RunDirectory, noise: int | None) -> None:
        record = self._record
        record.evaluator.load(read_lines(files.path, "metrics.jsonl"))
        journal = configuration.journal(files.path)
        record.fault_counter.load(journal)
        record.step_changes += [(row["iteration"], row["factor"]) for row in journal if row["event"] == STEP_CHANGED]
        record.resumed_at = self._server.iteration
        record.announce(RESUMED)
        self._reseed(noise)
        if record.epochs.per_epoch is not None:
            record.epochs.load(record.trace())
        record.event(self._server.handle(Drain()))  # no job for a worker that is gone: its rows would be lost
        for worker in self._server.workers:  # they ended with the process that had started them
            record.worker(worker, LEFT)
            record.event(self._server.handle(Left(worker)))
        batches = self._request.batches
        left = None if batches is None else max(0, batches - self._server.batches)
        record.event(self._server.handle(Drain(left)))
        self._note_drain()
        if record.evaluator.due(self._server.iteration):
            record.measure()  # this evaluation stopped the run before
        files.continued()

    def _reseed(self, noise: int | None) -> None:
        """Draw noise from a new seed, so that a resume that repeats a version never repeats its noise."""
        if noise is not None:
            self._server.reseed(noise)
            if self._files is not None:
                self._files.remember_noise(self._server.iteration, noise)

    def _loop(self, pool: WorkerPool, interrupts: Interrupts) -> None:
        self._record.begin()
        while not self._over() and interrupts.received is None:
            for report in pool.poll(TICK):
                if isinstance(report, LATE) or not self._over():
                    self._take(pool, report)
                del report  # so that the memory of its update can be used again for the next one
            self._record.tick()

    def _over(self) -> bool:
        record = self._record
        reached = self._request.evaluation.target is not None and record.evaluator.reached
        if reached or record.diverged is not None or record.control.reason is not None:
            return True
        if self._request.epochs is not None:
            return self._server.draining and not self._server.concurrency
        return self._server.iteration >= self._request.iterations

    def _note_drain(self) -> None:
        """Journal that the last mini-batch of the last epoch was handed out."""
        epochs = self._request.epochs
        if epochs is not None and not self._drained and self._server.draining:
            self._drained = True
            self._record.journal(DRAINED, reason=f"all mini-batches of {epochs} epochs are handed out")

    def _settle(self, pool: WorkerPool, interrupts: Interrupts) -> None:
        """Evaluate and save the final model, whatever ended the loop."""
        record, federated = self._record, self._request.evaluation.federated
        if federated or record.should_stop():
            record.save()  # first: an evaluation may take long, and a second signal may end the process
        record.catch_up()
        measured = record.evaluator.last == self._server.iteration
        if record.diverged is None and not measured and not (federated and record.should_stop()):
            record.measure()
        self._seconds = record.seconds  # before the workers stop, which takes time too
        if interrupts.received is None:
            for note in pool.finish():
                self._take(pool, note)
        signal = {} if interrupts.received is None else {"signal": interrupts.received.name}
        facts = {"workers": len(self._server.workers), "skipped_rows": record.epochs.rows}
        record.journal(ENDED, seconds=self._seconds, **facts, **signal)
        record.save()

    @contextmanager
    def _rescued(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._rescue(error)
            raise

    def _rescue(self, error: Exception) -> None:
        """Save the run after an error: in the user's evaluation or callback, in the engine, or of a full disk."""
        try:
            lines, who = str(error).splitlines(), culprit(error)
            reason = (lines or [type(error).__name__])[0]
            self._record.journal(STOPPED, reason=f"{reason} ({who})" if who else reason)
            if self._server.torn:
                kept = "nothing was saved, because the run has no directory"
                if self._files is not None:
                    kept = "the last checkpoint is intact: fix the part and resume with resume=True"
                    self._record.flush()
                error.add_note(f"A part of the method raised half-way, so the run stopped without saving; {kept}.")
            else:
                self._record.save(rescue=True)
                if who and self._files is not None:
                    error.add_note(f"The run is saved in {self._files.path}: fix the callback, then pass resume=True.")
        except Exception as second:  # the first error is the one to report
            if str(second) != str(error):
                error.add_note(f"(and no checkpoint could be written then: {second!r})")

    def _summary(self, interrupted: signal.Signals | None) -> TrainingRun:
        request, record = self._request, self._record
        trace = record.trace()
        trace.check(early=request.method.dispatch.early)
        x, good, diagnosis = record.close(trace, interrupted=interrupted is not None)
        return TrainingRun(
            x=x,
            trace=trace,
            metrics=record.evaluator.columns(),
            method=request.method,
            task=request.task,
            diverged=record.diverged,
            x_iteration=good,
            directory=None if self._files is None else self._files.path,
            seconds=self._seconds,
            reached=record.evaluator.reached,
            interrupted=None if interrupted is None else interrupted.name,
            stopped_early=record.control.reason,
            faults=record.fault_counter.faults,
            config=self._config,
            diagnosis=diagnosis,
            skipped_rows=record.epochs.rows,
        )

    # ------------------------------------------------------------------------------------------ one report

    def _take(self, pool: WorkerPool, report: Report) -> None:
        record = self._record
        match report:
            case Arrived():
                self._arrived(pool, report)
            case Lost(job=job) | Rejected(job=job) | Failed(job=job) if not self._in_flight(job):
                pass  # an earlier report of the same list cancelled the job or retired its worker
            case Lost():
                self._handle(pool, report)
            case Rejected(job=job, worker=worker, reason=reason):
                self._rejected(pool, worker, job, reason)
            case Failed():
                self._failed(pool, report)
            case Died(worker=worker, reason=reason):
                record.fault_counter.died()
                record.worker(worker, DIED, reason=reason)
                record.note(f"{pool.label(worker)} {reason}")
            case Exhausted(reason=reason):
                record.stop(reason)
            case Note(event=event, details=details, message=message):
                record.journal(event, **details)
                if message is not None:
                    record.note(message)
            case Replied(worker=worker, kind=kind, records=records):
                record.replied(worker, kind, records)
            case Joined(workers=workers):
                self._handle(pool, report)  # first: an exception in a hook must not leave the journal ahead of it
                for worker in workers:
                    record.worker(worker, JOINED)
            case Left(worker=worker) if worker in self._server.workers:  # else the worker was retired
                record.worker(worker, LEFT)
                self._handle(pool, report)

    def _arrived(self, pool: WorkerPool, report: Arrived) -> None:
        server = self._server
        try:
            reply = server.handle(report)
        except WorkerError as error:
            if server.torn or isinstance(error, UnknownJob):
                raise  # a part of the method raised half-way, or the engine reported a job that does not exist
            if isinstance(error, EndedJob):
                return  # the job has ended meanwhile, so its update is dropped
            owner = next(job.worker for job in server.in_flight if job.id == report.job)
            self._rejected(pool, owner, report.job, str(error))
            return
        self._record.event(reply, report.update)
        pool.used(report, reply.ended[0].outcome is Outcome.APPLIED)
        for command in reply.commands:
            pool.execute(command)
        self._note_drain()
        self._record.arrived(reply.ended[0])

    def _handle(self, pool: WorkerPool, event: Event) -> None:
        reply = self._server.handle(event)
        self._record.event(reply)
        for command in reply.commands:
            pool.execute(command)
        self._note_drain()

    def _rejected(self, pool: WorkerPool, worker: int, job: int, why: str) -> None:
        record = self._record
        in_a_row = record.fault_counter.count(REJECTED, worker)
        record.worker(worker, REJECTED, job=job, reason=why)
        if record.fault_counter.first(REJECTED):
            record.note(f"{pool.label(worker)}, job {job}: the update was rejected: {why}; the model did not change")
        if in_a_row < self._request.limits.max_failures:
            self._handle(pool, Lost(job, Outcome.REJECTED))
            return
        # Retire the worker first, so that the job goes to another one.
        self._retire(pool, worker, job, f"{in_a_row} updates in a row were rejected: {why}")

    def _retire(self, pool: WorkerPool, worker: int, job: int, why: str) -> None:
        record = self._record
        record.fault_counter.retired(worker)
        record.worker(worker, RETIRED, reason=why)
        record.note(f"{pool.label(worker)} is retired: {why}")
        pool.retire(worker)
        record.worker(worker, LEFT)
        self._handle(pool, Lost(job, Outcome.REJECTED))
        self._handle(pool, Left(worker))
        if not self._server.workers:
            if not is_finite(self._server.x):
                record.diverge(self._server.iteration)
            elif record.evaluator.last != self._server.iteration:
                record.measure()  # the model is finite, but its loss may not be
            if record.diverged is not None or self._over():
                return  # the run ends anyway, for instance because this was the last job of the last epoch
            raise WorkersFailed(f"no worker is left; the last one, {pool.label(worker)}: {why}")

    def _failed(self, pool: WorkerPool, report: Failed) -> None:
        record = self._record
        in_a_row = record.fault_counter.count(FAILED, report.worker)
        last = report.error.strip().splitlines()[-1] if report.error.strip() else "no message"
        record.worker(report.worker, FAILED, job=report.job, reason=last)
        if record.fault_counter.first(where(report.error)):
            record.note(
                f"{pool.label(report.worker)}, job {report.job}: an exception in your code {SHOWN_ONCE}\n{report.error}"
            )
        self._handle(pool, Lost(report.job))
        if in_a_row >= self._request.limits.max_failures:
            error = WorkersFailed(
                f"{pool.label(report.worker)} failed {in_a_row} times in a row, at last with {last}; "
                "fix the task and resume with resume=True"
            )
            error.add_note(f"In {pool.label(report.worker)}:\n{report.error}")  # callbacks have the traceback already
            raise error

    def _in_flight(self, job: int) -> bool:
        return self._server.outcome(job) is Outcome.IN_FLIGHT
