"""The paper's results as functions: pure, each citing its theorem and stating its assumptions."""

from asyncsgd.theory.bounds import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.theory.constants import Estimates, estimate, estimate_from_gradients
from asyncsgd.theory.probing import Figure
from asyncsgd.theory.queueing import ExpectedDelays, Queues, async_delays, federated_delays, queued_times, queues
from asyncsgd.theory.rate_table import Order, Rate, fedbuff_order, maximum_delay_only, minibatch_bound, rates
from asyncsgd.theory.speed import Limits, Speedup, limits, over_selection_time, speedup

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
