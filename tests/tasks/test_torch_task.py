"""A PyTorch model as a task, in virtual time."""

import random
import sys
import warnings
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from tasks.torch_zoo import RowByRow, aligned, digits, flat, small_model
from torch import nn
from torch.utils.data import Subset, TensorDataset

import asyncsgd as asgd
from asyncsgd.core.random import below, output
from asyncsgd.core.work import LocalSteps, compute_job


def plain_gradient(model, data, seed, batch_size):
    """As anybody would write it."""
    rows = [below(output(seed, k), len(data))[1] for k in range(batch_size)]
    inputs, targets = data[rows]
    model.zero_grad()
    nn.CrossEntropyLoss()(model(inputs), targets).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()


def test_the_gradient_is_that_of_autograd():
    model, data = small_model(), digits()
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), data, batch_size=8)
    x = task.initial()
    assert x.dtype == np.float32
    assert np.array_equal(x, flat(model))
    assert np.array_equal(task.update(x, 0, 7), plain_gradient(model, data, 7, 8))
    assert np.array_equal(x, task.initial())


def test_float64_models_work_in_float64():
    model, (inputs, targets) = small_model().double(), digits().tensors
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), (inputs, targets), batch_size=8)
    assert task.initial().dtype == task.update(task.initial(), 0, 1).dtype == np.float64
    data = TensorDataset(inputs.double(), targets)
    assert np.array_equal(task.update(task.initial(), 1, 7), plain_gradient(model, data, 7, 8))
    asgd.tasks.check_task(task, slope=True)


@pytest.mark.parametrize("hidden", [16, 600])
def test_the_bits_do_not_depend_on_where_x_and_out_lie(hidden):
    model = nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU(), nn.Linear(hidden, 10))
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits())
    x = task.initial()
    expected = task.update(x, 0, 3)
    elsewhere = task.update(x + 1, 0, 3)
    out = np.empty_like(x)
    for offset in (0, 4, 32, 0, 60):
        here = aligned(x, offset)
        assert np.array_equal(task.update(here, 0, 3), expected)
        task.update_into(here, 0, 3, out)
        assert np.array_equal(out, expected)
        task.update_into(aligned(x + 1, 0), 0, 3, out)
        assert np.array_equal(out, elsewhere)
        assert np.array_equal(here, x)


def test_a_model_that_writes_into_its_parameters_does_not_write_into_x():
    class Clamps(nn.Linear):
        def forward(self, inputs):
            self.weight.data.clamp_(-0.01, 0.01)
            return super().forward(inputs)

    for layer in (Clamps(64, 2000), nn.Linear(64, 2000)):
        model = nn.Sequential(layer, nn.Linear(2000, 10))
        task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits())
        x = aligned(task.initial(), 0)
        kept = x.copy()
        task.update(x, 0, 3)
        task.evaluate(x)
        assert np.array_equal(x, kept)
    asgd.tasks.check_task(task)


def test_gradients_that_share_memory_or_are_missing_or_sparse():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
            self.unused = nn.Parameter(torch.ones(2))
            self.table = nn.Embedding(4, 3, sparse=True)
            self.frozen = nn.Parameter(torch.ones(5), requires_grad=False)

        def forward(self, rows):
            return (self.a + self.b).sum() + self.table(rows).sum(dim=1)

    data = (np.arange(4), np.zeros(4))
    arguments = {"model": Odd(), "loss": lambda outputs, targets: (outputs - targets).mean(), "data": data}
    task = asgd.tasks.torch(**arguments, batch_size=4)
    update = task.update(task.initial(), 0, 0)
    assert task.dimension == 3 + 3 + 2 + 12
    assert update[:8].tolist() == [1.0] * 6 + [0.0] * 2
    assert update[8:].sum() == pytest.approx(3)
    local = compute_job(LocalSteps(3, 0.5, scaled=True), task, task.initial(), worker=0, seed=0, steps=None, batch=0)
    assert local[:8].tolist() == [3.0] * 6 + [0.0] * 2
    assert any("1 parameters with requires_grad=False" in note for note in task.notes)


