"""Simulate a run: from a task, a method and durations (or a recorded trace) to the model, the trace and the metrics."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter, DivergenceWarning, NotFinite, TraceError
from asyncsgd.core.events import Job
from asyncsgd.core.layout import layout_of
from asyncsgd.core.method import Method
from asyncsgd.core.parts import Reason, check_parts
from asyncsgd.core.random import derive, output
from asyncsgd.core.schedules import Schedule as StepSchedule
from asyncsgd.core.server import JOB, Server
from asyncsgd.core.update import Update
from asyncsgd.core.validate import check_model, count
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import SPEED, Work
from asyncsgd.engines.base import example_counter
from asyncsgd.result import Run
from asyncsgd.simulation import compiled_replay
from asyncsgd.simulation.clock import play
from asyncsgd.simulation.compiled_replay import Measure, Progress, shown
from asyncsgd.simulation.durations import Durations
from asyncsgd.simulation.lowering import lower, share
from asyncsgd.simulation.schedule import Schedule, schedule
from asyncsgd.tasks.base import BuiltIn, Task, batches_of, is_heterogeneous
from asyncsgd.trace import Recorder, Trace
from asyncsgd.trace.columns import Ints
from asyncsgd.trace.replay import Arrivals, replay_core, workers_of


def simulate(
    task: Task,
    method: Method,
    durations: Durations | Trace,
    *,
    iterations: int | None = None,
    every: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Run:
    """Simulate a method on a task: who finishes when, with exact delays, and the numbers along the way.

    The result does not depend on the machine, and the delay identity is checked at the end.

    Args:
        task: What a job computes: a task of `asyncsgd.tasks`, or your own. Built-in tasks run in compiled code.
        method: How updates are used: ``asgd.async_sgd(stepsize=0.1)`` or any other recipe. The step size may be a
            schedule of `asyncsgd.schedules`, which ends with ``iterations``.
        durations: How long a mini-batch takes, from `asyncsgd.durations`; a job of H local steps takes H times as long.
            Pass a recorded trace in their place to repeat its timing: the same workers finish at the same times, and
            only the numbers are new.
        iterations: The number of gradients that arrive. With a trace, the default is all of its arrivals.
        every: The number of iterations between two evaluations of the task. The default is a hundredth of the run.
        seed: Seed for every random choice (durations, dispatch, mini-batches, noise).
        progress: Whether to show a progress bar on the terminal.

    >>> import asyncsgd as asgd
    >>> task = asgd.tasks.quadratic(workers=2)
    >>> run = asgd.simulate(task, asgd.async_sgd(0.1), asgd.durations.fixed([1, 16]), iterations=400)
    >>> run.trace.delays.maximum, bool(run.metrics["gradient_norm"][-1] < 1e-10)
    (16, True)
    >>> again = asgd.simulate(task, asgd.async_sgd(asgd.schedules.linear(0.1)), run.trace)
    >>> [round(float(step), 4) for step in again.trace.step[::100]]
    [0.1, 0.075, 0.05, 0.025]

    docs/users/researcher.md explains more.
    """
    total = durations.iterations if iterations is None and isinstance(durations, Trace) else iterations
    with shown(progress, total, "simulating") as advance:
        return run_simulation(task, method, durations, iterations=iterations, every=every, seed=seed, progress=advance)


def run_simulation(
    task: Task,
    method: Method,
    durations: Durations | Trace,
    *,
    iterations: int | None = None,
    every: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Run:
    """Do what `simulate` does, and call ``progress(k)`` whenever k more iterations are done."""
    iterations, workers = check_request(task, method, durations, iterations, seed)
    method = method.bind(workers, iterations, batches_of(task)).bind_layout(layout_of(task))
    every = max(1, iterations // 100) if every is None else every
    count("every", every)
    low = lower(method, task)
    request = _Request(task, method, iterations, seed, every, progress, {"method": method.name, "seed": str(seed)})
    durations = over_network(durations, method, task)
    if isinstance(durations, Durations) and isinstance(low.schedule, Reason):
        return _warn(_through_server(request, durations, low.schedule))
    source = source_of(durations, method, iterations, seed, batches_of(task))
    numbers = low.numbers
    if numbers and not same_steps(source.arrivals(), method):
        numbers = UNLIKE
    if isinstance(numbers, Reason):
        return _warn(_through_core(request, source, numbers))
    return _warn(_compiled(request, source))


class _Request(NamedTuple):
    """The checked arguments of a simulation."""

    task: Any
    method: Method
    iterations: int
    seed: int
    every: int
    progress: Progress | None
    metadata: dict[str, str]


def check_request(
    task: Task, method: Method, durations: Durations | Trace, iterations: int | None, seed: int = 0
) -> tuple[int, int]:
    """Raise if the arguments cannot be simulated; return the numbers of iterations and of workers."""
    if not isinstance(durations, Durations | Trace):
        fix = "make them with asgd.durations.fixed([...]), or pass a trace"
        raise BadParameter("durations", durations, f"is a {type(durations).__name__}", fix)
    check_parts(task, method, seed)
    start = task.initial()
    check_model(start)
    if not isinstance(task, BuiltIn):
        check_metrics(task.evaluate(start))
    if isinstance(durations, Trace):
        durations.check()
        if durations.jobs.worker.min(initial=0) < 0:
            raise TraceError(f"worker {durations.jobs.worker.min()} cannot be replayed; number the workers from 0")
        known = durations.iterations
        if iterations is not None and iterations > known:
            fix = f"pass at most {known}, or durations instead of a trace"
            raise BadParameter("iterations", iterations, f"are more than the trace's {known} arrivals", fix)
        iterations = known if iterations is None else iterations
        workers = int(durations.jobs.worker.max(initial=-1)) + 1
    else:
        workers = durations.workers
    if iterations is None:
        raise BadParameter("iterations", None, "is missing", "pass the number of gradients that should arrive")
    count("iterations", iterations)
    expected = getattr(task, "workers", None)
    if expected is not None and (workers > expected or (workers < expected and isinstance(durations, Durations))):
        fix = f"give {expected} durations, or make the task with workers={workers}"
        raise BadParameter("durations", durations, f"are for {workers} workers and the task is for {expected}", fix)
    bound = method.bind(workers, iterations, batches_of(task)).bind_layout(layout_of(task))
    bound.check(workers=workers, iterations=iterations, heterogeneous=is_heterogeneous(task))
    return iterations, workers


def check_metrics(values: Any) -> None:
    """Raise unless the metrics of a task at its initial model are finite numbers."""
    if not isinstance(values, dict):
        fix = 'return a dict such as {"loss": 0.5}'
        raise BadParameter("task.evaluate", values, f"is a {type(values).__name__}", fix)
    for name, value in values.items():
        if not isinstance(value, int | float | np.number):
            raise BadParameter(f"task.evaluate: {name}", value, "is not a number", "return numbers only")
        if name in compiled_replay.METRICS and not np.isfinite(value):
            fix = "check the initial parameters, the data and the loss"
            raise BadParameter(f"task.evaluate: {name}", float(value), "is not finite at the initial model", fix)


def source_of(
    durations: Durations | Trace, method: Method, iterations: int, seed: int, counted: str = "all"
) -> Schedule | Trace:
    """Return which worker works when: a compiled schedule, or the given trace, with the mini-batches of the method.

    ``counted`` says whether they are counted over all workers or for each "worker".
    """
    if isinstance(durations, Trace):
        trace = durations if iterations == durations.iterations else durations.until(iterations)
        return trace.with_batches(_steps_along(trace, method.work), counted)
    work = method.work
    steps = work.per_worker if isinstance(work.per_worker, tuple) else work.steps
    found = schedule(method.dispatch, durations, iterations=iterations, seed=seed, steps=steps, keeps=method.job.keeps)
    return replace(found, counted=counted)


def _steps_along(trace: Trace, work: Work) -> int | Ints:
    """Return the steps of the jobs of a recorded trace under this work.

    Jobs keep the steps that they had if those of the trace have up to as many as the work: a run with the same number
    of steps, some of whose jobs had fewer, because of slow workers or the end of the data. Otherwise the work decides.
    """
    if isinstance(work.per_worker, tuple):
        return np.array(work.per_worker, np.int64)[trace.jobs.worker]
    most = int(trace.jobs.steps.max(initial=0))
    if most == work.steps:
        return trace.jobs.steps
    if work.per_worker == SPEED:
        problem = f"cannot be decided along a trace whose jobs have up to {most} steps, not {work.steps}"
        fix = f"pass durations in place of the trace, or steps = {most}"
        raise BadParameter("per_worker", SPEED, problem, fix)
    return work.steps


UNLIKE = Reason("jobs of different numbers of steps", "have no compiled form")


def same_steps(arrivals: Arrivals, method: Method) -> bool:
    """Return whether every job has the steps of the method, as the compiled numbers assume."""
    return bool((arrivals.steps == method.work.steps).all())


def over_network(durations: Durations | Trace, method: Method, task: Task) -> Durations | Trace:
    """Return durations in which every message takes the time of its bytes."""
    if isinstance(durations, Trace) or not durations.networked:
        return durations
    x = task.initial()
    up, down = method.message_bytes(len(x), x.dtype)
    return durations.for_messages(up=up, down=down)


def arrivals_of(durations: Durations | Trace, method: Method, iterations: int, seed: int) -> Arrivals:
    """Return the arrivals of a compiled schedule or of a trace."""
    return source_of(durations, method, iterations, seed).arrivals()


def _compiled(request: _Request, source: Schedule | Trace) -> Run:
    task, method, _, seed, every, progress, metadata = request
    arrivals = source.arrivals()
    lane = (method.step.peak, seed)
    result = compiled_replay.replay_lanes(
        arrivals, task, method, [lane], Measure(every, others=True), progress=progress
    )
    assert result.weighed is not None
    weighed, diverged = result.weighed, int(result.diverged[0])
    columns = {name: values[:, 0] for name, values in result.metrics.items()} | result.others
    iteration, good = result.iteration, None
    x: Vector = result.x[:, 0]
    if diverged >= 0:  # as on the other paths: the run ended there
        iteration = iteration[iteration < diverged]
        good = int(iteration[-1]) if len(iteration) else 0
        x = _model_after(arrivals.first(good), task, method, seed)
        source, weighed = source.until(diverged), weighed.first(diverged)
    columns = {name: values[: len(iteration)] for name, values in columns.items()}
    trace = source.with_outcomes(weighed, share(method, weighed.weight), metadata)
    trace.check(early=_early(source, method))
    metrics = _with_time(iteration, arrivals, columns)
    seen = None if diverged < 0 else diverged
    return Run(x, trace, metrics, method, seen, compiled=True, x_iteration=good, task=task)


def _model_after(arrivals: Arrivals, task: Any, method: Method, seed: int) -> Vector:
    """Return the model after these arrivals, by replaying them: the lanes keep only the last model."""
    if not len(arrivals):
        start: Vector = task.initial()
        return start
    lane = (method.step.peak, seed)
    return compiled_replay.replay_lanes(arrivals, task, method, [lane], Measure(len(arrivals))).x[:, 0]


def with_examples(arrivals: Arrivals, task: Any, work: Work, seed: int) -> Arrivals:
    """Return the arrivals with the rows that each job used, if the task counts them (``task.examples``)."""
    count_rows = example_counter(task, work)
    if count_rows is None:
        return arrivals
    seeds, rows = derive(seed, JOB), np.full(len(arrivals), -1, np.int64)
    if arrivals.examples is not None:
        rows[:] = arrivals.examples  # of a recorded trace, for jobs whose rows the task does not know
    for t in range(len(arrivals)):
        number = int(arrivals.job[t])
        steps, batch = int(arrivals.steps[t]), int(arrivals.batch[t])
        found = count_rows(Job(number, int(arrivals.worker[t]), 0, 0, 0, output(seeds, number), steps, batch))
        rows[t] = rows[t] if found is None else found
    return replace(arrivals, examples=rows)


def _early(source: Schedule | Trace, method: Method) -> bool:
    """Return whether jobs may have been assigned before an update: by the method's rule, or in a recorded run."""
    return isinstance(source, Trace) or method.dispatch.early


