"""Carry out a run with the clients of a grid. `asyncsgd.flower.AsyncStrategy` calls `run_request`."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, cast

from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.engine import Flower
from asyncsgd.flower.norm_limit import fitting
from asyncsgd.flower.privacy import Accountant, PrivacySpent
from asyncsgd.flower.request import FederatedRequest, begin, choose_seed, prepare
from asyncsgd.flower.rounds import read_rows
from asyncsgd.flower.task import AbsentUpdates, FlowerTask, KeptUpdates
from asyncsgd.flower.weights import report_limit
from asyncsgd.run.callbacks.base import Hooks
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.options import Limits, RunRequest
from asyncsgd.run.read import read_lines
from asyncsgd.run.results import TrainingRun
from asyncsgd.run.training import launch
from asyncsgd.tasks.base import Task
from asyncsgd.trace.labels import PLAIN, WorkerLabels

PATIENCE = 60.0
"""Seconds that the run gets to write its checkpoint before Flower ends the process."""


@contextmanager
def saved_before_exit(stop: Callable[[], None]) -> Iterator[None]:
    """Within the block, make Flower's exit call ``stop`` first and wait until the block is left.

    ``flwr stop``, or anything else that ends an app, sends a signal, and Python handles signals in the main thread. In
    a deployment the ServerApp runs in the main thread, and the training loop handles the signal itself. The simulation
    engine runs the ServerApp in another thread: its main thread would end the process in the middle of a write. Flower
    calls the exit handler in its main thread, so the handler may only ask the run to stop, and wait for it.
    """
    if threading.current_thread() is threading.main_thread():  # asyncsgd.run.loop handles the signal itself
        yield
        return
    from flwr.supercore.exit import add_exit_handler

    left = threading.Event()
    to_stop = [stop]  # emptied at the end: Flower keeps the handler, which must not keep the run in memory

    def leave() -> None:
        for call in to_stop:
            call()
            left.wait(PATIENCE)

    add_exit_handler(leave, run_before_force_exit=True)
    try:
        yield
    finally:
        to_stop.clear()
        left.set()


NEVER = 1 << 62
"""Consecutive failures after which the loop would stop the run. The pool handles failing clients instead."""


@dataclass(frozen=True, eq=False, repr=False)
class FederatedRun(TrainingRun):
    """A `TrainingRun` that also has the model as named arrays, the metrics of clients, and the privacy spent."""

    arrays: Any = None
    """The model, as a ``flwr.app.ArrayRecord`` like the initial one."""
    client_metrics: tuple[dict[str, Any], ...] = ()
    """The metrics of the last 10,000 replies, one row each: ``kind`` ("train" or "evaluate"), ``round``, ``iteration``,
    ``time``, ``client``, ``node``, ``name``, ``seconds``, ``examples`` and ``metrics``. A directory keeps the rows of
    all replies, in client_metrics.jsonl."""
    round_metrics: tuple[dict[str, Any], ...] = ()
    """The metrics of clients by round: ``kind``, ``round``, ``metrics``, ``lowest``, ``highest``, ``clients``, ..."""
    privacy: PrivacySpent | None = None
    """The ε and δ spent; None if the method adds no noise."""
    label: WorkerLabels = PLAIN
    """The labels of the clients: ``run.label(2)`` is "client 2 (clinic-a)"."""


def run_request(request: FederatedRequest, hooks: Hooks) -> FederatedRun:
    """Carry out a run with the clients of a grid."""
    request.check()
    layout = Layout.of(request.initial_arrays, request.clients.statistics, request.clients.shared_patterns)
    x, carried = layout.split(request.initial_arrays)
    prepared = prepare(request, layout)
    accountant, keep_updates = prepared.accountant, request.clients.keep_updates
    with ExitStack() as closing:
        files = None if request.directory is None else RunDirectory(request.directory)
        folder = None if files is None else files.path.resolve()
        if files is not None:
            closing.callback(files.close)
            files.check(resume=request.resume)
        begun = request.resume and files is not None and files.begun
        seed = choose_seed(request.seed, files, request.resume)
        start = begin(request, files, partial(_tell, hooks))
        mixed = request.clients.heterogeneous
        request.method.check(workers=start.workers, iterations=start.iterations, heterogeneous=mixed)
        if files is not None and (keep_updates or accountant is not None):
            files.make_private()
        if accountant is not None:
            closing.callback(accountant.book.close)
            if files is not None and (request.resume or not files.begun):
                accountant.book.open(files.path, begun=files.begun)
        rules = replace(request.rules, size=start.size, iterations=start.iterations, seed=seed)
        task = FlowerTask(
            layout,
            x,
            carried,
            _by_round(request, rules.of_model),
            accountant,
            KeptUpdates(str(folder)) if keep_updates else AbsentUpdates(),
            heterogeneous=mixed,
            notes=prepared.notes,
        )
        engine = Flower(
            start.workers,
            request.grid,
            layout,
            carried,
            fitting(request.clients, prepared.method),
            request.train_config,
            request.evaluate_config,
            folder,
            resume=begun,
            freeze=accountant is not None,
            up=prepared.method.up,
            down=prepared.method.down,
            accountant=accountant,
            rounds=rules,
            minimum=request.needed,
            report_limit=report_limit(prepared.method),
        )
        inner = RunRequest(
            task=cast(Task, task),
            method=prepared.method,
            engine=engine,
            iterations=start.iterations,
            evaluation=request.evaluation(start, private=accountant is not None),
            resume=request.resume,
            seed=seed,
            checkpoints=request.checkpoints,
            limits=Limits(max_failures=NEVER, evaluation_errors="raise"),
        )
        with saved_before_exit(task.stop):
            run = _run(inner, hooks, files)
        return _result(run, task, accountant)


def _tell(hooks: Hooks, text: str) -> None:
    for hook in hooks.note:
        hook(text)


def _by_round(request: FederatedRequest, of_model: Callable[[int], int]) -> Callable[[int, Any], Any] | None:
    """Return the user's function on the server, as a function of the iteration."""
    function = request.evaluate
    return None if function is None else lambda iteration, arrays: function(of_model(iteration), arrays)


