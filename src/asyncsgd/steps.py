"""Step rules: how much of the stepsize an arrival gets, by its delay or its staleness.

Every rule takes the stepsize first, a number or a schedule of `asyncsgd.schedules`. Derive a rule of your own from
`Step`, or give `custom` a function.

docs/howto/method.md shows a rule of your own, docs/theory.md the delays that rules depend on.

>>> import asyncsgd as asgd
>>> method = asgd.async_sgd(0.1).using(step=asgd.steps.custom(0.1, lambda arrival: 0.9**arrival.delay))
>>> asgd.steps.polynomial(0.1, power=1.0)
Polynomial(stepsize=0.1, power=1.0)
"""

from asyncsgd.core.steps import AdaDelay as adadelay
from asyncsgd.core.steps import Constant as constant
from asyncsgd.core.steps import Custom as custom
from asyncsgd.core.steps import DelayAdaptive as delay_adaptive
from asyncsgd.core.steps import DivideAbove as divide_above
from asyncsgd.core.steps import DivideByStaleness as divide_by_staleness
from asyncsgd.core.steps import DropAbove as drop_above
from asyncsgd.core.steps import DropDrifted as drop_drifted
from asyncsgd.core.steps import DropStale as drop_stale
from asyncsgd.core.steps import Hinge as hinge
from asyncsgd.core.steps import Polynomial as polynomial
from asyncsgd.core.steps import Step
from asyncsgd.core.steps import WorkersOverDelay as workers_over_delay

__all__ = [
    "Step",
    "adadelay",
    "constant",
    "custom",
    "delay_adaptive",
    "divide_above",
    "divide_by_staleness",
    "drop_above",
    "drop_drifted",
    "drop_stale",
    "hinge",
    "polynomial",
    "workers_over_delay",
]
