"""Asynchronous DiLoCo with Flower clients that own their training loop."""
