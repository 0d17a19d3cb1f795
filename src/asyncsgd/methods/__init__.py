"""Recipes: methods of the literature by name, each a few parts put together, with the paper that it comes from.

``paper`` Koloskova et al. (2022) · ``federated`` rounds, buffers and mixing · ``related`` what the paper compares
with · ``successors`` what came after · ``listing`` all of them in a table.

The stepsize comes first and is per gradient unless a docstring says otherwise. `asyncsgd.Method` says what can be put
on top of every one: ``.using(...)``, ``.clipped(...)``, ``.local(...)``, ``.compressed(...)``.
"""

from asyncsgd.methods.federated import fedasync, fedavg, fedbuff, mifa
from asyncsgd.methods.listing import table
from asyncsgd.methods.paper import async_sgd, delay_adaptive, federated_async_sgd, minibatch_sgd
from asyncsgd.methods.related import adadelay, dc_asgd, delayed_average, picky_sgd, staleness_aware
from asyncsgd.methods.successors import rennala, ringmaster

__all__ = [
    "adadelay",
    "async_sgd",
    "dc_asgd",
    "delay_adaptive",
    "delayed_average",
    "fedasync",
    "fedavg",
    "fedbuff",
    "federated_async_sgd",
    "mifa",
    "minibatch_sgd",
    "picky_sgd",
    "rennala",
    "ringmaster",
    "staleness_aware",
    "table",
]
