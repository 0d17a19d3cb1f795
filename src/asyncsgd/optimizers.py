"""Optimizers of the server and of local steps. They have no learning rate.

On the server the step is the method's stepsize times the rule's weight; in local steps it is their stepsize.

>>> import asyncsgd as asgd
>>> asgd.async_sgd(0.001).using(optimizer=asgd.optimizers.momentum()).optimizer
Momentum(beta=0.9, nesterov=False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.layout import check_patterns
from asyncsgd.core.optimizers import SGD, Adam, Momentum, Optimizer
from asyncsgd.core.outer_optimizers import DelayedNesterov, LookAhead, Muon
from asyncsgd.core.validate import recipe

if TYPE_CHECKING:
    from asyncsgd.torch_optimizers import TorchOptimizer

__all__ = ["Optimizer", "adamw", "delayed_nesterov", "look_ahead", "momentum", "muon", "sgd", "torch"]


@recipe
def sgd() -> SGD:
    """Plain SGD: x ← x - η d, for the direction d that the aggregation gives.

    >>> sgd()
    SGD()

    See docs/howto/method.md for the direction and the step that an optimizer receives.
    """
    return SGD()


@recipe
def momentum(beta: float = 0.9, *, nesterov: bool = False) -> Momentum:
    """Momentum: m ← β m + d and x ← x - η m.

    Args:
        beta: The share β of m that stays.
        nesterov: Move by d + β m in place of m.

    >>> momentum(0.8, nesterov=True)
    Momentum(beta=0.8, nesterov=True)

    See docs/howto/method.md for the direction and the step that an optimizer receives.
    """
    return Momentum(beta, nesterov)


@recipe
def adamw(
    beta1: float = 0.9,
    beta2: float = 0.999,
    *,
    epsilon: float = 1e-8,
    weight_decay: float = 0.0,
    exclude: Sequence[str] = (),
    amsgrad: bool = False,
) -> Adam:
    """AdamW: Adam with bias correction and decoupled weight decay (Loshchilov and Hutter 2019).

    m ← β1 m + (1-β1) d, v ← β2 v + (1-β2) d², x ← (1 - η λ) x - η m̂ / (√v̂ + ε), where m̂ and v̂ are m and v with
    their bias corrected. The weight decay λ is multiplied by the step, as in PyTorch.
    docs/howto/method.md shows which direction and step an optimizer gets.

    Args:
        beta1: The decay of the mean of directions.
        beta2: The decay of the mean of their squares.
        epsilon: The number added to the square root of that mean.
        weight_decay: The weight decay λ. The default is 0, which is plain Adam; PyTorch's default is 0.01.
        exclude: Names of parameters that do not decay. A pattern with ``*``, ``?`` or ``[`` must match the whole name,
            any other text must be a part of it. The task needs names, as those of `asyncsgd.tasks.torch` have.
        amsgrad: Use the largest mean of squares so far (Reddi et al. 2018).

    >>> adamw(weight_decay=0.1, exclude=("bias", "norm")).exclude
    ('bias', 'norm')
    """
    patterns = check_patterns("exclude", exclude)
    if patterns and weight_decay == 0:
        fix = "pass weight_decay=0.01, which is PyTorch's default, or leave exclude out"
        raise BadParameter("exclude", patterns, "has no effect, because weight_decay is 0", fix)
    return Adam(beta1, beta2, epsilon, amsgrad, weight_decay, patterns)


@recipe
def delayed_nesterov(beta: float = 0.9, *, every: int | None = None, activation: float = 0.0) -> DelayedNesterov:
    """Delayed Nesterov: every arrival moves the model at once, the momentum every N-th one (Liu et al. 2024).

    Each direction d moves the model by η d/N and is added to B. Every N-th time m ← β m + B/N and B ← 0, and the
    momentum moves the model by η β m. Plain momentum would apply a late update's direction again with every arrival.
    It serves the server only, because it counts arrivals.

    Args:
        beta: The share β of m that stays.
        every: The number N of moves between two refreshes of the momentum. The default is the number of workers at the
            start of the run; with N = 1 this is Nesterov's momentum.
        activation: The share c of β m that each move in between applies, from 0 to 1/N; the N-th move applies the rest.

    >>> delayed_nesterov(every=4, activation=0.1)
    DelayedNesterov(beta=0.9, every=4, activation=0.1)

    See docs/howto/method.md for the direction and the step that an optimizer receives.
    """
    return DelayedNesterov(beta, every, activation)


@recipe
def look_ahead(gamma: float = 0.9, *, ahead: bool = False) -> LookAhead:
    """Momentum look-ahead: m ← γ m + (1-γ) d and x ← x - η (d + γ m) (Ajanthan et al. 2025).

    The factor 1-γ damps the momentum, because late updates already hold part of it. With γ = 0 it is plain SGD. It
    serves the server only.

    Args:
        gamma: The share γ of m that stays.
        ahead: Let workers start from x - η γ m, where the model will be soon, in place of x.

    >>> look_ahead(ahead=True)
    LookAhead(gamma=0.9, ahead=True)

    See docs/howto/method.md for the direction and the step that an optimizer receives.
    """
    return LookAhead(gamma, ahead)


@recipe
def muon(beta: float = 0.95, *, others: Sequence[str] = ("embed", "head")) -> Muon:
    """Muon: momentum whose direction is made orthogonal, matrix by matrix (Jordan et al. 2024).

    M ← β M + D and W ← W - η · 0.2 √max(a, b) · O for a matrix W of a rows and b columns, where O ≈ U Vᵀ of the
    singular value decomposition of D + β M. The factor gives a step the size of one of AdamW (Liu et al. 2025).
    Parameters that are not matrices take a step of AdamW with β1 = 0.9 and β2 = 0.999, with the same step size.

    Args:
        beta: The share β of M that stays.
        others: Names of matrices that AdamW moves instead. A pattern with ``*``, ``?`` or ``[`` must match the whole
            name, any other text must be a part of it. The task needs shapes, as those of `asyncsgd.tasks.torch` have.

    >>> muon(others=("embed",)).others
    ('embed',)

    See docs/howto/method.md for the direction and the step that an optimizer receives.
    """
    return Muon(beta, check_patterns("others", others))


def torch(kind: Any, **options: Any) -> TorchOptimizer:
    """Use an optimizer of PyTorch over the whole model as one flat parameter (extra ``torch``).

    Its lr is the method's step, η times the weight, so a rule that shortens the step of a late gradient shortens this
    optimizer's step too. Under a buffer, as in ``fedbuff``, lr is η, and the gradient is the weighted mean of the
    buffer. What the optimizer remembers is saved and restored with the server.

    Args:
        kind: A class such as ``torch.optim.AdamW``, or its name, "AdamW".
        options: Further options of the class except lr, such as ``weight_decay=0.01, fused=True``; and ``exclude``,
            the names of parameters that get ``weight_decay=0``, as in `adamw`.

    >>> from asyncsgd import methods
    >>> methods.delay_adaptive(0.001).using(optimizer=torch("AdamW", weight_decay=0.01)).optimizer
    torch(AdamW, weight_decay=0.01)

    See docs/howto/method.md for the direction and the step that an optimizer receives.
    """
    from asyncsgd.torch_optimizers import torch_optimizer

    return torch_optimizer(kind, **options)
