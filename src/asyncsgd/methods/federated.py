"""Methods of federated learning. Jobs compute gradients, or local steps with ``.local(...)``."""

from __future__ import annotations

from typing import Literal

from asyncsgd.core.aggregation import Aggregation, Buffer, Calibrated, Memory
from asyncsgd.core.dispatch import AlwaysBusy, FirstOf, Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.steps import Constant, Hinge, Polynomial, Step
from asyncsgd.core.transforms import Interpolate
from asyncsgd.core.validate import recipe


@recipe
def fedavg(stepsize: float | Schedule = 1.0, *, clients: int, ask: int | None = None) -> Method:
    """Federated averaging: rounds of sampled clients, x ← x - η · mean of their updates (McMahan et al. 2017).

    Args:
        stepsize: The step η of the round's mean; use 1 with local steps.
        clients: The number of answers that a round waits for.
        ask: The number of clients that a round asks. The default is as many as it waits for. If a round asks more, it
            keeps the first answers and cancels the other jobs (over-selection; Bonawitz et al. 2019 ask 1.3 times as
            many).

    The mean is a plain one; ``fedavg(...).weighted()`` weighs clients by their examples, as McMahan et al. do.

    >>> fedavg(clients=10, ask=13).local(5, 0.1).dispatch
    FirstOf(clients=10, ask=13)

    See docs/users/federated.md for a comparison with other methods, and docs/guides/federated.md for Flower.
    """
    return Method("fedavg", Constant(stepsize), FirstOf(clients, ask), aggregation=Buffer(clients))


@recipe
def fedbuff(stepsize: float | Schedule, *, concurrency: int, buffer: int = 10, calibrated: bool = False) -> Method:
    """FedBuff: after K arrivals x ← x - η (1/K) Σ Δ_i/√(1+s_i), where s_i is the staleness (Nguyen et al. 2022).

    The staleness weights favour fast workers: if the data of the workers differ, the result is biased towards theirs.
    With ``calibrated`` it is CA²FL (Wang et al. 2024): the server remembers the last update h_i of every worker, and
    after K arrivals x ← x - η ((1/K) Σ (Δ_i - h_i) + mean_i h_i). All workers count the same then, also those that are
    not in the buffer, and there are no staleness weights.

    Args:
        stepsize: The step η of a full buffer.
        concurrency: The number of jobs in flight.
        buffer: The number K of arrivals after which the model moves.
        calibrated: Whether to correct the buffer by the last update of every worker. The server then needs memory for
            n + 3 models, where n is the number of workers; a run that does not fit is refused at its start.

    >>> fedbuff(1.0, concurrency=8, buffer=4).local(3, 0.1).clipped(1.0, noise=0.5).name
    'clipped_fedbuff'
    >>> fedbuff(1.0, concurrency=8, buffer=4, calibrated=True).bias
    ()

    See docs/users/federated.md for a comparison with other methods, and docs/guides/federated.md for Flower.
    """
    step: Step = Constant(stepsize) if calibrated else Polynomial(stepsize)
    aggregation: Aggregation = Calibrated(buffer) if calibrated else Buffer(buffer)
    return Method("fedbuff", step, Uniform(concurrency), aggregation=aggregation)


@recipe
def fedasync(
    stepsize: float | Schedule = 0.6,
    *,
    concurrency: int,
    weighting: Literal["constant", "polynomial", "hinge"] = "polynomial",
) -> Method:
    """FedAsync: x ← (1-α) x + α x_worker with α = η·w(s), where s is the staleness (Xie et al. 2019).

    Args:
        stepsize: The share η of a fresh worker's model in the new model, at most 1.
        concurrency: The number of jobs in flight.
        weighting: The weight w(s). "constant": 1. "polynomial": (1+s)^-0.5. "hinge": 1 up to s = 6, and then
            1/(10(s-6)+1).

    >>> fedasync(concurrency=4).local(5, 0.1, proximal=0.01).work.proximal
    0.01

    See docs/users/federated.md for a comparison with other methods, and docs/guides/federated.md for Flower.
    """
    rules: dict[str, Step] = {
        "constant": Constant(stepsize),
        "polynomial": Polynomial(stepsize),
        "hinge": Hinge(stepsize),
    }
    if weighting not in list(rules):
        raise BadParameter("weighting", weighting, "is not known", f"pass one of {', '.join(rules)}")
    if rules[weighting].peak > 1:
        raise BadParameter("stepsize", stepsize, "moves past the worker's model", "pass 0 < stepsize <= 1")
    return Method("fedasync", rules[weighting], Uniform(concurrency), transforms=(Interpolate(),))


@recipe
def mifa(stepsize: float | Schedule, *, concurrency: int | None = None) -> Method:
    """MIFA: remember the last update G_i of every worker, x ← x - η mean_i G_i on each arrival (Gu et al. 2021).

    The model starts to move once an update of every worker has arrived. With one gradient per job it is incremental
    aggregated asynchronous SGD (ACE; Chang et al. 2025).

    Args:
        stepsize: The step η of the mean.
        concurrency: The number of jobs in flight. The default is one per worker.

    >>> mifa(0.1).aggregation
    Memory()

    See docs/users/federated.md for a comparison with other methods, and docs/guides/federated.md for Flower.
    """
    return Method("mifa", Constant(stepsize), AlwaysBusy(concurrency), aggregation=Memory())
