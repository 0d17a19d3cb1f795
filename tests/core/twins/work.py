"""Naive twins of what a worker computes."""

import math

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


def local_adam(gradient, x, worker, seed, steps, stepsize, decay):
    """Q steps of AdamW with β = (0.9, 0.999), ε = 1e-8 and both means at 0 at first; x - y."""
    y, m, v = list(x), [0.0] * len(x), [0.0] * len(x)
    for q in range(steps):
        g = gradient(y, worker, derive(seed, q))
        for j in range(len(y)):
            m[j] = 0.9 * m[j] + (1 - 0.9) * g[j]
            v[j] = 0.999 * v[j] + (1 - 0.999) * g[j] * g[j]
            mean, square = m[j] / (1 - 0.9 ** (q + 1)), v[j] / (1 - 0.999 ** (q + 1))
            y[j] = y[j] * (1 - stepsize * decay) - stepsize * (mean / (math.sqrt(square) + 1e-8))
    return [a - b for a, b in zip(x, y, strict=True)]
