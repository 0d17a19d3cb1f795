"""Dispatch rules: which worker gets the next job. Derive one of your own from `Dispatch`.

docs/howto/dispatch.md shows a rule of your own.

>>> import asyncsgd as asgd
>>> asgd.mifa(0.1).using(dispatch=asgd.dispatch.uniform(4)).dispatch
Uniform(concurrency=4, sample_early=False)
"""

from asyncsgd.core.dispatch import AlwaysBusy as always_busy
from asyncsgd.core.dispatch import Batch as batch
from asyncsgd.core.dispatch import Dispatch
from asyncsgd.core.dispatch import FirstOf as first_of
from asyncsgd.core.dispatch import Shuffled as shuffled
from asyncsgd.core.dispatch import Uniform as uniform

__all__ = ["Dispatch", "always_busy", "batch", "first_of", "shuffled", "uniform"]
