"""Aggregation rules: when arrivals move the model, and by what. Derive one of your own from `Aggregation`.

docs/howto/method.md shows the direction and the step that each one gives to the optimizer.

>>> import asyncsgd as asgd
>>> asgd.delay_adaptive(0.1).using(aggregation=asgd.aggregation.buffer(4)).aggregation
Buffer(size=4, noise=0.0, by_examples=False)
"""

from asyncsgd.core.aggregation import Aggregation
from asyncsgd.core.aggregation import Buffer as buffer
from asyncsgd.core.aggregation import Each as each
from asyncsgd.core.aggregation import Memory as memory
from asyncsgd.core.aggregation import Softsync as softsync

__all__ = ["Aggregation", "buffer", "each", "memory", "softsync"]
