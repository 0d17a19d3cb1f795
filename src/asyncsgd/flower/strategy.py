"""`AsyncStrategy`, which takes the place of Flower's own strategies in a ServerApp. It imports flwr."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan
from pathlib import Path
from typing import Any, NoReturn

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.core.method import Method
from asyncsgd.core.validate import is_id, is_number
from asyncsgd.flower.engine import Clients
from asyncsgd.flower.privacy import Privacy
from asyncsgd.flower.request import CLIENTS, PRIVACY, FederatedRequest
from asyncsgd.flower.round_rules import SHARE, Aggregate, Config, RoundRules
from asyncsgd.flower.rounds import evaluated_line, joined
from asyncsgd.flower.serving import FederatedRun, run_request
from asyncsgd.flower.weights import EXAMPLES
from asyncsgd.run.callbacks.base import Callback, Hooks
from asyncsgd.run.callbacks.terminal import ExceptionsAlone, Terminal
from asyncsgd.run.options import Checkpoints
from asyncsgd.run.training import CHECKPOINTS
from asyncsgd.trace.columns import WHEN

LOG = logging.getLogger("flwr")


@dataclass(repr=False)
class AsyncResult(Result):  # type: ignore[misc]
    """Flower's ``Result``, with the run that made it."""

    run: FederatedRun | None = field(default=None)
    """Trace, delays, metrics by iteration, client metrics by reply, and the privacy spent."""


