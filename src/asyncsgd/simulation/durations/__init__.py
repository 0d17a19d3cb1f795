"""How long a mini-batch takes: per worker, at random or fixed, with communication, changing speeds and outages.

A job of H local steps takes H times as long: one duration is drawn for the job and multiplied by H.

::

    fixed, exponential, gamma, lognormal, uniform, truncated_normal, pareto    formulas
    measured, from_csv, from_parquet, from_trace                               samples
    concatenate                                                                the workers of several
        │
        ▼
    Durations ── .with_communication .with_network .with_speeds .offline .with_outages ──▶ Durations

The k-th job of a worker draws from (seed, worker, k), so durations depend neither on other workers nor on the order of
draws. docs/howto/durations.md shows how to use measured ones.

>>> from asyncsgd.simulation import durations
>>> fast, slow = durations.exponential(1.0, workers=90), durations.fixed([60.0] * 10)
>>> durations.concatenate([fast, slow]).with_communication(down=0.1).with_speeds(3, times=[100.0], speeds=[0.5])
<Durations: 100 workers (90 exponential, 10 fixed), communication, 1 changing speed>
"""

from asyncsgd.simulation.durations.base import Durations, Lowered
from asyncsgd.simulation.durations.distributions import (
    concatenate,
    exponential,
    fixed,
    gamma,
    lognormal,
    measured,
    pareto,
    truncated_normal,
    uniform,
)
from asyncsgd.simulation.durations.files import from_csv, from_parquet, from_trace

__all__ = [
    "Durations",
    "Lowered",
    "concatenate",
    "exponential",
    "fixed",
    "from_csv",
    "from_parquet",
    "from_trace",
    "gamma",
    "lognormal",
    "measured",
    "pareto",
    "truncated_normal",
    "uniform",
]
