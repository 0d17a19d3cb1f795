"""Arrays as the bytes of an .npy file, the form in which Flower sends them.

The bytes of a large model are fresh memory every time, and the system gives a process fresh memory page by page: ten
thousand pages of 4 KiB for ten million numbers, which takes three times as long as the copy itself. NumPy therefore
asks Linux for pages of 2 MiB for its own large arrays. CPython does not for its bytes, so `npy_bytes` does.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections.abc import Callable
from functools import cache, lru_cache
from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

LARGE = 1 << 22
"""Bytes from which on large pages are worth asking for. NumPy has the same limit for its arrays."""


def npy_bytes(values: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return an array as the bytes of an .npy file, with one copy. Flower's own function makes three.

    >>> np.load(BytesIO(npy_bytes(np.arange(6.0), (2, 3), np.dtype("float32"))))
    array([[0., 1., 2.],
           [3., 4., 5.]], dtype=float32)
    """
    advise = _advice() if values.size * dtype.itemsize >= LARGE else None
    return joined(values, shape, dtype) if advise is None else filled(values, shape, dtype, advise)


def joined(values: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return what `npy_bytes` returns, for any array and any Python."""
    numbers = np.ascontiguousarray(values, dtype).reshape(-1)
    return b"".join((written_header(shape, dtype), numbers.view(np.uint8).data))


def filled(
    values: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any], advise: Callable[[int, int], Any]
) -> bytes:
    """Return what `joined` returns, in memory about which ``advise(address, length)`` told the system.

    CPython documents that the creator of bytes may write to them while no other code knows them:
    ``PyBytes_FromStringAndSize`` with NULL gives bytes of any content, and `ctypes` passes them on as they are.
    Nothing but this function has them until it returns, and every one of their bytes is written here.
    """
    header = written_header(shape, dtype)
    size = values.size * dtype.itemsize
    made: bytes = _new_bytes()(None, len(header) + size)
    address = ctypes.cast(ctypes.c_char_p(made), ctypes.c_void_p).value
    assert address is not None
    first, last = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + len(made)) // mmap.PAGESIZE * mmap.PAGESIZE
    if last > first:  # whole pages that belong to these bytes alone
        advise(first, last - first)
    memory = np.frombuffer(memoryview((ctypes.c_ubyte * len(made)).from_address(address)), np.uint8)
    memory[: len(header)] = np.frombuffer(header, np.uint8)
    numbers = memory[len(header) :].view(dtype)
    np.copyto(numbers.reshape(values.shape), values, casting="unsafe")
    return made


@cache
def _new_bytes() -> Any:
    """Return CPython's function for new bytes. The type of its result makes ctypes own the reference."""
    function = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_ssize_t)
    return function(("PyBytes_FromStringAndSize", ctypes.pythonapi))


@cache
def _advice() -> Callable[[int, int], Any] | None:
    """Return a function that asks for large pages; None where there are none, or where Python is not CPython.

    Its result says whether the system agreed, which changes the speed alone.
    """
    wanted = getattr(mmap, "MADV_HUGEPAGE", None)
    if wanted is None or sys.platform != "linux" or sys.implementation.name != "cpython":
        return None
    try:
        madvise = ctypes.CDLL(None).madvise
    except (AttributeError, OSError):
        return None
    madvise.argtypes, madvise.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return lambda address, length: madvise(address, length, wanted)


@lru_cache(maxsize=1024)
def written_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """Return the .npy header of an array. All models of a run have the same few."""
    header = BytesIO()
    fields = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(header, fields)
    return header.getvalue()
