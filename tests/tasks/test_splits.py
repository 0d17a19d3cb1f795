import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.core.errors import BadParameter
from asyncsgd.tasks import dirichlet_split, iid_split, label_split, split

labels = st.lists(st.integers(0, 6), min_size=1, max_size=80)


def every_row_once(parts, rows, workers):
    assert len(parts) == workers
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))


@given(st.data(), labels, st.floats(1e-3, 1e3), st.integers(0, 2**40))
def test_every_row_goes_to_one_worker_and_nobody_is_left_without(data, classes, alpha, seed):
    workers = data.draw(st.integers(1, len(classes)))
    every_row_once(iid_split(len(classes), workers, seed), len(classes), workers)
    every_row_once(dirichlet_split(classes, workers, alpha, seed), len(classes), workers)
    every_row_once(label_split(classes, workers), len(classes), workers)


@given(st.integers(1, 50), st.integers(0, 9))
def test_iid_parts_are_of_equal_size_and_repeat(workers, seed):
    first, again = iid_split(100, workers, seed), iid_split(100, workers, seed)
    assert max(map(len, first)) - min(map(len, first)) <= 1
    assert all((a == b).all() for a, b in zip(first, again, strict=True))


def test_seeds_matter():
    assert any((a != b).any() for a, b in zip(iid_split(100, 4, 0), iid_split(100, 4, 1), strict=True))


def test_alpha_sets_how_alike_the_workers_are():
    classes = np.repeat(np.arange(10), 200)

    def spread(parts):
        shares = np.array([np.bincount(classes[part], minlength=10) / len(part) for part in parts])
        return np.abs(shares - 0.1).mean()

    unlike, middle, alike = (spread(dirichlet_split(classes, 8, alpha, 0)) for alpha in (0.05, 1, 1000))
    assert unlike > middle > alike
    assert alike < 0.02


def test_label_parts_hold_few_labels():
    classes = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 30))
    assert [len(np.unique(classes[part])) for part in label_split(classes, 10)] == [1] * 10
    assert max(len(np.unique(classes[part])) for part in label_split(classes, 5)) == 2


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: iid_split(3, 4), "workers"),
        (lambda: iid_split(0, 1), "n_rows"),
        (lambda: iid_split(3, 0), "workers"),
        (lambda: dirichlet_split([0, 1], 2, alpha=0), "alpha"),
        (lambda: dirichlet_split([[0, 1]], 1), "labels"),
        (lambda: label_split([0], 2), "workers"),
    ],
)
def test_bad_splits_are_refused(call, name):
    with pytest.raises(BadParameter) as caught:
        call()
    assert caught.value.name == name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"kind": "zigzag", "workers": 2}, "kind = 'zigzag' is not a split; pass one of: iid, dirichlet, label"),
        ({"kind": "dirichle", "workers": 2}, "did you mean dirichlet?"),
        ({"kind": 3, "workers": 2}, "kind = 3 is not a split"),
        ({"kind": "iid"}, "workers is missing to split the data"),
        ({"kind": "iid", "workers": 0}, "workers = 0 must be an integer"),
        ({"kind": [[0], [1]], "workers": 3}, "workers = 3 is not the number of lists, 2"),
        ({"kind": "dirichlet", "workers": 2, "alpha": 0}, "alpha = 0 must be a positive"),
        ({"kind": "iid", "workers": 2, "seed": 0.5}, "seed = 0.5 is not an integer"),
    ],
)
def test_a_split_that_cannot_be(arguments, says):
    with pytest.raises(BadParameter) as caught:
        split(**arguments)
    assert says in str(caught.value)