def _run(request: RunRequest, hooks: Hooks, files: RunDirectory | None) -> TrainingRun:
    try:
        return launch(request, hooks, files)
    except (KeyboardInterrupt, SystemExit) as stopped:
        # The checkpoint is saved and every callback is closed by now. Flower ends its apps with a signal, and its own
        # handler disconnects from the SuperLink. That handler may end the process, so it has to come last.
        number = signal.SIGINT if isinstance(stopped, KeyboardInterrupt) else signal.SIGTERM
        ours = threading.current_thread() is threading.main_thread()
        if ours and getattr(signal.getsignal(number), "__module__", "").startswith("flwr."):
            signal.raise_signal(number)
        raise


def _result(run: TrainingRun, task: FlowerTask, accountant: Accountant | None) -> FederatedRun:
    task.keep_carried()
    if run.directory is None:
        assert task.pool is not None
        rows, replies = task.pool.log.history, list(task.pool.log.rows)
        introduced = task.pool.log.introduced
    else:
        if task.pool is None:  # the run was finished, so no engine was started
            task.restore(run.directory)
        introduced = read_lines(run.directory, "journal.jsonl")
        rows = [row for row in introduced if row["event"] == "client_metrics"]
        replies = read_rows(run.directory)
    return FederatedRun(
        **{name.name: getattr(run, name.name) for name in fields(run)},
        arrays=task.record(run.x),
        client_metrics=tuple(replies),
        round_metrics=tuple(rows),
        privacy=None if accountant is None else accountant.spent(),
        label=WorkerLabels.of(introduced),
    )
