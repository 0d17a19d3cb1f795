"""List all recipes, and the methods of other papers that are a recipe with an option changed."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from asyncsgd.core.method import Method
from asyncsgd.methods import far_apart, federated, paper, related

ROOMS = (paper, federated, related, far_apart)
PAPERS = {
    "adadelay": "Sra et al. 2016",
    "async_diloco": "Liu et al. 2024",
    "async_sgd": "Koloskova et al. 2022",
    "dc_asgd": "Zheng et al. 2017",
    "decoupled_diloco": "Douillard et al. 2026",
    "delay_adaptive": "Koloskova et al. 2022",
    "delayed_average": "Aviv et al. 2021",
    "diloco": "Douillard et al. 2023",
    "fedasync": "Xie et al. 2019",
    "fedavg": "McMahan et al. 2017",
    "fedbuff": "Nguyen et al. 2022",
    "federated_async_sgd": "Koloskova et al. 2022",
    "mifa": "Gu et al. 2021",
    "minibatch_sgd": "Koloskova et al. 2022",
    "picky_sgd": "Cohen et al. 2021",
    "rennala": "Tyurin and Richtárik 2023",
    "ringmaster": "Maranjyan et al. 2025",
    "staleness_aware": "Zhang et al. 2016",
}
VARIANTS = {
    "async_diloco": {
        "momentum look-ahead (Ajanthan et al. 2025)": "async_diloco(0.1).using(optimizer=asgd.optimizers.look_ahead())",
        "SparseLoCo, asynchronous": "async_diloco(1.0, momentum=0.0).compressed(asgd.compression.top_k(decay=0.95))",
    },
    "async_sgd": {
        "local SGD (Stich 2019)": "async_sgd(1.0).local(steps, stepsize)",
        "DyLU (Liu et al. 2024)": 'async_sgd(1.0).local(steps, stepsize, per_worker="speed")',
    },
    "delay_adaptive": {"Mishchenko et al. 2022": 'delay_adaptive(stepsize, rule="workers")'},
    "federated_async_sgd": {
        "AsGrad (Islamov et al. 2023)": 'federated_async_sgd(stepsize, concurrency=c, order="shuffled")'
    },
    "diloco": {
        "MuLoCo (Thérien et al. 2025)": "diloco().local(steps, stepsize, optimizer=asgd.optimizers.muon())",
        "SparseLoCo (Sarfi et al. 2025)": "diloco(1.0, momentum=0.0).compressed(asgd.compression.top_k(decay=0.95))",
    },
    "fedavg": {"over-selection (Bonawitz et al. 2019)": "fedavg(stepsize, clients=10, ask=13)"},
    "mifa": {"ACE (Chang et al. 2025)": "mifa(stepsize) with one gradient per job"},
    "staleness_aware": {"n-softsync (Zhang et al. 2016)": "staleness_aware(stepsize, splits=m)"},
}
"""By recipe: the paper's name of a variant, and the call that makes it."""


def recipes() -> dict[str, Callable[..., Method]]:
    """Return every recipe by its name, in alphabetical order.

    >>> list(recipes())[:2]
    ['adadelay', 'async_diloco']
    """
    return {name: found for name in sorted(PAPERS) for room in ROOMS if (found := getattr(room, name, None))}


def table() -> list[dict[str, Any]]:
    """List the recipes: a row for each, with its paper, what it needs, what else it takes, and its variants.

    A method of another paper that is a recipe with an option changed has no recipe of its own; the column ``variants``
    of that recipe lists it.

        >>> row = next(row for row in table() if row["method"] == "rennala")
        >>> row["needs"], row["paper"]
        (['stepsize', 'batch'], 'Tyurin and Richtárik 2023')
    """
    rows = []
    for name, recipe in recipes().items():
        parameters = inspect.signature(recipe).parameters.values()
        rows.append(
            {
                "method": name,
                "needs": [p.name for p in parameters if p.default is p.empty],
                "takes": {p.name: p.default for p in parameters if p.default is not p.empty},
                "about": (recipe.__doc__ or "").partition("\n")[0].replace("`", ""),
                "paper": PAPERS[name],
                "variants": VARIANTS.get(name, {}),
            }
        )
    return rows