class AsyncStrategy(Strategy):  # type: ignore[misc]
    """A Flower strategy without rounds that wait: the method decides what happens with every update as it arrives.

    In a stock ServerApp one line changes, and the ClientApp stays as it is::

        strategy = asgd.flower.AsyncStrategy(asgd.federated_async_sgd(0.25, concurrency=4))
        result = strategy.start(grid, ArrayRecord(Net().state_dict()), num_rounds=50, evaluate_fn=evaluate)

    An update is the change that a client's training made, x_sent - x_returned. So a step size of 1 applies it as it is:
    ``asgd.fedavg(clients=8)`` runs the rounds of federated averaging.

    A *round* is as many arrivals as clients were connected when the run started. The number is fixed then, and written
    to the directory, so that a resumed run counts the same rounds. A fast client may answer several times in a round,
    and a slow one not at all. A method with rounds of its own, such as ``asgd.fedavg(clients=8)``, keeps them: 8
    arrivals. Every message carries its round as ``config["server-round"]``: for training the round in
    which the job begins, from 1 on, and for evaluation the round that made the model.

    By default the server and the clients evaluate after every round, as long as that takes at most 5 % of the time, of
    the run and of the clients' work, or at most 10 s. Rounds for which it would take more are not evaluated. Training
    never waits for an evaluation. The initial model is evaluated on the server, and the last one by the server and by
    clients, in any case. With ``evaluate_every=1`` every round is evaluated, and updates wait if evaluations take
    longer than rounds.

    The parameters that `flwr.serverapp.strategy.FedAvg` also has mean the same here. docs/guides/flower-strategy.md
    goes through all of FedAvg's parameters and all of Flower's strategies.

    Args:
        method: How the server uses updates: ``asgd.federated_async_sgd(0.25, concurrency=4)`` or any other recipe. The
            ClientApp decides what a job computes. A method with local steps sends it their number as
            ``config["steps"]``. A compressed method needs `compress_mod` in the ClientApp.
        fraction_train: A round is as many arrivals as this fraction of the connected clients, and at least
            ``min_train_nodes``, so that a run has as many updates as with FedAvg. No round draws clients: the method
            decides which of them train, and how many at a time (``concurrency=``).
        fraction_evaluate: Fraction of the clients that evaluate a model, drawn at random. 0: clients do not evaluate.
        min_train_nodes: Number of clients that must be connected before the first job is sent.
        min_evaluate_nodes: Least number of clients that evaluate a model, if as many are present.
        min_available_nodes: Number of clients that must be connected before the first job is sent. The larger of this
            and ``min_train_nodes`` counts, or the number of clients of a round, if the method has rounds.
        weighted_by_key: Name of the metric in a reply that weights the reply, such as its number of examples.
        arrayrecord_key: Key of the model in the messages to clients.
        configrecord_key: Key of the configuration in the messages to clients.
        train_metrics_aggr_fn: ``function(records, weighted_by_key)``, which returns one ``MetricRecord`` for the
            replies of a round. ``records`` is a list of ``RecordDict``, each with the metrics of one reply and without
            its arrays. Default: the weighted mean.
        evaluate_metrics_aggr_fn: The same for the replies of clients that evaluated a model.
        evaluate_every: Evaluate once per this many rounds, however long that takes. Default: after every round, within
            5 % of the time or 10 s.
        clients: How long clients may take, what they send, and what happens to clients that fail: see `Clients`.
        privacy: How the ε spent is computed, if the method adds noise: see `Privacy`.
        directory: Directory for trace, metrics and checkpoints. Pass an absolute path, as Flower runs apps in its own
            folders. None: write nothing.
        resume: Resume from the last checkpoint of ``directory``. Start from the beginning if it contains no run.
        until: Stop early once a metric of ``evaluate_fn`` reaches a bound, for instance ``"accuracy >= 0.95"``.
        seed: Seed for every random choice of the server except privacy noise, which has a new secret seed at every
            start. None: 0, or the seed of the run that is resumed.
        checkpoints: How often to save a checkpoint, and how many to keep: see `asyncsgd.Checkpoints`.
        callbacks: Objects that are notified about the run and may stop it: see `asyncsgd.Callback`.
        progress: Whether to show progress on the terminal, and a summary at the end.

    >>> import asyncsgd as asgd
    >>> asgd.flower.AsyncStrategy(asgd.fedbuff(1.0, concurrency=8), min_available_nodes=8).min_available_nodes
    8
    """

    def __init__(
        self,
        method: Method,
        *,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = "num-examples",
        arrayrecord_key: str = "arrays",
        configrecord_key: str = "config",
        train_metrics_aggr_fn: Aggregate | None = None,
        evaluate_metrics_aggr_fn: Aggregate | None = None,
        evaluate_every: int | None = None,
        clients: Clients = CLIENTS,
        privacy: Privacy | None = None,
        directory: str | Path | None = None,
        resume: bool = False,
        until: str | None = None,
        seed: int | None = None,
        checkpoints: Checkpoints = CHECKPOINTS,
        callbacks: Sequence[Callback] = (),
        progress: bool = True,
    ) -> None:
        self.method = method
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes, self.min_evaluate_nodes = min_train_nodes, min_evaluate_nodes
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn, self.evaluate_metrics_aggr_fn = train_metrics_aggr_fn, evaluate_metrics_aggr_fn
        self.evaluate_every = evaluate_every
        self.clients, self.privacy = clients, PRIVACY if privacy is None else privacy
        self.directory, self.resume, self.until, self.seed = directory, resume, until, seed
        self.checkpoints, self.callbacks, self.progress = checkpoints, callbacks, progress

    # ------------------------------------------------------------------------------------------ the run

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: Config | None = None,
        evaluate_config: Config | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> AsyncResult:
        """Train for ``num_rounds`` rounds, and return Flower's ``Result`` with the run as ``result.run``.

        Args:
            grid: The grid that Flower passes to the ServerApp, in simulation and in deployment.
            initial_arrays: The initial model. Integer arrays in it are not trained: clients receive the median of what
                clients returned last, as with ``Clients(statistics=...)``.
            num_rounds: Number of rounds. A round is as many arrivals as clients were connected at the start, or those
                of the method's own rounds.
            timeout: Seconds that a job may take, unless ``Clients(timeout=...)`` says otherwise.
            train_config: Configuration that is sent with every job: a ``ConfigRecord``, a dict, or a function of the
                round and the client that returns one. The client has a ``number``, a ``node`` (Flower's id) and a
                ``name``.
            evaluate_config: The same for evaluation by clients.
            evaluate_fn: ``evaluate_fn(server_round, arrays)`` evaluates a model on the server, in a thread of its own.
                It is called with round 0 before training, and then as the class describes. It returns metrics, or
                None to record nothing this time. Rounds may have different metrics.
        """
        record = Recorded(evaluate_fn)
        with Hooks(self.callbacks, Terminal(evaluated=evaluated_line) if self.progress else ExceptionsAlone()) as hooks:
            self._check()
            clients = self.clients
            if isinstance(clients, Clients):  # else the request refuses it
                timeout = timeout if clients.timeout is None else clients.timeout
                # None turns weighting off; any other name is the one that FedAvg's parameter gives.
                weighted_by = None if clients.weighted_by is None else self.weighted_by_key
                clients = replace(clients, timeout=timeout, weighted_by=weighted_by)
            request = FederatedRequest(
                grid,
                initial_arrays,
                self.method,
                num_rounds,
                fraction=self.fraction_train,
                least=self.min_train_nodes,
                minimum=max(self.min_train_nodes, self.min_available_nodes, 1),
                evaluate_every=self.evaluate_every,
                until=self.until,
                clients=clients,
                privacy=self.privacy,
                train_config={} if train_config is None else train_config,
                evaluate_config=({} if evaluate_config is None else evaluate_config) if self._evaluates else None,
                evaluate=None if evaluate_fn is None else record,
                rules=self._rules(),
                directory=self.directory,
                resume=self.resume,
                seed=self.seed,
                checkpoints=self.checkpoints,
            )
            if self.progress:
                LOG.info("Starting %s strategy:", type(self).__name__)
                self.summary()
            run = run_request(request, hooks)
        return result_of(run, record.found)

    @property
    def _evaluates(self) -> bool:
        return self.fraction_evaluate > 0

    def _rules(self) -> RoundRules:
        return RoundRules(
            train_metrics=self.train_metrics_aggr_fn,
            evaluate_metrics=self.evaluate_metrics_aggr_fn,
            fraction_evaluate=self.fraction_evaluate,
            min_evaluate_nodes=self.min_evaluate_nodes,
            weighted_by_key=self.weighted_by_key,
            arrays_key=self.arrayrecord_key,
            config_key=self.configrecord_key,
            share=SHARE if self.evaluate_every is None else None,
        )

    def _check(self) -> None:
        for name in OWN_LOOP:
            if getattr(type(self), name) is not getattr(AsyncStrategy, name):
                _own_loop(name, f"{type(self).__name__}.{name} would never be called")
        if not is_number(self.fraction_train) or not 0 < self.fraction_train <= 1:
            fix = "pass a number above 0, up to 1"
            raise BadParameter("fraction_train", self.fraction_train, "is not a fraction of the clients", fix)
        if not is_number(self.fraction_evaluate) or not 0 <= self.fraction_evaluate <= 1:
            fix = "pass a number from 0 to 1"
            raise BadParameter("fraction_evaluate", self.fraction_evaluate, "is not a fraction", fix)
        for name in ("min_train_nodes", "min_evaluate_nodes", "min_available_nodes"):
            value = getattr(self, name)
            if not is_id(value) or value < 0:
                raise BadParameter(name, value, "is not a number of clients", "pass a whole number from 0 on")
        for name in ("weighted_by_key", "arrayrecord_key", "configrecord_key"):
            value = getattr(self, name)
            if not isinstance(value, str) or not value:
                raise BadParameter(name, value, "is not a key", "pass a text")
        named = getattr(self.clients, "weighted_by", None)
        if named not in (None, EXAMPLES, self.weighted_by_key):
            fix = f"pass weighted_by_key={named!r} to AsyncStrategy instead"
            raise BadParameter("weighted_by", named, f"and weighted_by_key = {self.weighted_by_key!r} differ", fix)
        for name in ("train_metrics_aggr_fn", "evaluate_metrics_aggr_fn"):
            value = getattr(self, name)
            if value is not None and not callable(value):
                fix = "pass a function of a list of RecordDict and the name of the weight, or None"
                raise BadParameter(name, value, "is not a function", fix)

    # ------------------------------------------------------------------------------------------ what Flower asks for

    def summary(self) -> None:
        """Log the settings of the strategy, as Flower's strategies do."""
        least = max(self.min_train_nodes, self.min_available_nodes)
        evaluates = "after every round within 5 % of the time"
        if self.evaluate_every is not None:
            evaluates = f"after every {self.evaluate_every} rounds"
        LOG.info("\t├──> Method: %s", getattr(self.method, "name", self.method))
        LOG.info("\t├──> Clients: at least %d connected at the start", least)
        LOG.info("\t├──> Evaluation: %s, by a fraction of %.2f of the clients", evaluates, self.fraction_evaluate)
        LOG.info("\t├──> Directory: %s", "none" if self.directory is None else self.directory)
        LOG.info("\t└──> Keys in records:")
        LOG.info("\t\t├── Weighted by: '%s'", self.weighted_by_key)
        LOG.info("\t\t├── ArrayRecord key: '%s'", self.arrayrecord_key)
        LOG.info("\t\t└── ConfigRecord key: '%s'", self.configrecord_key)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise `UsageError`: this strategy has no rounds that begin."""
        _own_loop("configure_train")

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise `UsageError`: this strategy uses every reply as it arrives."""
        _own_loop("aggregate_train")

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise `UsageError`: this strategy sends evaluations beside training."""
        _own_loop("configure_evaluate")

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Raise `UsageError`: this strategy collects evaluations beside training."""
        _own_loop("aggregate_evaluate")

    def initialize_parameters(self, *_: Any, **__: Any) -> NoReturn:
        """Raise `UsageError`: a legacy ``ServerApp(server_fn=...)`` calls this method of a legacy strategy."""
        raise UsageError(
            "AsyncStrategy is not a strategy for Flower's legacy interface, ServerApp(server_fn=...); write the "
            "ServerApp with @app.main() and call strategy.start(grid, ...): docs/guides/flower-strategy.md shows how"
        )