def test_it_passes_the_public_check_of_tasks():
    for model in (small_model(), small_model(nn.Dropout(0.5))):
        asgd.tasks.check_task(asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits()))
        asgd.tasks.check_task(
            asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits(), split=asgd.tasks.split("dirichlet", workers=3)),
            slope=False,
        )


def test_a_job_leaves_the_random_numbers_of_the_user_alone():
    task = asgd.tasks.torch(small_model(nn.Dropout(0.5)), nn.CrossEntropyLoss(), RowByRow(digits()))

    def draws():
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        yield
        yield torch.rand(1).item(), random.random(), np.random.rand()  # noqa: NPY002

    first, second = draws(), draws()
    next(first)
    expected = next(first)
    next(second)
    task.update(task.initial(), 0, 5)
    task.evaluate(task.initial())
    assert next(second) == expected


def test_augmentation_of_any_kind_can_be_repeated():
    class Jitter(RowByRow):
        def __getitem__(self, row):
            inputs, target = self.data[row]
            noise = torch.rand(64) + random.random() + np.random.rand()  # noqa: NPY002
            return inputs + noise, target

    task = asgd.tasks.torch(small_model(nn.BatchNorm1d(16)), nn.CrossEntropyLoss(), Jitter(digits()))
    asgd.tasks.check_task(task)
    assert task.evaluate(task.initial()) == task.evaluate(task.initial())
    assert not np.array_equal(task.update(task.initial(), 0, 1), task.update(task.initial(), 0, 2))


@pytest.mark.slow
def test_it_learns_in_virtual_time_and_repeats_to_the_bit():
    task = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), digits((0, 1400)), test=digits((1400, 1797)))
    speeds = asgd.durations.fixed([1.0, 1.0, 1.0, 10.0])
    runs = [asgd.simulate(task, asgd.delay_adaptive(0.2), speeds, iterations=1500, every=500) for _ in range(2)]
    assert not runs[0].compiled
    assert runs[0].metrics["accuracy"][-1] > 0.8
    assert runs[0].x.tobytes() == runs[1].x.tobytes()
    again = asgd.simulate(task, asgd.delay_adaptive(0.2), runs[0].trace, every=500)
    assert again.x.tobytes() == runs[0].x.tobytes()


def test_one_dataset_per_worker_is_heterogeneous():
    parts = [Subset(digits(), rows.tolist()) for rows in asgd.tasks.label_split(digits().tensors[1].numpy(), 3)]
    task = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), parts)
    assert (task.workers, task.heterogeneous) == (3, True)
    with pytest.warns(asgd.BiasWarning):
        asgd.simulate(task, asgd.async_sgd(0.1), asgd.durations.fixed([1.0, 1.0, 2.0]), iterations=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = asgd.federated_async_sgd(0.1, concurrency=3)
        asgd.simulate(task, method, asgd.durations.fixed([1.0, 1.0, 2.0]), iterations=5)
    shared = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), digits())
    assert (shared.workers, shared.heterogeneous) == (None, False)


def test_an_optimizer_of_torch_trains_it():
    task = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), digits())
    method = asgd.async_sgd(0.003).using(optimizer=asgd.optimizers.torch("AdamW", fused=True))
    run = asgd.simulate(task, method, asgd.durations.fixed([1.0, 3.0]), iterations=400)
    assert run.metrics["accuracy"][-1] > 0.8


def test_metrics_are_means_over_held_out_rows():
    task = asgd.tasks.torch(
        small_model(),
        nn.CrossEntropyLoss(),
        digits((0, 1400)),
        test=digits((1400, 1797)),
        metrics={"wrong": lambda outputs, targets: (outputs.argmax(dim=1) != targets).float().mean()},
    )
    x = task.initial()
    values = task.evaluate(x)
    assert sorted(values) == ["accuracy", "loss", "wrong"]
    assert values["wrong"] == pytest.approx(1 - values["accuracy"])
    inputs, targets = digits()[1400:]
    outputs = task.module(x)(inputs)
    assert values["loss"] == pytest.approx(nn.CrossEntropyLoss()(outputs, targets).item())
    assert values["accuracy"] == pytest.approx((outputs.argmax(dim=1) == targets).double().mean().item())


