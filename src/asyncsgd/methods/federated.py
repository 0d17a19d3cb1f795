"""Methods of federated learning. They take what clients moved (``.local(...)``) as well as gradients."""

from __future__ import annotations

from typing import Literal

from asyncsgd.core.aggregation import Buffer, Memory
from asyncsgd.core.dispatch import AlwaysBusy, FirstOf, Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.steps import Constant, Hinge, Polynomial, Step
from asyncsgd.core.transforms import Interpolate
from asyncsgd.core.validate import recipe


@recipe
def fedavg(stepsize: float = 1.0, *, clients: int, ask: int | None = None) -> Method:
    """Federated averaging: rounds of sampled clients, x ← x - η · mean of their updates (McMahan et al. 2017).

    Args:
        stepsize: The step η of the round's mean; 1 for what local steps moved.
        clients: How many answers a round waits for.
        ask: How many clients a round asks; None: as many as it waits for. If it asks more, it keeps the first answers
            and cancels the other jobs (over-selection; Bonawitz et al. 2019, who ask 1.3 times as many).

    >>> fedavg(clients=10, ask=13).local(5, 0.1).dispatch
    FirstOf(clients=10, ask=13)
    """
    return Method("fedavg", Constant(stepsize), FirstOf(clients, ask), aggregation=Buffer(clients))


@recipe
def fedbuff(stepsize: float, *, concurrency: int, buffer: int = 10) -> Method:
    """FedBuff: after K arrivals x ← x - η (1/K) Σ Δ_i/√(1+s_i), where s_i is the staleness (Nguyen et al. 2022).

    Args:
        stepsize: The step η of a full buffer.
        concurrency: How many jobs are in flight at once.
        buffer: K, the arrivals that move the model once.

    >>> fedbuff(1.0, concurrency=8, buffer=4).local(3, 0.1).clipped(1.0, noise=0.5).name
    'clipped_fedbuff'
    """
    return Method("fedbuff", Polynomial(stepsize), Uniform(concurrency), aggregation=Buffer(buffer))


@recipe
def fedasync(
    stepsize: float = 0.6,
    *,
    concurrency: int,
    weighting: Literal["constant", "polynomial", "hinge"] = "polynomial",
) -> Method:
    """FedAsync: x ← (1-α) x + α x_worker with α = η·w(s), where s is the staleness (Xie et al. 2019).

    Args:
        stepsize: η, the share of a fresh worker's model, at most 1.
        concurrency: How many jobs are in flight at once.
        weighting: w(s). "constant": 1. "polynomial": (1+s)^-0.5. "hinge": 1 up to s = 6, and then 1/(10(s-6)+1).

    >>> fedasync(concurrency=4).local(5, 0.1, proximal=0.01).work.proximal
    0.01
    """
    rules: dict[str, Step] = {
        "constant": Constant(stepsize),
        "polynomial": Polynomial(stepsize),
        "hinge": Hinge(stepsize),
    }
    if weighting not in list(rules):
        raise BadParameter("weighting", weighting, "is not known", f"pass one of {', '.join(rules)}")
    if stepsize > 1:
        raise BadParameter("stepsize", stepsize, "moves past the worker's model", "pass 0 < stepsize <= 1")
    return Method("fedasync", rules[weighting], Uniform(concurrency), transforms=(Interpolate(),))


@recipe
def mifa(stepsize: float, *, concurrency: int | None = None) -> Method:
    """MIFA: remember the last update G_i of every worker, x ← x - η mean_i G_i on each arrival (Gu et al. 2021).

    The model moves once every worker was heard. With one gradient per job it is incremental aggregated asynchronous
    SGD (ACE; Chang et al. 2025).

    Args:
        stepsize: The step η of the mean.
        concurrency: How many jobs are in flight at once; None: one on every worker.

    >>> mifa(0.1).aggregation
    Memory()
    """
    return Method("mifa", Constant(stepsize), AlwaysBusy(concurrency), aggregation=Memory())
