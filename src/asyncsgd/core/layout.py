"""The layout of a flat model: where each named parameter lies, so that a part can treat some parameters differently."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

from asyncsgd.core.errors import BadParameter

Layout: TypeAlias = tuple[tuple[str, int, tuple[int, ...]], ...]
"""(name, offset in the flat vector, shape) of every parameter, in the order of the offsets."""
Ranges: TypeAlias = tuple[tuple[int, int], ...]
"""(first, one past the last) of pieces of the flat vector, in order, none of them empty or touching the next."""


def layout_of(task: Any) -> Layout | None:
    """Return the layout of a task's model, or None if its parameters have no names."""
    layout = getattr(task, "layout", None)
    if not callable(layout):
        return None
    return tuple((str(name), int(offset), tuple(map(int, shape))) for name, offset, shape in layout())


def check_patterns(argument: str, patterns: Any) -> tuple[str, ...]:
    """Return the patterns as a tuple of texts, or raise. One text stands for itself, not for its letters."""
    found = (patterns,) if isinstance(patterns, str) else tuple(patterns) if isinstance(patterns, Sequence) else None
    if found is None or not all(isinstance(pattern, str) and pattern for pattern in found):
        fix = f'pass texts such as {argument}=("bias", "norm")'
        raise BadParameter(argument, patterns, "is not a list of name patterns", fix)
    return found


def matches(pattern: str, name: str) -> bool:
    """Return whether a pattern with ``*``, ``?`` or ``[`` matches the whole name, or another pattern a part of it.

    >>> matches("bias", "layers.0.bias"), matches("layers.*.bias", "layers.0.bias"), matches("*.bias", "bias")
    (True, True, False)
    """
    return fnmatchcase(name, pattern) if any(sign in pattern for sign in "*?[") else pattern in name


def matching(argument: str, patterns: tuple[str, ...], layout: Layout | None) -> Ranges:
    """Return the ranges of the parameters that some pattern matches; raise if a pattern matches no parameter.

    >>> matching("exclude", ("bias",), (("weight", 0, (2, 3)), ("bias", 6, (2,)), ("other.bias", 8, ())))
    ((6, 9),)
    """
    if layout is None:
        fix = f"leave {argument} out, or use a task with layout(), such as asgd.tasks.torch(...)"
        raise BadParameter(argument, patterns, "needs names, and the parameters of this task have none", fix)
    names = [name for name, _, _ in layout]
    for pattern in patterns:
        if not any(matches(pattern, name) for name in names):
            fix = f"pass a part of a name or a pattern; the names are {_some(names)}"
            raise BadParameter(argument, pattern, "matches no parameter", fix)
    ranges: list[tuple[int, int]] = []
    for name, offset, shape in sorted(layout, key=lambda entry: entry[1]):
        stop = offset + math.prod(shape)
        if stop == offset or not any(matches(pattern, name) for pattern in patterns):
            continue
        if ranges and ranges[-1][1] == offset:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((offset, stop))
    return tuple(ranges)


def excluded(patterns: tuple[str, ...], ranges: Ranges | None, layout: Layout | None) -> Ranges | None:
    """Return the ranges of the parameters that ``exclude`` names. Known ones stay if the parameters have no names."""
    if not patterns or (layout is None and ranges is not None):
        return ranges
    return matching("exclude", patterns, layout)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:20])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 20 else shown
