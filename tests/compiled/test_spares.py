"""Memory that is used again: never while anybody can still read what was written to it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.compiled import spares as module
from asyncsgd.compiled.spares import ALONE, LARGE, MOST, Spares

N = LARGE // 4


@given(st.lists(st.one_of(st.just("take"), st.integers(0, 5)), max_size=30))
def test_what_somebody_holds_keeps_its_numbers(steps: list[Any]) -> None:
    """Take vectors and drop them in any order; each holder finds what it wrote, as with vectors that are all new."""
    spares, held = Spares(), {}
    for number, step in enumerate(steps):
        if step == "take":
            x = spares.take(N, np.float32)
            x[0] = x[-1] = number
            held[number] = x[-1:] if number % 2 else x  # a view, or the whole vector
            del x
        elif held:
            del held[sorted(held)[step % len(held)]]
        for wrote, x in held.items():
            assert x[-1] == wrote
    assert len(spares._kept) <= MOST


@pytest.mark.skipif(ALONE == 0, reason="this Python does not count references exactly")
def test_memory_that_nobody_holds_is_used_again_in_any_dtype() -> None:
    spares = Spares()
    x = spares.take(N, np.float32)
    where = x.ctypes.data
    x.flags.writeable = False
    del x
    x = spares.take(N, np.float32)
    assert x.ctypes.data == where
    assert x.flags.writeable
    del x
    other = spares.take(2 * N, np.float64)
    assert (len(other), other.dtype) == (2 * N, np.float64)
    assert len(spares._kept) == 1


@pytest.mark.parametrize("hold", [lambda x: memoryview(x), lambda x: x.reshape(2, -1)[1], lambda x: x.view(np.uint8)])
def test_every_kind_of_view_holds_a_vector(hold: Callable[[np.ndarray], Any]) -> None:
    spares = Spares()
    x = spares.take(N, np.float32)
    x[:] = 7
    view = hold(x)
    before = bytes(memoryview(view).cast("B")[:8])
    del x
    for _ in range(3):
        spares.take(N, np.float32)[:] = 0
    assert bytes(memoryview(view).cast("B")[:8]) == before


def test_a_python_without_counts_gives_new_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ALONE", 0)
    spares = Spares()
    spares.take(N, np.float32)
    assert not spares._kept


def test_a_copy_is_a_copy() -> None:
    x = np.arange(N, dtype=np.float32)
    copy = Spares().copy(x)
    assert copy.tobytes() == x.tobytes()
    assert not np.shares_memory(copy, x)
