"""A method and its parts: which worker gets a job, what a job computes, how an arrival moves the model."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from asyncsgd.core.aggregation import Aggregation, Buffer, Each
from asyncsgd.core.compression import Compression, as_compression, as_down
from asyncsgd.core.dispatch import AlwaysBusy, Dispatch, FirstOf
from asyncsgd.core.errors import BadParameter, BiasWarning, LocalWorkWarning
from asyncsgd.core.layout import Layout
from asyncsgd.core.optimizers import SGD, Optimizer
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.steps import Step
from asyncsgd.core.transforms import Clip, Transform
from asyncsgd.core.validate import callers_level, instead, nonnegative, plain, positive, recipe
from asyncsgd.core.weights import Weights
from asyncsgd.core.work import FEW_STEPS, Gradient, LocalSteps, Work


@dataclass(frozen=True)
class Method:
    """What a server does with updates and jobs: a few parts, all frozen values.

    `asyncsgd.methods` has the recipes of the literature. Extend one with `using`, `clipped`, `local`,
    `weighted` and `compressed`, or build your own from the parts in `asyncsgd.steps`, `asyncsgd.dispatch`,
    `asyncsgd.aggregation` and `asyncsgd.optimizers`. docs/howto/method.md shows how.

    >>> import asyncsgd as asgd
    >>> mine = Method("mine", asgd.steps.constant(0.1), asgd.dispatch.uniform(4))
    >>> mine.using(optimizer=asgd.optimizers.momentum(0.9)).clipped(1.0).name
    'clipped_mine'
    """

    name: str
    step: Step
    dispatch: Dispatch = field(default_factory=AlwaysBusy)
    work: Work = field(default_factory=Gradient)
    transforms: tuple[Transform, ...] = ()
    aggregation: Aggregation = field(default_factory=Each)
    optimizer: Optimizer = field(default_factory=SGD)
    average: bool = False
    """Whether the method returns the mean of the versions 1, 2, ... instead of the last one."""
    up: Compression | None = None
    """How workers encode updates on the way to the server; None sends them as they are."""
    down: Compression | None = None
    """How the server encodes the model on the way to workers."""
    weights: Weights | None = None
    """Whether and how updates are weighed by the examples that workers report; None: every update counts the same."""

    def __post_init__(self) -> None:
        for part in (self.step, self.dispatch, self.work, *self.transforms, self.aggregation, self.optimizer):
            plain(part)
        if self.weights is not None:
            plain(self.weights)
            if self.unweighable is not None:
                fix = "leave .weighted(...) out, or that part of the method"
                raise BadParameter("weights", self.weights, f"cannot be used: {self.unweighable}", fix)
        if isinstance(self.aggregation, Buffer) and self.aggregation.noise:
            if not any(isinstance(transform, Clip) for transform in self.transforms):
                raise BadParameter(
                    "noise",
                    self.aggregation.noise,
                    "protects nothing without a bound on the updates",
                    "use method.clipped(norm, noise=...)",
                )
            if not self.step.bounded:
                raise BadParameter(
                    "noise",
                    self.aggregation.noise,
                    f"needs weights of at most 1, {type(self.step).__name__} has none",
                    "use a constant, delay-adaptive or staleness step",
                )
            if self.up is not None:
                problem = "cannot be together with compression: what a worker could not send is added to its next "
                problem += "update, so one example changes several sums, and the noise is too small for that"
                raise BadParameter("noise", self.aggregation.noise, problem, "leave .compressed(...) or the noise out")

    def using(self, **parts: Any) -> Method:
        """Return the same method with some parts replaced.

        Args:
            parts: New values by the name of the part: ``step``, ``dispatch``, ``work``, ``transforms``,
                ``aggregation``, ``optimizer``, ``average``; also ``name``, which tables and records show.

        >>> import asyncsgd as asgd
        >>> asgd.async_sgd(0.001).using(optimizer=asgd.optimizers.momentum()).optimizer
        Momentum(beta=0.9, nesterov=False)
        """
        known = [part.name for part in fields(self)]
        for part, value in parts.items():
            if part not in known:
                raise BadParameter(part, value, "is not a part of a method", instead(part, value, known))
        optimizer = parts.get("optimizer", self.optimizer)
        if not isinstance(optimizer, Optimizer):
            fix = 'pass asgd.optimizers.adamw(), or one of PyTorch\'s as asgd.optimizers.torch("AdamW")'
            shown = optimizer if isinstance(optimizer, str) else type(optimizer).__name__
            raise BadParameter("optimizer", shown, "is not an optimizer of the server", fix)
        return replace(self, **parts)

    @recipe
    def clipped(self, norm: float, *, noise: float = 0.0) -> Method:
        """Return the same method with every update that arrives clipped, and with noise on each sum if asked for.

        The noise is never drawn twice: `asyncsgd.train` and `asyncsgd.flower.AsyncStrategy` take a new secret seed for
        it at every start and resume, whatever ``seed`` is, and keep the seeds in the run directory, which they make
        private, so that a replay gives the same bits. A simulation draws it from its ``seed``.
        `asyncsgd.flower.AsyncStrategy` also reports the ε spent.

        Args:
            norm: The largest norm G of an update. A longer update is scaled down to it.
            noise: The multiplier z of Gaussian noise N(0, (z·G)²) on each sum applied (Abadi et al. 2016).

        >>> import asyncsgd as asgd
        >>> asgd.fedbuff(1.0, concurrency=8, buffer=4).clipped(1.0, noise=0.5).aggregation
        Buffer(size=4, noise=0.5, by_examples=False)
        """
        positive("norm", norm)
        nonnegative("noise", noise)
        aggregation = self.aggregation
        if noise:
            if isinstance(aggregation, Each):
                aggregation = Buffer(1)
            if not isinstance(aggregation, Buffer):
                kind = type(aggregation).__name__
                raise BadParameter("noise", noise, f"cannot be added with {kind}", "use a method that applies sums")
            aggregation = replace(aggregation, noise=noise * norm)
        transforms = (*self.transforms, Clip(norm))
        return self.using(name=f"clipped_{self.name}", transforms=transforms, aggregation=aggregation)

    @recipe
    def local(
        self,
        steps: int,
        stepsize: float | Schedule,
        *,
        optimizer: Optimizer | None = None,
        state: str = "fresh",
        clip: float | None = None,
        proximal: float = 0.0,
        scaled: bool = False,
        per_worker: Sequence[int] | str | None = None,
    ) -> Method:
        """Return the same method with jobs of several local steps. The update is how far they moved (Stich 2019).

        Args:
            steps: The number of steps per job, each on a mini-batch of its own.
            stepsize: The step size of the local steps: a number, or a schedule of the number of mini-batches that were
                handed out, to all workers if they share their data, else to this one.
            optimizer: The optimizer of the local steps, of `asyncsgd.optimizers`; by default plain SGD.
            state: "fresh" starts the optimizer afresh in every job: nothing stays on a worker, and the next job can be
                sent ahead. "kept" continues it from the worker's last applied job, until the worker dies or the run is
                resumed; the worker then holds one job at a time.
            clip: Scale every local gradient down to this norm.
            proximal: The strength μ of the term μ (y - x) that pulls every step towards the job's starting model x.
            scaled: Divide the difference by the local step size, so that the update has the scale of a sum of
                gradients. Otherwise it is the plain difference of two models, and a server stepsize of 1 is natural.
            per_worker: The steps of each worker's jobs, one number per worker, in place of ``steps``; or "speed", which
                gives the fastest worker ``steps`` and slower ones fewer, in proportion to their measured speed (DyLU;
                Liu et al. 2024). If the slowest then takes fewer than 20 steps of Adam, prefer ``state="kept"``.

        >>> import asyncsgd as asgd
        >>> method = asgd.async_sgd(0.7).local(50, 4e-4, optimizer=asgd.optimizers.adamw(weight_decay=0.1))
        >>> method.work.steps, method.work.state
        (50, 'fresh')

        See docs/guides/far-apart.md for training with few messages.
        """
        optimizer = SGD() if optimizer is None else optimizer
        work = LocalSteps(steps, stepsize, scaled, proximal, optimizer, state, clip, per_worker)  # type: ignore[arg-type]
        fewest = min((steps, *work.per_worker)) if isinstance(work.per_worker, tuple) else steps
        if state == "fresh" and optimizer.adaptive and fewest < FEW_STEPS:
            warnings.warn(
                f"steps = {fewest} of an Adam that starts afresh in every job are few: its first steps are as long as "
                f'its stepsize, whatever the gradient; take {FEW_STEPS} or more, or pass state="kept"',
                LocalWorkWarning,
                stacklevel=3,
            )
        return self.using(work=work)

    @recipe
    def compressed(self, up: str | Compression | None = None, *, down: str | Compression | None = None) -> Method:
        """Return the same method with updates, and models if asked for, encoded in fewer bytes on their way.

        A worker adds what encoding left over to its next update (error feedback), so that nothing is lost for good. It
        therefore holds one job at a time. A model is rounded, and the job starts from the rounded one.

        Args:
            up: How updates are encoded: "float16", "bfloat16", "int8", "int4", "top_k", or a value of
                `asyncsgd.compression`; None sends them as they are.
            down: How models are encoded; "top_k" is not possible.

        >>> import asyncsgd as asgd
        >>> method = asgd.async_sgd(0.1).compressed("int4", down="bfloat16")
        >>> method.message_bytes(1_000_000, "float32")
        (562500, 2000000)

        See docs/guides/far-apart.md for what each code costs and loses.
        """
        if up is None and down is None:
            raise BadParameter("up", None, "and down = None compress nothing", 'pass up="int8" or down="bfloat16"')
        return self.using(
            up=None if up is None else as_compression("up", up), down=None if down is None else as_down(down)
        )

    @recipe
    def weighted(self, *, limit: float | None = 10.0) -> Method:
        """Return the same method with updates weighed by the examples that workers report, as in federated averaging.

        A worker whose job used n_i examples has the relative weight a_i = n_i / n̄, where n̄ is the mean of the last
        reports of all workers. It multiplies the weight that the step rule gives for delay or staleness. In rounds
        (`asyncsgd.fedavg`) the move is exactly Σ n_i Δ_i / Σ n_i. Otherwise the method tends to the minimum of
        Σ n_i f_i / Σ n_i, if it tends to that of the plain mean without weights. A worker that reports nothing counts
        as an average worker.

        Args:
            limit: Outside rounds, a report counts as at most this many times the median report, so that a single
                worker cannot take over by its claim. None lifts the limit.

        >>> import asyncsgd as asgd
        >>> server = asgd.Server(np.zeros(1), asgd.fedavg(1.0, clients=2).weighted())
        >>> first, second = server.handle(asgd.Joined([0, 1])).commands
        >>> reply = server.handle(asgd.Arrived(first.job.id, np.array([0.0]), examples=900))
        >>> reply = server.handle(asgd.Arrived(second.job.id, np.array([-1.0]), examples=100))
        >>> server.x
        array([0.1])

        See docs/users/federated.md for how weights, staleness and buffers combine.
        """
        return self.using(weights=Weights(limit))

    @property
    def unweighable(self) -> str | None:
        """The reason why updates cannot be weighed by examples under this method; None if they can."""
        aggregation = self.aggregation
        if getattr(aggregation, "by_examples", False):
            return "the buffer has weights by examples of its own"
        if getattr(aggregation, "noise", 0.0):
            return "noise protects updates that weigh at most 1"
        if aggregation.weighs is None:
            return f"{type(aggregation).__name__} counts every update once"
        return None

    @property
    def job(self) -> Work:
        """What a worker does for a job: the work, with its starting point and update encoded if the method says so."""
        return self.work.encoded(self.up, self.down)

    def message_bytes(self, n: int, dtype: Any) -> tuple[int, int]:
        """Return the bytes of one update on its way up, and of one model on its way down.

        Args:
            n: The number of parameters of the model.
            dtype: The type of a parameter, such as ``"float32"``.
        """
        plain = n * np.dtype(dtype).itemsize
        up, down = (plain if code is None else code.size(n, dtype) for code in (self.up, self.down))
        return up, down

    @recipe
    def bind(
        self, workers: int, iterations: int | None = None, counted: str = "all", batches: int | None = None
    ) -> Method:
        """Return the same method with every open option filled in from the run.

        `asyncsgd.train` and `asyncsgd.simulate` call this when a run starts. run.json records the result, and a resume
        keeps it, also with more workers or iterations. A `Server` of your own needs a method that is bound.

        A schedule of the step size gets its ``total`` here, and every step size of the run is checked.

        Args:
            workers: The number of workers that the run starts with.
            iterations: The number of updates that will arrive; None if unknown.
            counted: Whether mini-batches are counted over "all" workers, which share their data, or for each "worker".
            batches: The number of mini-batches that the run hands out, if epochs decide that. With steps per worker the
                number of updates then depends on the workers' speeds, so a schedule of the server needs its ``total``.

        >>> import asyncsgd as asgd
        >>> asgd.async_sgd(asgd.schedules.linear(0.1)).bind(workers=8, iterations=1000).step
        Constant(stepsize=linear(0.1, total=1000))
        >>> asgd.methods.staleness_aware(0.1, splits=2).bind(workers=8, iterations=1000).aggregation
        Buffer(size=4, noise=0.0, by_examples=False)
        """
        return self.using(
            step=self.step.bind(iterations if batches is None or self.work.per_worker is None else None),
            work=self.work.bind(workers, iterations, counted, batches),
            aggregation=self.aggregation.bind(workers, iterations),
            optimizer=self.optimizer.bind(workers),
        )

    def bind_layout(self, layout: Layout | None) -> Method:
        """Return the same method with names of parameters, such as those an optimizer excludes, turned into ranges.

        `asyncsgd.train` and `asyncsgd.simulate` call this when a run starts. run.json records the result, so that a
        replay does not need the names.

        Args:
            layout: The name, offset and shape of every parameter of the flat model, as ``task.layout()`` returns them;
                None if the task has no names.

        >>> import asyncsgd as asgd
        >>> method = asgd.async_sgd(0.001).using(optimizer=asgd.optimizers.adamw(weight_decay=0.1, exclude=["bias"]))
        >>> method.bind_layout((("weight", 0, (3, 2)), ("bias", 6, (2,)))).optimizer.ranges
        ((6, 8),)
        """
        return self.using(optimizer=self.optimizer.bind_layout(layout), work=self.work.bind_layout(layout))

    @property
    def parts(self) -> tuple[str, ...]:
        """The kinds of the parts. A saved state can only be restored with the same ones."""
        parts = (self.step, self.dispatch, self.work, *self.transforms, self.aggregation, self.optimizer)
        return (*(type(part).__name__ for part in parts), f"average={self.average}")

    @property
    def bias(self) -> tuple[str, ...]:
        """The reasons why fast workers weigh more in the limit; empty if all workers weigh the same."""
        dispatch = None if self.aggregation.balances else self.dispatch.favours_fast
        return tuple(reason for reason in (dispatch, self.step.favours_fast) if reason)

    def check(self, *, workers: int, iterations: int | None = None, heterogeneous: bool = False) -> None:
        """Raise if the method cannot work with this many workers, and warn of bias if the data are heterogeneous.

        >>> from asyncsgd.core.steps import Constant
        >>> Method("rounds", Constant(0.1), FirstOf(clients=10)).check(workers=4)
        Traceback (most recent call last):
            ...
        asyncsgd.core.errors.BadParameter: clients = 10 can never be reached by 4 workers; pass clients <= 4
        """
        if workers < 1:
            raise BadParameter("workers", workers, "must be at least 1", "pass workers >= 1")
        if isinstance(self.dispatch, FirstOf) and self.dispatch.clients > workers:
            fix = f"pass clients <= {workers}"
            raise BadParameter("clients", self.dispatch.clients, f"can never be reached by {workers} workers", fix)
        size = getattr(self.aggregation, "size", None)
        if size is not None and iterations is not None and size > iterations:
            fix = f"pass a buffer <= {iterations} or more iterations"
            raise BadParameter("buffer", size, f"can never fill in {iterations} iterations", fix)
        if heterogeneous and self.bias:
            warnings.warn(
                f"{self.name} favours fast workers ({'; '.join(self.bias)}) and the task declares its data as "
                "heterogeneous, so it converges to a solution that neglects slow workers. "
                "Use federated_async_sgd(...) with a constant step, which weighs all workers equally.",
                BiasWarning,
                stacklevel=callers_level(),
            )
