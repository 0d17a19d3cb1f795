"""The only loop over an engine: reports in, the server's answer out, everything written down."""

from __future__ import annotations

import signal
import time
from collections import deque
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from asyncsgd.compiled.vectors import ready
from asyncsgd.core.errors import BadParameter, EndedJob, UnknownJob, WorkerError
from asyncsgd.core.events import Arrived, Event, Joined, Left, Lost, Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import is_finite
from asyncsgd.engines.base import Crew, Died, Engine, EngineError, Failed, Noted, Rejected, Report
from asyncsgd.run import configuration
from asyncsgd.run.checkpoint import Checkpoint
from asyncsgd.run.diagnosis import diagnose
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.faults import Troubles, where
from asyncsgd.run.fingerprint import fingerprint
from asyncsgd.run.interrupts import Interrupts
from asyncsgd.run.listeners import Listener, Status
from asyncsgd.run.metrics import Metrics
from asyncsgd.run.results import TrainingRun, WorkersFailed
from asyncsgd.run.target import Target
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Recorder

TICK = 0.2
"""Seconds between looks at the clock when nothing happens; also how often listeners hear and files grow."""


LATELY = 25
"""Ticks that the speed is measured over: jobs may take longer than one."""


@dataclass(frozen=True)
class Request:
    """What `asyncsgd.train` was asked for."""

    task: Task
    method: Method
    engine: Engine
    iterations: int
    resume: bool
    seed: int
    every: int
    target: Target | None
    checkpoint_seconds: float
    checkpoint_every: int | None
    keep: int
    max_failures: int


