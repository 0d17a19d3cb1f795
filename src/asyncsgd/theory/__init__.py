"""The paper's results as functions: pure, each citing its theorem and stating its assumptions."""

from asyncsgd.theory.bounds import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.theory.estimate import Estimates, estimate
from asyncsgd.theory.forecast import ExpectedDelays, async_delays, federated_delays
from asyncsgd.theory.limits import Limits, limits
from asyncsgd.theory.observed import estimate_from_gradients
from asyncsgd.theory.prior import Order, fedbuff_order, maximum_delay_only, minibatch_bound
from asyncsgd.theory.queues import Queues, queued_times, queues
from asyncsgd.theory.rates import Rate, rates
from asyncsgd.theory.rounds import over_selection_time
from asyncsgd.theory.speedup import Speedup, speedup
from asyncsgd.theory.statistics import Figure

__all__ = [
    "Bound",
    "Estimates",
    "ExpectedDelays",
    "Figure",
    "Limits",
    "Order",
    "Queues",
    "Rate",
    "Speedup",
    "async_delays",
    "estimate",
    "estimate_from_gradients",
    "fedbuff_order",
    "federated_delays",
    "limits",
    "maximum_delay_only",
    "minibatch_bound",
    "over_selection_time",
    "queued_times",
    "queues",
    "rates",
    "speedup",
    "theorem1",
    "theorem1_bounded",
    "theorem2",
    "theorem3",
    "theorem3_bounded",
]
