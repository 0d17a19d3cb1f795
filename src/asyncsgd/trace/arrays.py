"""Arrays in one file with a checksum: named ones as safetensors, a single one in NumPy's own format."""

from __future__ import annotations

import hashlib
import io
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import write_bytes
from asyncsgd.core.errors import Damage

Arrays = dict[str, NDArray[Any]]
SHA = "sha256"


def write_arrays(path: Path, arrays: Arrays, facts: dict[str, str]) -> bytes:
    """Write named arrays and facts about them as safetensors, with a checksum of both; return the bytes."""
    from safetensors.numpy import save

    arrays = {name: np.array(array, order="C", copy=None) for name, array in arrays.items()}
    data: bytes = save(arrays, {**facts, SHA: _checksum(arrays, facts)})
    write_bytes(path, data, private=True)
    return data


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
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


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
