"""Naive twin of what a worker computes."""

from asyncsgd.core.random import derive


def local_steps(gradient, x, worker, seed, steps, stepsize, scaled, proximal):
    """y ← y - η_l (g(y) + μ (y - x)), Q times; (x - y)/η_l or x - y."""
    y = list(x)
    for q in range(steps):
        g = gradient(y, worker, derive(seed, q))
        if proximal:
            g = [value + proximal * (b - a) for value, a, b in zip(g, x, y, strict=True)]
        y = [b - stepsize * value for b, value in zip(y, g, strict=True)]
    return [(a - b) / stepsize if scaled else a - b for a, b in zip(x, y, strict=True)]
