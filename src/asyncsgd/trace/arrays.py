"""Arrays in one file with a checksum: named ones as safetensors, a single one in NumPy's own format."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import replacing, write_bytes
from asyncsgd.core.errors import Damage

Arrays = dict[str, NDArray[Any]]
SHA = "sha256"
PIECE = 1 << 22
"""Bytes that are hashed and written at once: the memory that a file takes beside its arrays."""
NAMES = {
    np.dtype(f"{kind}{size}"): f"{kind.upper()}{8 * size}"
    for kind, sizes in (("i", "1248"), ("u", "1248"), ("f", "248"))
    for size in map(int, sizes)
}
NAMES[np.dtype(bool)] = "BOOL"
"""The dtypes of safetensors, by NumPy's."""


@dataclass(frozen=True)
class Whole:
    """Size and checksum of a file that is written whole."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Whole:
        """Return the entry of a file with these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())

    @classmethod
    def of_file(cls, path: Path) -> Whole:
        """Return the entry of a file; it is read in pieces."""
        with path.open("rb") as file:
            return cls(os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest())


def write_arrays(path: Path, arrays: Arrays, facts: dict[str, str]) -> Whole:
    """Write named arrays and facts about them as safetensors, with a checksum of both.

    The file is written in pieces from the arrays' own memory, so that it takes no second copy of them: a length, a
    header in JSON, and the arrays one after the other. The header holds the checksum, so every array is read twice.
    """
    arrays = {name: np.ascontiguousarray(array).reshape(np.shape(array)) for name, array in arrays.items()}
    # Wide numbers first, as safetensors itself does, so that every array starts at a multiple of its width.
    ordered = sorted(arrays, key=lambda name: (-arrays[name].itemsize, name))
    header: dict[str, Any] = {"__metadata__": {**facts, SHA: _checksum(arrays, facts)}}
    place = 0
    for name in ordered:
        array = arrays[name]
        end = place + array.nbytes
        header[name] = {"dtype": NAMES[array.dtype], "shape": list(array.shape), "data_offsets": [place, end]}
        place = end
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    head: list[bytes | memoryview] = [len(text).to_bytes(8, "little"), text]
    digest, size = hashlib.sha256(), 0
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path, private=True) as file:
        for data in chain(head, *(_pieces(arrays[name]) for name in ordered)):
            digest.update(data)
            file.write(data)
            size += len(data)
    return Whole(size, digest.hexdigest())


def read_arrays(path: Path) -> tuple[Arrays, dict[str, str]]:
    """Read what `write_arrays` wrote; raise `Damage` if the file has changed."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            facts = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dict
    except (SafetensorError, OSError, ValueError) as error:
        raise Damage(f"cannot be read ({error})") from error
    claimed = facts.pop(SHA, "")
    if _checksum(arrays, facts) != claimed:
        raise Damage("is damaged: its checksum does not match")
    return arrays, facts


def _checksum(arrays: Arrays, facts: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        for piece in _pieces(arrays[name]):
            digest.update(piece)
    return digest.hexdigest()


def _pieces(array: NDArray[Any]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of an array in its own memory, a piece at a time."""
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    for start in range(0, data.size, PIECE):
        yield data[start : start + PIECE].data


def write_vector(path: Path, vector: NDArray[Any]) -> None:
    """Write one array and its checksum. `numpy.load` reads the file too and ignores the checksum at the end."""
    file = io.BytesIO()
    np.save(file, vector)
    data = file.getvalue()
    write_bytes(path, data + zlib.crc32(data).to_bytes(4, "little"), private=True)


def read_vector(path: Path) -> NDArray[Any]:
    """Read what `write_vector` wrote; raise `Damage` if the file has changed."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise Damage(f"cannot be read ({error.strerror})") from error
    if zlib.crc32(data[:-4]).to_bytes(4, "little") != data[-4:]:
        raise Damage("is damaged: its checksum does not match")
    vector: NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return vector
