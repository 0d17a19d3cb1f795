"""The methods of Koloskova, Stich and Jaggi, *Sharper convergence guarantees for asynchronous SGD* (2022)."""

from __future__ import annotations

from typing import Literal

from asyncsgd.core.aggregation import Aggregation, Buffer, Each
from asyncsgd.core.dispatch import AlwaysBusy, Batch, Dispatch, Shuffled, Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.steps import Constant, DelayAdaptive, DivideAbove, DropAbove, Step, WorkersOverDelay
from asyncsgd.core.validate import count, recipe


@recipe
def async_sgd(stepsize: float | Schedule, *, concurrency: int | None = None) -> Method:
    """Asynchronous SGD: every worker always busy, x ← x - η g (Koloskova et al. 2022, Algorithm 1, Example 2).

    Args:
        stepsize: The step η of every gradient.
        concurrency: The number of jobs in flight. The default is one per worker.

    >>> async_sgd(0.1).name
    'async_sgd'

    See docs/tutorial.md for a first run, and docs/theory.md for what is proven about this method.
    """
    return Method("async_sgd", Constant(stepsize), AlwaysBusy(concurrency))


@recipe
def minibatch_sgd(stepsize: float | Schedule) -> Method:
    """Mini-batch SGD: all start at x, and no worker restarts until all arrived (Koloskova et al. 2022, Example 1).

    Args:
        stepsize: The step η of every gradient. The n gradients of a batch are applied one by one, which equals one
            step of n·η on their mean.

    >>> minibatch_sgd(0.1).dispatch
    Batch()

    See docs/tutorial.md for a first run, and docs/theory.md for what is proven about this method.
    """
    return Method("minibatch_sgd", Constant(stepsize), Batch())


@recipe
def delay_adaptive(
    stepsize: float | Schedule,
    *,
    rule: Literal["scale", "drop", "divide", "workers"] = "scale",
    threshold: float | None = None,
    concurrency: int | None = None,
) -> Method:
    """Delay-adaptive asynchronous SGD: late updates get a smaller step (Koloskova et al. 2022, Theorem 2).

    All rules give slow workers less weight, so use them if the data of the workers are alike. If the data differ, use
    `federated_async_sgd`.

    Args:
        stepsize: The step η of an update that is not late.
        rule: The step for an update with delay τ. "scale": η·min(1, τ_C/τ), with a guarantee for η <= 1/(4Lτ_C).
            "drop": 0 above the threshold, for η <= 1/(4L·threshold). "divide": η/τ above τ_C, as the paper writes
            it. "workers": η·n/max(n, τ), with n the number of workers (Mishchenko et al. 2022).
        threshold: The largest delay that ``rule="drop"`` applies. The default is 2 τ_C; τ_C can drop nearly
            everything.
        concurrency: The number of jobs in flight. The default is one per worker.

    >>> delay_adaptive(0.1, rule="workers").step
    WorkersOverDelay(stepsize=0.1)

    See docs/theory.md for what is proven about each rule, and docs/users/engineer.md for training with it.
    """
    if threshold is not None and rule != "drop":
        raise BadParameter("threshold", threshold, f'has no meaning with rule="{rule}"', 'pass rule="drop"')
    rules: dict[str, Step] = {
        "scale": DelayAdaptive(stepsize),
        "drop": DropAbove(stepsize, threshold),
        "divide": DivideAbove(stepsize),
        "workers": WorkersOverDelay(stepsize),
    }
    if rule not in list(rules):  # a list cannot be looked up in a dict
        raise BadParameter("rule", rule, "is not known", f"pass one of {', '.join(rules)}")
    return Method("delay_adaptive", rules[rule], AlwaysBusy(concurrency))


@recipe
def federated_async_sgd(
    stepsize: float | Schedule,
    *,
    concurrency: int,
    order: Literal["uniform", "shuffled"] = "uniform",
    early: bool = False,
    buffer: int = 1,
) -> Method:
    """Asynchronous SGD with concurrency: workers drawn at random, jobs queue (Koloskova et al. 2022, Algorithm 2).

    Every worker has the same weight, however slow it is. Use this method if the data of the workers differ.

    Args:
        stepsize: The step η of every gradient, or of the mean of a buffer.
        concurrency: The number of jobs in flight. A busy worker may be drawn again; its jobs wait in a queue.
        order: "uniform": each job goes to a worker drawn uniformly. "shuffled": in a fresh random order of all workers
            every n jobs (AsGrad; Islamov et al. 2023).
        early: Assign the next job before the server applies the arrival (the paper's extension).
        buffer: Move the model after this many arrivals, by their mean.

    >>> federated_async_sgd(0.1, concurrency=4, order="shuffled").dispatch
    Shuffled(concurrency=4, sample_early=False)

    See docs/users/federated.md for a comparison with other methods, and docs/theory.md for what is proven.
    """
    count("buffer", buffer)
    orders: dict[str, Dispatch] = {"uniform": Uniform(concurrency, early), "shuffled": Shuffled(concurrency, early)}
    if order not in list(orders):
        raise BadParameter("order", order, "is not known", f"pass one of {', '.join(orders)}")
    aggregation: Aggregation = Each() if buffer == 1 else Buffer(buffer)
    return Method("federated_async_sgd", Constant(stepsize), orders[order], aggregation=aggregation)
