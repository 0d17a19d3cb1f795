"""Softmax regression in NumPy, with a NumPyClient."""
