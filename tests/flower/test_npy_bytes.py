"""The bytes of an array: with and without advice to the system they are those that NumPy writes."""

from __future__ import annotations

import mmap
from io import BytesIO

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from asyncsgd.flower import npy_bytes as module
from asyncsgd.flower.npy_bytes import LARGE, filled, joined, npy_bytes

DTYPES = ("float16", "float32", "float64", ">f4", "int64", "uint8", "bool")


def saved(values: np.ndarray, dtype: np.dtype) -> bytes:
    file = BytesIO()
    with np.errstate(all="ignore"):
        np.save(file, np.asarray(values, dtype, order="C"), allow_pickle=False)
    return file.getvalue()


@given(
    hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=40)),
    st.sampled_from(DTYPES),
    st.sampled_from(["as it is", "Fortran's order", "every second number", "read-only"]),
)
def test_both_ways_write_what_numpy_writes(values: np.ndarray, kind: str, form: str) -> None:
    if form == "Fortran's order":
        values = np.asarray(values, order="F")
    elif form == "every second number":
        values = values[..., ::2] if values.ndim else values
    elif form == "read-only":
        values.flags.writeable = False
    dtype, told = np.dtype(kind), []
    with np.errstate(all="ignore"):
        made = filled(values, values.shape, dtype, lambda address, length: told.append((address, length)))
        assert made == joined(values, values.shape, dtype) == saved(values, dtype)
    assert all(address % mmap.PAGESIZE == 0 and 0 < length <= len(made) for address, length in told)


@pytest.mark.parametrize("agrees", [True, False])
def test_a_large_array_is_written_whether_or_not_the_system_agrees(
    agrees: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(module, "_advice", lambda: (lambda _, length: asked.append(length)) if agrees else None)
    for size in (LARGE // 4 - 1, LARGE // 4, LARGE // 4 + 1000):
        values = np.arange(size, dtype=np.float32)
        assert npy_bytes(values, (size,), values.dtype) == saved(values, values.dtype)
    assert len(asked) == (2 if agrees else 0)


def test_two_calls_give_two_objects() -> None:
    values = np.zeros(LARGE // 4, np.float32)
    first = npy_bytes(values, values.shape, values.dtype)
    values += 1
    second = npy_bytes(values, values.shape, values.dtype)
    assert first == saved(values - 1, values.dtype)
    assert second == saved(values, values.dtype)
    assert hash(first) == hash(bytes(bytearray(first)))
