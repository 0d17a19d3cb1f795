"""Scenarios that call `asyncsgd.train` with every family of methods, with and without faults, and replay the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd import aggregation, methods, optimizers
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.core.errors import BadEngine
from asyncsgd.core.events import Outcome
from asyncsgd.core.method import Method
from asyncsgd.testing.bench import Bowl, Setting, Walk, WritingBowl
from asyncsgd.testing.engine_contract import Watched
from asyncsgd.testing.faults import Fault

if TYPE_CHECKING:
    from asyncsgd.run import TrainingRun

WORKERS, ITERATIONS = 3, 120

METHODS: dict[str, Method] = {
    "async_sgd": methods.async_sgd(0.1),
    "async_sgd with less concurrency": methods.async_sgd(0.1, concurrency=2),
    "minibatch_sgd": methods.minibatch_sgd(0.1),
    "delay_adaptive": methods.delay_adaptive(0.1),
    "delay_adaptive, dropping": methods.delay_adaptive(0.1, rule="drop", threshold=2),
    "federated_async_sgd": methods.federated_async_sgd(0.1, concurrency=8),
    "federated_async_sgd, early": methods.federated_async_sgd(0.1, concurrency=5, early=True),
    "async_sgd, early": methods.async_sgd(0.1).using(dispatch=AlwaysBusy(sample_early=True)),
    "shuffled_async_sgd": methods.federated_async_sgd(0.1, concurrency=4, order="shuffled"),
    "fedbuff": methods.fedbuff(0.5, concurrency=6, buffer=4).local(3, 0.1),
    "fedbuff, calibrated and weighted": methods.fedbuff(0.1, concurrency=6, buffer=4, calibrated=True).weighted(),
    "median": methods.federated_async_sgd(0.1, concurrency=6).using(aggregation=aggregation.median(5)),
    "over_selection": methods.fedavg(0.1, clients=2, ask=3),
    "ringmaster": methods.ringmaster(0.1, limit=2, stops=True),
    "rennala": methods.rennala(0.1, batch=3),
    "mifa": methods.mifa(0.1),
    "momentum": methods.async_sgd(0.05).using(optimizer=optimizers.momentum(0.5)),
    "adam": methods.async_sgd(0.01).using(optimizer=optimizers.adamw()),
    "noise": methods.async_sgd(0.1).clipped(1.0, noise=0.1),
    "adadelay": methods.adadelay(smoothness=1.0),
}
"""One method of every family."""

_ADAMW: dict[str, Any] = {"optimizer": optimizers.adamw(), "state": "kept"}
KEPT: dict[str, Method] = {
    "kept state": methods.async_sgd(1.0).local(3, 0.05, **_ADAMW),
    "kept state and compression": methods.async_sgd(1.0).local(3, 0.05, **_ADAMW).compressed("int4", down="bfloat16"),
    "federated_async_sgd, kept state and top_k": methods.federated_async_sgd(1.0, concurrency=8)
    .local(2, 0.05, **_ADAMW)
    .compressed("top_k"),
    "delay_adaptive, dropping with kept state": methods.delay_adaptive(1.0, rule="drop", threshold=2)
    .local(2, 0.05, **_ADAMW)
    .compressed("int8"),
    "over_selection, kept state": methods.fedavg(1.0, clients=2, ask=3).local(2, 0.05, **_ADAMW).compressed("int8"),
    "ringmaster, kept state": methods.ringmaster(1.0, limit=2, stops=True).local(2, 0.05, **_ADAMW),
    "rennala, compression": methods.rennala(0.1, batch=3).compressed("int4"),
}
"""Methods whose workers keep state from job to job, with every kind of dispatch."""

CANCELLING = ("over_selection", "ringmaster", "over_selection, kept state", "ringmaster, kept state")

ALL = METHODS | KEPT

OUTCOMES: dict[Fault, Outcome] = {
    Fault.KILL: Outcome.LOST,
    Fault.HANG: Outcome.LOST,
    Fault.RAISE: Outcome.LOST,
    Fault.NAN: Outcome.REJECTED,
    Fault.INFINITE: Outcome.REJECTED,
    Fault.SHORT: Outcome.REJECTED,
    Fault.DTYPE: Outcome.REJECTED,
}


def with_method(name: str, setting: Setting) -> None:
    """The run applies all its updates, no job is lost or rejected, and the replay has the same bits."""
    task = WritingBowl(300, np.float32) if list(ALL).index(name) % 2 else Bowl(40)
    run = _train(setting, ALL[name], {}, task)
    counts = run.trace.counts
    if counts[Outcome.LOST] or counts[Outcome.REJECTED]:
        raise BadEngine(f"no fault happened, but the trace has lost or rejected jobs: {run.trace}")
    if name in CANCELLING and not counts[Outcome.CANCELLED]:
        raise BadEngine(f"nothing was cancelled: {run.trace}")


def with_faults(name: str, faults: Mapping[int, Fault], setting: Setting) -> None:
    """The run applies all its updates in spite of faults, and uses no job with a fault."""
    options: dict[str, Any] = {"job_timeout": 2.0} if Fault.HANG in faults.values() else {}
    run = _train(setting, ALL[name], faults, Bowl(40), **options)
    outcome = run.trace.jobs.outcome
    used = [job for job in faults if Outcome(outcome[job]).arrived]
    if used:
        raise BadEngine(f"jobs {used} had faults ({[faults[job].value for job in used]}), but were used")
    # A job may be lost with its worker, or be cancelled, before its own fault happens. Most are not.
    seen = {fault for job, fault in faults.items() if outcome[job] == OUTCOMES[fault]}
    missing = set(faults.values()) - seen
    if missing and (name not in CANCELLING or not seen):  # a slow machine may cancel every job with one kind of fault
        fault = min(missing, key=lambda fault: fault.value)
        raise BadEngine(f"no job with the fault {fault.value!r} ended as {OUTCOMES[fault].name}: {run.trace}")
    deaths = sum(fault in (Fault.KILL, Fault.HANG) for fault in faults.values())
    most = len(run.trace) if options else deaths  # on a busy machine a worker that only waits may time out too
    if deaths and not 1 <= run.faults.deaths <= most:
        raise BadEngine(f"{run.faults.deaths} deaths were counted, but 1 to {most} are possible")


def for_epochs(steps: int, setting: Setting) -> None:
    """The run uses every row once per epoch: the engine passes on the number of a job's mini-batch, and its steps."""
    method = methods.async_sgd(1.0) if steps == 1 else methods.async_sgd(1.0).local(steps, 1.0)
    run = _train(setting, method, {}, Walk(), epochs=2)
    if not (run.x == 2.0).all():
        raise BadEngine(
            f"after 2 epochs the rows were used {run.x.min():g} to {run.x.max():g} times; pass on job.batch"
        )


