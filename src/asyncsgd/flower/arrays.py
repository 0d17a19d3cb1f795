"""Named arrays as one flat vector and back: Flower's ArrayRecord, and the server's x.

Arrays of floating-point numbers are *trained*: they make up the vector. Two kinds are *carried* beside it, as steps
along differences make no sense for them:

- statistics of data, such as a BatchNorm layer's running mean and variance: a step could make a variance negative;
- integers and booleans, such as a BatchNorm layer's count of batches.

Clients receive the median of the carried arrays that clients returned last, so that one dishonest client cannot set it.

Arrays of a reply come from outside. The server checks their claimed shape, dtype and size against the model before it
uses them, reads them in place, and never allocates memory or unpickles anything because of a claim. It is as tolerant
as Flower's FedAvg where that is safe: any real dtype is converted to the model's, arrays that the model does not have
are ignored, and arrays that are only numbered ("0", "1", ...) are matched by their order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache
from io import BytesIO
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter, BadReply
from asyncsgd.core.vectors import Vector
from asyncsgd.flower.npy_bytes import npy_bytes

Arrays = Mapping[str, NDArray[Any]]
FLOATS = ("float16", "float32", "float64")
STATISTICS = ("*running_mean", "*running_var")
"""PyTorch's names of BatchNorm statistics."""
ALL = ("*",)
PIECE = 65_536
"""Numbers that are subtracted at a time where the caller reads the result at once: they fit into the cache."""


