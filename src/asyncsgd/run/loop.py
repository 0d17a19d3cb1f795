"""The only loop over an engine: reports in, the server's answer out, everything written down."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from asyncsgd.compiled.vectors import ready
from asyncsgd.core.errors import EndedJob, UnknownJob, WorkerError, WorkersFailed
from asyncsgd.core.events import Arrived, Event, Joined, Left, Lost, Outcome
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import is_finite
from asyncsgd.engines.base import Crew, Died, Failed, Noted, Rejected, Report
from asyncsgd.run import configuration, stored
from asyncsgd.run.book import TICK, Book
from asyncsgd.run.checkpoint import Checkpoint
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.faults import where
from asyncsgd.run.fingerprint import fingerprint
from asyncsgd.run.finished import finished
from asyncsgd.run.interrupts import Interrupts
from asyncsgd.run.listeners import Listener
from asyncsgd.run.request import Request
from asyncsgd.run.results import TrainingRun
from asyncsgd.trace import Recorder


class Loop:
    """One call of `train`: the server, the crew, and the book that everything is written in."""

    def __init__(self, request: Request, listeners: list[Listener], files: RunDirectory | None) -> None:
        self._request = request
        self._listeners, self._files = listeners, files
        self._book = Book(request, listeners, files)

    # ------------------------------------------------------------------------------------------ from start to end

    def run(self) -> TrainingRun:
        """Start the workers, loop, and sum up."""
        request = self._request
        checkpoint = self._look()
        if checkpoint is not None and self._files is not None:
            done = finished(self._files.path, request, checkpoint)
            if done is not None:  # nothing is started or written, and no logger opens its run again
                self._book.note(done[1])
                return done[0]
        if request.engine.opening is not None:
            for listener in self._listeners:
                listener.starting(request.engine.opening)
        with request.engine.start(request.task, request.method.work, request.task.initial()) as crew:
            self._begin(crew, checkpoint)
            with Interrupts() as interrupts:
                self._book.hurry = lambda: interrupts.received is not None
                with self._rescued():
                    self._loop(crew, interrupts)
                    self._settle(crew, interrupts)
                interrupted = interrupts.received
        run = self._summary(interrupted)
        for listener in self._listeners:
            listener.ended(run)
        if interrupted is not None:
            interrupts.raise_it(interrupted, self._server.iteration, None if self._files is None else self._files.path)
        return run

    def _look(self) -> Checkpoint | None:
        """What there is to go on from; whatever stands against it is said before anything is started."""
        request = self._request
        config = configuration.describe(request.task, request.method, request.engine, request.iterations, request.seed)
        config |= {"every": request.every, "until": None if request.target is None else str(request.target)}
        checkpoint = None
        if self._files is not None and self._files.begun:
            configuration.check_same(config, configuration.read(self._files.path))
            checkpoint, complaints = self._files.newest()
            for complaint in complaints:
                self._book.note(complaint)
        self._config = config
        return checkpoint

    def _begin(self, crew: Crew, checkpoint: Checkpoint | None) -> None:
        request, config, book = self._request, self._config, self._book
        package = None
        if self._files is not None:
            said, package = stored.package(request.task, request.method)
            config = {**config, "job": said}
        fast = ready(crew.dtype)
        noise = secrets.randbits(64) if getattr(request.method.gather, "noise", 0.0) else None
        if noise is not None and self._files is not None:
            self._files.make_private()
        if checkpoint is not None and self._files is not None:
            self._server = Server.restore(checkpoint.state, request.method, crew.allocate, fast)
            book.open(self._server, self._files.resume(checkpoint, config, package), checkpoint.seconds)
            with self._rescued():  # from here on the files are those of the resumed run
                self._resume(crew, self._files, noise)
            return
        self._server = Server(request.task.initial(), request.method, request.seed, crew.allocate, fast)
        recorder = Recorder(metadata={"method": request.method.name, "seed": str(request.seed)})
        book.open(self._server, recorder, 0.0)
        self._announce("started", None)
        book.measure(at=0.0)
        if self._files is not None:  # now, as a task that cannot be evaluated is not a run to be kept
            named = config["job"]["task"] is not None
            self._files.begin(config, package, recorder, request.task.initial() if named else None)
        book.open(self._server, recorder, 0.0)  # the first evaluation is not part of the time
        self._reseed(noise)
        book.save()  # before any job: a directory without a checkpoint has then lost it (`check_resumable`)

    def _resume(self, crew: Crew, files: RunDirectory, noise: int | None) -> None:
        request, book = self._request, self._book
        book.metrics.load(files.path)
        if request.target is not None:
            book.reached = any(request.target.met(row) for row in book.metrics.rows)
        book.troubles.load(configuration.journal(files.path))
        self._announce("resumed", self._server.iteration)
        self._reseed(noise)
        for worker in self._server.workers:  # they are gone with the process that had started them
            book.journal("left", worker=worker)
            self._handle(crew, Left(worker))
        if book.metrics.due(self._server.iteration):
            book.measure()  # the run was stopped by this very evaluation
        files.continued()

    def _announce(self, event: str, resumed_at: int | None) -> None:
        told = {**self._config, "directory": None if self._files is None else str(self._files.path)}
        for listener in self._listeners:
            listener.started({**told, "resumed_at": resumed_at})
        terms = {"threads": self._request.engine.threads, "transport": self._request.engine.transport}
        self._book.journal(event, **terms, jobs=self._book.jobs)

    def _reseed(self, noise: int | None) -> None:
        """Never draw the same noise for two sums, also where a resume makes a version again."""
        if noise is not None:
            self._server.reseed(noise)
            if self._files is not None:
                self._files.remember_noise(self._server.iteration, noise)

    def _loop(self, crew: Crew, interrupts: Interrupts) -> None:
        self._book.begin()
        while not self._over() and interrupts.received is None:
            for report in crew.poll(TICK):
                if isinstance(report, Noted) or not self._over():  # what was noted is not said again
                    self._take(crew, report)
            self._book.tick()

    def _over(self) -> bool:
        book = self._book
        return self._server.iteration >= self._request.iterations or (
            (self._request.target is not None and book.reached) or book.diverged is not None
        )

    def _settle(self, crew: Crew, interrupts: Interrupts) -> None:
        """The end is measured and written down, whatever ended it."""
        book, meanwhile = self._book, self._request.meanwhile
        if meanwhile or book.hurry():
            book.save()  # now, as what follows may take long, and whoever asked us to stop may lose patience
        book.catch_up()
        if book.diverged is None and book.metrics.last != self._server.iteration and not (meanwhile and book.hurry()):
            book.measure()
        self._seconds = book.seconds  # now: stopping the workers takes time too
        if interrupts.received is None:
            for note in crew.finish():
                self._take(crew, note)
        book.journal("ended", seconds=self._seconds, workers=len(self._server.workers))
        book.save()

    @contextmanager
    def _rescued(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._rescue(error)
            raise

    def _rescue(self, error: Exception) -> None:
        """Something stops the run: the user's evaluation or listener, the engine, a full disk. Keep what there is."""
        try:
            lines = str(error).splitlines()
            reason = (lines or [type(error).__name__])[0]
            self._book.journal("stopped", reason=reason)
            if self._server.torn:
                kept = "nothing was kept, as there is no directory"
                if self._files is not None:
                    kept = "the last checkpoint is whole: fix the part and resume with resume=True"
                    self._book.flush()
                error.add_note(f"A part of the method raised half-way, so the run stopped without saving; {kept}.")
            else:
                self._book.save()
        except Exception as second:  # the first error is the one to tell about
            if str(second) != str(error):
                error.add_note(f"(and no checkpoint could be written then: {second!r})")

    def _summary(self, interrupted: signal.Signals | None) -> TrainingRun:
        request, book = self._request, self._book
        trace = book.trace()
        trace.check(early=request.method.dispatch.early)
        x, good, diagnosis = book.close(trace, hurry=interrupted is not None)
        return TrainingRun(
            x=x,
            trace=trace,
            metrics=book.metrics.columns(),
            method=request.method,
            diverged=book.diverged,
            x_iteration=good,
            directory=None if self._files is None else self._files.path,
            seconds=self._seconds,
            reached=book.reached,
            interrupted=None if interrupted is None else interrupted.name,
            faults=book.troubles.faults,
            config=self._config,
            diagnosis=diagnosis,
        )

    # ------------------------------------------------------------------------------------------ one report

    def _take(self, crew: Crew, report: Report) -> None:
        book = self._book
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
                book.troubles.died()
                book.journal("died", worker=worker, reason=reason)
                book.note(f"worker {worker} {reason}")
            case Noted(event=event, details=details, message=message):
                book.journal(event, **details)
                if message is not None:
                    book.note(message)
            case Joined(workers=workers):
                for worker in workers:
                    book.journal("joined", worker=worker)
                self._handle(crew, report)
            case Left(worker=worker) if worker in self._server.workers:  # else it has been retired
                book.journal("left", worker=worker)
                self._handle(crew, report)

    def _arrived(self, crew: Crew, report: Arrived) -> None:
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
        self._book.record(reply)
        if self._files is not None:
            self._files.add_fingerprint(fingerprint(report.update))
        crew.used(report)
        for command in reply.commands:
            crew.execute(command)
        self._book.arrived(reply.ended[0])

    def _handle(self, crew: Crew, event: Event) -> None:
        reply = self._server.handle(event)
        self._book.record(reply)
        for command in reply.commands:
            crew.execute(command)

    def _rejected(self, crew: Crew, worker: int, job: int, why: str) -> None:
        book = self._book
        in_a_row = book.troubles.count("rejected", worker)
        book.journal("rejected", worker=worker, job=job, reason=why)
        if book.troubles.first("rejected"):
            book.note(f"worker {worker}, job {job}: the update was rejected: {why}; the model is as it was")
        if in_a_row < self._request.max_failures:
            self._handle(crew, Lost(job, Outcome.REJECTED))
            return
        # Retired first, so that its job goes to somebody else.
        self._retire(crew, worker, job, f"{in_a_row} updates in a row were rejected: {why}")

    def _retire(self, crew: Crew, worker: int, job: int, why: str) -> None:
        book = self._book
        book.troubles.retired(worker)
        book.journal("retired", worker=worker, reason=why)
        book.note(f"worker {worker} is retired: {why}")
        crew.retire(worker)
        book.journal("left", worker=worker)
        self._handle(crew, Lost(job, Outcome.REJECTED))
        self._handle(crew, Left(worker))
        if not self._server.workers:
            if not is_finite(self._server.x):
                book.diverge(self._server.iteration)
            elif book.metrics.last != self._server.iteration:
                book.measure()  # a model that is finite can be far off: then its loss says so
            if book.diverged is not None:
                return
            raise WorkersFailed(f"no worker is left; the last one, worker {worker}: {why}")

    def _failed(self, crew: Crew, report: Failed) -> None:
        book = self._book
        in_a_row = book.troubles.count("failed", report.worker)
        last = report.error.strip().splitlines()[-1] if report.error.strip() else "no words"
        book.journal("failed", worker=report.worker, job=report.job, reason=last)
        if book.troubles.first(where(report.error)):
            book.note(
                f"worker {report.worker}, job {report.job}: an exception in your code (shown once)\n{report.error}"
            )
        self._handle(crew, Lost(report.job))
        if in_a_row >= self._request.max_failures:
            error = WorkersFailed(
                f"worker {report.worker} failed {in_a_row} times in a row, at last with {last}; "
                "mend the task and go on with resume=True"
            )
            error.add_note(f"In worker {report.worker}:\n{report.error}")  # whoever listens has been shown it
            raise error

    def _in_flight(self, job: int) -> bool:
        return self._server.outcome(job) is Outcome.IN_FLIGHT
