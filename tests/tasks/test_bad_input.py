from functools import partial

import numpy as np
import pytest
from tasks.zoo import BINARY, CLASSES, FEATURES, TARGETS

from asyncsgd import tasks
from asyncsgd.core.errors import BadParameter

NAN = np.where(np.arange(37)[:, None] == 3, np.nan, FEATURES)
NOT_INTEGERS = [True, False, np.True_, 0.0, np.float64(0), np.array(0), np.array([0]), "0", None, [0]]
TWO = tasks.quadratic(workers=2, noise=1.0)

CASES = [
    ("dim", lambda: tasks.quadratic(dim=0)),
    ("workers", lambda: tasks.quadratic(workers=0)),
    ("workers", lambda: tasks.quadratic(workers=2.0)),
    ("noise", lambda: tasks.quadratic(noise=-1)),
    ("noise", lambda: tasks.quadratic(noise=np.nan)),
    ("multiplicative", lambda: tasks.quadratic(multiplicative=-0.1)),
    ("eigenvalues", lambda: tasks.quadratic(eigenvalues=3)),
    ("eigenvalues", lambda: tasks.quadratic(eigenvalues=(0, 1))),
    ("eigenvalues", lambda: tasks.quadratic(eigenvalues=(1, 2, 3))),
    ("heterogeneity", lambda: tasks.quadratic(heterogeneity=1.0)),
    ("heterogeneity", lambda: tasks.quadratic(workers=2, heterogeneity=-1.0)),
    ("heterogeneity", lambda: tasks.quadratic(workers=2, heterogeneity=[1, 2, 3])),
    ("heterogeneity", lambda: tasks.quadratic(workers=3, heterogeneity=[1, 1, 3])),
    ("heterogeneity", lambda: tasks.quadratic(workers=2, heterogeneity=[1, np.nan])),
    ("heterogeneity", lambda: tasks.quadratic(dim=1, workers=3, heterogeneity=[1, 1, 1])),
    ("dim", lambda: tasks.paper_quadratic(dim=-1)),
    ("features", lambda: tasks.least_squares([1, 2, 3], [1, 2, 3])),
    ("features", lambda: tasks.least_squares("rows", [1, 2, 3])),
    ("features", lambda: tasks.least_squares(NAN, TARGETS)),
    ("targets", lambda: tasks.least_squares(FEATURES, TARGETS[:5])),
    ("targets", lambda: tasks.least_squares(FEATURES, NAN[:, 0])),
    ("batch", lambda: tasks.least_squares(FEATURES, TARGETS, batch=0)),
    ("ridge", lambda: tasks.least_squares(FEATURES, TARGETS, ridge=-1)),
    ("split", lambda: tasks.least_squares(FEATURES, TARGETS, split="label")),
    ("split", lambda: tasks.logistic(split="iidd")),
    ("split", lambda: tasks.least_squares(FEATURES, TARGETS, workers=2, split=[[0, 1]])),
    ("split", lambda: tasks.least_squares(FEATURES, TARGETS, workers=2, split=[range(37), []])),
    ("split", lambda: tasks.least_squares(FEATURES, TARGETS, workers=2, split=[range(20), range(19, 37)])),
    ("workers", lambda: tasks.logistic(m=5, workers=6, split="iid")),
    ("m", lambda: tasks.logistic(m=0)),
    ("labels", lambda: tasks.logistic(features=FEATURES)),
    ("features", lambda: tasks.logistic(labels=BINARY)),
    ("labels", lambda: tasks.logistic(features=FEATURES, labels=CLASSES)),
    ("labels", lambda: tasks.softmax(FEATURES, TARGETS)),
    ("labels", lambda: tasks.softmax(FEATURES, CLASSES - 1)),
    ("labels", lambda: tasks.softmax(FEATURES, CLASSES, classes=3)),
    ("classes", lambda: tasks.softmax(FEATURES, np.zeros(37, int))),
    ("test", lambda: tasks.softmax(FEATURES, CLASSES, test=(FEATURES[:, :3], CLASSES))),
    ("model", lambda: tasks.digits(model="forest")),
    ("test_fraction", lambda: tasks.digits(test_fraction=1.5)),
    ("worker", lambda: tasks.quadratic(workers=2).update(np.zeros(10), 2, 0)),
    ("worker", lambda: tasks.quadratic(workers=2).update(np.zeros(10), -1, 0)),
    *[("worker", partial(TWO.update, np.zeros(10), value, 0)) for value in NOT_INTEGERS],
    *[("seed", partial(TWO.update, np.zeros(10), 0, value)) for value in NOT_INTEGERS],
    ("x", lambda: tasks.quadratic().update(np.zeros(9), 0, 0)),
    ("x", lambda: tasks.quadratic().evaluate(np.zeros((10, 1)))),
]


@pytest.mark.parametrize(("name", "call"), CASES, ids=[f"{name}-{i}" for i, (name, _) in enumerate(CASES)])
def test_bad_input_names_the_argument_and_the_fix(name, call):
    with pytest.raises(BadParameter) as caught:
        call()
    assert caught.value.name == name
    assert caught.value.fix


@pytest.mark.parametrize("seed", [-1, 2**64 - 1, np.int64(-1), np.uint64(2**64 - 1)])
def test_seeds_are_integers_of_any_kind(seed):
    assert (TWO.update(np.ones(10), np.int8(1), seed) == TWO.update(np.ones(10), 1, 2**64 - 1)).all()


def test_inputs_are_copied_and_left_alone():
    features, targets = FEATURES.copy(), TARGETS.copy()
    task = tasks.least_squares(features, targets)
    before = task.update(np.ones(6), 0, 0)
    features[:], targets[:] = 0, 0
    assert (task.update(np.ones(6), 0, 0) == before).all()