OWN_LOOP = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""The methods of Flower's strategies that the loop of this one does not call."""


def _own_loop(name: str, problem: str = "") -> NoReturn:
    problem = problem or f"AsyncStrategy.{name} cannot be called"
    raise UsageError(
        f"{problem}: the strategy runs a loop of its own, without rounds to configure and aggregate. Strategies that "
        "wrap another one do not work with it. docs/guides/flower-strategy.md names what to use instead, such as a "
        "function for train_config, train_metrics_aggr_fn, and callbacks"
    )


class History(dict[int, MetricRecord]):
    """Metrics by round. The error for a round that is missing says why it is."""

    def __missing__(self, number: int) -> NoReturn:
        raise KeyError(
            f"round {number} has no metrics: it was not evaluated, so that evaluations take little of the time; "
            "AsyncStrategy(evaluate_every=1) evaluates every round"
        )


class Recorded:
    """The user's ``evaluate_fn``, and what it returned for each round. The evaluating thread alone calls it."""

    def __init__(self, function: Callable[[int, Any], Any] | None) -> None:
        self._function = function
        self.found: dict[int, Mapping[str, Any]] = {}

    def __call__(self, server_round: int, arrays: Any) -> Any:
        assert self._function is not None
        found = self._function(server_round, arrays)
        if isinstance(found, Mapping):
            self.found[server_round] = found
        return found


def result_of(run: FederatedRun, found: Mapping[int, Mapping[str, Any]]) -> AsyncResult:
    """Return Flower's ``Result`` of a run; ``found`` has what ``evaluate_fn`` returned since this start."""
    result = AsyncResult(
        arrays=run.arrays,
        evaluate_metrics_serverapp=History(),
        evaluate_metrics_clientapp=History(),
        run=run,
    )
    rules = RoundRules(int(run.config["engine"]["round"]))
    names = [name for name in run.metrics if name not in WHEN]
    for place, iteration in enumerate(run.metrics.get("iteration", ())):
        number = rules.of_model(int(iteration))
        stored = {name: float(run.metrics[name][place]) for name in names}
        values = found.get(number) or {name: value for name, value in stored.items() if not isnan(value)}
        if values:
            result.evaluate_metrics_serverapp[number] = MetricRecord(dict(values))
    kinds = {"train": result.train_metrics_clientapp, "evaluate": result.evaluate_metrics_clientapp}
    for row in run.round_metrics:
        if row["replies"]:
            kinds[row["kind"]][int(row["round"])] = MetricRecord(joined(row["metrics"], row.get("lists", ())))
    return result
