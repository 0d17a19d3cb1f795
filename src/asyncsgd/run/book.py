"""What a run writes down and tells while it goes on: trace, metrics, journal, checkpoints, and who listens."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from dataclasses import asdict
from typing import Any

from asyncsgd.core.events import Ended, Reply, Vector
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import is_finite
from asyncsgd.run.diagnosis import Diagnosis, diagnose
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.faults import Troubles
from asyncsgd.run.listeners import Listener, Status
from asyncsgd.run.metrics import Metrics
from asyncsgd.run.pace import Pace
from asyncsgd.run.request import Request
from asyncsgd.run.safety import takes_long
from asyncsgd.trace import Recorder, Trace

TICK = 0.2
"""Seconds between looks at the clock when nothing happens; also how often listeners hear and files grow."""


class Book:
    """The record of one call of `train`. It decides nothing but whether the model has diverged or met its target."""

    def __init__(self, request: Request, listeners: list[Listener], files: RunDirectory | None) -> None:
        self._request, self.listeners, self.files = request, listeners, files
        self.metrics = Metrics(request.task, request.every)
        self.troubles = Troubles()
        self.diverged: int | None = None
        self.reached = request.target is None
        self._blown_up = False
        self._smoothness: float | None = None  # the largest L found so far
        self._under_way: tuple[int, float, Vector, Future[dict[str, Any] | None]] | None = None  # an evaluation
        self._delay_sum, self._delay_max = 0, 0
        self._start = time.monotonic()
        self.hurry: Callable[[], bool] = lambda: False
        """Whether the run is to stop now."""

    def open(self, server: Server, recorder: Recorder, seconds: float) -> None:
        """From now on this server is written about; ``seconds`` had passed before a resume."""
        self._server, self._recorder = server, recorder
        self._good = server.iteration, server.output.copy()  # the last model known to be good, and its iteration
        self._started_at = server.iteration
        self._start = time.monotonic() - seconds

    def begin(self) -> None:
        """The loop begins."""
        self._next_tick = time.monotonic()
        self._pace = Pace(self._next_tick, self._server.iteration)
        self._next_checkpoint = self._next_tick + self._request.checkpoint_seconds

    @property
    def seconds(self) -> float:
        """Since the start, without the time between a stop and a resume."""
        return time.monotonic() - self._start

    @property
    def jobs(self) -> int:
        """Handed out so far."""
        return len(self._recorder)

    # ------------------------------------------------------------------------------------------ one event

    def record(self, reply: Reply) -> None:
        """Write down what the server did with an event."""
        self._recorder.record(self.seconds, reply.commands, reply.ended)

    def arrived(self, ended: Ended) -> None:
        """Do what follows an arrival, once its commands are carried out."""
        server = self._server
        delay = ended.iteration - ended.job.iteration
        self._delay_sum += delay
        if delay > self._delay_max:
            self._delay_max = delay
        self.troubles.fine(ended.job.worker)
        if self.metrics.due(server.iteration):
            if self._request.meanwhile:
                self._measure_meanwhile()
            else:
                self.measure()
        if self._request.checkpoint_every is not None and server.iteration % self._request.checkpoint_every == 0:
            self.save()

    def note(self, message: str) -> None:
        """Tell everybody who listens."""
        for listener in self.listeners:
            listener.noted(message)

    def journal(self, event: str, **words: Any) -> None:
        """One line in the journal, if there is a directory."""
        if self.files is not None:
            row = {"event": event, "iteration": self._server.iteration, "seconds": self.seconds, **words}
            self.files.add_line("journal.jsonl", row)

    # ------------------------------------------------------------------------------------------ now and then

    def measure(self, at: float | None = None) -> None:
        """Evaluate the task at the model."""
        self.catch_up()
        iteration, seconds = self._server.iteration, self.seconds if at is None else at
        self.metrics.plan(iteration)
        x = self._server.output.copy()
        x.flags.writeable = False
        self._enter(iteration, seconds, x, self.metrics.evaluate(iteration, x))

    def _measure_meanwhile(self) -> None:
        """The same for a copy, in a thread; one at a time, so that none is left out."""
        self.catch_up()
        if self._under_way is not None:
            return  # the run is to stop
        iteration, seconds, x = self._server.iteration, self.seconds, self._server.output.copy()
        self.metrics.plan(iteration)
        told: Future[dict[str, Any] | None] = Future()

        def evaluate() -> None:
            try:
                told.set_result(self.metrics.evaluate(iteration, x))
            except BaseException as error:
                told.set_exception(error)

        # A daemon, as the user's function may hang: it must not keep the process from ending.
        threading.Thread(target=evaluate, name="asyncsgd-evaluation", daemon=True).start()
        self._under_way = iteration, seconds, x, told

    def catch_up(self, *, wait: bool = True) -> None:
        """Write down the evaluation that is under way, if there is one; without ``wait`` only if it has ended.

        A run that is to stop waits no longer.
        """
        if self._under_way is None:
            return
        iteration, seconds, x, told = self._under_way
        while wait and not told.done() and not self.hurry():
            wait_for([told], TICK)
        if told.done():
            self._under_way = None
            self._enter(iteration, seconds, x, told.result())

    def _enter(self, iteration: int, seconds: float, x: Vector, told: dict[str, Any] | None) -> None:
        if told is None:
            return
        row = self.metrics.enter(iteration, seconds, told)
        if self.metrics.diverged:
            self.diverge(iteration)
            return
        self._good = iteration, x
        if self.files is not None:
            self.files.add_line("metrics.jsonl", row)
        if self._request.target is not None and self._request.target.met(row):
            self.reached = True
        for listener in self.listeners:
            listener.measured(iteration, seconds, row)
        if self.metrics.blown_up and not self._blown_up:
            self._blown_up = True
            seen = self.diagnose(self.trace(), self._server.x)
            self.note("the loss is blowing up:\n" + "\n".join(f"  {line}" for line in (*seen.problems, *seen.facts)))

    def diverge(self, iteration: int) -> None:
        """Write down that the model of this iteration is not finite, or its loss is not."""
        self.diverged = iteration
        self.journal("diverged", iteration=iteration)  # which may be behind the server's: it is measured meanwhile

    def save(self) -> None:
        """A checkpoint, unless the model has blown up: the last good one is worth more."""
        if self.files is None:
            return
        began = time.monotonic()
        first = self._server.iteration == 0  # the initial model is good, whatever its loss is
        if (self.diverged is None or first) and is_finite(self._server.x):
            state = self._server.state()
            points = state["update"]["points"]
            # Jobs in flight are lost at a resume, so nobody will read their points.
            points["live"] = {points["current"]: points["live"][points["current"]]}
            self.files.checkpoint(state, self.seconds, self._recorder, self._request.keep)
        else:
            self.files.flush(self._recorder, sync=True)
        now = time.monotonic()
        self._next_checkpoint = now + max(self._request.checkpoint_seconds, 20 * (now - began))

    def flush(self) -> None:
        """Write down what there is, without a checkpoint."""
        if self.files is not None:
            self.files.flush(self._recorder)

    def tick(self) -> None:
        """Progress, and whatever is due by the clock; most calls find that nothing is."""
        self.catch_up(wait=False)
        now = time.monotonic()
        if now < self._next_tick:
            return
        iteration, workers = self._server.iteration, len(self._server.workers)
        self._pace.add(now, iteration)
        status = Status(
            iteration,
            self._request.iterations,
            self.seconds,
            self._pace.per_second(now, workers),
            workers,
            self._delay_sum / max(1, iteration - self._started_at),
            self._delay_max,
            self.metrics.shown,
        )
        for listener in self.listeners:
            listener.progressed(status)
        if self.files is not None:
            if self._request.checkpoint_every is None and now >= self._next_checkpoint:
                self.save()
            else:
                self.files.flush(self._recorder)
        self._next_tick = time.monotonic() + TICK

    # ------------------------------------------------------------------------------------------ the end

    def trace(self) -> Trace:
        """What has happened so far."""
        if self.files is not None:
            return self.files.trace(self._recorder, self._server.concurrency)
        return self._recorder.trace(final_concurrency=self._server.concurrency)

    def diagnose(self, trace: Trace, x: Any, *, hurry: bool = False) -> Diagnosis:
        """Why does it not learn?"""
        if self.diverged == 0 and not trace.iterations:
            fix = "check the initial parameters, the data and the loss"
            return Diagnosis(problems=(f"{self.metrics.diverged} at the initial model, before any update; {fix}",))
        seen = diagnose(
            trace,
            self.metrics.columns(),
            self._request.method,
            self._request.task,
            x,
            self.troubles.faults,
            diverged=self.diverged is not None,
            apart=self._apart(trace, hurry),
            known=self._smoothness,
        )
        self._smoothness = seen.smoothness
        return seen

    def _apart(self, trace: Trace, hurry: bool) -> str | None:
        """Why the server computes no gradient itself: it would share the fate of a worker, or keep somebody waiting."""
        deaths = self.troubles.faults.deaths
        if hurry:
            return "the run was stopped early, and whoever did that is not kept waiting for gradients"
        if deaths:
            who = "a worker" if deaths == 1 else f"{deaths} workers"
            return f"{who} died or hung, and a gradient computed here might do the same to the server"
        took = trace.duration
        if len(took) and takes_long(float(took.min()), len(trace.delays.per_worker)):
            return f"gradients take {took.min():.2g} s or more, too long to estimate L after the run"
        return None

    def close(self, trace: Trace, *, hurry: bool) -> tuple[Vector, int | None, Diagnosis]:
        """The run has ended: its answer, the iteration of that if it is not the last, and what there is to say."""
        if self.files is not None:
            self.files.finish(trace, None if self.diverged is None else self._good)
        good, x = (None, self._server.output) if self.diverged is None else self._good
        x = x.copy()
        seen = self.diagnose(trace, x, hurry=hurry)
        if self.files is not None:  # for reports; a resume forgets it, as it forgets all that is after its checkpoint
            self.journal("diagnosed", **asdict(seen))
            self.files.flush(self._recorder)
        return x, good, seen
