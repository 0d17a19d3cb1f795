"""`serve`, which a ServerApp calls instead of a strategy's ``start``."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, cast

from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.method import Method
from asyncsgd.core.validate import integer
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.bounded_dispatch import bias_of, bounded, may_queue
from asyncsgd.flower.client_work import for_clients
from asyncsgd.flower.clients import is_simulated
from asyncsgd.flower.encoding import check_sendable
from asyncsgd.flower.engine import Clients, Flower
from asyncsgd.flower.norm_limit import fitting
from asyncsgd.flower.privacy import Accountant, Privacy, PrivacySpent, counted
from asyncsgd.flower.task import AbsentUpdates, Evaluate, FlowerTask, KeptUpdates
from asyncsgd.flower.weights import by_reports
from asyncsgd.run.callbacks.base import Callback, Hooks
from asyncsgd.run.callbacks.terminal import Terminal
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.options import Checkpoints, Evaluation, Limits, RunRequest, check_options
from asyncsgd.run.read import read_config, read_lines
from asyncsgd.run.results import TrainingRun
from asyncsgd.run.training import CHECKPOINTS, launch
from asyncsgd.tasks.base import Task

CLIENTS, PRIVACY = Clients(), Privacy()

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


@dataclass(frozen=True)
class FederatedRequest:
    """One run with the clients of a grid, as `run_request` carries it out. `serve` makes one from its arguments."""

    grid: Any
    initial_arrays: Any
    method: Method
    iterations: int
    evaluation: Evaluation
    clients: Clients = CLIENTS
    privacy: Privacy = PRIVACY
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] | None = None
    """None: clients do not evaluate."""
    evaluate: Evaluate | None = None
    directory: str | Path | None = None
    resume: bool = False
    seed: int | None = None
    checkpoints: Checkpoints = CHECKPOINTS

    def check(self) -> None:
        """Raise `BadParameter` for a value of the wrong kind, and for options that need a directory without one."""
        check_options(self.checkpoints)
        for name, kind, fix in (
            ("method", Method, "call the recipe: asgd.federated_async_sgd(stepsize=0.25, concurrency=4)"),
            ("clients", Clients, "pass asgd.flower.Clients(minimum=4)"),
            ("privacy", Privacy, "pass asgd.flower.Privacy(delta=1e-5)"),
        ):
            value = getattr(self, name)
            if not isinstance(value, kind):
                raise BadParameter(name, value, f"is a {type(value).__name__}", fix)
        if not isinstance(self.initial_arrays, Mapping):
            kind_given = type(self.initial_arrays).__name__
            fix = "pass ArrayRecord(model.state_dict())"
            raise BadParameter("initial_arrays", kind_given, "is not an ArrayRecord", fix)
        if self.directory is None:
            for name, wanted in (("resume", self.resume), ("keep_updates", self.clients.keep_updates)):
                if wanted:
                    raise BadParameter(name, True, "needs a directory", "pass the directory of the run")


@dataclass(frozen=True)
class Prepared:
    """The method as the server uses it, and notes for the user about the changes."""

    method: Method
    minimum: int
    accountant: Accountant | None
    notes: tuple[str, ...] = field(default=())


def prepare(request: FederatedRequest, layout: Layout) -> Prepared:
    """Fit the method to clients, and check that the options suit it, before anything starts."""
    notes: list[str] = []
    method, clients = request.method, request.clients
    for argument, code in (("up", method.up), ("down", method.down)):
        check_sendable(code, argument)
    method, about_work = for_clients(by_reports(method, clients.weighted_by), request.train_config)
    notes += about_work
    if clients.queue is not None and not may_queue(method.dispatch):
        fix = "leave it out, or use federated_async_sgd(...) or fedbuff(...)"
        raise BadParameter("queue", clients.queue, f"has no effect with {method.name}, where no job waits", fix)
    goal = method.dispatch.clients if isinstance(method.dispatch, FirstOf) else 1
    minimum = max(2, goal) if clients.minimum is None else clients.minimum
    method.check(workers=minimum, iterations=request.iterations, heterogeneous=clients.heterogeneous)
    method = method.using(dispatch=bounded(method.dispatch, clients.queue))
    if clients.heterogeneous and (bound := bias_of(method.dispatch)) is not None:
        notes.append(bound)
    method, accountant = counted(method, request.privacy)
    if accountant is not None and not is_simulated(request.grid):
        notes.append("ε is counted per SuperNode key: a SuperNode without a key is a new client at every start")
    if layout.carried:
        notes.append(_about_carried(layout, private=accountant is not None))
    return Prepared(method, minimum, accountant, tuple(notes))


def _about_carried(layout: Layout, *, private: bool) -> str:
    if private:
        what = "integer arrays and running statistics keep their initial values, as noise does not protect them"
        return f"{what}; use GroupNorm instead of BatchNorm"
    names = [part.name for part in layout.carried]
    shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return f"not trained, but set to medians of what clients return: {shown}"


def choose_seed(given: int | None, files: RunDirectory | None, resume: bool) -> int:
    """Return the given seed, the seed of the run to resume, or 0."""
    if given is not None:
        integer("seed", given)
        return int(given)
    if resume and files is not None and files.begun:
        return int(read_config(files.path)["seed"])
    return 0


def sendable(name: str, given: Any) -> dict[str, Any]:
    """Return a configuration for clients as a dict. Raise `BadParameter` if Flower cannot send it."""
    from flwr.app import ConfigRecord

    if not isinstance(given, Mapping):
        raise BadParameter(name, given, f"is a {type(given).__name__}", 'pass a dict such as {"lr": 0.1}')
    for key, value in given.items():
        try:
            ConfigRecord({key: value})
        except (TypeError, ValueError) as error:
            fix = "pass numbers, strings, bytes, booleans, or lists of one of them"
            raise BadParameter(f"{name}[{key!r}]", value, "cannot be sent by Flower", fix) from error
    return dict(given)


def check_flower() -> None:
    """Raise `MissingLibrary`, which says how to install Flower, unless it is installed."""
    try:
        import flwr  # noqa: F401
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.flower.serve", "Flower", "asyncsgd[flower]") from error


NEVER = 1 << 62
"""Consecutive failures after which the loop would stop the run. The pool handles failing clients instead."""


@dataclass(frozen=True, eq=False, repr=False)
class FederatedRun(TrainingRun):
    """A `TrainingRun` that also has the model as named arrays, the metrics of clients, and the privacy spent."""

    arrays: Any = None
    """The model, as a ``flwr.app.ArrayRecord`` like the initial one."""
    client_metrics: tuple[dict[str, Any], ...] = ()
    """Averaged metrics of clients: ``kind`` ("train" or "evaluate"), ``metrics``, ``clients``, ``examples``, ..."""
    privacy: PrivacySpent | None = None
    """The ε and δ spent; None if the method adds no noise."""


def serve(
    grid: Any,
    initial_arrays: Any,
    method: Method,
    *,
    iterations: int,
    train_config: Mapping[str, Any] | None = None,
    evaluate: Evaluate | None = None,
    evaluate_clients: bool | Mapping[str, Any] = False,
    directory: str | Path | None = None,
    resume: bool = False,
    seed: int | None = None,
    every: int | None = None,
    until: str | None = None,
    clients: Clients = CLIENTS,
    privacy: Privacy = PRIVACY,
    checkpoints: Checkpoints = CHECKPOINTS,
    callbacks: Sequence[Callback] = (),
    progress: bool = True,
) -> FederatedRun:
    """Train with the clients of a Flower grid until ``iterations`` updates have arrived, with any method of asyncsgd.

    Call it in ``server_app.py`` instead of ``strategy.start(...)``. A ClientApp needs no change::

        @app.main()
        def main(grid: Grid, context: Context) -> None:
            arrays = ArrayRecord(Net().state_dict())
            method = asgd.federated_async_sgd(0.25, concurrency=4)
            run = asgd.flower.serve(grid, arrays, method, iterations=400, evaluate=global_evaluate)
            torch.save(run.arrays.to_torch_state_dict(), "model.pt")

    An update is the change that a client's training made, x_sent - x_returned. So a step size of 1 applies it as it is:
    ``asgd.fedavg(clients=8)`` runs the rounds of federated averaging, with equal weights.

    Args:
        grid: The grid that Flower passes to the ServerApp, in simulation and in deployment.
        initial_arrays: The initial model, a ``flwr.app.ArrayRecord``. Integer arrays in it are not trained: clients
            receive the median of what clients returned last, as with ``Clients(statistics=...)``.
        method: How the server uses updates. The ClientApp decides what a job computes. A method with local steps sends
            it their number as ``config["steps"]``. A compressed method needs `compress_mod` in the ClientApp.
        iterations: Number of updates to apply.
        train_config: Configuration sent with every job, a ``ConfigRecord`` or a dict. ``"server-round"`` is added to
            it: the version of the model plus 1.
        evaluate: ``evaluate(iteration, arrays)``, called once per ``every`` iterations in a thread of its own while
            updates arrive. If the next evaluation is due before one has ended, updates wait for it. Like a strategy's
            ``evaluate_fn`` it returns metrics, with the same names every time, or None to record nothing this time.
        evaluate_clients: Whether clients evaluate the model too, in addition to training. A dict is sent to them as
            their configuration.
        directory: Directory for trace, metrics and checkpoints. Pass an absolute path, as Flower runs apps in its own
            folders. None: write nothing.
        resume: Resume from the last checkpoint of ``directory``. Start from the beginning if it contains no run.
        seed: Seed for every random choice of the server except privacy noise, which has a new secret seed at every
            start.
        every: Evaluate once per this many iterations. Default: a hundred evaluations in total.
        until: Stop early once a metric of ``evaluate`` reaches a bound, for instance ``"accuracy >= 0.95"``.
        clients: How many clients must be connected, how long they may take, what they send, and what happens to clients
            that fail: see `Clients`.
        privacy: How the ε spent is computed, if the method adds noise: see `Privacy`.
        checkpoints: How often to save a checkpoint, and how many to keep: see `asyncsgd.Checkpoints`.
        callbacks: Objects that are notified about the run and may stop it: see `asyncsgd.Callback`.
        progress: Whether to show progress on the terminal, and a summary at the end.
    """
    with Hooks(callbacks, Terminal() if progress else None) as hooks:
        check_flower()
        asked = {} if isinstance(evaluate_clients, bool) else sendable("evaluate_clients", evaluate_clients)
        request = FederatedRequest(
            grid,
            initial_arrays,
            method,
            iterations,
            Evaluation.of(iterations, every, until, federated=True),
            clients,
            privacy,
            sendable("train_config", train_config or {}),
            None if evaluate_clients is False else asked,
            evaluate,
            directory,
            resume,
            seed,
            checkpoints,
        )
        return run_request(request, hooks)


def run_request(request: FederatedRequest, hooks: Hooks) -> FederatedRun:
    """Carry out a run with the clients of a grid."""
    request.check()
    layout = Layout.of(request.initial_arrays, request.clients.statistics, request.clients.shared_patterns)
    x, carried = layout.split(request.initial_arrays)
    prepared = prepare(request, layout)
    accountant, keep_updates, resume = prepared.accountant, request.clients.keep_updates, request.resume
    with ExitStack() as closing:
        files = None if request.directory is None else RunDirectory(request.directory)
        folder = None if files is None else files.path.resolve()
        if files is not None:
            closing.callback(files.close)
            files.check(resume=resume)
        seed = choose_seed(request.seed, files, resume)
        if files is not None and (keep_updates or accountant is not None):
            files.make_private()
        if accountant is not None:
            closing.callback(accountant.book.close)
            if files is not None and (resume or not files.begun):
                accountant.book.open(files.path, begun=files.begun)
        stand_in = KeptUpdates(str(folder)) if keep_updates else AbsentUpdates()
        task = FlowerTask(
            layout,
            x,
            carried,
            request.evaluate,
            accountant,
            stand_in,
            heterogeneous=request.clients.heterogeneous,
            notes=prepared.notes,
        )
        engine = Flower(
            prepared.minimum,
            request.grid,
            layout,
            carried,
            fitting(request.clients, prepared.method),
            request.train_config,
            request.evaluate_config,
            folder,
            resume=resume and files is not None and files.begun,
            freeze=accountant is not None,
            up=prepared.method.up,
            down=prepared.method.down,
            accountant=accountant,
        )
        inner = RunRequest(
            task=cast(Task, task),
            method=prepared.method,
            engine=engine,
            iterations=request.iterations,
            evaluation=request.evaluation,
            resume=resume,
            seed=seed,
            checkpoints=request.checkpoints,
            limits=Limits(max_failures=NEVER, evaluation_errors="raise"),
        )
        with saved_before_exit(task.stop):
            run = _run(inner, hooks, files)
        return _result(run, task, accountant)


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
    if run.directory is None:
        assert task.pool is not None
        rows = task.pool.history
    else:
        if task.pool is None:  # the run was finished, so no engine was started
            task.restore(run.directory)
        rows = [row for row in read_lines(run.directory, "journal.jsonl") if row["event"] == "client_metrics"]
    return FederatedRun(
        **{name.name: getattr(run, name.name) for name in fields(run)},
        arrays=task.record(run.x),
        client_metrics=tuple(rows),
        privacy=None if accountant is None else accountant.spent(),
    )
