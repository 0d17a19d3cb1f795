"""Buffers: BatchNorm is calibrated, everything else is a constant, and no job sees what another one left behind."""

import numpy as np
import pytest
import torch
from tasks.torch_zoo import Counts, RowByRow, digits, flat, small_model
from torch import nn
from torch.nn.utils import parametrizations

import asyncsgd as asgd


def norm_model():
    return small_model(nn.BatchNorm1d(16))


def spectral():
    model = small_model()
    parametrizations.spectral_norm(model[0])
    return model


class Instance(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(1, 4, 3), nn.InstanceNorm1d(4, track_running_stats=True), nn.ReLU())
        self.head = nn.Linear(4 * 62, 10)

    def forward(self, inputs):
        return self.head(self.layers(inputs[:, None]).flatten(1))


MODELS = {
    "batch norm": norm_model,
    "batch norm with a plain average": lambda: small_model(nn.BatchNorm1d(16, momentum=None)),
    "instance norm": Instance,
    "integers": lambda: small_model(Counts()),
    "spectral norm": spectral,
    "both": lambda: small_model(nn.BatchNorm1d(16), Counts(), nn.Dropout(0.3)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", ["shared", "per worker", "row by row"])
def test_models_with_buffers_pass_the_check(name, kind):
    data = RowByRow(digits(), 300) if kind == "row by row" else digits()
    split = asgd.tasks.split("label", workers=3) if kind == "per worker" else None
    task = asgd.tasks.torch(MODELS[name](), nn.CrossEntropyLoss(), data, split=split)
    asgd.tasks.check_task(task)
    assert task.notes


@pytest.mark.parametrize("name", MODELS)
def test_a_job_is_the_same_after_hundreds_of_others(name):
    task, fresh = (asgd.tasks.torch(MODELS[name](), nn.CrossEntropyLoss(), digits()) for _ in range(2))
    x = task.initial()
    first = {seed: task.update(x, 0, seed) for seed in range(5)}
    values = task.evaluate(x)
    for seed in range(300):
        task.update(x + seed % 7, seed % 2, 1000 + seed)
        if seed % 100 == 0:
            task.evaluate(x + 1)
    assert task.evaluate(x) == values
    for seed in reversed(range(5)):
        assert np.array_equal(task.update(x, 0, seed), first[seed])
    assert np.array_equal(fresh.update(x, 0, 4), first[4])
    assert fresh.evaluate(x) == values


def test_a_job_normalises_by_its_own_batch_as_a_plain_loop_does():
    model = norm_model()
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits(), batch_size=1797)
    rows = task._data.rows[0]
    from asyncsgd.tasks._torch.batches import draw_rows

    inputs, targets = rows.batch(draw_rows(4, 1797, 1797))
    nn.CrossEntropyLoss()(model(inputs), targets).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()
    assert np.array_equal(task.update(task.initial(), 0, 4), expected)


def test_running_statistics_are_those_of_the_training_data():
    inputs, targets = digits().tensors
    data = (inputs[:1000], targets[:1000])
    task = asgd.tasks.torch(norm_model(), nn.CrossEntropyLoss(), data, calibration=1000)
    x = task.initial()
    x[:] = np.random.default_rng(0).standard_normal(len(x))
    mine = task.module(x)
    before = mine[1](mine[0](data[0]))
    torch.testing.assert_close(mine[2].running_mean, before.mean(dim=0))
    torch.testing.assert_close(mine[2].running_var, before.var(dim=0), rtol=0.02, atol=0)  # mean of four batches
    loss = nn.CrossEntropyLoss()(mine(data[0]), data[1]).item()
    assert task.evaluate(x)["loss"] == pytest.approx(loss, rel=1e-5)
    assert not torch.equal(task.module(x + 1)[2].running_mean, mine[2].running_mean)


def test_parts_of_all_workers_are_mixed_in_calibration():
    whole = asgd.tasks.torch(norm_model(), nn.CrossEntropyLoss(), digits(), calibration=1797)
    parts = asgd.tasks.torch(
        norm_model(),
        nn.CrossEntropyLoss(),
        digits(),
        calibration=1797,
        test=digits(),
        split=asgd.tasks.split("label", workers=10),
    )
    x = whole.initial()
    one, other = whole.module(x)[2], parts.module(x)[2]
    torch.testing.assert_close(one.running_mean, other.running_mean, rtol=0.05, atol=0.01)
    torch.testing.assert_close(one.running_var, other.running_var, rtol=0.05, atol=0.01)


def test_a_batch_norm_given_in_eval_mode_stays_frozen():
    model = norm_model()
    with torch.no_grad():
        model[2].running_mean.fill_(0.25)
    model[2].eval()
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits())
    assert "running statistics" not in " ".join(task.notes)
    assert "Constants" in task.notes[0]
    assert torch.equal(task.module(task.initial())[2].running_mean, torch.full((16,), 0.25))
    asgd.tasks.check_task(task, slope=False)
    trained = norm_model()
    same = asgd.tasks.torch(trained, nn.CrossEntropyLoss(), digits())
    assert not np.array_equal(same.update(same.initial(), 0, 1), task.update(task.initial(), 0, 1))
    whole = norm_model().eval()  # a whole model in eval mode is trained as any loop would, which begins with train()
    started = asgd.tasks.torch(whole, nn.CrossEntropyLoss(), digits())
    assert np.array_equal(started.update(started.initial(), 0, 1), same.update(same.initial(), 0, 1))
    assert "eval mode" in started.notes[0]


def test_a_module_may_override_train_to_freeze_a_part():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[2].eval()
            return self

    model = Frozen(*norm_model())
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), digits())
    assert "running statistics" not in " ".join(task.notes)


def test_notes_say_what_applies():
    assert asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), digits()).notes == ()
    notes = asgd.tasks.torch(MODELS["both"](), nn.CrossEntropyLoss(), digits(), calibration=99).notes
    assert "BatchNorm1d" in notes[0]
    assert "99 rows" in notes[0]
    assert "2 buffers (3.calls, 3.shift)" in notes[1]


def test_a_model_with_batch_norm_learns_in_virtual_time():
    task = asgd.tasks.torch(norm_model(), nn.CrossEntropyLoss(), digits((0, 1400)), test=digits((1400, 1797)))
    speeds = asgd.durations.fixed([1.0, 1.0, 1.0, 10.0])
    run = asgd.simulate(task, asgd.delay_adaptive(0.1), speeds, iterations=800, every=200)
    assert run.metrics["accuracy"][0] < 0.3
    assert run.metrics["accuracy"][-1] > 0.85
    mine = task.module(run.x)
    inputs, targets = digits()[1400:]
    right = (mine(inputs).argmax(dim=1) == targets).double().mean().item()
    assert right == pytest.approx(run.metrics["accuracy"][-1], abs=0.01)
    assert np.array_equal(flat(mine), run.x)