class Loop:
    """One call of `train`: the server, its recorder, the crew, and what has gone wrong so far."""

    def __init__(self, request: Request, listeners: list[Listener], files: RunDirectory | None) -> None:
        self._request = request
        self._task, self._method, self._engine = request.task, request.method, request.engine
        self._iterations, self._target = request.iterations, request.target
        self._metrics = Metrics(request.task, request.every)
        self._listeners, self._files = listeners, files
        self._troubles = Troubles()
        self._delay_sum, self._delay_max = 0, 0
        self._diverged: int | None = None
        self._blown_up = False
        self._reached = request.target is None
        self._ticks: deque[tuple[float, int]] = deque(maxlen=LATELY)
        self._start = time.monotonic()

    # ------------------------------------------------------------------------------------------ from start to end

    def run(self) -> TrainingRun:
        """Start the workers, loop, and sum up."""
        checkpoint = self._look()
        with self._engine.start(self._task, self._method.work, self._task.initial()) as crew:
            self._begin(crew, checkpoint)
            with Interrupts() as interrupts:
                try:
                    self._loop(crew, interrupts)
                except (WorkersFailed, EngineError) as error:
                    self._journal("stopped", reason=str(error).splitlines()[0])
                    self._save()
                    raise
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
        config = configuration.describe(self._task, self._method, self._engine, self._iterations, self._request.seed)
        config |= {"every": self._request.every, "until": None if self._target is None else str(self._target)}
        checkpoint = None
        if self._files is not None and self._files.begun:
            if not self._request.resume:
                fix = "pass resume=True to go on with it, or choose another directory"
                raise BadParameter("directory", str(self._files.path), "holds a run already", fix)
            configuration.check_same(config, configuration.read(self._files.path))
            checkpoint, complaints = self._files.newest()
            for complaint in complaints:
                self._note(complaint)
        self._config = config
        return checkpoint

    def _begin(self, crew: Crew, checkpoint: Checkpoint | None) -> None:
        config = self._config
        package = b"" if self._files is None else configuration.package(self._task, self._method)
        if checkpoint is None:
            self._server = Server(
                self._task.initial(), self._method, self._request.seed, crew.allocate, ready(crew.dtype)
            )
            self._recorder = Recorder(metadata={"method": self._method.name, "seed": str(self._request.seed)})
            if self._files is not None:
                self._files.begin(config, package, self._recorder)
        else:
            assert self._files is not None
            self._recorder = self._files.resume(checkpoint, config, package)
            self._server = Server.restore(checkpoint.state, self._method, crew.allocate, ready(crew.dtype))
            self._metrics.load(self._files.path)
            if self._target is not None and self._metrics.rows:
                self._reached = self._target.met(self._metrics.shown)
            self._troubles.load(configuration.journal(self._files.path))
        self._started_at = self._server.iteration
        told = {**config, "directory": None if self._files is None else str(self._files.path)}
        told["resumed_at"] = None if checkpoint is None else self._started_at
        for listener in self._listeners:
            listener.started(told)
        if checkpoint is None:
            self._measure(at=0.0)
        self._start = time.monotonic() - (checkpoint.seconds if checkpoint else 0.0)
        terms = {"threads": self._engine.threads, "transport": self._engine.transport}
        self._journal("resumed" if checkpoint else "started", **terms, jobs=len(self._recorder))
        for worker in self._server.workers:  # they are gone with the process that had started them
            self._journal("left", worker=worker)
            self._handle(crew, Left(worker))

    def _loop(self, crew: Crew, interrupts: Interrupts) -> None:
        now = time.monotonic()
        self._next_tick = now
        self._ticks.append((now, self._server.iteration))
        self._next_checkpoint = now + self._request.checkpoint_seconds
        while not self._over() and interrupts.received is None:
            for report in crew.poll(TICK):
                self._take(crew, report)
                if self._over():
                    break
            now = time.monotonic()
            if now >= self._next_tick:
                self._tick(now)

    def _over(self) -> bool:
        return self._server.iteration >= self._iterations or (
            (self._target is not None and self._reached) or self._diverged is not None
        )

    def _settle(self, crew: Crew, interrupts: Interrupts) -> None:
        """The end is measured and written down, whatever ended it."""
        if self._diverged is None and self._metrics.last != self._server.iteration:
            self._measure()
        self._seconds = self._clock()  # now: stopping the workers takes time too
        if interrupts.received is None:
            for note in crew.finish():
                self._take(crew, note)
        self._journal("ended", seconds=self._seconds, workers=len(self._server.workers))
        self._save()

    def _summary(self, interrupted: signal.Signals | None) -> TrainingRun:
        server, method = self._server, self._method
        trace = self._recorder.trace(final_concurrency=server.concurrency)
        trace.check(early=method.dispatch.early)
        if self._files is not None:
            self._files.finish(trace)
        run = TrainingRun(
            x=server.output.copy() if self._diverged is None else np.full_like(server.output, np.nan),
            trace=trace,
            metrics=self._metrics.columns(),
            method=method,
            diverged=self._diverged,
            directory=None if self._files is None else self._files.path,
            seconds=self._seconds,
            reached=self._reached,
            interrupted=None if interrupted is None else interrupted.name,
            faults=self._troubles.faults,
            config=self._config,
        )
        seen = diagnose(trace, run.metrics, method, self._task, run.x, run.faults, diverged=run.diverged is not None)
        if self._files is not None:  # for reports; a resume forgets it, as it forgets all that is after its checkpoint
            self._journal("diagnosed", **asdict(seen))
            self._files.flush(self._recorder)
        return replace(run, diagnosis=seen)

    # ------------------------------------------------------------------------------------------ one report

    def _take(self, crew: Crew, report: Report) -> None:
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
                self._troubles.died()
                self._journal("died", worker=worker, reason=reason)
                self._note(f"worker {worker} {reason}")
            case Noted(event=event, details=details, message=message):
                self._journal(event, **details)
                if message is not None:
                    self._note(message)
            case Joined(workers=workers):
                for worker in workers:
                    self._journal("joined", worker=worker)
                self._handle(crew, report)
            case Left(worker=worker) if worker in self._server.workers:  # else it has been retired
                self._journal("left", worker=worker)
                self._handle(crew, report)

    def _arrived(self, crew: Crew, report: Arrived) -> None:
        server = self._server
        t = server.iteration
        try:
            commands = server.handle(report)
        except EndedJob:
            return  # an answer to a job that was given up: dropped, as the server says
        except UnknownJob:
            raise  # the engine is wrong: there is no job to give up
        except WorkerError as error:
            owner = next(job.worker for job in server.in_flight if job.id == report.job)
            self._rejected(crew, owner, report.job, str(error))
            return
        ended = server.ended[0]
        self._recorder.record(self._clock(), commands, server.ended)
        if self._files is not None:
            self._files.append("fingerprints.bin", fingerprint(report.update))
        crew.used(report)
        for command in commands:
            crew.execute(command)
        delay = t - ended.job.iteration
        self._delay_sum += delay
        if delay > self._delay_max:
            self._delay_max = delay
        self._troubles.fine(ended.job.worker)
        if self._metrics.due(server.iteration):
            self._measure()
        if self._request.checkpoint_every is not None and server.iteration % self._request.checkpoint_every == 0:
            self._save()

    def _handle(self, crew: Crew, event: Event) -> None:
        commands = self._server.handle(event)
        self._recorder.record(self._clock(), commands, self._server.ended)
        for command in commands:
            crew.execute(command)

    def _rejected(self, crew: Crew, worker: int, job: int, why: str) -> None:
        in_a_row = self._troubles.count("rejected", worker)
        self._journal("rejected", worker=worker, job=job, reason=why)
        if self._troubles.first("rejected"):
            self._note(f"worker {worker}, job {job}: the update was rejected: {why}; the model is as it was")
        if in_a_row < self._request.max_failures:
            self._handle(crew, Lost(job, Outcome.REJECTED))
            return
        # Retired first, so that its job goes to somebody else.
        self._retire(crew, worker, job, f"{in_a_row} updates in a row were rejected: {why}")

    def _retire(self, crew: Crew, worker: int, job: int, why: str) -> None:
        self._troubles.retired(worker)
        self._journal("retired", worker=worker, reason=why)
        self._note(f"worker {worker} is retired: {why}")
        crew.retire(worker)
        self._journal("left", worker=worker)
        self._handle(crew, Lost(job, Outcome.REJECTED))
        self._handle(crew, Left(worker))
        if not self._server.workers:
            if not is_finite(self._server.x):
                self._diverged = self._server.iteration
            elif self._metrics.last != self._server.iteration:
                self._measure()  # a model that is finite can be far off: then its loss says so
            if self._diverged is not None:
                return
            raise WorkersFailed(f"no worker is left; the last one, worker {worker}: {why}")

    def _failed(self, crew: Crew, report: Failed) -> None:
        in_a_row = self._troubles.count("failed", report.worker)
        last = report.error.strip().splitlines()[-1] if report.error.strip() else "no words"
        self._journal("failed", worker=report.worker, job=report.job, reason=last)
        if self._troubles.first(where(report.error)):
            self._note(
                f"worker {report.worker}, job {report.job}: an exception in your code (shown once)\n{report.error}"
            )
        if in_a_row >= self._request.max_failures:
            self._handle(crew, Lost(report.job))
            raise WorkersFailed(
                f"worker {report.worker} failed {in_a_row} times in a row, at last with {last}; "
                f"mend the task and go on with resume=True. The traceback:\n{report.error}"
            )
        self._handle(crew, Lost(report.job))

    def _in_flight(self, job: int) -> bool:
        return self._server.outcome(job) is Outcome.IN_FLIGHT

    # ------------------------------------------------------------------------------------------ now and then

    def _measure(self, at: float | None = None) -> None:
        seconds = self._clock() if at is None else at
        row = self._metrics.take(self._server.iteration, seconds, self._server.output)
        if self._metrics.diverged:
            self._diverged = self._server.iteration
            self._journal("diverged")
            return
        if self._files is not None:
            self._files.add_line("metrics.jsonl", row)
        if self._target is not None and self._target.met(row):
            self._reached = True
        for listener in self._listeners:
            listener.measured(self._server.iteration, seconds, row)
        if self._metrics.blown_up and not self._blown_up:
            self._blown_up = True
            self._explain_blow_up()

    def _explain_blow_up(self) -> None:
        trace = self._recorder.trace(final_concurrency=self._server.concurrency)
        seen = diagnose(trace, self._metrics.columns(), self._method, self._task, self._server.x, self._troubles.faults)
        self._note("the loss is blowing up:\n" + "\n".join(f"  {line}" for line in (*seen.problems, *seen.facts)))

    def _save(self) -> None:
        if self._files is None:
            return
        began = time.monotonic()
        if self._diverged is None and is_finite(self._server.x):
            state = self._server.state()
            points = state["update"]["points"]
            # Jobs in flight are lost at a resume, so nobody will read their points.
            points["live"] = {points["current"]: points["live"][points["current"]]}
            self._files.checkpoint(state, self._clock(), self._recorder, self._request.keep)
        else:  # the last good checkpoint is worth more than a model that has blown up
            self._files.flush(self._recorder, sync=True)
        now = time.monotonic()
        self._next_checkpoint = now + max(self._request.checkpoint_seconds, 20 * (now - began))

    def _tick(self, now: float) -> None:
        iteration = self._server.iteration
        before, then = self._ticks[0]
        self._ticks.append((now, iteration))
        speed = (iteration - then) / max(now - before, 1e-9)
        status = Status(
            iteration,
            self._iterations,
            self._clock(),
            speed,
            len(self._server.workers),
            self._delay_sum / max(1, iteration - self._started_at),
            self._delay_max,
            self._metrics.shown,
        )
        for listener in self._listeners:
            listener.progressed(status)
        if self._files is not None:
            if self._request.checkpoint_every is None and now >= self._next_checkpoint:
                self._save()
            else:
                self._files.flush(self._recorder)
        self._next_tick = time.monotonic() + TICK

    # ------------------------------------------------------------------------------------------ small things

    def _clock(self) -> float:
        return time.monotonic() - self._start

    def _note(self, message: str) -> None:
        for listener in self._listeners:
            listener.noted(message)

    def _journal(self, event: str, **words: Any) -> None:
        if self._files is not None:
            row = {"event": event, "iteration": self._server.iteration, "seconds": self._clock(), **words}
            self._files.add_line("journal.jsonl", row)
