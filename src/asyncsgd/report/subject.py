"""Runs beside each other need names of their own."""

from __future__ import annotations

from asyncsgd.run.view import RunView


def distinct(subjects: list[RunView]) -> list[RunView]:
    """The same runs, no two of one name: the second ``a`` becomes ``a (2)``."""
    seen: dict[str, int] = {}
    found = []
    for subject in subjects:
        seen[subject.name] = often = seen.get(subject.name, 0) + 1
        found.append(subject if often == 1 else subject.named(f"{subject.name} ({often})"))
    return found
