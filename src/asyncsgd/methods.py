"""Named methods: each is a few parts put together, with the paper it comes from.

Every method also takes what the parts offer: ``method.using(optimizer=..., transforms=..., dispatch=...)``.
Stepsizes are per gradient unless a docstring says otherwise.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from asyncsgd.core.check import count, nonnegative, positive, recipe
from asyncsgd.core.dispatch import AlwaysBusy, Batch, FirstOf, Shuffled, Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.gather import Buffer, Each, Memory
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import AdaDelayCoordinates, Adam, DelayedAverage, Momentum
from asyncsgd.core.steps import (
    AdaDelay,
    Constant,
    DelayAdaptive,
    DivideAbove,
    DivideByStaleness,
    DropAbove,
    DropDrifted,
    DropStale,
    Hinge,
    Polynomial,
    Step,
    WorkersOverDelay,
)
from asyncsgd.core.transforms import Clip, Compensate, Interpolate
from asyncsgd.core.work import LocalSteps

__all__ = [
    "adadelay",
    "adam",
    "async_sgd",
    "clipped",
    "dc_asgd",
    "delay_adaptive",
    "delayed_average",
    "fedasync",
    "fedbuff",
    "federated_async_sgd",
    "local_sgd",
    "mifa",
    "minibatch_sgd",
    "mishchenko",
    "momentum",
    "over_selection",
    "picky_sgd",
    "rennala",
    "ringmaster",
    "shuffled_async_sgd",
    "staleness_aware",
]

# ---------------------------------------------------------------------------------------------- the paper's own


@recipe
def async_sgd(stepsize: float, *, concurrency: int | None = None) -> Method:
    """Asynchronous SGD: every worker always busy, x ← x - η g (Koloskova et al. 2022, Algorithm 1, Example 2).

    >>> async_sgd(stepsize=0.1).name
    'async_sgd'
    """
    return Method("async_sgd", Constant(stepsize), AlwaysBusy(concurrency))


@recipe
def minibatch_sgd(stepsize: float) -> Method:
    """Mini-batch SGD: all start at x, nobody restarts until all arrived (Koloskova et al. 2022, Example 1).

    The n gradients are applied one by one at η, which equals one batch step of n·η on their mean.
    """
    return Method("minibatch_sgd", Constant(stepsize), Batch())


@recipe
def delay_adaptive(
    stepsize: float,
    *,
    rule: Literal["scale", "drop", "divide"] = "scale",
    threshold: float | None = None,
    concurrency: int | None = None,
) -> Method:
    """Delay-adaptive asynchronous SGD (Koloskova et al. 2022, Theorem 2).

    ``scale``: η·min(1, τ_C/τ), the default, with a guarantee for η <= 1/(4Lτ_C). ``drop``: 0 above the threshold (2 τ_C
    unless given; at τ_C it can throw nearly everything away), for η <= 1/(4L·threshold). ``divide``: η/τ above τ_C, as
    the paper writes it. All are for workers whose data are alike: slow workers count less. Where data differ, use
    `federated_async_sgd`.
    """
    if threshold is not None and rule != "drop":
        raise BadParameter("threshold", threshold, f'has no meaning with rule="{rule}"', 'pass rule="drop"')
    rules: dict[str, Step] = {
        "scale": DelayAdaptive(stepsize),
        "drop": DropAbove(stepsize, threshold),
        "divide": DivideAbove(stepsize),
    }
    if rule not in list(rules):  # a list cannot be looked up in a dict
        raise BadParameter("rule", rule, "is not known", f"pass one of {', '.join(rules)}")
    return Method("delay_adaptive", rules[rule], AlwaysBusy(concurrency))


@recipe
def federated_async_sgd(stepsize: float, *, concurrency: int, early: bool = False) -> Method:
    """Asynchronous SGD with concurrency: workers drawn uniformly, jobs queue (Koloskova et al. 2022, Algorithm 2).

    ``early`` sends the next job before the arrival is applied (the paper's extension).
    """
    return Method("federated_async_sgd", Constant(stepsize), Uniform(concurrency, early))


@recipe
def shuffled_async_sgd(stepsize: float, *, concurrency: int) -> Method:
    """Like `federated_async_sgd`, in a fresh order of all workers every n jobs (Islamov et al. 2023, AsGrad)."""
    return Method("shuffled_async_sgd", Constant(stepsize), Shuffled(concurrency))


# ---------------------------------------------------------------------------------------------- extensions it names


@recipe
def local_sgd(
    stepsize: float,
    *,
    steps: int,
    local_stepsize: float,
    concurrency: int | None = None,
    scaled: bool = False,
) -> Method:
    """Asynchronous local SGD: a job is Q local steps, the update what they moved (Stich 2019).

    x ← x - η (x_start - x_end), the plain difference; with ``scaled`` it is divided by the local stepsize.
    """
    work = LocalSteps(steps, local_stepsize, scaled)
    return Method("local_sgd", Constant(stepsize), AlwaysBusy(concurrency), work)


@recipe
def fedbuff(
    stepsize: float,
    *,
    concurrency: int,
    buffer: int = 10,
    steps: int = 1,
    local_stepsize: float | None = None,
    clip: float | None = None,
    noise: float = 0.0,
) -> Method:
    """FedBuff: after K arrivals x ← x - η_g (1/K) Σ Δ_i/√(1+s_i) (Nguyen et al. 2022).

    With ``local_stepsize`` a job is ``steps`` local steps and Δ = x_start - x_end; without it, one gradient.
    ``clip`` bounds every Δ, ``noise`` is the multiplier z of Gaussian noise N(0, (z·clip)²) on the sum.
    """
    method = Method("fedbuff", Polynomial(stepsize), Uniform(concurrency), gather=Buffer(buffer))
    if local_stepsize is None and steps != 1:
        raise BadParameter("steps", steps, "needs a local_stepsize", "pass local_stepsize=... too")
    if local_stepsize is not None:
        method = method.using(work=LocalSteps(steps, local_stepsize))
    return clipped(method, clip, noise) if clip is not None or noise else method


@recipe
def over_selection(stepsize: float, *, goal: int, ask: int | None = None) -> Method:
    """Rounds that ask ⌈1.3·goal⌉ workers and keep the first ``goal`` (Bonawitz et al. 2019).

    x ← x - η · mean of the round's updates. ``ask=goal`` gives ordinary synchronous rounds of sampled clients.
    """
    return Method("over_selection", Constant(stepsize), FirstOf(goal, ask), gather=Buffer(goal))


@recipe
def clipped(method: Method, clip: float | None, noise: float = 0.0) -> Method:
    """The same method with every update clipped to norm G, and Gaussian noise N(0, (z·G)²) on each sum applied.

    ``noise`` is the multiplier z of the Gaussian mechanism (Abadi et al. 2016). It is never drawn twice:
    `asyncsgd.train` and `asyncsgd.flower.serve` take a new secret seed for it at every start and resume, whatever
    ``seed`` says, and keep the seeds in the run directory, which they make private, so that a replay gives the same
    bits. A simulation draws it from its ``seed``. `asyncsgd.flower.serve` also reports the ε spent.

    >>> clipped(async_sgd(0.1), clip=1.0).name
    'clipped_async_sgd'
    """
    nonnegative("noise", noise)
    if clip is None:
        raise BadParameter("clip", clip, "is missing", "pass the norm G that updates are clipped to")
    positive("clip", clip)
    gather = method.gather
    if noise:
        if isinstance(gather, Each):
            gather = Buffer(1)
        if not isinstance(gather, Buffer):
            kind = type(gather).__name__
            raise BadParameter("noise", noise, f"cannot be added with {kind}", "use a method that applies sums")
        gather = replace(gather, noise=noise * clip)
    transforms = (*method.transforms, Clip(clip))
    return method.using(name=f"clipped_{method.name}", transforms=transforms, gather=gather)


# ---------------------------------------------------------------------------------------------- related work it names


@recipe
def picky_sgd(stepsize: float, *, threshold: float, concurrency: int | None = None) -> Method:
    """PickySGD: apply iff ‖x_t - x_{t-τ}‖ <= threshold, which is ε_norm/(2β) (Cohen et al. 2021)."""
    return Method("picky_sgd", DropDrifted(stepsize, threshold), AlwaysBusy(concurrency))


@recipe
def adadelay(smoothness: float, *, c: float | None = None, coordinates: bool = False, stepsize: float = 1.0) -> Method:
    """AdaDelay: η_t = 1/(L + c√(t+τ)), t from 1, c = 1 unless given; the answer is the averaged iterate (Sra 2016).

    ``coordinates`` gives every coordinate its own c_j = √(mean of i/(i+τ_i) g_j²). ``stepsize`` multiplies all.
    """
    if coordinates:
        if c is not None:
            raise BadParameter("c", c, "has no meaning with coordinates=True, which finds its own", "leave c out")
        return Method("adadelay", Constant(stepsize), optimizer=AdaDelayCoordinates(smoothness), average=True)
    return Method("adadelay", AdaDelay(stepsize, smoothness, 1.0 if c is None else c), average=True)


@recipe
def staleness_aware(stepsize: float, *, workers: int, splits: int | None = None) -> Method:
    """Staleness-aware SGD: x ← x - (1/c) Σ η/max(1, s_i) g_i after c = ⌊n/m⌋ arrivals (Zhang et al. 2016).

    ``splits`` is the m of "m-softsync"; by default m = n, that is c = 1. Staleness counts versions, as there.
    """
    count("workers", workers)
    splits = workers if splits is None else splits
    count("splits", splits)
    if splits > workers:
        raise BadParameter("splits", splits, f"leaves no arrival to wait for with {workers} workers", "pass fewer")
    return Method("staleness_aware", DivideByStaleness(stepsize), gather=Buffer(workers // splits))


@recipe
def dc_asgd(stepsize: float, *, strength: float | None = None, adaptive: bool = False) -> Method:
    """DC-ASGD: x ← x - η (g + λ g⊙g⊙(x - x_assigned)) (Zheng et al. 2017).

    λ = 0.04, or with ``adaptive`` λ0/√(mean square + 1e-7) with λ0 = 2 and decay 0.95, unless ``strength`` is given.
    """
    strength = (2.0 if adaptive else 0.04) if strength is None else strength
    return Method("dc_asgd", Constant(stepsize), transforms=(Compensate(strength, adaptive),))


@recipe
def delayed_average(stepsize: float, *, weights: Literal["linear", "uniform"] = "uniform") -> Method:
    """Gradients at the weighted average of w: w ← w - η α_s g, x = Σ α_i w_i / Σ α_i (Aviv et al. 2021). Convex.

    α = 1, or with "linear" α_t = t + 1, which forgets the start faster and needs η of the order of 1/(L·T).
    """
    return Method("delayed_average", Constant(stepsize), optimizer=DelayedAverage(weights))


@recipe
def mifa(stepsize: float) -> Method:
    """MIFA: remember the last update G_i of every worker, x ← x - η mean_i G_i on each arrival (Gu et al. 2021).

    Starts once everyone was heard. With one gradient per job it is incremental aggregated asynchronous SGD (ACE).
    """
    return Method("mifa", Constant(stepsize), gather=Memory())


@recipe
def mishchenko(stepsize: float) -> Method:
    """η_t = η · n / max(n, τ_t) (Mishchenko et al. 2022)."""
    return Method("mishchenko", WorkersOverDelay(stepsize))


# ---------------------------------------------------------------------------------------------- successors


@recipe
def fedasync(
    alpha: float = 0.6,
    *,
    concurrency: int,
    steps: int,
    local_stepsize: float,
    weighting: Literal["constant", "polynomial", "hinge"] = "polynomial",
    proximal: float = 0.0,
) -> Method:
    """FedAsync: x ← (1-α_t) x + α_t x_worker, α_t = α·w(s) (Xie et al. 2019).

    w = 1, (1+s)^-0.5, or 1 up to 6 and then 1/(10(s-6)+1); ``proximal`` pulls local steps to their start.
    """
    rules: dict[str, Step] = {
        "constant": Constant(alpha),
        "polynomial": Polynomial(alpha),
        "hinge": Hinge(alpha),
    }
    if weighting not in list(rules):
        raise BadParameter("weighting", weighting, "is not known", f"pass one of {', '.join(rules)}")
    if alpha > 1:
        raise BadParameter("alpha", alpha, "moves past the worker's model", "pass 0 < alpha <= 1")
    work = LocalSteps(steps, local_stepsize, proximal=proximal)
    return Method("fedasync", rules[weighting], Uniform(concurrency), work, transforms=(Interpolate(),))


@recipe
def rennala(stepsize: float, *, batch: int) -> Method:
    """Rennala SGD: x ← x - γ · mean of the first B gradients computed at x; older ones are discarded.

    Tyurin and Richtárik (2023); B = max(1, ⌈σ²/ε⌉).
    """
    return Method("rennala", DropStale(stepsize), gather=Buffer(batch))


@recipe
def ringmaster(stepsize: float, *, limit: int, stops: bool = False) -> Method:
    """Ringmaster ASGD: apply iff the staleness is below R, else discard (Maranjyan et al. 2025).

    With ``stops`` a job whose staleness reaches R is cancelled and started again; R = max(1, ⌈σ²/ε⌉).
    """
    return Method("ringmaster", DropStale(stepsize, limit), AlwaysBusy(restart=limit if stops else None))


# ---------------------------------------------------------------------------------------------- server optimizers


@recipe
def momentum(beta: float = 0.9, *, nesterov: bool = False) -> Momentum:
    """Server momentum: ``async_sgd(0.1).using(optimizer=momentum(0.9))``."""
    return Momentum(beta, nesterov)


@recipe
def adam(beta1: float = 0.9, beta2: float = 0.999, *, epsilon: float = 1e-8, amsgrad: bool = False) -> Adam:
    """Server Adam: ``async_sgd(0.001).using(optimizer=adam())``."""
    return Adam(beta1, beta2, epsilon, amsgrad)
