"""`train`: one call from a task, a method and an engine to a trained model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.layout import layout_of
from asyncsgd.core.method import Method
from asyncsgd.core.parts import check_parts
from asyncsgd.core.validate import recipe
from asyncsgd.engines import processes
from asyncsgd.engines.base import Engine
from asyncsgd.run import configuration
from asyncsgd.run.callbacks.base import Callback, Hooks
from asyncsgd.run.callbacks.best import SaveBest, check_files
from asyncsgd.run.callbacks.terminal import terminal
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.epochs import iterations_of
from asyncsgd.run.loop import Loop
from asyncsgd.run.memory import check_memory
from asyncsgd.run.options import Checkpoints, Evaluation, Limits, RunRequest, check_options
from asyncsgd.run.results import TrainingRun
from asyncsgd.tasks.base import Task, is_heterogeneous

CHECKPOINTS, LIMITS = Checkpoints(), Limits()


@recipe
def train(
    task: Task,
    method: Method,
    engine: Engine | None = None,
    *,
    iterations: int | None = None,
    epochs: int | None = None,
    until: str | None = None,
    every: int | None = None,
    directory: str | Path | None = None,
    resume: bool = False,
    seed: int = 0,
    callbacks: Sequence[Callback] = (),
    checkpoints: Checkpoints = CHECKPOINTS,
    limits: Limits = LIMITS,
    progress: bool = True,
) -> TrainingRun:
    """Train with real workers until ``iterations`` updates have arrived, or for a number of ``epochs``.

    Args:
        task: What a job computes; `asyncsgd.tasks.torch` makes one from a PyTorch model.
        method: How updates are used: ``asgd.async_sgd(stepsize=0.1)`` or any other recipe.
        engine: Where jobs run: ``asgd.engines.processes(workers=4)``. By default one worker process per core, or per
            part of the data if the workers' data differ.
        iterations: Number of updates to apply.
        epochs: Number of passes over the data, in place of ``iterations``. The task must walk its data in epochs, as
            ``asgd.tasks.torch(..., sampling="epochs")`` does. The run hands out every row once per epoch over all
            workers together, and then waits for the jobs in flight, so that every row is used. (A worker with data of
            its own walks those in epochs, as often as its speed allows.) Rows of jobs that were lost, rejected,
            cancelled or dropped are counted as ``run.skipped_rows``.
        until: Stop early, for instance ``"accuracy >= 0.95"``: a metric of the task, and a bound. If an evaluation
            takes long, some more updates arrive before its result stops the run.
        every: Iterations between evaluations of the task; by default a hundredth of ``iterations``. Another thread
            evaluates a copy of the model while updates arrive. An evaluation that is due while the last one runs is
            skipped; the final model is always evaluated.
        directory: Folder for trace, metrics and checkpoints; None: nothing is written.
        resume: Resume from the last checkpoint of ``directory``, or start a run if the directory holds none. A run
            that has these iterations or epochs, or has met this target, is returned, and its directory does not change.
        seed: Seed for every random choice (dispatch, mini-batches) except the noise of `asyncsgd.Method.clipped`, which
            gets a new secret seed at every start, and the order of epochs, which follows from the task's
            ``sampling_seed``.
        callbacks: Objects that follow the run and may stop it, see `asyncsgd.Callback`. ``asgd.callbacks`` has early
            stopping, the best model, and loggers for TensorBoard, MLflow and Weights & Biases.
        checkpoints: How often the run is saved, and how many checkpoints are kept.
        limits: How many consecutive failures of a worker the run tolerates, how long an evaluation may take, and what
            an exception in an evaluation does.
        progress: Whether to show progress on the terminal, and a summary at the end. Without, it shows only exceptions
            in the task's code that do not stop the run.

    >>> import asyncsgd as asgd
    >>> task, engine = asgd.tasks.quadratic(workers=2), asgd.engines.processes(workers=2)
    >>> run = asgd.train(task, asgd.async_sgd(stepsize=0.1), engine, iterations=50, progress=False)
    >>> run.trace.iterations
    50

    See docs/users/engineer.md for runs that are watched, resumed and replayed.
    """
    with ExitStack() as closing:
        hooks = closing.enter_context(Hooks(callbacks, terminal(callbacks, progress=progress)))
        check_options(checkpoints, limits)
        parts = getattr(task, "workers", None) if is_heterogeneous(task) else None
        engine = processes(parts) if engine is None else engine  # by default one worker per part of the data, or core
        check_parts(task, method, seed)
        iterations = iterations_of(task, method.work.steps, iterations, epochs)
        evaluation = Evaluation.of(iterations, every, until)
        request = RunRequest(task, method, engine, iterations, evaluation, resume, seed, checkpoints, limits, epochs)
        configuration.check(task, method, engine, iterations, seed, request.batches)
        if resume and directory is None:
            raise BadParameter("resume", True, "needs a run to resume", "pass the directory of the run")
        files = None if directory is None else RunDirectory(directory)
        if files is not None:
            closing.callback(files.close)
            files.check(resume=resume)
        return launch(request, hooks, files)


def launch(request: RunRequest, hooks: Hooks, files: RunDirectory | None) -> TrainingRun:
    """Carry out a request in a directory that is locked and checked, then close every callback.

    `train` and `asyncsgd.flower.AsyncStrategy` both call it. The caller releases the lock afterwards.
    """
    with hooks:
        check_files(hooks.callbacks, None if files is None else files.path)
        if request.resume and files is not None and files.begun:
            configuration.check_more(files.path, request.iterations, request.epochs)
        begun = None if files is None or not files.begun else files.path
        method = configuration.settled(request, begun).bind_layout(layout_of(request.task))
        check_memory(
            method,
            request.task.initial(),
            request.engine.workers,
            directory=files is not None,
            task=request.task,
            best=sum(isinstance(callback, SaveBest) for callback in hooks.callbacks),
            on_this_machine=request.engine.on_this_machine,
        )
        return Loop(replace(request, method=method), hooks, files).run()
