"""Recipes: methods of the literature by name, each made of a few parts, with the paper that it comes from.

``paper`` Koloskova et al. (2022) · ``federated`` rounds, buffers and mixing · ``related`` what the paper compares
with · ``far_apart`` many local steps per message · ``listing`` all of them in a table.

The stepsize comes first, is a number or a schedule of `asyncsgd.schedules`, and is per gradient unless a docstring
says otherwise. Every recipe can be extended with ``.using(...)``, ``.clipped(...)``, ``.local(...)`` and
``.compressed(...)`` (see `asyncsgd.Method`).
docs/theory.md says what is proven about each method; docs/howto/method.md shows how to write your own.
"""

from asyncsgd.methods.far_apart import async_diloco, decoupled_diloco, diloco
from asyncsgd.methods.federated import fedasync, fedavg, fedbuff, mifa
from asyncsgd.methods.listing import table
from asyncsgd.methods.paper import async_sgd, delay_adaptive, federated_async_sgd, minibatch_sgd
from asyncsgd.methods.related import adadelay, dc_asgd, delayed_average, picky_sgd, rennala, ringmaster, staleness_aware

__all__ = [
    "adadelay",
    "async_diloco",
    "async_sgd",
    "dc_asgd",
    "decoupled_diloco",
    "delay_adaptive",
    "delayed_average",
    "diloco",
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
