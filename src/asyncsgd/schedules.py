"""Schedules: step sizes that change along a run, for every recipe that takes ``stepsize``.

A schedule is a ``peak`` times a share that depends on the iteration alone. The iteration counts arrivals, also under a
buffer. docs/howto/schedules.md shows them in simulations, sweeps and training; derive your own from `Schedule`, or give
`custom` a function.

>>> import asyncsgd as asgd
>>> method = asgd.delay_adaptive(asgd.schedules.cosine(3e-4, warmup=200))
>>> method.bind(workers=4, iterations=1000).step
DelayAdaptive(stepsize=cosine(0.0003, warmup=200, total=1000))
"""

from __future__ import annotations

from collections.abc import Callable

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.schedules import (
    ConstantSchedule,
    CosineSchedule,
    CustomSchedule,
    InverseSqrtSchedule,
    LinearSchedule,
    Schedule,
    WarmupStableDecaySchedule,
)
from asyncsgd.core.validate import recipe

__all__ = ["Schedule", "constant", "cosine", "custom", "inverse_sqrt", "linear", "warmup_stable_decay"]


@recipe
def constant(peak: float, *, warmup: int = 0, total: int | None = None, final: float = 0.0) -> Schedule:
    """Warm up to the peak and stay there.

    Args:
        peak: The step size after the warm-up.
        warmup: The number of iterations in which the step grows linearly to the peak.
        total: Has no meaning here and is refused; `linear` and `cosine` end at ``total``.
        final: Has no meaning here and is refused.

    >>> [constant(0.4, warmup=4).value(t) for t in (0, 1, 3, 100)]
    [0.1, 0.2, 0.4, 0.4]

    See docs/howto/schedules.md.
    """
    for name, value, default in (("total", total, None), ("final", final, 0.0)):
        if value != default:
            fix = "leave it out, or use asgd.schedules.linear or cosine"
            raise BadParameter(name, value, "has no meaning for a constant schedule, which never falls", fix)
    return ConstantSchedule(peak, warmup=warmup)


@recipe
def linear(peak: float, *, warmup: int = 0, total: int | None = None, final: float = 0.0) -> Schedule:
    """Warm up to the peak, then fall in a straight line.

    Args:
        peak: The largest step size, reached after the warm-up.
        warmup: The number of iterations in which the step grows linearly to the peak.
        total: The iteration at which the step reaches its end. The default is the number of iterations of the run,
            fixed when it starts. A longer resume keeps it.
        final: The share of the peak that is left at the end, from 0 to 1.

    >>> [linear(0.4, total=4).value(t) for t in range(6)]
    [0.4, 0.30000000000000004, 0.2, 0.1, 0.0, 0.0]

    See docs/howto/schedules.md.
    """
    return LinearSchedule(peak, warmup=warmup, total=total, final=final)


@recipe
def cosine(peak: float, *, warmup: int = 0, total: int | None = None, final: float = 0.0) -> Schedule:
    """Warm up to the peak, then fall along half a cosine (Loshchilov and Hutter 2017).

    Args:
        peak: The largest step size, reached after the warm-up.
        warmup: The number of iterations in which the step grows linearly to the peak.
        total: The iteration at which the step reaches its end. The default is the number of iterations of the run,
            fixed when it starts. A longer resume keeps it.
        final: The share of the peak that is left at the end, from 0 to 1: 0.1 ends at a tenth of the peak.

    >>> [round(cosine(0.4, warmup=2, total=6, final=0.1).value(t), 4) for t in range(8)]
    [0.2, 0.4, 0.4, 0.3473, 0.22, 0.0927, 0.04, 0.04]

    See docs/howto/schedules.md.
    """
    return CosineSchedule(peak, warmup=warmup, total=total, final=final)


@recipe
def inverse_sqrt(peak: float, *, warmup: int) -> Schedule:
    """Warm up to the peak, then fall like 1/√t (Vaswani et al. 2017). It has no end, so it suits runs of any length.

    Args:
        peak: The step size at the end of the warm-up.
        warmup: The number of iterations in which the step grows linearly to the peak, at least 1. Afterwards the step
            is peak · √(warmup / (t + 1)).

    >>> [inverse_sqrt(0.4, warmup=4).value(t) for t in (0, 3, 15, 63)]
    [0.1, 0.4, 0.2, 0.1]

    See docs/howto/schedules.md.
    """
    return InverseSqrtSchedule(peak, warmup=warmup)


@recipe
def warmup_stable_decay(
    peak: float, *, warmup: int, decay: int, total: int | None = None, final: float = 0.0
) -> Schedule:
    """Warm up to the peak, stay there, and fall in a straight line at the end (Hu et al. 2024).

    Args:
        peak: The largest step size.
        warmup: The number of iterations in which the step grows linearly to the peak.
        decay: The number of iterations at the end in which the step falls.
        total: The iteration at which the step reaches its end. The default is the number of iterations of the run,
            fixed when it starts. A longer resume keeps it.
        final: The share of the peak that is left at the end, from 0 to 1.

    >>> [warmup_stable_decay(1.0, warmup=2, decay=4, total=8).value(t) for t in range(9)]
    [0.5, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]

    See docs/howto/schedules.md.
    """
    return WarmupStableDecaySchedule(peak, warmup=warmup, decay=decay, total=total, final=final)


@recipe
def custom(function: Callable[[int], float], peak: float = 1.0) -> Schedule:
    """Make a schedule of your own function: the step size is peak · function(iteration).

    A run checks the whole schedule before it starts. A run directory keeps the function in a pickle.

    Args:
        function: A function of the iteration that gives a finite number, 0 or above, and the same one every time.
        peak: The factor that a sweep exchanges. With the default of 1, the function gives the step size itself.

    >>> [custom(lambda t: 0.5**t, peak=0.4).value(t) for t in range(3)]
    [0.4, 0.2, 0.1]

    See docs/howto/schedules.md.
    """
    return CustomSchedule(peak, function)
