"""The only loop over an engine: reports in, the server's answer out, everything written down."""

from __future__ import annotations

import secrets
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

from asyncsgd.compiled.vectors import ready
from asyncsgd.core.errors import EndedJob, UnknownJob, WorkerError, WorkersFailed
from asyncsgd.core.events import Arrived, Event, Joined, Left, Lost, Outcome
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import is_finite
from asyncsgd.engines.base import Died, Failed, Note, Rejected, Report, WorkerPool
from asyncsgd.run import configuration, stored
from asyncsgd.run.callbacks.base import Hooks
from asyncsgd.run.checkpoints import Checkpoint
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.evaluator import TICK
from asyncsgd.run.faults import where
from asyncsgd.run.journal import DIED, ENDED, FAILED, JOINED, LEFT, REJECTED, RESUMED, RETIRED, STARTED, STOPPED
from asyncsgd.run.options import RunRequest
from asyncsgd.run.read import read_lines
from asyncsgd.run.recording import Recording
from asyncsgd.run.results import TrainingRun, finished
from asyncsgd.trace import Recorder

# --------------------------------------------------------------------------------------------------------------
# Ctrl-C and SIGTERM between two events, never in the middle of one: the state that is then saved is whole.


class Interrupts:
    """While it is entered, the first SIGINT or SIGTERM is only noted; a second one acts at once, as usual."""

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's, so not ours to restore
                    self._before[number] = signal.signal(number, self._note)
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            self._restore()
            signal.raise_signal(number)
        self.received = signal.Signals(number)

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._restore()

    @staticmethod
    def raise_it(received: signal.Signals, iteration: int, directory: Path | None) -> NoReturn:
        """What the signal asked for, now that everything is saved."""
        kept = f"saved in {directory}: go on with resume=True" if directory else "nothing was kept (no directory)"
        words = f"stopped by {received.name} at iteration {iteration}; {kept}"
        if received is signal.SIGTERM:
            raise SystemExit(128 + signal.SIGTERM)
        raise KeyboardInterrupt(words)


