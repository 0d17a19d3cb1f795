"""Methods for workers that are far apart: many local steps per message, and momentum on the server.

The inner optimizer starts afresh in every job (``state="fresh"``): nothing stays on a worker, so a worker that dies or
is replaced loses nothing, and its next job can be sent ahead. The authors' code for asynchronous
DiLoCo does the same; the paper on DiLoCo keeps the inner state. To keep it, put other local work on top::

    asgd.diloco().local(50, 4e-4, optimizer=asgd.optimizers.adamw(weight_decay=0.1), state="kept")

``.local(...)`` also exchanges the inner optimizer, and ``.compressed(...)`` sends fewer bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from asyncsgd.core.aggregation import Aggregation, Buffer, Softsync
from asyncsgd.core.dispatch import AlwaysBusy, Batch
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Adam, Momentum, Optimizer
from asyncsgd.core.outer_optimizers import DelayedNesterov
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.steps import Constant
from asyncsgd.core.transforms import Interpolate
from asyncsgd.core.validate import count, fraction, positive, recipe

INNER = Adam(weight_decay=0.1)


@recipe
def diloco(
    stepsize: float | Schedule = 0.7,
    *,
    steps: int = 50,
    inner_stepsize: float | Schedule = 4e-4,
    momentum: float = 0.9,
) -> Method:
    """DiLoCo: rounds of local AdamW steps, then a Nesterov step on the mean of all updates (Douillard et al. 2023).

    All workers start from x and take H steps of AdamW with weight decay 0.1. Once all have arrived, with Δ the mean of
    x - x_i: m ← β m + Δ and x ← x - η (Δ + β m). A round has as many updates as the run has workers at its start.

    Args:
        stepsize: The step η of the server.
        steps: The number H of local steps per job. The paper takes 500; 50 to 1000 work.
        inner_stepsize: The step size of the local steps, a number or a schedule of the mini-batches handed out.
        momentum: The momentum β of the server; 0 for none.

    >>> diloco(steps=100).bind(workers=4).aggregation
    Buffer(size=4, noise=0.0, by_examples=False)

    See docs/guides/far-apart.md for training with few messages.
    """
    method = Method("diloco", Constant(stepsize), Batch(), aggregation=Softsync(1), optimizer=_nesterov(momentum))
    return _with_steps(method, steps, inner_stepsize)


@recipe
def async_diloco(
    stepsize: float | Schedule = 0.7,
    *,
    steps: int = 50,
    inner_stepsize: float | Schedule = 4e-4,
    momentum: float = 0.9,
    every: int | None = None,
    activation: float = 0.0,
    per_worker: Sequence[int] | str | None = "speed",
) -> Method:
    """Asynchronous DiLoCo: every arrival moves the model at once, the momentum every N-th one (Liu et al. 2024).

    Every worker is always busy with local steps of AdamW with weight decay 0.1. Its update Δ moves the model by η Δ/N;
    the server adds the updates up, and refreshes and applies its Nesterov momentum after every N of them (Delayed
    Nesterov; see `asyncsgd.optimizers.delayed_nesterov`). Slow workers take fewer steps per job, so that all answer
    about equally often (DyLU).

    Args:
        stepsize: The step η of the server for N updates.
        steps: The number of local steps per job of the fastest worker.
        inner_stepsize: The step size of the local steps, a number or a schedule of the mini-batches handed out.
        momentum: The momentum β of the server.
        every: The number N of arrivals between two refreshes of the momentum. The default is the number of workers.
        activation: The share c of the momentum that each arrival in between applies, from 0 to 1/N.
        per_worker: "speed" gives slower workers fewer steps by their measured speed; a list gives the steps of each
            worker; None gives all workers ``steps``.

    >>> async_diloco(momentum=0.8).bind(workers=4).optimizer
    DelayedNesterov(beta=0.8, every=4, activation=0.0)

    See docs/guides/far-apart.md for training with few messages.
    """
    fraction("momentum", momentum)
    optimizer = DelayedNesterov(momentum, every, activation)
    method = Method("async_diloco", Constant(stepsize), AlwaysBusy(), optimizer=optimizer)
    return _with_steps(method, steps, inner_stepsize, per_worker)


@recipe
def decoupled_diloco(
    stepsize: float | Schedule = 0.7,
    *,
    steps: int = 50,
    inner_stepsize: float | Schedule = 4e-4,
    momentum: float = 0.9,
    quorum: int | None = None,
) -> Method:
    """Decoupled DiLoCo: merge the models of the first K workers to arrive, without stopping (Douillard et al. 2026).

    Every worker is always busy with local steps of AdamW with weight decay 0.1. After K arrivals the server takes a
    Nesterov step towards the mean of the K models, in which a worker weighs examples · examples per step. The server
    subtracts their models from its present one, not from the one that they started from, so that late workers do not
    push it further than where they are.

    Args:
        stepsize: The step η of the server.
        steps: The number of local steps per job.
        inner_stepsize: The step size of the local steps, a number or a schedule of the mini-batches handed out.
        momentum: The momentum β of the server; 0 for none.
        quorum: The number K of arrivals that the server merges. The default is half of the workers.

    >>> decoupled_diloco().bind(workers=8).aggregation
    Buffer(size=4, noise=0.0, by_examples=True)

    See docs/guides/far-apart.md for training with few messages.
    """
    aggregation: Aggregation = Softsync(2, by_examples=True)
    if quorum is not None:
        count("quorum", quorum)
        aggregation = Buffer(quorum, by_examples=True)
    method = Method(
        "decoupled_diloco",
        Constant(stepsize),
        AlwaysBusy(),
        transforms=(Interpolate(),),
        aggregation=aggregation,
        optimizer=_nesterov(momentum),
    )
    return _with_steps(method, steps, inner_stepsize)


def _nesterov(momentum: float) -> Optimizer:
    fraction("momentum", momentum)
    return Momentum(momentum, nesterov=True) if momentum else SGD()


def _with_steps(
    method: Method, steps: int, inner_stepsize: float | Schedule, per_worker: Sequence[int] | str | None = None
) -> Method:
    if not isinstance(inner_stepsize, Schedule):
        positive("inner_stepsize", inner_stepsize)
    return method.local(steps, inner_stepsize, optimizer=INNER, per_worker=per_worker)
