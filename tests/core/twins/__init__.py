"""Naive twins: every method once more, straight from its formula, with lists and loops."""
