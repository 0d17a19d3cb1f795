"""Check the parts of a method, describe them in plain values, and make a method from such a description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from asyncsgd.core import (
    aggregation,
    compression,
    dispatch,
    optimizers,
    outer_optimizers,
    robust,
    schedules,
    steps,
    transforms,
    weights,
    work,
)
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.validate import integer

TASK = ("initial", "update", "evaluate")
MODULES = (
    aggregation,
    compression,
    dispatch,
    optimizers,
    outer_optimizers,
    robust,
    schedules,
    steps,
    transforms,
    weights,
    work,
)
KINDS: dict[str, type] = {
    name: kind
    for module in MODULES
    for name, kind in vars(module).items()
    if is_dataclass(kind) and isinstance(kind, type) and kind.__module__ == module.__name__
    if name not in ("Custom", "CustomSchedule") and not name.startswith("_")
}
"""The parts that can be rebuilt from their numbers. `Custom` and `CustomSchedule` are missing: they hold functions."""


@dataclass(frozen=True)
class Reason:
    """Why something cannot be done with a method. A reason is falsy, so that a caller can test an answer.

    >>> reason = Reason("optimizer Adam", "has no compiled form")
    >>> bool(reason), str(reason)
    (False, 'optimizer Adam has no compiled form')
    """

    part: str
    why: str

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return f"{self.part} {self.why}"


def check_parts(task: Any, method: Any, seed: Any) -> None:
    """Raise `BadParameter` unless these are a task, a method and a seed."""
    if not isinstance(method, Method):
        fix = "call the recipe: asgd.async_sgd(stepsize=0.1)"
        raise BadParameter("method", method, f"is a {type(method).__name__}", fix)
    if isinstance(task, type) or not all(callable(getattr(task, part, None)) for part in TASK):
        raise BadParameter("task", task, f"lacks {', '.join(TASK)}", "see asgd.tasks, or asgd.tasks.check_task(yours)")
    integer("seed", seed)


def describe(method: Method) -> dict[str, Any]:
    """Return the kind and the numbers of every part, in plain values that JSON can hold.

    >>> describe(Method("mine", steps.Constant(0.1)))["step"]
    {'kind': 'Constant', 'stepsize': 0.1}
    """
    return {part.name: _described(getattr(method, part.name)) for part in fields(method)}


def made(described: Mapping[str, Any]) -> Method:
    """Make the method that `describe` has described. Refuse parts of other packages, so that any file is safe to read.

    >>> mine = Method("mine", steps.Constant(0.1))
    >>> made(describe(mine)) == mine
    True
    """
    try:
        return Method(**{name: _made(value) for name, value in described.items()})
    except (TypeError, AttributeError) as error:
        raise BadParameter("parts", dict(described), f"do not make a method ({error})", "use the method") from error


def described_schedule(described: Mapping[str, Any]) -> tuple[float | None, str | None]:
    """Return the step size of a method that `describe` has described, or the peak of its schedule and the schedule.

    >>> described_schedule(describe(Method("mine", steps.Constant(schedules.ConstantSchedule(0.1, warmup=20)))))
    (0.1, 'constant(0.1, warmup=20)')
    >>> described_schedule(describe(Method("mine", steps.Constant(0.1))))
    (0.1, None)
    """
    found = (described.get("step") or {}).get("stepsize")
    if not isinstance(found, Mapping):
        return (float(found), None) if isinstance(found, int | float) else (None, None)
    peak = found.get("peak")
    try:
        name = repr(_made(found))
    except (BadParameter, TypeError, AttributeError):  # a function, or a schedule of another package
        kind = str(found.get("kind")).rpartition(".")[2]
        name = f"{'custom' if kind == 'CustomSchedule' else kind}(peak={peak!r})"
    return (float(peak), name) if isinstance(peak, int | float) else (None, name)


def described_bytes(described: Mapping[str, Any], n: int, dtype: str) -> tuple[int, int] | None:
    """Return the bytes of an update and of a model of n parameters, under a method that `describe` has described.

    None if it is compressed by a part of another package.

    >>> described_bytes(describe(Method("mine", steps.Constant(0.1)).compressed("int8")), 256, "float32")
    (260, 1024)
    """
    try:
        codes = {name: _made(described.get(name)) for name in ("up", "down")}
    except BadParameter:
        return None
    return Method("", steps.Constant(1.0), **codes).message_bytes(n, dtype)


def _described(value: Any) -> Any:
    if is_dataclass(value):
        kind = type(value)
        name = kind.__name__ if KINDS.get(kind.__name__) is kind else f"{kind.__module__}.{kind.__qualname__}"
        return {"kind": name, **{part.name: _described(getattr(value, part.name)) for part in fields(value)}}
    if isinstance(value, tuple | list):
        return [_described(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return value.item() if hasattr(value, "item") else type(value).__name__


def _made(value: Any) -> Any:
    if isinstance(value, Mapping):
        kind = KINDS.get(str(value.get("kind")))
        if kind is None:
            raise BadParameter("kind", value.get("kind"), "is not a part of asyncsgd", "use the method itself")
        return kind(**{name: _made(item) for name, item in value.items() if name != "kind"})
    return tuple(map(_made, value)) if isinstance(value, list) else value