def matches(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a name matches one of the patterns, in which ``*`` stands for anything."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)


Rule = Literal["trained", "statistic", "whole"]


@dataclass(frozen=True)
class Part:
    """One array: its slice of the vector, or None if it is carried beside the vector."""

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    place: slice | None
    rule: Rule

    def carry(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return a copy of carried values in this dtype. Raise `BadReply` for values that would break every client."""
        kind = values.dtype.kind
        if kind == "f" and not np.isfinite(values).all():
            raise BadReply(f"array {self.name!r} holds NaN or infinity")
        if self.rule == "statistic":
            if self.name.endswith("var") and (values < 0).any():
                raise BadReply(f"array {self.name!r} holds a negative variance")
            with np.errstate(over="ignore"):
                kept = values.astype(self.dtype)
            if not np.isfinite(kept).all():
                raise BadReply(f"array {self.name!r} holds values beyond {self.dtype}")
            return kept
        if self.dtype.kind in "iu" and values.size and kind != "b":
            limits = np.iinfo(self.dtype)
            if int(values.min()) < limits.min or int(values.max()) > limits.max:
                raise BadReply(f"array {self.name!r} holds values beyond {self.dtype}")
        return (np.rint(values) if kind == "f" else values).astype(self.dtype)


@dataclass(frozen=True)
class Layout:
    """Which arrays make up the model, and where each is in the vector."""

    parts: tuple[Part, ...]
    dtype: np.dtype[Any]
    """Dtype of the vector: float64 if any array has it, else float32. Other arrays are rounded when they are sent."""

    @classmethod
    def of(
        cls, record: Mapping[str, Any], statistics: Sequence[str] = STATISTICS, shared: Sequence[str] = ALL
    ) -> Layout:
        """Return the layout of those initial arrays, which are trusted, that match a pattern of ``shared``."""
        rows: list[tuple[str, tuple[int, ...], np.dtype[Any], Rule]] = []
        for name, array in record.items():
            if not matches(name, shared):
                continue
            if array.stype != NUMPY:
                raise BadParameter("initial_arrays", name, f"is serialized as {array.stype}", "pass NumPy arrays")
            dtype, shape = np.dtype(array.dtype), tuple(array.shape)
            if dtype.kind in "iub":
                rows.append((name, shape, dtype, "whole"))
            elif dtype.name not in FLOATS:
                fix = f"pass arrays of {', '.join(FLOATS)}, integers or booleans"
                raise BadParameter("initial_arrays", name, f"is an array of {dtype}", fix)
            elif matches(name, statistics):
                rows.append((name, shape, dtype, "statistic"))
            else:
                rows.append((name, shape, dtype, "trained"))
        if record and not rows:
            fix = f"pass patterns that match some of the arrays: {', '.join(list(record)[:6])}"
            raise BadParameter("shared", list(shared), "matches no array of the model", fix)
        layout = cls.laid_out(rows)
        if not any(part.place is not None and part.place.stop for part in layout.parts):
            fix = "pass the model's arrays: ArrayRecord(model.state_dict())"
            raise BadParameter("initial_arrays", list(record), "have no array to train", fix)
        return layout

    @classmethod
    def laid_out(cls, rows: Iterable[tuple[str, tuple[int, ...], np.dtype[Any], Rule]]) -> Layout:
        """Return the layout of arrays of which name, shape, dtype and rule are known: one after the other."""
        parts: list[Part] = []
        start = 0
        for name, shape, dtype, rule in rows:
            place = None
            if rule == "trained":
                place = slice(start, start + math.prod(shape))
                start = place.stop
            parts.append(Part(name, shape, dtype, place, rule))
        wide = any(part.place and part.dtype == np.float64 for part in parts)
        return cls(tuple(parts), np.dtype(np.float64 if wide else np.float32))

    def rows(self) -> list[tuple[str, list[int], str, Rule]]:
        """Return name, shape, dtype and rule of every array as JSON values."""
        return [(part.name, list(part.shape), part.dtype.name, part.rule) for part in self.parts]

    @property
    def size(self) -> int:
        """Length of the vector."""
        return max(int(part.place.stop) for part in self.parts if part.place)

    @property
    def carried(self) -> tuple[Part, ...]:
        """The arrays that are not in the vector."""
        return tuple(part for part in self.parts if part.place is None)

    def split(self, record: Mapping[str, Any]) -> tuple[Vector, dict[str, NDArray[Any]]]:
        """Return (the vector, the carried arrays) of a trusted model."""
        x: Vector = np.empty(self.size, self.dtype)
        carried = {}
        for part in self.parts:
            values = record[part.name].numpy()
            if part.place is None:
                carried[part.name] = values
            else:
                x[part.place] = values.reshape(-1)
        return x, carried

    def join(self, x: Vector, carried: Arrays) -> Any:
        """Return the ``flwr.app.ArrayRecord`` of a vector and the carried arrays."""
        from flwr.app import Array, ArrayRecord

        record = ArrayRecord()
        for part in self.parts:
            values = carried[part.name] if part.place is None else x[part.place]
            record[part.name] = Array(
                dtype=str(part.dtype), shape=part.shape, stype=NUMPY, data=npy_bytes(values, part.shape, part.dtype)
            )
        return record

    def named(self, x: Vector, carried: Arrays) -> dict[str, NDArray[Any]]:
        """Return every array in its own dtype and shape: a view of the vector where the vector has this dtype."""
        found = {}
        with np.errstate(over="ignore"):
            for part in self.parts:
                values = carried[part.name] if part.place is None else x[part.place]
                found[part.name] = values.astype(part.dtype, copy=False).reshape(part.shape)
        return found

    def read(self, record: Mapping[str, Any]) -> dict[str, NDArray[Any]]:
        """Return the arrays of a reply as views. Raise `BadReply` unless they match this model."""
        return read_parts(record, self.parts)

    def difference(
        self, sent: Vector, returned: Arrays, out: Vector | None = None, written: Callable[[int], None] | None = None
    ) -> Vector:
        """Return ``x_sent - x_returned``, with x_sent rounded as it was sent, to the dtype of each array.

        ``out`` is memory for the result. ``written(n)`` is called again and again, when the first n numbers of the
        result are there: the caller can read the last of them while they are in the cache.
        """
        update: Vector = np.empty(self.size, self.dtype) if out is None else out
        with np.errstate(all="ignore"):  # values that are not finite are refused later
            for part in self.parts:
                if part.place is None:
                    continue
                first, last, values = part.place.start, part.place.stop, returned[part.name].reshape(-1)
                step = max(1, last - first) if written is None else PIECE
                for start in range(first, last, step):
                    piece = slice(start, min(start + step, last))
                    before = sent[piece].astype(part.dtype, copy=False)
                    after = values[start - first : piece.stop - first]
                    np.subtract(before, after, out=update[piece], dtype=self.dtype)
                    if written is not None:
                        written(piece.stop)
        return update

    def gather(self, returned: Arrays, out: Vector | None = None) -> Vector:
        """Return a client's arrays as one vector, for clients that send updates instead of models."""
        update: Vector = np.empty(self.size, self.dtype) if out is None else out
        for part in self.parts:
            if part.place is not None:
                update[part.place] = returned[part.name].reshape(-1)
        return update

    def keep(self, returned: Arrays) -> dict[str, NDArray[Any]]:
        """Return checked copies of the carried arrays of a reply."""
        return {part.name: part.carry(returned[part.name]) for part in self.carried}


def read_parts(record: Mapping[str, Any], parts: Sequence[Part]) -> dict[str, NDArray[Any]]:
    """Return the arrays of a reply as views, each in its own dtype. Raise `BadReply` unless they match these parts.

    Other arrays of the record are ignored: a client that keeps some layers to itself may return them all the same.
    """
    record = by_position(record, parts)
    missing = [part.name for part in parts if part.name not in record]
    if missing:
        known = {part.name for part in parts}
        wrong = [f"{name!r:.60} is missing" for name in missing]
        wrong += [f"{name!r:.60} is unknown" for name in record if name not in known]
        if record and all(name.isdigit() or name == EMPTY for name in record):
            found = len(record) - (EMPTY in record)
            raise BadReply(f"the reply has {found} arrays without names, the model has {len(parts)} arrays")
        raise BadReply(f"the arrays are not the model's: {wrong[0]}, {len(wrong)} in all")
    return {part.name: view(part.name, record[part.name], part.shape, part.dtype, convert=True) for part in parts}


def by_position(record: Mapping[str, Any], parts: Sequence[Part]) -> Mapping[str, Any]:
    """Return the arrays under the names of the parts, if one side numbers them ("0", "1", ...) and the other does not.

    Legacy clients, and clients that reply with ``ArrayRecord(list_of_arrays)``, do not know the names of arrays. Their
    order is that of the message.

    >>> part = Part("weight", (), np.dtype("float32"), slice(0, 1), "trained")
    >>> by_position({"0": 1.5}, [part])
    {'weight': 1.5}
    """
    names, found = [part.name for part in parts], list(record)
    numbers = [str(place) for place in range(len(names))]
    if names == found or len(names) != len(found) or numbers not in (names, found):
        return record
    return dict(zip(names, record.values(), strict=True))


EMPTY = "_empty"
"""The only name in the record of a legacy client that returns no arrays."""
HEADER = 10_000
"""Largest header of an array in bytes, which is NumPy's own limit."""
NUMPY = "numpy.ndarray"
"""Flower's name of its only serialization."""


def view(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any], *, convert: bool = False) -> NDArray[Any]:
    """Return the numbers of one Flower array without a copy, if it has this shape, this dtype and the right size.

    ``array`` is a ``flwr.app.Array``: .npy bytes, with a dtype and a shape beside them. Both the .npy header and the
    values beside it must match. Nothing is unpickled, and only the header is copied. With ``convert`` the array may
    have any real dtype of at most 8 bytes, which the caller converts, and one number may have any shape. An array of a
    legacy client has an empty dtype and no shape beside it; then only the header counts.

    >>> from types import SimpleNamespace
    >>> lie = SimpleNamespace(dtype="float32", shape=(3,), stype="numpy.ndarray", data=b"")
    >>> view("w", lie, (2,), np.dtype("float32"))
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadReply: array 'w' has shape (3,), the model has (2,)
    """
    if array.stype != NUMPY:
        raise BadReply(f"array {name!r} is serialized as {array.stype!r:.40}, not as {NUMPY!r}")
    data: bytes = array.data
    claims = tuple(array.shape), array.dtype
    if convert and array.dtype == "":
        header = _header(name, data)
        claims = header[0], header[2].name
    if not _fits(claims[0], shape, convert=convert):
        raise BadReply(f"array {name!r} has shape {_short(claims[0])}, the model has {shape}")
    if not (_same(claims[1], dtype) or (convert and _real(claims[1]))):
        raise BadReply(f"array {name!r} is {claims[1]!r:.40}, the model has {dtype}")
    kind = dtype if _same(claims[1], dtype) else np.dtype(claims[1])
    size = kind.itemsize * math.prod(shape)
    if not size < len(data) <= size + HEADER:
        raise BadReply(f"array {name!r} takes {len(data)} bytes, {size} and a header are expected")
    inner, fortran, found, start = _header(name, data)
    if inner != claims[0] or not _same(found, kind.newbyteorder("=")) or len(data) != start + size:
        raise BadReply(f"array {name!r} contradicts itself: its header says {_short(inner)} of {found}")
    return np.ndarray(shape, found, buffer=data, offset=start, order="F" if fortran else "C")


TRIES = 5
"""Attempts to read a header. NumPy parses it with `ast`, which in CPython 3.11 sometimes raises SystemError if another
thread parses at the same time. Several threads read replies, so a single attempt could refuse a good reply."""


Header = tuple[tuple[int, ...], bool, np.dtype[Any], int]
"""The shape, whether the order is Fortran's, the dtype, and where the numbers start."""
USUAL = 256
"""Largest header in bytes that is kept. NumPy pads a header to 64 bytes, so most arrays have one of 128."""


def _header(name: str, data: bytes) -> Header:
    """Return what the header of an .npy file says. All replies of a run have the same few headers: parse each once."""
    length = 10 + int.from_bytes(data[8:10], "little")
    if data[:8] == b"\x93NUMPY\x01\x00" and length <= USUAL:
        return _parsed_once(name, data[:length])
    return _parsed(name, data[: HEADER + 16])


def _parsed(name: str, data: bytes, tries: int = TRIES) -> Header:
    file = BytesIO(data)
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[version]
        shape, fortran, kind = read(file, max_header_size=HEADER)
    except SystemError as error:
        if tries > 1:
            return _parsed(name, data, tries - 1)
        raise BadReply(f"array {name!r} cannot be parsed ({error})") from error
    except Exception as error:  # a client's bytes may cause any error in the parser
        raise BadReply(f"array {name!r} is not an .npy file ({type(error).__name__})") from error
    return shape, fortran, kind, file.tell()


_parsed_once = lru_cache(maxsize=1024)(_parsed)  # at most 256 KiB of a client's bytes; an error is not kept


def _same(claimed: Any, dtype: np.dtype[Any]) -> bool:
    """Return whether a claimed dtype is this one, in either byte order."""
    try:
        return bool(np.dtype(claimed).newbyteorder("=") == dtype)
    except (TypeError, ValueError):
        return False


def _real(claimed: Any) -> bool:
    """Return whether a claimed dtype holds real numbers that fit into 8 bytes each."""
    try:
        dtype = np.dtype(claimed)
    except (TypeError, ValueError):
        return False
    return dtype.kind in "fiub" and dtype.itemsize <= 8


def _fits(claimed: tuple[int, ...], shape: tuple[int, ...], *, convert: bool) -> bool:
    """Return whether a claimed shape is this one. If arrays are converted, one number may have any shape."""
    return claimed == shape or (convert and set(claimed) <= {1} and set(shape) <= {1})


def _short(shape: tuple[int, ...]) -> str:
    text = str(shape)
    return text if len(text) <= 60 else f"{text[:57]}..."