class Loop:
    """One call of `train`: the server, the workers, and the recording of what they do."""

    def __init__(self, request: RunRequest, hooks: Hooks, files: RunDirectory | None) -> None:
        self._request, self._hooks, self._files = request, hooks, files
        self._config = configuration.describe(
            request.task, request.method, request.engine, request.iterations, request.seed
        )
        until = None if request.evaluation.target is None else str(request.evaluation.target)
        self._config |= {"every": request.evaluation.every, "until": until}
        self._record = Recording(request, hooks, files, self._config)

    # ------------------------------------------------------------------------------------------ from start to end

    def run(self) -> TrainingRun:
        """Start the workers, loop, and sum up."""
        request = self._request
        checkpoint = self._look()
        if checkpoint is not None and self._files is not None:
            done = finished(self._files.path, request, checkpoint)
            if done is not None:  # nothing is started or written, and no logger opens its run again
                self._record.note(done[1])
                return done[0]
        if request.engine.opening is not None:
            self._record.note(request.engine.opening)
        with request.engine.start(request.task, request.method.work, request.task.initial()) as crew:
            self._begin(crew, checkpoint)
            with Interrupts() as interrupts:
                self._record.should_stop = lambda: interrupts.received is not None
                with self._rescued():
                    self._loop(crew, interrupts)
                    self._settle(crew, interrupts)
                interrupted = interrupts.received
        run = self._summary(interrupted)
        for hook in self._hooks.end:
            hook(run)
        if interrupted is not None:
            interrupts.raise_it(interrupted, self._server.iteration, None if self._files is None else self._files.path)
        return run

    def _look(self) -> Checkpoint | None:
        """What there is to go on from; whatever stands against it is said before anything is started."""
        checkpoint = None
        if self._files is not None and self._files.begun:
            before = configuration.read(self._files.path)
            configuration.check_same(self._config, before)
            self._config["bound"] = before.get("bound", self._config["bound"])
            checkpoint, complaints = self._files.newest()
            for complaint in complaints:
                self._record.note(complaint)
        return checkpoint

    def _begin(self, crew: WorkerPool, checkpoint: Checkpoint | None) -> None:
        request, config, record = self._request, self._config, self._record
        package = None
        if self._files is not None:
            said, package = stored.package(request.task, request.method)
            config = {**config, "job": said}
        fast = ready(crew.dtype)
        noise = secrets.randbits(64) if getattr(request.method.aggregation, "noise", 0.0) else None
        if noise is not None and self._files is not None:
            self._files.make_private()
        if checkpoint is not None and self._files is not None:
            self._server = Server.restore(checkpoint.state, request.method, crew.allocate, fast)
            record.open(self._server, self._files.resume(checkpoint, config, package), checkpoint.seconds)
            with self._rescued():  # from here on the files are those of the resumed run
                self._resume(crew, self._files, noise)
            return
        self._server = Server(request.task.initial(), request.method, request.seed, crew.allocate, fast)
        recorder = Recorder(metadata={"method": request.method.name, "seed": str(request.seed)})
        record.open(self._server, recorder, 0.0)
        record.announce(STARTED)
        record.measure(at=0.0)
        if self._files is not None:  # now, as a task that cannot be evaluated is not a run to be kept
            named = config["job"]["task"] is not None
            self._files.begin(config, package, recorder, request.task.initial() if named else None)
        record.open(self._server, recorder, 0.0)  # the first evaluation is not part of the time
        self._reseed(noise)
        record.save()  # before any job: a directory without a checkpoint has then lost it (`check_resumable`)

    def _resume(self, crew: WorkerPool, files: RunDirectory, noise: int | None) -> None:
        record = self._record
        record.evaluator.load(read_lines(files.path, "metrics.jsonl"))
        record.troubles.load(configuration.journal(files.path))
        record.resumed_at = self._server.iteration
        record.announce(RESUMED)
        self._reseed(noise)
        for worker in self._server.workers:  # they are gone with the process that had started them
            record.worker(worker, LEFT)
            self._handle(crew, Left(worker))
        if record.evaluator.due(self._server.iteration):
            record.measure()  # the run was stopped by this very evaluation
        files.continued()

    def _reseed(self, noise: int | None) -> None:
        """Never draw the same noise for two sums, also where a resume makes a version again."""
        if noise is not None:
            self._server.reseed(noise)
            if self._files is not None:
                self._files.remember_noise(self._server.iteration, noise)

    def _loop(self, crew: WorkerPool, interrupts: Interrupts) -> None:
        self._record.begin()
        while not self._over() and interrupts.received is None:
            for report in crew.poll(TICK):
                if isinstance(report, Note) or not self._over():  # what was noted is not said again
                    self._take(crew, report)
            self._record.tick()

    def _over(self) -> bool:
        record = self._record
        reached = self._request.evaluation.target is not None and record.evaluator.reached
        ended = reached or record.diverged is not None or record.control.reason is not None
        return ended or self._server.iteration >= self._request.iterations

    def _settle(self, crew: WorkerPool, interrupts: Interrupts) -> None:
        """The end is measured and written down, whatever ended it."""
        record, background = self._record, self._request.evaluation.background
        if background or record.should_stop():
            record.save()  # now, as what follows may take long, and whoever asked us to stop may lose patience
        record.catch_up()
        measured = record.evaluator.last == self._server.iteration
        if record.diverged is None and not measured and not (background and record.should_stop()):
            record.measure()
        self._seconds = record.seconds  # now: stopping the workers takes time too
        if interrupts.received is None:
            for note in crew.finish():
                self._take(crew, note)
        signal = {} if interrupts.received is None else {"signal": interrupts.received.name}
        record.journal(ENDED, seconds=self._seconds, workers=len(self._server.workers), **signal)
        record.save()

    @contextmanager
    def _rescued(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._rescue(error)
            raise

    def _rescue(self, error: Exception) -> None:
        """Something stops the run: the user's evaluation or callback, the engine, a full disk. Keep what there is."""
        try:
            lines = str(error).splitlines()
            reason = (lines or [type(error).__name__])[0]
            self._record.journal(STOPPED, reason=reason)
            if self._server.torn:
                kept = "nothing was kept, as there is no directory"
                if self._files is not None:
                    kept = "the last checkpoint is whole: fix the part and resume with resume=True"
                    self._record.flush()
                error.add_note(f"A part of the method raised half-way, so the run stopped without saving; {kept}.")
            else:
                self._record.save()
        except Exception as second:  # the first error is the one to tell about
            if str(second) != str(error):
                error.add_note(f"(and no checkpoint could be written then: {second!r})")

    def _summary(self, interrupted: signal.Signals | None) -> TrainingRun:
        request, record = self._request, self._record
        trace = record.trace()
        trace.check(early=request.method.dispatch.early)
        x, good, diagnosis = record.close(trace, hurry=interrupted is not None)
        return TrainingRun(
            x=x,
            trace=trace,
            metrics=record.evaluator.columns(),
            method=request.method,
            diverged=record.diverged,
            x_iteration=good,
            directory=None if self._files is None else self._files.path,
            seconds=self._seconds,
            reached=record.evaluator.reached,
            interrupted=None if interrupted is None else interrupted.name,
            stopped_early=record.control.reason,
            faults=record.troubles.faults,
            config=self._config,
            diagnosis=diagnosis,
        )

    # ------------------------------------------------------------------------------------------ one report

    def _take(self, crew: WorkerPool, report: Report) -> None:
        record = self._record
        match report:
            case Arrived():
                self._arrived(crew, report)
            case Lost(job=job) | Rejected(job=job) | Failed(job=job) if not self._in_flight(job):
                pass  # a report before this one, in the same list, had it cancelled or its worker retired
            case Lost():
                self._handle(crew, report)
            case Rejected(job=job, worker=worker, reason=reason):
                self._rejected(crew, worker, job, reason)
            case Failed():
                self._failed(crew, report)
            case Died(worker=worker, reason=reason):
                record.troubles.died()
                record.worker(worker, DIED, reason=reason)
                record.note(f"worker {worker} {reason}")
            case Note(event=event, details=details, message=message):
                record.journal(event, **details)
                if message is not None:
                    record.note(message)
            case Joined(workers=workers):
                for worker in workers:
                    record.worker(worker, JOINED)
                self._handle(crew, report)
            case Left(worker=worker) if worker in self._server.workers:  # else it has been retired
                record.worker(worker, LEFT)
                self._handle(crew, report)

    def _arrived(self, crew: WorkerPool, report: Arrived) -> None:
        server = self._server
        try:
            reply = server.handle(report)
        except WorkerError as error:
            if server.torn or isinstance(error, UnknownJob):
                raise  # by a part of the method, half-way; or the engine is wrong, and there is no job to give up
            if isinstance(error, EndedJob):
                return  # an answer to a job that was given up: dropped, as the server says
            owner = next(job.worker for job in server.in_flight if job.id == report.job)
            self._rejected(crew, owner, report.job, str(error))
            return
        self._record.event(reply, report.update)
        crew.used(report)
        for command in reply.commands:
            crew.execute(command)
        self._record.arrived(reply.ended[0])

    def _handle(self, crew: WorkerPool, event: Event) -> None:
        reply = self._server.handle(event)
        self._record.event(reply)
        for command in reply.commands:
            crew.execute(command)

    def _rejected(self, crew: WorkerPool, worker: int, job: int, why: str) -> None:
        record = self._record
        in_a_row = record.troubles.count(REJECTED, worker)
        record.worker(worker, REJECTED, job=job, reason=why)
        if record.troubles.first(REJECTED):
            record.note(f"worker {worker}, job {job}: the update was rejected: {why}; the model is as it was")
        if in_a_row < self._request.limits.max_failures:
            self._handle(crew, Lost(job, Outcome.REJECTED))
            return
        # Retired first, so that its job goes to somebody else.
        self._retire(crew, worker, job, f"{in_a_row} updates in a row were rejected: {why}")

    def _retire(self, crew: WorkerPool, worker: int, job: int, why: str) -> None:
        record = self._record
        record.troubles.retired(worker)
        record.worker(worker, RETIRED, reason=why)
        record.note(f"worker {worker} is retired: {why}")
        crew.retire(worker)
        record.worker(worker, LEFT)
        self._handle(crew, Lost(job, Outcome.REJECTED))
        self._handle(crew, Left(worker))
        if not self._server.workers:
            if not is_finite(self._server.x):
                record.diverge(self._server.iteration)
            elif record.evaluator.last != self._server.iteration:
                record.measure()  # a model that is finite can be far off: then its loss says so
            if record.diverged is not None:
                return
            raise WorkersFailed(f"no worker is left; the last one, worker {worker}: {why}")

    def _failed(self, crew: WorkerPool, report: Failed) -> None:
        record = self._record
        in_a_row = record.troubles.count(FAILED, report.worker)
        last = report.error.strip().splitlines()[-1] if report.error.strip() else "no words"
        record.worker(report.worker, FAILED, job=report.job, reason=last)
        if record.troubles.first(where(report.error)):
            record.note(
                f"worker {report.worker}, job {report.job}: an exception in your code (shown once)\n{report.error}"
            )
        self._handle(crew, Lost(report.job))
        if in_a_row >= self._request.limits.max_failures:
            error = WorkersFailed(
                f"worker {report.worker} failed {in_a_row} times in a row, at last with {last}; "
                "mend the task and go on with resume=True"
            )
            error.add_note(f"In worker {report.worker}:\n{report.error}")  # whoever listens has been shown it
            raise error

    def _in_flight(self, job: int) -> bool:
        return self._server.outcome(job) is Outcome.IN_FLIGHT