def _warn(run: Run) -> Run:
    if run.diverged is not None:
        stepsize = run.method.step.stepsize
        what = f"{stepsize!r}" if isinstance(stepsize, StepSchedule) else f"{stepsize:g}"
        smaller = "peak" if isinstance(stepsize, StepSchedule) else "stepsize"
        warnings.warn(
            f"{run.method.name} diverged at iteration {run.diverged} (stepsize {what}): "
            f"try a smaller {smaller}; x is the model of iteration {run.x_iteration}",
            DivergenceWarning,
            stacklevel=4,
        )
    return run


def _through_core(request: _Request, source: Schedule | Trace, why: Reason) -> Run:
    task, method, _, seed, every, progress, metadata = request
    arrivals = with_examples(source.arrivals(), task, method.work, seed)
    table = _Metrics(task, every, len(arrivals), progress)
    table.take(0, task.initial())

    def after(t: int, update: Update) -> bool:
        return table.take(t, update.output)

    update, weighed, steps, broken, _ = replay_core(arrivals, task, method, seed=seed, after=after)
    diverged = table.diverged if broken is None else broken
    if diverged is not None:
        source, weighed, steps = source.until(diverged), weighed.first(diverged), steps[:diverged]
    trace = source.with_outcomes(weighed, steps, metadata)
    if arrivals.examples is not None:
        trace = trace.with_examples(arrivals.examples[: trace.iterations])
    trace.check(early=_early(source, method))
    x, good = table.answer(diverged, update.output)
    metrics = _with_time(table.iteration, arrivals, table.columns)
    return Run(x, trace, metrics, method, diverged, x_iteration=good, slow_because=str(why), task=task)


