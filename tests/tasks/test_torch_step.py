"""Steps of the user's own, batches of anything, epochs, streams, and gradients that are accumulated."""

import math
from collections import Counter

import cloudpickle
import numpy as np
import pytest
import torch
from tasks.torch_zoo import RowByRow, digits, small_model
from torch import nn

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.tasks._torch.batches import draw_rows

ROWS = 50


class Records:
    """Rows as dicts, as most language data are."""

    def __init__(self, n=ROWS):
        self.inputs, self.targets = (tensor[:n] for tensor in digits().tensors)
        self.read = []

    def __len__(self):
        return len(self.inputs)

    def __getitem__(self, row):
        self.read.append(row)
        return {"x": self.inputs[row], "y": self.targets[row], "row": row}


def own_loss(model, batch):
    return nn.functional.cross_entropy(model(batch["x"]), batch["y"])


def gradient_of(rows, model=None):
    """The gradient of the mean loss of these rows, as anybody would write it."""
    model, data = model or small_model(), Records()
    model.zero_grad()
    nn.functional.cross_entropy(model(data.inputs[rows]), data.targets[rows]).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()


def task_of(data=None, **options):
    size = {} if callable(data) else {"batch_size": 8}  # a stream makes batches of its own
    options = {"step": own_loss, **size, **options}
    return asgd.tasks.torch(small_model(), data=Records() if data is None else data, **options)


def test_a_step_gives_the_gradient_of_its_own_loss():
    task = task_of()
    rows = draw_rows(5, 8, ROWS)
    assert np.array_equal(task.update(task.initial(), 3, 5), gradient_of(rows))
    asgd.tasks.check_task(task)


def test_a_step_is_evaluated_as_a_mean_over_held_out_rows():
    test = Records(300)
    right = {"right": lambda model, batch: (model(batch["x"]).argmax(dim=1) == batch["y"]).double().mean()}
    derived = {"perplexity": lambda m: math.exp(m["loss"]), "worse": lambda m: 1 - m["right"]}
    task = task_of(test=test, metrics=right, derived=derived)
    values = task.evaluate(task.initial())
    outputs = task.module(task.initial())(test.inputs)
    assert sorted(values) == ["loss", "perplexity", "right", "worse"]
    assert values["loss"] == pytest.approx(nn.functional.cross_entropy(outputs, test.targets).item(), rel=1e-5)
    assert values["perplexity"] == math.exp(values["loss"])
    assert values["right"] == pytest.approx((outputs.argmax(dim=1) == test.targets).double().mean().item())
    assert values["worse"] == 1 - values["right"]
    huge = task_of(derived={"perplexity": lambda m: math.exp(1000 * m["loss"])})
    assert huge.evaluate(huge.initial())["perplexity"] == math.inf


def test_evaluation_of_a_step_runs_in_eval_mode_without_gradients():
    def watched(model, batch):
        seen.add((model.training, torch.is_grad_enabled()))
        return own_loss(model, batch)

    seen = set()
    task = task_of(step=watched)
    seen.clear()
    task.evaluate(task.initial())
    assert seen == {(False, False)}
    task.update(task.initial(), 0, 0)
    assert seen == {(False, False), (True, True)}


def test_batch_norm_is_calibrated_through_the_step():
    model = small_model(nn.BatchNorm1d(16))
    task = asgd.tasks.torch(model, data=Records(), step=own_loss, calibration=ROWS)
    same = asgd.tasks.torch(model, nn.CrossEntropyLoss(), (Records().inputs, Records().targets), calibration=ROWS)
    x = task.initial()
    assert torch.equal(task.module(x)[2].running_mean, same.module(x)[2].running_mean)


# ---------------------------------------------------------------------------------------------- accumulation


@pytest.mark.parametrize("accumulate", [1, 2, 4, 8])
def test_accumulated_gradients_are_those_of_the_whole_batch(accumulate):
    task = task_of(accumulate=accumulate)
    whole = task_of().update(task.initial(), 0, 9)
    update = task.update(task.initial(), 0, 9)
    np.testing.assert_allclose(update, whole, rtol=1e-4, atol=1e-7)
    assert np.array_equal(update, whole) == (accumulate == 1)
    asgd.tasks.check_task(task)


def test_a_worker_holds_one_micro_batch_at_a_time():
    sizes = []

    def watched(model, batch):
        sizes.append(len(batch["x"]))
        return own_loss(model, batch)

    task = task_of(step=watched, accumulate=4, sampling="epochs")
    sizes.clear()
    task.update(task.initial(), 0, 0, 0)
    assert sizes == [2, 2, 2, 2]
    sizes.clear()
    task.update(task.initial(), 0, 0, ROWS // 8)  # the last batch of an epoch has two rows
    assert sizes == [2]
    sizes.clear()
    task.evaluate(task.initial())
    assert max(sizes) == 2


def test_the_last_batch_of_an_epoch_is_weighted_by_its_rows():
    data = Records(11)
    task = task_of(data, batch_size=6, accumulate=2, sampling="epochs")
    data.read.clear()
    update = task.update(task.initial(), 0, 0, 1)  # five rows: three, then two
    assert len(data.read) == 5
    np.testing.assert_allclose(update, gradient_of(data.read), rtol=1e-4, atol=1e-7)


def test_pairs_are_accumulated_too():
    tasks = [asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), digits(), accumulate=n) for n in (1, 4)]
    one, four = (task.update(task.initial(), 0, 3) for task in tasks)
    np.testing.assert_allclose(one, four, rtol=1e-4, atol=1e-6)
    asgd.tasks.check_task(tasks[1])


