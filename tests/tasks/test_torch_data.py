"""What torch tasks take as data, and who gets which rows."""

import re

import numpy as np
import pytest
import torch
from tasks.torch_zoo import RowByRow, digits, small_model
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Subset, TensorDataset

import asyncsgd as asgd
from asyncsgd.core.random import below, output
from asyncsgd.tasks._torch.batches import draw_rows


def task_of(data, **options):
    return asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), data, **options)


def updates(task):
    return [task.update(task.initial(), worker, 3).tobytes() for worker in range(task.workers or 1)]


def test_every_form_of_the_same_data_gives_the_same_bits():
    inputs, targets = (tensor[:60] for tensor in digits().tensors)
    forms = [
        (inputs, targets),
        (inputs.numpy(), targets.numpy()),
        (inputs.double(), targets),
        TensorDataset(inputs, targets),
        Subset(digits(), range(60)),
        Subset(Subset(digits(), range(100)), range(60)),
        RowByRow(digits(), 60),
        Subset(RowByRow(digits()), range(60)),
    ]
    assert len({updates(task_of(form))[0] for form in forms}) == 1
    assert len({task_of(form).evaluate(task_of(form).initial())["loss"] for form in forms}) == 1


def test_a_batch_may_be_put_together_by_the_user():
    words = [([row % 5] * (1 + row % 4), row % 2) for row in range(40)]

    def pad(rows):
        length = max(len(word) for word, _ in rows)
        return (
            {"letters": torch.tensor([word + [0] * (length - len(word)) for word, _ in rows])},
            torch.tensor([label for _, label in rows]),
        )

    class Bag(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 2)

        def forward(self, batch):
            return self.table(batch["letters"]).sum(dim=1)

    task = asgd.tasks.torch(
        Bag(), nn.CrossEntropyLoss(), RowByRow(words), collate=pad, split=asgd.tasks.split("label", workers=2)
    )
    asgd.tasks.check_task(task)
    assert sorted(task.evaluate(task.initial())) == ["accuracy", "loss"]


@pytest.mark.parametrize("split", ["iid", "dirichlet", "label"])
@pytest.mark.parametrize("kind", ["tensors", "rows", "targets"])
def test_splits_are_those_of_the_built_in_tasks(split, kind):
    data = {"tensors": digits(), "rows": RowByRow(digits(), 300), "targets": RowByRow(digits(), 300)}[kind]
    if kind == "targets":
        data.targets = digits().tensors[1][:300].tolist()
    labels = digits().tensors[1].numpy()[: len(data)]
    expected = {
        "iid": asgd.tasks.iid_split(len(data), 4, 9),
        "dirichlet": asgd.tasks.dirichlet_split(labels, 4, 0.5, 9),
        "label": asgd.tasks.label_split(labels, 4),
    }[split]
    parts = asgd.tasks.split_dataset(data, asgd.tasks.split(split, workers=4, alpha=0.5, seed=9))
    assert [part.indices for part in parts] == [rows.tolist() for rows in expected]
    task = task_of(data, split=asgd.tasks.split(split, workers=4, alpha=0.5, seed=9))
    assert (task.workers, task.heterogeneous) == (4, True)
    assert updates(task) == updates(task_of(parts))
    assert len(set(updates(task))) == 4
    given = task_of(data, split=asgd.tasks.split(expected))
    assert updates(given) == updates(task)


def test_a_split_of_a_part_counts_rows_of_the_part():
    part = Subset(digits(), range(100, 200))
    parts = asgd.tasks.split_dataset(part, asgd.tasks.split("label", workers=3))
    assert sorted(row for one in parts for row in one.indices) == list(range(100))
    assert updates(task_of(part, split=asgd.tasks.split("label", workers=3))) == updates(task_of(parts))


def test_rows_are_those_of_the_core_generator():
    for n_rows in (1, 7, 1797, 2**31 + 11):  # the last one rejects half of the draws
        for seed in (0, 2**64 - 1, 12345):
            expected = [below(output(seed, k), n_rows)[1] for k in range(50)]
            assert draw_rows(seed, 50, n_rows).tolist() == expected


class Endless(IterableDataset):
    def __iter__(self):
        yield torch.zeros(64), 0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"data": []}, r"data = \[\] is empty"),
        ({"data": 3}, "data = 'int' is not a dataset with a length"),
        ({"data": Endless()}, "Endless.*not a dataset with a length"),
        ({"data": [TensorDataset(torch.empty(0, 64), torch.empty(0))]}, r"data\[0\].*has no rows"),
        ({"data": TensorDataset(torch.ones(3, 64))}, r"data\[0\] = 'tuple of 1' is not a pair"),
        ({"data": RowByRow([{"x": 1}])}, r"data\[0\] = 'dict of 1' is not a pair"),
        ({"data": RowByRow([7.0])}, r"data\[0\] = 'float' is not a pair"),
        ({"data": (np.ones((3, 64)), np.ones(4))}, r"shapes \(3, 64\) and \(4,\).*one target per input"),
        ({"test": TensorDataset(torch.ones(3, 64))}, r"test\[0\]"),
        (
            {"data": [digits(), digits()], "split": asgd.tasks.split("iid", workers=2)},
            "split = .* has nothing to split",
        ),
        ({"split": asgd.tasks.split("iid", workers=5000)}, "workers = 5000 is more than the 1797 rows"),
        (
            {"data": (np.ones((9, 64)), np.ones(9)), "split": asgd.tasks.split("label", workers=2)},
            r"float32\[9\].*has no labels.*iid",
        ),
    ],
)
def test_bad_data_is_named_with_the_fix(arguments, says):
    with pytest.raises(asgd.errors.BadParameter, match=says):
        task_of(**{"data": digits(), **arguments})


def test_splitting_for_nobody_is_refused():
    with pytest.raises(asgd.errors.BadParameter, match="split = 'shared' is a str"):
        asgd.tasks.split_dataset(digits(), "shared")


def loaders():
    pairs = [(torch.zeros(64), 0)] * 4
    return [
        (DataLoader(digits(), batch_size=48), r"batch_size=48$"),
        (DataLoader(digits(), batch_sampler=[[0, 1], [2]]), r"loader\.dataset$"),
        (
            DataLoader(pairs, batch_size=2, collate_fn=lambda rows: rows),
            r"batch_size=2 and collate=loader\.collate_fn$",
        ),
    ]


@pytest.mark.parametrize("which", range(3))
def test_a_loader_is_refused_with_what_to_pass_instead(which):
    loader, fix = loaders()[which]
    reason = "DataLoader.* draws its own batches, but a job draws its rows from its seed; pass its dataset, loader"
    for arguments in ({"data": loader}, {"data": [digits(), loader]}):
        with pytest.raises(asgd.errors.BadParameter, match=reason) as caught:
            task_of(**{"data": digits(), **arguments})
        assert re.search(fix, str(caught.value))


@pytest.mark.parametrize("which", range(3))
def test_a_loader_where_no_batches_are_drawn_gets_no_advice_about_them(which):
    loader, _ = loaders()[which]
    for name, call in (
        ("test", lambda: task_of(data=digits(), test=loader)),
        ("dataset", lambda: asgd.tasks.split_dataset(loader, asgd.tasks.split("iid", workers=2))),
    ):
        with pytest.raises(asgd.errors.BadParameter) as caught:
            call()
        said = "= 'DataLoader' has batches in place of rows; pass its dataset, loader.dataset"
        assert str(caught.value) == f"{name} {said}"
