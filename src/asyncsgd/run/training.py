"""`train`: one call from a task, a method and an engine to a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from asyncsgd.core.check import count, positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.engines.base import Engine
from asyncsgd.run import configuration
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.listeners import Listener, Terminal
from asyncsgd.run.loop import Loop
from asyncsgd.run.request import Request
from asyncsgd.run.results import TrainingRun
from asyncsgd.run.target import Target
from asyncsgd.tasks.base import Task


def train(
    task: Task,
    method: Method,
    *,
    engine: Engine,
    iterations: int,
    directory: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    every: int | None = None,
    until: str | None = None,
    checkpoint_seconds: float = 30.0,
    checkpoint_every: int | None = None,
    keep: int = 3,
    max_failures: int = 3,
    listeners: Sequence[Listener] = (),
    progress: bool = True,
) -> TrainingRun:
    """Train with real workers until ``iterations`` updates have arrived.

    Args:
        task: What a job computes; `asyncsgd.tasks.torch` makes one from a PyTorch model.
        method: How updates are used: ``asgd.async_sgd(stepsize=0.1)`` and its kin.
        engine: Where jobs run: ``asgd.engines.processes(workers=4)``.
        iterations: How many updates are to arrive.
        directory: Where trace, metrics and checkpoints go; None: nothing is written.
        resume: Resume from the last checkpoint of ``directory``, or start where the directory holds no run. A run that
            has these iterations, or has met this target, is returned as it is, and its directory stays as it is.
        seed: Seed for every random choice (dispatch, mini-batches) but the noise of `asyncsgd.Method.clipped`, which
            has a new secret one at every start.
        every: Evaluate the task every so many iterations; by default a hundred times in all.
        until: Stop early, for instance ``"accuracy >= 0.95"``: a metric of the task, and a bound.
        checkpoint_seconds: Seconds between checkpoints; more if writing them would take over a twentieth of the time.
        checkpoint_every: Iterations between checkpoints, in place of seconds.
        keep: How many checkpoints to keep.
        max_failures: After so many failures of a worker in a row the run stops (exceptions in the user's code), or
            goes on without the worker (updates that are not finite).
        listeners: Who else is told: see `asyncsgd.run.Listener`.
        progress: Whether to show progress on the terminal, and at the end what there is to say.
    """
    with ExitStack() as closing:
        stops = closing.enter_context(stopping(listeners))
        count("iterations", iterations)
        count("keep", keep)
        count("max_failures", max_failures)
        positive("checkpoint_seconds", checkpoint_seconds)
        if checkpoint_every is not None:
            count("checkpoint_every", checkpoint_every)
        if every is not None:
            count("every", every)
        configuration.check(task, method, engine, iterations, seed)
        if resume and directory is None:
            raise BadParameter("resume", True, "needs something to go on with", "pass the directory of the run")
        request = Request(
            task,
            method,
            engine,
            iterations,
            resume,
            seed,
            max(1, iterations // 100) if every is None else every,
            None if until is None else Target.parse(until),
            checkpoint_seconds,
            checkpoint_every,
            keep,
            max_failures,
        )
        files = None if directory is None else RunDirectory(directory)
        if files is not None:
            closing.callback(files.close)
            files.check(resume=resume)
            if resume:
                configuration.check_more(files.path, iterations)
        return launch(request, listeners, files, stops, progress=progress)


def stopping(listeners: Sequence[Listener]) -> ExitStack:
    """Return what stops every listener at its exit, once, also where one of them raises."""
    configuration.check_listeners(listeners)
    stops = ExitStack()
    for listener in listeners:
        stops.callback(listener.stop)
    return stops


def launch(
    request: Request, listeners: Sequence[Listener], files: RunDirectory | None, stops: ExitStack, *, progress: bool
) -> TrainingRun:
    """Run the loop, and then stop every listener: ``stops`` is that of `stopping`."""
    with stops:
        told = list(listeners)
        if progress:
            told.insert(0, Terminal())
            stops.callback(told[0].stop)
        begun = None if files is None or not files.begun else files.path
        method, engine = configuration.settled(request.method, request.engine, request.iterations, begun)
        return Loop(replace(request, method=method, engine=engine), told, files).run()