# ---------------------------------------------------------------------------------------------- epochs


def test_every_row_is_used_once_in_an_epoch():
    data = Records()
    task = task_of(data, sampling="epochs")
    assert (task.uses_batch, task.batches_per_epoch, task.epoch_rows) == (True, 7, ROWS)
    orders = []
    for epoch in range(2):
        data.read.clear()
        for batch in range(7):
            task.update(task.initial(), batch % 3, 100 + batch, 7 * epoch + batch)
        assert Counter(data.read) == dict.fromkeys(range(ROWS), 1)
        orders.append(list(data.read))
    assert orders[0] != orders[1]
    assert [task.examples(0, 1, batch) for batch in range(8)] == [8, 8, 8, 8, 8, 8, 2, 8]


def test_the_rows_of_an_epoch_follow_from_the_batch_and_the_seed_of_the_orders():
    task, other = task_of(sampling="epochs"), task_of(sampling="epochs", sampling_seed=1)
    x = task.initial()
    assert np.array_equal(task.update(x, 0, 1, 4), task.update(x, 1, 2, 4))  # no dropout: worker and seed do not matter
    assert not np.array_equal(task.update(x, 0, 1, 4), task.update(x, 0, 1, 5))
    assert not np.array_equal(task.update(x, 0, 1, 4), other.update(x, 0, 1, 4))
    assert (task.sampling_seed, other.sampling_seed) == (0, 1)
    asgd.tasks.check_task(task)


def test_each_worker_goes_through_its_own_data():
    parts = [Records(11), Records(20)]
    task = task_of(parts, sampling="epochs", batch_size=[5, 4])
    assert (task.batches_per_epoch, task.epoch_rows, task.workers) == (3 + 5, 31, 2)
    for worker, part in enumerate(parts):
        part.read.clear()
        for batch in range([3, 5][worker]):
            task.update(task.initial(), worker, 0, batch)
        assert sorted(part.read) == list(range(len(part)))
    assert [task.examples(worker, 0, 2) for worker in (0, 1)] == [1, 4]
    asgd.tasks.check_task(task)


def test_rows_drawn_with_replacement_need_no_batch():
    task = task_of(batch_size=[4, 6])
    assert (task.uses_batch, task.batches_per_epoch, task.epoch_rows) == (False, None, None)
    assert [task.examples(worker, 7) for worker in (0, 1, 2)] == [4, 6, 4]
    rows = draw_rows(7, 6, ROWS)
    assert np.array_equal(task.update(task.initial(), 1, 7), gradient_of(rows))


def test_a_job_without_its_batch_is_refused():
    task = task_of(sampling="epochs")
    for batch in (None, -1, 0.5, True):
        with pytest.raises(BadParameter, match=r"batch = .* is not the number of a mini-batch.*job\.batch"):
            task.update(task.initial(), 0, 0, batch)


# ---------------------------------------------------------------------------------------------- streams


def endless(worker, batch, seed):
    generator = torch.Generator().manual_seed(1000 * worker + 10 * batch + seed % 7)
    return {"x": torch.rand(8, 64, generator=generator), "y": torch.randint(0, 10, (8,), generator=generator)}


def test_a_stream_makes_its_own_batches():
    task = task_of(endless, test=Records())
    assert (task.uses_batch, task.batches_per_epoch, task.epoch_rows, task.workers) == (True, None, None, None)
    assert task.examples(0, 1, 2) is None
    x = task.initial()
    updates = {task.update(x, *job).tobytes() for job in ((0, 0, 0), (1, 0, 0), (0, 1, 0), (0, 0, 1))}
    assert len(updates) == 4
    asgd.tasks.check_task(task)
    assert "a stream" in repr(task)
    parts = task_of(endless, test=Records(), accumulate=3).update(x, 0, 0, 4)
    np.testing.assert_allclose(parts, task.update(x, 0, 0, 4), rtol=1e-4, atol=1e-7)
    again = cloudpickle.loads(cloudpickle.dumps(task))
    assert np.array_equal(again.update(x, 1, 2, 3), task.update(x, 1, 2, 3))