def _through_server(request: _Request, durations: Durations, why: Reason) -> Run:
    task, method, iterations, seed, every, progress, metadata = request
    server = Server(task.initial(), method, seed, batches=batches_of(task))
    recorder = Recorder(metadata=metadata)
    table = _Metrics(task, every, iterations, progress)
    times = [0.0]
    table.take(0, server.output)

    workers = workers_of(method, task.initial())

    def after(time: float) -> bool:
        before = len(table.iteration)
        stop = table.take(server.iteration, server.output)
        times.extend([time] * (len(table.iteration) - before))
        return stop

    try:
        play(server, (task, workers), durations, iterations, recorder, after)
    except NotFinite:
        if server.torn:  # a part of the method raised the error
            raise
        table.diverged = server.iteration
    trace = recorder.trace(final_concurrency=server.concurrency)
    trace.check(early=method.dispatch.early)
    metrics = {"iteration": table.iteration, "time": np.array(times), **table.columns}
    x, good = table.answer(table.diverged, server.output)
    return Run(x, trace, metrics, method, table.diverged, x_iteration=good, slow_because=str(why), task=task)


class _Metrics:
    """Collect rows of metrics, and detect divergence."""

    def __init__(self, task: Task, every: int, last: int, progress: Progress | None) -> None:
        self._task, self._every, self._last, self._progress = task, every, last, progress
        self._rows: list[dict[str, Any]] = []
        self._iterations: list[int] = []
        self._huge = np.inf
        self._told = 0
        self._good: tuple[int, Vector] = 0, task.initial()  # the last model that was finite, and its iteration
        self.diverged: int | None = None

    def take(self, t: int, x: Vector) -> bool:
        """Evaluate the task if it is due; return True if the run has diverged."""
        if t % self._every and t != self._last:
            return False
        values = self._task.evaluate(x)
        shown = [abs(float(values[name])) for name in compiled_replay.METRICS if name in values]
        if t == 0:
            self._huge = compiled_replay.HUGE * max(1.0, *shown) if shown else np.inf
        if any(not value <= self._huge for value in shown):
            self.diverged = t
            return True
        self._rows.append(values)
        self._iterations.append(t)
        self._good = t, x.copy()
        if self._progress is not None:
            self._progress(t - self._told)
            self._told = t
        return False

    def answer(self, diverged: int | None, x: Vector) -> tuple[Vector, int | None]:
        """Return (the resulting model, its iteration if that is not the last one)."""
        return (x.copy(), None) if diverged is None else (self._good[1], self._good[0])

    @property
    def iteration(self) -> NDArray[np.int64]:
        return np.array(self._iterations, dtype=np.int64)

    @property
    def columns(self) -> dict[str, NDArray[Any]]:
        return {name: np.array([row[name] for row in self._rows]) for name in self._rows[0]}


def _with_time(
    iteration: NDArray[np.int64], arrivals: Arrivals, columns: dict[str, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    times = np.concatenate([[0.0], arrivals.time])
    return {"iteration": iteration, "time": times[iteration], **columns}
