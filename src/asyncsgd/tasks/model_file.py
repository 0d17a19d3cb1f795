"""Write the model of a task to a file: a PyTorch module by its names, any other model by its layout or as one vector.

A safetensors file carries a checksum of itself, so that `asyncsgd verify` can check a file that a run replaces at any
time. Other readers ignore it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import replacing, write_bytes
from asyncsgd.core.errors import BadParameter, Damage, MissingLibrary
from asyncsgd.core.vectors import Vector

SAFETENSORS = ".safetensors"
STATE_DICTS = (".pt", ".pth")
SHA, TIED = "sha256", "tied"
"""Entries of the metadata: the checksum, and a JSON object of names whose tensors are stored under another name."""
_BLANK = b"0" * 64
"""Stands in the place of the checksum while the checksum is computed."""


def check_path(path: str | PathLike[str], *, formats: tuple[str, ...] = (SAFETENSORS, *STATE_DICTS)) -> Path:
    """Return the path of a model file; refuse a suffix that does not name a format.

    >>> check_path("model.zip")
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadParameter: path = 'model.zip' does not name a format; end it in .safetensors, .pt or .pth
    """
    try:
        found = Path(path)
    except TypeError as error:
        raise BadParameter("path", path, "is not a path", 'pass one such as "model.safetensors"') from error
    if found.suffix not in formats:
        *others, last = formats
        shown = f"{', '.join(others)} or {last}" if others else last
        raise BadParameter("path", str(path), "does not name a format", f"end it in {shown}")
    return found


def named_arrays(task: Any, x: Vector) -> dict[str, NDArray[Any]] | None:
    """Return what the task's ``named_arrays(x)`` returns; None if it has no such method."""
    method = getattr(task, "named_arrays", None)
    return dict(method(x)) if callable(method) else None


def named_tensors(task: Any, x: Vector) -> dict[str, Any]:
    """Return the model by name: `named_arrays`, tensors of the task's module, parts of its layout, or ``{"x": x}``."""
    arrays = named_arrays(task, x)
    if arrays is not None:
        return arrays
    module = getattr(task, "module", None)
    if callable(module):
        return dict(module(x).state_dict())
    layout = getattr(task, "layout", None)
    if callable(layout):
        return {name: x[offset : offset + math.prod(shape)].reshape(shape) for name, offset, shape in layout()}
    return {"x": x}


def write_model(
    path: str | PathLike[str],
    task: Any,
    x: Vector,
    facts: Mapping[str, str] | None = None,
    *,
    private: bool = False,
    arrays: dict[str, NDArray[Any]] | None = None,
) -> Path:
    """Write the model that ``x`` is for a task, whole or not at all; return the path.

    Args:
        path: A name that ends in .safetensors, .pt or .pth.
        task: The task. One with ``named_arrays(x)`` gives all arrays of the model, also those that are not in x; one
            with ``module(x)`` gives the names of the module's state_dict, one with ``layout()`` those of the layout;
            the model of any other task (or None) is one tensor, ``x``.
        x: The flat model.
        facts: Metadata of a safetensors file.
        private: Whether only the owner may read the file.
        arrays: What `named_arrays` returned for this model, if it was asked before.
    """
    target = check_path(path)
    return _write(target, named_tensors(task, x) if arrays is None else arrays, dict(facts or {}), private=private)


def convert(source: Path, path: str | PathLike[str]) -> Path:
    """Write a safetensors file of `write_model` again, in the format that the suffix of ``path`` names."""
    target = check_path(path)
    facts = read_facts(source)
    if target.suffix == SAFETENSORS:
        return write_bytes(target, source.read_bytes())
    from safetensors.torch import load_file

    _torch("a state_dict")
    tensors = load_file(source)
    for name, kept in json.loads(facts.get(TIED, "{}")).items():
        tensors[name] = tensors[kept]
    return _write(target, tensors, {})


