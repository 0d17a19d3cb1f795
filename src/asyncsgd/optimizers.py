"""Optimizers of the server. They have no learning rate: the step is the method's stepsize times the rule's weight.

>>> import asyncsgd as asgd
>>> asgd.async_sgd(0.001).using(optimizer=asgd.optimizers.adamw()).optimizer
Adam(beta1=0.9, beta2=0.999, epsilon=1e-08, amsgrad=False)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncsgd.core.optimizers import SGD, Adam, Momentum, Optimizer
from asyncsgd.core.validate import recipe

if TYPE_CHECKING:
    from asyncsgd.torch_optimizers import TorchOptimizer

__all__ = ["Optimizer", "adamw", "momentum", "sgd", "torch"]


@recipe
def sgd() -> SGD:
    """Plain SGD: x ← x - η d, for the direction d that the aggregation gives.

    >>> sgd()
    SGD()
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
    """
    return Momentum(beta, nesterov)


@recipe
def adamw(beta1: float = 0.9, beta2: float = 0.999, *, epsilon: float = 1e-8, amsgrad: bool = False) -> Adam:
    """Adam with bias correction (Kingma and Ba 2015), without weight decay.

    Args:
        beta1: The decay of the mean of directions.
        beta2: The decay of the mean of their squares.
        epsilon: The number added to the square root of that mean.
        amsgrad: Use the largest mean of squares so far (Reddi et al. 2018).

    >>> adamw(0.8).beta1
    0.8
    """
    return Adam(beta1, beta2, epsilon, amsgrad)


def torch(kind: Any, **options: Any) -> TorchOptimizer:
    """Use an optimizer of PyTorch over the whole model as one flat parameter (extra ``torch``).

    Its lr is the method's step, η times the weight, so a rule that shortens the step of a late gradient shortens this
    optimizer's step too. Under a buffer, as in ``fedbuff``, lr is η, and the gradient is the weighted mean of the
    buffer. What the optimizer remembers is saved and restored with the server.

    Args:
        kind: A class such as ``torch.optim.AdamW``, or its name, "AdamW".
        options: Further options of the class except lr, such as ``weight_decay=0.01, fused=True``.

    >>> from asyncsgd import methods
    >>> methods.delay_adaptive(0.001).using(optimizer=torch("AdamW", weight_decay=0.01)).optimizer
    torch(AdamW, weight_decay=0.01)
    """
    from asyncsgd.torch_optimizers import torch_optimizer

    return torch_optimizer(kind, **options)
