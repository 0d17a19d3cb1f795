"""Aggregation rules: when arrivals move the model, and by what. Derive one of your own from `Aggregation`.

docs/howto/method.md shows the direction and the step that each one gives to the optimizer.

>>> import asyncsgd as asgd
>>> asgd.delay_adaptive(0.1).using(aggregation=asgd.aggregation.buffer(4)).aggregation
Buffer(size=4, noise=0.0, by_examples=False)

`median`, `trimmed_mean` and `krum` merge a buffer so that a minority of hostile updates cannot decide where the model
moves. They hold all updates of the buffer, and they refuse weights by examples.

>>> asgd.fedbuff(1.0, concurrency=20).using(aggregation=asgd.aggregation.trimmed_mean(10, fraction=0.2)).aggregation
TrimmedMean(size=10, fraction=0.2)
"""

from asyncsgd.core.aggregation import Aggregation
from asyncsgd.core.aggregation import Buffer as buffer
from asyncsgd.core.aggregation import Calibrated as calibrated
from asyncsgd.core.aggregation import Each as each
from asyncsgd.core.aggregation import Memory as memory
from asyncsgd.core.aggregation import Softsync as softsync
from asyncsgd.core.robust import Krum as krum
from asyncsgd.core.robust import Median as median
from asyncsgd.core.robust import TrimmedMean as trimmed_mean

__all__ = [
    "Aggregation",
    "buffer",
    "calibrated",
    "each",
    "krum",
    "median",
    "memory",
    "softsync",
    "trimmed_mean",
]