def _train(
    setting: Setting,
    method: Method,
    faults: Mapping[int, Fault],
    task: Any,
    *,
    epochs: int | None = None,
    **options: Any,
) -> TrainingRun:
    from asyncsgd.run import Limits, replay, train

    faulty = setting.task(faults, task, method.work.steps)
    directory = setting.folder / "run"
    engine = Watched.of(setting.make(WORKERS, **options))
    with faulty.armed():
        run = train(
            faulty,
            method,
            engine,
            iterations=ITERATIONS if epochs is None else None,
            epochs=epochs,
            directory=directory,
            limits=Limits(max_failures=1_000_000),
            progress=False,
        )
    wanted: int = run.config["iterations"]
    if run.trace.iterations != wanted:
        raise BadEngine(f"the run has {run.trace.iterations} iterations, not {wanted}")
    again = replay(directory)  # raises at the first job that differs
    if again.compared != wanted or not again.model_compared or again.x.tobytes() != run.x.tobytes():
        raise BadEngine(f"the replay differs from the run: {again}")
    return run


# ---------------------------------------------------------------------------------------------- by name


def _every(fault: Fault, first: int, step: int, last: int) -> dict[int, Fault]:
    return dict.fromkeys(range(first, last, step), fault)


KILLS = _every(Fault.KILL, 7, 17, 100)
HANGS = {11: Fault.HANG, 40: Fault.HANG}
RUBBISH = {
    **_every(Fault.RAISE, 3, 9, 100),
    **_every(Fault.NAN, 4, 18, 100),
    **_every(Fault.INFINITE, 5, 18, 100),
    **_every(Fault.SHORT, 13, 18, 100),
    **_every(Fault.DTYPE, 14, 18, 100),
}

WITH_METHODS: dict[str, Callable[[Setting], None]] = {
    f"train with {name}": partial(with_method, name) for name in METHODS
}
FOR_EPOCHS: dict[str, Callable[[Setting], None]] = {
    "train for epochs": partial(for_epochs, 1),
    "train for epochs with local steps": partial(for_epochs, 5),
}
FAULTY = ("async_sgd", "minibatch_sgd", "federated_async_sgd", "over_selection", "ringmaster", "mifa")
WITH_RUBBISH: dict[str, Callable[[Setting], None]] = {
    f"train with {name} and rubbish": partial(with_faults, name, RUBBISH) for name in FAULTY
}
WITH_KILLS: dict[str, Callable[[Setting], None]] = {
    f"train with {name} and kills": partial(with_faults, name, {**RUBBISH, **KILLS}) for name in FAULTY
}
WITH_KEPT_STATE: dict[str, Callable[[Setting], None]] = {
    **{f"train with {name}": partial(with_method, name) for name in KEPT},
    **{f"train with {name} and rubbish": partial(with_faults, name, RUBBISH) for name in KEPT},
}
WITH_KEPT_STATE_AND_KILLS: dict[str, Callable[[Setting], None]] = {
    f"train with {name} and kills": partial(with_faults, name, {**RUBBISH, **KILLS}) for name in KEPT
}
WITH_HANGS: dict[str, Callable[[Setting], None]] = {
    "train with federated_async_sgd and hangs": partial(with_faults, "federated_async_sgd", HANGS)
}