def test_a_stream_of_pairs_calibrates_batch_norm():
    def pairs(worker, batch, seed):
        made = endless(worker, batch, seed)
        return made["x"], made["y"]

    model = small_model(nn.BatchNorm1d(16))
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), pairs, test=digits((0, 20)), calibration=20)
    asgd.tasks.check_task(task)
    assert task.module(task.initial())[2].running_mean.abs().sum() > 0


# ---------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"step": None}, r"loss is missing, and so is step; pass loss=nn\.CrossEntropyLoss\(\)"),
        ({"loss": nn.CrossEntropyLoss()}, r"step = 'own_loss' comes together with a loss; .* not both"),
        ({"step": 3}, "step = 3 is not a function; pass step=lambda"),
        ({"step": lambda model, batch: model(batch["x"])}, r"step = 'a tensor of shape \(2, 10\)'.*mean over the rows"),
        ({"step": lambda model, batch: 3.0}, "step = 'float' is what it returned, not a tensor"),
        ({"step": lambda model, batch: type("Out", (), {"loss": 1})()}, r"step = 'Out'.*its attribute \.loss"),
        ({"step": lambda model, batch: own_loss(model, batch).detach()}, "step = .* does not depend on the parameters"),
        ({"step": lambda model, batch: own_loss(small_model(), batch)}, "not depend on the parameters of the model"),
        ({"accumulate": 3}, r"accumulate = 3 does not divide batch_size = 8; pass .* multiple of 3, such as 9"),
        ({"accumulate": 2, "batch_size": [4, 5]}, r"accumulate = 2 does not divide batch_size\[1\] = 5"),
        ({"accumulate": 0}, "accumulate = 0 must be"),
        ({"batch_size": []}, r"batch_size = \[\] is empty"),
        ({"batch_size": [4, 0]}, r"batch_size\[1\] = 0"),
        ({"batch_size": [4, 4], "data": [Records()]}, r"batch_size = \[4, 4\] has 2 numbers for 1 workers; pass one"),
        ({"batch_size": [4, 8], "sampling": "epochs"}, "batch_size = .* differs by worker.*split="),
        ({"sampling": "epoch"}, "sampling = 'epoch' is not a way to draw rows; did you mean epochs"),
        ({"sampling_seed": 0.5}, "sampling_seed = 0.5 is not an integer"),
        ({"precision": "bf16"}, "precision = 'bf16' is not a precision; "),
        ({"loaders": -1}, "loaders = -1 is negative"),
        ({"data": RowByRow([])}, "data = 'RowByRow' has no rows"),
        ({"data": {"x": 1}}, "data = 'dict' is not a dataset with a length"),
        ({"data": [{"x": 1}]}, r"data\[0\] = 'dict' is not a dataset with a length"),
        ({"metrics": [max]}, "metrics = .* is a list; pass {"),
        ({"derived": {"loss": max}}, "derived = 'loss' is already in use"),
        ({"derived": {"epoch": max}}, "derived = 'epoch' is already in use"),
        ({"derived": {"mine": max}, "metrics": {"mine": max}}, "derived = 'mine' is already in use"),
        ({"derived": {"perplexity": 3}}, "derived.'perplexity'. = 3 is not a function"),
        ({"data": endless}, "test is missing: a stream has no rows"),
        ({"data": endless, "test": Records(), "sampling": "epochs"}, "sampling = 'epochs' needs data with a length"),
        ({"data": endless, "test": Records(), "loaders": 2}, "loaders = 2 does not apply: the function"),
        ({"data": endless, "test": Records(), "collate": max}, "collate = .* does not apply: the function"),
        ({"data": endless, "test": Records(), "batch_size": 64}, "batch_size = 64 does not apply: the function"),
        ({"data": lambda worker: 3, "test": Records()}, r"data = '<lambda>' does not take \(worker, batch, seed\)"),
    ],
)
def test_bad_input_is_named_before_anything_starts(options, says):
    with pytest.raises(BadParameter, match=says):
        task_of(**options)


def test_data_are_not_optional():
    with pytest.raises(BadParameter, match="data is missing; pass a Dataset"):
        asgd.tasks.torch(small_model(), nn.CrossEntropyLoss())


def test_an_error_of_the_users_own_code_is_left_to_the_workers():
    def broken(model, batch):
        raise KeyError("labels")

    task = task_of(step=broken)
    with pytest.raises(KeyError, match="labels"):
        task.update(task.initial(), 0, 0)


def test_a_loss_that_lies_on_a_device_is_handed_out_from_the_cpu(monkeypatch):
    """Workers may have other devices than the machine that made it, and the server none."""

    class Elsewhere(nn.CrossEntropyLoss):
        moved = ()

        def buffers(self, recurse=True):
            yield type("Tensor", (), {"device": torch.device("cuda")})()

        def to(self, device):
            Elsewhere.moved = (*Elsewhere.moved, str(device))
            return self

    inputs = torch.randn(16, 64), torch.randint(0, 10, (16,))
    asgd.tasks.torch(small_model(), Elsewhere(), inputs, batch_size=4)
    assert Elsewhere.moved == ("cpu",)