def test_accuracy_only_where_there_are_classes():
    inputs = torch.randn(20, 3)
    line = asgd.tasks.torch(nn.Linear(3, 1), nn.MSELoss(), (inputs, torch.randn(20, 1)))
    assert sorted(line.evaluate(line.initial())) == ["loss"]
    pixels = asgd.tasks.torch(
        nn.Conv1d(1, 4, 1), nn.CrossEntropyLoss(), (inputs[:, None], torch.randint(0, 4, (20, 3)))
    )
    assert 0 <= pixels.evaluate(pixels.initial())["accuracy"] <= 1
    asgd.tasks.check_task(pixels)


def test_without_held_out_data_the_workers_count_the_same():
    inputs, targets = digits().tensors
    parts = [(inputs[:50], targets[:50]), (inputs[50:], targets[50:])]
    whole = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), parts)
    x = whole.initial()
    alone = [asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), part).evaluate(x)["loss"] for part in parts]
    assert whole.evaluate(x)["loss"] == pytest.approx(np.mean(alone))


def test_the_module_handed_out_is_a_new_one():
    model = small_model()
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits())
    x = task.initial() + 1
    mine = task.module(x)
    assert isinstance(mine, nn.Sequential)
    assert not mine.training
    assert np.array_equal(flat(mine), x)
    with torch.no_grad():
        for parameter in mine.parameters():
            parameter.zero_()
    assert np.array_equal(flat(task.module(x)), x)
    assert np.array_equal(flat(model), task.initial())
    assert model.training


def mixed():
    model = small_model()
    model[0].double()
    return model


def lazy():
    return nn.Sequential(nn.LazyLinear(3))


def frozen():
    return small_model().requires_grad_(False)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"model": "no"}, "model = 'str' is not a torch module"),
        ({"model": nn.ReLU()}, "nothing to train"),
        ({"model": frozen()}, "nothing to train.*requires_grad"),
        ({"model": mixed()}, "float64, float32.*one.*model.float"),
        ({"model": small_model().half()}, "float16.*model.float"),
        ({"model": small_model().bfloat16()}, "bfloat16.*model.float"),
        ({"model": lazy()}, "lazy"),
        ({"loss": "no"}, "loss = 'no' is not a function"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"split": "iid"}, r"split = 'iid' is a str; pass asgd.tasks.split\(\"iid\", workers=4\)"),
        ({"calibration": 0}, "calibration = 0"),
        ({"metrics": {"loss": max}}, "metrics = 'loss'"),
        ({"metrics": {"mine": 3}}, "metrics.*mine.*not a function"),
    ],
)
def test_bad_input_names_the_argument_and_the_fix(arguments, says):
    with pytest.raises(asgd.errors.BadParameter, match=says):
        asgd.tasks.torch(**{"model": small_model(), "loss": nn.CrossEntropyLoss(), "data": digits(), **arguments})


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (nn.CrossEntropyLoss(reduction="none"), r"loss = 'a tensor of shape \(2,\)'.*reduction='mean'"),
        (lambda outputs, targets: 3.0, "loss = 'float'.*not a tensor"),
        (lambda outputs, targets: outputs.detach().mean(), "does not depend on the parameters.*detach"),
    ],
)
def test_a_loss_that_is_no_loss_is_named_before_it_is_used(loss, says):
    with pytest.raises(asgd.errors.BadParameter, match=says):
        asgd.tasks.torch(small_model(), loss, digits())


