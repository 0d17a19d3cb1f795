"""A server's state as named arrays and one JSON text, for any file format that holds arrays."""

from __future__ import annotations

import json
from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def pack(state: Any) -> tuple[dict[str, Array], str]:
    """Return (arrays by name, JSON text) of nested dicts, lists, arrays and numbers, without losing a bit.

    >>> arrays, text = pack({"x": np.ones(2), "memory": {7: np.zeros(1)}, "eta": 0.1})
    >>> sorted(arrays)
    ['memory.7', 'x']
    >>> unpack(arrays, text)
    {'x': array([1., 1.]), 'memory': {7: array([0.])}, 'eta': 0.1}
    """
    arrays: dict[str, Array] = {}

    def walk(value: Any, path: str) -> Any:
        if isinstance(value, np.ndarray):
            arrays[path] = value
            return {"array": path}
        if isinstance(value, dict):  # as pairs, because keys may be worker ids
            return {"dict": [[key, walk(item, f"{path}.{key}" if path else str(key))] for key, item in value.items()]}
        if isinstance(value, list | tuple | deque):
            return [walk(item, f"{path}.{place}") for place, item in enumerate(value)]
        return value

    return arrays, json.dumps(walk(state, ""))


def unpack(arrays: dict[str, Array], text: str) -> Any:
    """Return the state that `pack` was given."""

    def walk(value: Any) -> Any:
        if isinstance(value, list):
            return [walk(item) for item in value]
        if isinstance(value, dict):
            return arrays[value["array"]] if "array" in value else {key: walk(item) for key, item in value["dict"]}
        return value

    return walk(json.loads(text))
