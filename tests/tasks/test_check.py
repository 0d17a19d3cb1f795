"""check_task finds each way to break the contract."""

import numpy as np
import pytest
from numba import njit
from run.rows import Rows, WritingRows

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive, output
from asyncsgd.core.server import JOB
from asyncsgd.tasks import BadTask, CompiledTask, Task, WritingTask, check_task, narrow_seed, quadratic


class Mine:
    """½‖x‖² with noise."""

    workers = 2

    def initial(self):
        return np.zeros(3)

    def update(self, x, worker, seed):
        return x + np.random.default_rng(seed).standard_normal(3)

    def evaluate(self, x):
        return {"loss": float(0.5 * x @ x)}


@njit
def twice(x, worker, seed, out, data):
    for i in range(len(x)):
        out[i] = data * x[i]


class Compiled(Mine):
    compiled = (twice, 2.0)

    def update(self, x, worker, seed):
        return 2.0 * x

    def evaluate(self, x):
        return {"loss": float(x @ x)}


class Writes(Mine):
    """Writes its updates where they are wanted."""

    def update_into(self, x, worker, seed, out):
        out[:] = self.update(x, worker, seed)


class WritesTooLate(Writes):
    def __init__(self):
        self.last = np.zeros(3)

    def update_into(self, x, worker, seed, out):
        out[:] = self.last
        self.last = self.update(x, worker, seed)


class AddsInstead(Writes):
    def update_into(self, x, worker, seed, out):
        out += self.update(x, worker, seed)


class ReturnsInstead(Writes):
    def update_into(self, x, worker, seed, out):
        return self.update(x, worker, seed)


class WritesIntoX(Mine):
    def update(self, x, worker, seed):
        x += 1
        return x


class Forgetful(Mine):
    state = np.random.default_rng(0)

    def update(self, x, worker, seed):
        return x + self.state.standard_normal(3)


class Reuses(Mine):
    def __init__(self):
        self.buffer = np.zeros(3)

    def update(self, x, worker, seed):
        self.buffer[:] = x + np.random.default_rng(seed).standard_normal(3)
        return self.buffer


class Biased(Mine):
    def update(self, x, worker, seed):
        return 1.5 * x + 1


class WrongCompiled(Compiled):
    compiled = (twice, 2.0000001)


class OldSeed(Mine):
    """np.random.seed takes 32 bits."""

    def update(self, x, worker, seed):
        return x + np.random.RandomState(seed).standard_normal(3)


@njit
def shifted(x, seed):
    return x + seed % 3


class NumbaSeed(Mine):
    """A numba function takes 63 bits."""

    def update(self, x, worker, seed):
        return shifted(x, seed)


class Narrow(Mine):
    """Both, as it is to be."""

    def update(self, x, worker, seed):
        noise = np.random.RandomState(narrow_seed(seed)).standard_normal(3)
        return shifted(x, narrow_seed(seed, bits=63)) + noise


def broken(**methods):
    return type("Broken", (Mine,), methods)()


def test_good_tasks_pass():
    for task in (Mine(), Compiled(), Writes(), quadratic(workers=2)):
        check_task(task, slope=True)
        assert isinstance(task, Task)
    assert isinstance(Compiled(), CompiledTask)
    assert not isinstance(Mine(), CompiledTask)
    assert isinstance(Writes(), WritingTask)
    assert not isinstance(Mine(), WritingTask)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        (WritesIntoX(), "writes into x"),
        (Forgetful(), "not repeatable"),
        (Reuses(), "overwrites"),
        (Biased(), "not unbiased gradients"),
        (WrongCompiled(), "compiled gradient differs"),
        (WritesTooLate(), "update_into.*agree to the bit"),
        (AddsInstead(), "update_into.*agree to the bit"),
        (ReturnsInstead(), "update_into.*returns something"),
        (OldSeed(), r"refuses a seed of 64 bits, as jobs have \(Seed must be.*narrow_seed\(seed\)"),
        (NumbaSeed(), r"refuses a seed of 64 bits, as jobs have \(int too big.*narrow_seed\(seed, bits=63\) to numba"),
        (object(), "no method initial"),
        (broken(initial=lambda self: [0.0]), "not a vector"),
        (broken(initial=lambda self: np.zeros(3, int)), "dtype"),
        (broken(initial=lambda self: np.random.default_rng().standard_normal(3)), "differs from call to call"),
        (broken(update=lambda self, x, worker, seed: x[:2]), "like x"),
        (broken(update=lambda self, x, worker, seed: x * np.nan), "NaN"),
        (broken(evaluate=lambda self, x: 3.0), "return a dict"),
        (broken(evaluate=lambda self, x: {"loss": np.inf}), "finite numbers"),
        (broken(evaluate=lambda self, x: {}), "no 'loss'"),
    ],
)
def test_broken_tasks_are_named(task, message):
    with pytest.raises(BadTask, match=message):
        check_task(task, slope=True)


def test_a_task_whose_rows_follow_a_count_passes():
    check_task(Rows(20, 3))
    check_task(WritingRows(20, 3))


def test_a_task_whose_rows_follow_a_count_must_write_the_same():
    class Wrong(WritingRows):
        def update_into(self, x, worker, seed, out, batch):
            super().update_into(x, worker, seed, out, batch + 1)

    with pytest.raises(BadTask, match="they must agree to the bit"):
        check_task(Wrong(20, 3))


def test_a_task_that_narrows_its_seeds_passes():
    check_task(Narrow())


def test_a_task_that_fails_for_another_reason_is_not_blamed_on_the_seed():
    def fails(self, x, worker, seed):
        raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        check_task(broken(update=fails))


def test_narrow_seeds():
    for seed in (0, 5, 2**32, 2**63 + 7, 2**64 - 1):
        for bits in (1, 31, 32, 63, 64):
            assert narrow_seed(seed, bits) == seed % 2**bits
    seeds = {narrow_seed(output(derive(3, JOB), job)) for job in range(5000)}
    assert len(seeds) == 5000
    with pytest.raises(BadParameter, match="bits = 0 must be an integer"):
        narrow_seed(3, bits=0)


@pytest.mark.parametrize(
    ("layout", "says"),
    [
        ((("a", 0, (2,)), ("b", 2, (1, 1))), None),
        ((("a", 0, (2,)),), r"layout\(\) covers 2 numbers, initial\(\) has 3"),
        ((("a", 0, (2,)), ("b", 1, (2,))), r"layout\(\): 'b' begins at 1, the numbers before it end at 2"),
    ],
)
def test_a_layout_covers_the_vector(layout, says):
    class Named(Mine):
        def layout(self):
            return layout

    if says is None:
        check_task(Named())
        return
    with pytest.raises(BadTask, match=says):
        check_task(Named())
