"""Simulate any method under any delays, on a clock of its own."""

from asyncsgd.simulate import durations
from asyncsgd.simulate.simulate import Run, simulate

__all__ = ["Run", "durations", "simulate"]