def test_a_worker_or_a_vector_that_does_not_fit_is_named():
    split = asgd.tasks.split("iid", workers=2)
    task = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), digits(), split=split)
    with pytest.raises(asgd.errors.BadParameter, match=r"worker = 2.*0\.\.1"):
        task.update(task.initial(), 2, 0)
    with pytest.raises(asgd.errors.BadParameter, match=f"pass a vector of {task.dimension}"):
        task.update(np.ones(1, np.float32), 0, 0)
    x = task.initial()
    for out, says in (
        (x[:-1], f"contiguous vector of {task.dimension} float32"),
        (np.ones(len(x)), r"out = 'float64\[1210\]'"),
        (np.ones(2 * len(x), np.float32)[::2], "contiguous"),
        (aligned(x, 0), "read-only"),
    ):
        with pytest.raises(asgd.errors.BadParameter, match=says):
            task.update_into(x, 0, 0, out)
    assert np.array_equal(task.update(np.repeat(x, 2)[::2], 0, 0), task.update(x, 0, 0))
    assert np.array_equal(task.update(x.astype(np.float64), 0, 0), task.update(x, 0, 0))


OURS = str(Path(asgd.__file__).parent)
"""Where our source lies: the environment may lie in a directory called asyncsgd, too."""


class Stopped(BaseException):
    """What an engine raises in the middle of a job that it cancels."""


def test_a_job_that_was_stopped_anywhere_leaves_no_trace():
    model = nn.Sequential(nn.Linear(64, 2000), nn.BatchNorm1d(2000), nn.Dropout(0.1), nn.Linear(2000, 10))
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits(), batch_size=4)
    x, other = aligned(task.initial(), 0), aligned(task.initial() + 1, 0)
    expected, out = task.update(x, 0, 1), np.empty_like(x)
    lines = 0

    def stop(frame, event, argument):
        nonlocal lines
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        if event == "line":
            lines -= 1
            if lines == 0:
                raise Stopped
        return stop

    for after in range(1, 400):
        lines = after
        task.update_into(x, 0, 1, out)
        sys.settrace(stop)
        try:
            task.update_into(other, 0, 2, out)
            stopped = False
        except Stopped:
            stopped = True
        finally:
            sys.settrace(None)
        task.update_into(x, 0, 1, out)
        assert np.array_equal(out, expected)
        if not stopped:
            break
    assert not stopped
    assert after > 50


def test_shared_data_are_for_any_number_of_workers():
    inputs, targets = np.zeros((4, 2), np.float32), np.array([0, 1, 0, 1])
    task = asgd.tasks.torch(nn.Linear(2, 2), nn.CrossEntropyLoss(), (inputs, targets))
    assert task.workers is None
    assert task.update(task.initial(), 1000, 1).shape == (6,)
    with pytest.raises(asgd.errors.BadParameter, match="number the workers from 0"):
        task.update(task.initial(), -1, 1)
    with pytest.raises(asgd.errors.BadParameter, match="pass workers=4"):
        asgd.tasks.torch(nn.Linear(2, 2), nn.CrossEntropyLoss(), (inputs, targets), split=asgd.tasks.split("iid"))


@pytest.mark.parametrize("value", [True, 0.0, np.array(0), "0", None])
def test_workers_and_seeds_are_integers(value):
    task = asgd.tasks.torch(small_model(), torch.nn.functional.cross_entropy, digits(), batch_size=4)
    for name, call in (("worker", (value, 0)), ("seed", (0, value))):
        with pytest.raises(asgd.errors.BadParameter) as caught:
            task.update(task.initial(), *call)
        assert caught.value.name == name


@pytest.mark.parametrize("offset", [0, 16])
def test_after_an_evaluation_the_memory_of_its_model_is_free(offset):
    """Used in place or copied: a server that evaluates rarely must not hold a model more in between."""
    rows = np.ones((4, 200), np.float32), np.array([0, 1, 2, 3])
    task = asgd.tasks.torch(nn.Linear(200, 300, bias=False), nn.CrossEntropyLoss(), rows)
    x = aligned(task.initial(), offset)
    first = task.evaluate(x)
    assert first == task.evaluate(x)
    kept = [weakref.ref(x), weakref.ref(task._ready().model._staging)]
    task.evaluate(x)
    del x
    assert [one() for one in kept] == [None, None]
    assert np.isfinite(task.update(task.initial(), 0, 1)).all()
