"""One task of each kind and option, small."""

import numpy as np

from asyncsgd import tasks

RANDOM = np.random.default_rng(5)
FEATURES = RANDOM.standard_normal((37, 6))
TARGETS = RANDOM.standard_normal(37)
BINARY = RANDOM.integers(0, 2, 37)
CLASSES = RANDOM.integers(0, 5, 37)
LARGE = RANDOM.standard_normal((150, 9))  # more than one block of rows

ZOO = {
    "quadratic": tasks.quadratic(dim=10, workers=3),
    "quadratic on the axes": tasks.quadratic(dim=5, eigenvalues=(0.5, 8), workers=2, rotate=False),
    "quadratic, noise": tasks.quadratic(dim=7, workers=3, noise=0.4, heterogeneity=0.7),
    "quadratic, both noises": tasks.quadratic(dim=1, workers=2, noise=0.4, multiplicative=0.2),
    "quadratic, chosen zeta": tasks.quadratic(
        dim=33, workers=4, heterogeneity=[1.0, 2.0, 0.0, 2.5], multiplicative=0.1
    ),
    "paper's quadratic": tasks.paper_quadratic(),
    "least squares": tasks.least_squares(FEATURES, TARGETS, workers=2),
    "least squares, batch": tasks.least_squares(FEATURES, TARGETS, workers=3, batch=5, ridge=0.1, split="iid"),
    "logistic": tasks.logistic(m=100, dim=20, workers=2),
    "logistic, blocks": tasks.logistic(features=LARGE, labels=np.arange(150) % 2, workers=3, split="label", ridge=0.01),
    "logistic, batch": tasks.logistic(m=40, dim=5, workers=3, batch=4, split="dirichlet", alpha=0.5),
    "softmax": tasks.softmax(FEATURES, CLASSES, workers=2, split="label", ridge=0.05),
    "softmax, batch": tasks.softmax(FEATURES, CLASSES, workers=3, batch=7, ridge=0.01, bias=False),
    "softmax, 11 classes": tasks.softmax(LARGE, np.arange(150) % 11, workers=2, split="iid", batch=2),
}
