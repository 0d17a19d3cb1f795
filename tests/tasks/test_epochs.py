"""Epochs: every row exactly once per epoch, in an order drawn from (seed, epoch), the same as the slow twin's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive, output
from asyncsgd.tasks import epochs
from asyncsgd.tasks.epochs import EPOCH, batches_per_epoch, epoch_rows, rows_of_batch
from tests.markers import examples

SEEDS = st.integers(-(2**70), 2**70)


def slow_order(seed: int, epoch: int, rows: int) -> list[int]:
    """The order of an epoch, one row at a time."""
    state, bits = derive(seed, EPOCH, epoch), (rows - 1).bit_length()
    return sorted(range(rows), key=lambda row: (output(state, row) >> bits, row))


def slow_batches(seed: int, number: int, batch_size: int, rows: int) -> list[list[int]]:
    """The first mini-batches, by walking through the epochs."""
    found: list[list[int]] = []
    epoch = 0
    while len(found) < number:
        order = slow_order(seed, epoch, rows)
        while order:
            found.append(order[:batch_size])
            order = order[batch_size:]
        epoch += 1
    return found[:number]


@examples(200)
@given(SEEDS, st.integers(0, 2**40), st.integers(1, 300))
def test_the_order_of_an_epoch_is_the_twins(seed: int, epoch: int, rows: int) -> None:
    assert epoch_rows(seed, epoch, rows).tolist() == slow_order(seed, epoch, rows)


@examples(100)
@given(SEEDS, st.integers(1, 40), st.integers(1, 50), st.integers(1, 60))
def test_the_rows_of_a_batch_are_the_twins(seed: int, number: int, batch_size: int, rows: int) -> None:
    fast = [rows_of_batch(batch, batch_size, rows, seed).tolist() for batch in range(number)]
    assert fast == slow_batches(seed, number, batch_size, rows)


@examples(200)
@given(SEEDS, st.integers(0, 5), st.integers(1, 40), st.integers(1, 200))
def test_every_row_comes_once_per_epoch(seed: int, epoch: int, batch_size: int, rows: int) -> None:
    per_epoch = batches_per_epoch(rows, batch_size)
    pieces = [rows_of_batch(epoch * per_epoch + k, batch_size, rows, seed) for k in range(per_epoch)]
    assert sorted(np.concatenate(pieces).tolist()) == list(range(rows))
    assert [len(piece) for piece in pieces[:-1]] == [batch_size] * (per_epoch - 1)


def test_epochs_and_seeds_have_orders_of_their_own() -> None:
    orders = {tuple(epoch_rows(seed, epoch, 50).tolist()) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25


def test_every_place_is_equally_likely() -> None:
    places = np.zeros((6, 6))
    for epoch in range(6000):
        places[np.arange(6), epoch_rows(1, epoch, 6)] += 1
    assert np.abs(places - 1000).max() < 130  # more than four standard deviations


def test_a_large_epoch_is_sorted_once_and_kept_in_four_bytes_a_row() -> None:
    epochs._few.cache_clear()
    rows = epochs.LARGE + 5
    seen = np.concatenate(
        [rows_of_batch(batch, rows // 3, rows, 7) for batch in range(batches_per_epoch(rows, rows // 3))]
    )
    assert np.array_equal(np.sort(seen), np.arange(rows))
    assert epochs._few.cache_info().misses == 1
    assert epochs._order(7, 0, rows).itemsize == 4


def test_what_is_handed_out_may_be_changed() -> None:
    rows_of_batch(0, 4, 10, 0)[:] = 0
    epoch_rows(0, 0, 10)[:] = 0
    assert sorted(epoch_rows(0, 0, 10).tolist()) == list(range(10))


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ((-1, 4, 10, 0), "batch"),
        ((1.0, 4, 10, 0), "batch"),
        ((True, 4, 10, 0), "batch"),
        ((0, 0, 10, 0), "batch_size"),
        ((0, 4, 0, 0), "rows"),
        ((0, 4, 10, 0.5), "seed"),
    ],
)
def test_bad_input(arguments: tuple[int, int, int, int], name: str) -> None:
    with pytest.raises(BadParameter, match=f"^{name} = "):
        rows_of_batch(*arguments)
