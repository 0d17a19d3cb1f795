"""Arrays that a stranger sent: looked at where they lie, so that no claim in them is ever believed or allocated."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from asyncsgd.core.errors import BadReply

HEADER = 10_000
"""Bytes that the header of an array may take; NumPy's own bound."""
NUMPY = "numpy.ndarray"
"""How Flower calls the one kind of serialization that it has."""


def view(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any]:
    """The numbers of one Flower array, without a copy, if it is what we sent: this shape, this dtype, this many bytes.

    ``array`` is a ``flwr.app.Array``: .npy bytes, with its dtype and shape beside them. Both sets of claims must be
    true. Nothing is unpickled, and the only memory taken is for the header.

    >>> from types import SimpleNamespace
    >>> lie = SimpleNamespace(dtype="float32", shape=(3,), stype="numpy.ndarray", data=b"")
    >>> view("w", lie, (2,), np.dtype("float32"))
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadReply: array 'w' has shape (3,), the model has (2,)
    """
    if array.stype != NUMPY:
        raise BadReply(f"array {name!r} is serialized as {array.stype!r:.40}, not as {NUMPY!r}")
    if tuple(array.shape) != shape:
        raise BadReply(f"array {name!r} has shape {_short(tuple(array.shape))}, the model has {shape}")
    if not _same(array.dtype, dtype):
        raise BadReply(f"array {name!r} is {array.dtype!r:.40}, the model has {dtype}")
    data: bytes = array.data
    size = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    if not size < len(data) <= size + HEADER:
        raise BadReply(f"array {name!r} takes {len(data)} bytes, {size} and a header are expected")
    inner, fortran, kind, start = _header(name, data)
    if inner != shape or not _same(kind, dtype) or len(data) != start + size:
        raise BadReply(f"array {name!r} contradicts itself: its header says {_short(inner)} of {kind}")
    return np.ndarray(shape, kind, buffer=data, offset=start, order="F" if fortran else "C")


def npy_bytes(values: NDArray[Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    """An array as the bytes of an .npy file, with one copy; Flower's own way makes three of them.

    >>> np.load(BytesIO(npy_bytes(np.arange(6.0), (2, 3), np.dtype("float32"))))
    array([[0., 1., 2.],
           [3., 4., 5.]], dtype=float32)
    """
    header = BytesIO()
    words = {"descr": npy.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    npy.write_array_header_1_0(header, words)
    numbers = np.ascontiguousarray(values, dtype).reshape(-1)
    return b"".join((header.getvalue(), numbers.view(np.uint8).data))


TRIES = 5
"""How often a header is read. NumPy parses it with `ast`, which in CPython 3.11 raises SystemError now and then where
another thread does so too, and replies are read in several threads: a good reply would be refused."""


def _header(name: str, data: bytes, tries: int = TRIES) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    file = BytesIO(data[: HEADER + 16])
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, kind = read(file, max_header_size=HEADER)
    except SystemError as error:
        if tries > 1:
            return _header(name, data, tries - 1)
        raise BadReply(f"array {name!r} cannot be parsed ({error})") from error
    except Exception as error:  # whatever a stranger's bytes make the parser say
        raise BadReply(f"array {name!r} is no .npy file ({type(error).__name__})") from error
    return shape, fortran, kind, file.tell()


def _same(claimed: Any, dtype: np.dtype[Any]) -> bool:
    """Whether a dtype is this one, in either order of bytes."""
    try:
        return bool(np.dtype(claimed).newbyteorder("=") == dtype)
    except (TypeError, ValueError):
        return False


def _short(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 60 else f"{text[:57]}..."