def read_facts(path: Path) -> dict[str, str]:
    """Return the metadata of a safetensors file of `write_model`; raise `Damage` if the file has changed."""
    try:
        data = bytearray(path.read_bytes())
        size = int.from_bytes(data[:8], "little")
        facts: dict[str, str] = json.loads(bytes(data[8 : 8 + size]))["__metadata__"]
        claimed = facts.pop(SHA).encode()
    except OSError as error:
        raise Damage(f"cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damage(f"is damaged: its header cannot be read ({error!r})") from error
    place = data.find(claimed, 8, 8 + size) if len(claimed) == len(_BLANK) else -1
    if place >= 0:
        data[place : place + len(_BLANK)] = _BLANK
    if place < 0 or hashlib.sha256(data).hexdigest().encode() != claimed:
        raise Damage("is damaged: its checksum does not match")
    return facts


def _write(target: Path, tensors: dict[str, Any], facts: dict[str, str], *, private: bool = False) -> Path:
    chunks = _safetensors(target, tensors, facts) if target.suffix == SAFETENSORS else (_state_dict(tensors),)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, private=private) as file:
        for chunk in chunks:
            file.write(chunk)
    return target


def _torch(what: str) -> Any:
    try:
        import torch
    except ModuleNotFoundError as error:
        raise MissingLibrary(what, "PyTorch", "asyncsgd[torch]") from error
    return torch


def _state_dict(tensors: dict[str, Any]) -> bytes:
    torch = _torch("a .pt file")
    file = io.BytesIO()
    torch.save({name: _as_tensor(torch, value) for name, value in tensors.items()}, file)
    return file.getvalue()


def _as_tensor(torch: Any, value: Any) -> Any:
    return torch.from_numpy(value.copy()) if isinstance(value, np.ndarray) else value


def _safetensors(target: Path, tensors: dict[str, Any], facts: dict[str, str]) -> tuple[bytes | memoryview, ...]:
    if all(isinstance(value, np.ndarray) for value in tensors.values()):
        from safetensors.numpy import save as save_arrays

        arrays = {name: np.array(value, order="C", copy=None) for name, value in tensors.items()}
        return _sealed(save_arrays(arrays, {**facts, SHA: _BLANK.decode()}))
    from safetensors.torch import save as save_tensors

    kept, tied = _untied(target, tensors)
    more = {TIED: json.dumps(tied)} if tied else {}
    return _sealed(save_tensors(kept, {"format": "pt", **facts, **more, SHA: _BLANK.decode()}))


def _sealed(data: bytes) -> tuple[bytes | memoryview, ...]:
    """Return the header with the checksum in the place of its blanks, and the rest, which is not copied."""
    checksum = hashlib.sha256(data).hexdigest().encode()
    end = 8 + int.from_bytes(data[:8], "little")
    return data[:end].replace(_BLANK, checksum, 1), memoryview(data)[end:]


def _untied(target: Path, tensors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """Return tensors that share no memory, and for every name that was left out the name that holds its tensor.

    safetensors refuses tensors that share memory, such as the tied weights of an embedding and an output layer.
    """
    import torch

    kept: dict[str, Any] = {}
    tied: dict[str, str] = {}
    seen: dict[Any, str] = {}
    taken: set[int] = set()
    for name, value in tensors.items():
        if not isinstance(value, torch.Tensor):
            problem = f"cannot hold {name!r} of the module, which is a {type(value).__name__}"
            raise BadParameter("path", str(target), problem, "write a .pt file, or remove the module's extra state")
        place = (value.data_ptr(), value.dtype, tuple(value.shape), value.stride())
        if value.numel() and place in seen:
            tied[name] = seen[place]
            continue
        seen[place] = name
        storage = value.untyped_storage()
        shared = storage.data_ptr() in taken or storage.nbytes() != value.nbytes
        taken.add(storage.data_ptr())
        kept[name] = value.detach().clone(memory_format=torch.contiguous_format) if shared else value.detach()
        kept[name] = kept[name].contiguous()
    return kept, tied
