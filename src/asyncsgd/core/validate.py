"""Checks of models, updates and hyper-parameters, so that every constructor gives the same errors."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import numpy as np

from asyncsgd.core.errors import BadEvent, BadParameter, NotFinite, WrongDtype, WrongLength, WrongType
from asyncsgd.core.vectors import Vector, is_finite


def check_model(x: Vector) -> None:
    """Raise unless ``x`` is a flat model of finite numbers."""
    if not isinstance(x, np.ndarray) or x.ndim != 1 or x.size == 0 or x.dtype not in (np.float32, np.float64):
        shown = f"shape {x.shape}, {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
        fix = "pass a one-dimensional NumPy array of float32 or float64"
        raise BadParameter("x", shown, "is not a flat model", fix)
    if not is_finite(x):
        fix = "initialise the model with finite numbers"
        raise BadParameter("x", "NaN or infinity", "is not a starting point", fix)


def check_update(g: Vector, x: Vector, worker: int, job: int | None) -> None:
    """Raise unless the update fits the model x and is finite."""
    ordinary = type(g) is np.ndarray or (isinstance(g, np.ndarray) and not isinstance(g, np.ma.MaskedArray))
    if ordinary and g.shape == x.shape and g.dtype == x.dtype and is_finite(g):
        return
    who = f"worker {worker}: a gradient" if job is None else f"worker {worker}, job {job}: the update"
    if not ordinary or g.ndim != 1:
        kind = f"an array of shape {g.shape}" if ordinary else f"a {type(g).__name__}"
        raise WrongType(f"{who} is {kind}; send a one-dimensional NumPy array like the point")
    if g.shape != x.shape:
        raise WrongLength(f"{who} has length {g.shape[0]}; the model has {x.shape[0]}: send one like it")
    if g.dtype != x.dtype:
        raise WrongDtype(f"{who} is {g.dtype}; the model is {x.dtype}: convert it before sending")
    place = int(np.flatnonzero(~np.isfinite(g))[0])
    fix = "" if job is None else f"end the job with Lost({job}, Outcome.REJECTED), and "
    raise NotFinite(f"{who} holds {g[place]} at position {place}; {fix}try a smaller step if it recurs")


def check_work(job: int, examples: Any, seconds: Any) -> None:
    """Raise unless ``examples`` and ``seconds`` can belong to the work of a job."""
    if examples is not None and (not is_id(examples) or examples < 0):
        raise BadEvent(f"job {job} used {examples!r} examples; pass a whole number from 0 on, or None")
    if seconds is not None and not (is_number(seconds) and seconds >= 0):
        raise BadEvent(f"job {job} took {seconds!r} seconds; pass a finite number from 0 on, or None")


def callers_level() -> int:
    """Return the ``stacklevel`` with which a warning of the caller points at the line outside this package.

    The first line outside is the user's, however many functions of ours are in between.
    """
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == PACKAGE:
        level, frame = level + 1, frame.f_back
    return level


PACKAGE = __name__.partition(".")[0]
P = ParamSpec("P")
R = TypeVar("R")
STEP_WORDS = ("lr", "learning_rate", "eta", "step", "step_size")
"""Names of the step size in other libraries."""
WORKER_WORDS = ("workers", "num_workers", "n_workers", "nproc_per_node", "world_size")
"""Names of the number of workers, here and in other libraries."""


def plain(part: Any) -> None:
    """Turn the NumPy scalars among a frozen part's parameters into Python numbers.

    A float64 scalar would make arithmetic with a float32 model run in float64, so the bits would depend on how the
    number was written.
    """
    for parameter in fields(part):
        value = getattr(part, parameter.name)
        if isinstance(value, np.generic):
            object.__setattr__(part, parameter.name, value.item())


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a finite number."""
    try:
        return not isinstance(value, bool | np.bool_ | np.ndarray) and math.isfinite(value)
    except (TypeError, OverflowError):
        return False


def is_id(value: Any) -> bool:
    """Return whether ``value`` can be the id of a job or a worker. True and 0.0 would find job 1 and job 0.

    >>> is_id(3), is_id(np.int64(3)), is_id(True), is_id(3.0), is_id(np.array(3))
    (True, True, False, False, False)
    """
    return type(value) is int or isinstance(value, np.integer)


def integer(name: str, value: Any) -> None:
    """Raise unless ``value`` is an integer, of Python or of NumPy."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer):
        raise BadParameter(name, value, "is not an integer", f"pass {name}=0 or another integer")


def positive(name: str, value: Any) -> None:
    """Raise unless ``value`` is a finite number above 0."""
    if not is_number(value) or value <= 0:
        raise BadParameter(name, value, "must be a positive finite number", f"pass {name} > 0")


def nonnegative(name: str, value: Any) -> None:
    """Raise unless ``value`` is a finite number, 0 or above."""
    if not is_number(value) or value < 0:
        raise BadParameter(name, value, "must be a finite number that is not negative", f"pass {name} >= 0")


def count(name: str, value: Any) -> None:
    """Raise unless ``value`` is an integer, 1 or above. The float 2.0 is refused, because it cannot count jobs."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise BadParameter(name, value, "must be an integer of at least 1", f"pass {name} >= 1")


def fraction(name: str, value: Any) -> None:
    """Raise unless ``value`` lies in [0, 1)."""
    if not is_number(value) or not 0 <= value < 1:
        raise BadParameter(name, value, "must lie in [0, 1)", f"pass 0 <= {name} < 1")


def recipe(function: Callable[P, R]) -> Callable[P, R]:
    """Decorate a function so that the error for an unknown option names the options that exist.

    >>> @recipe
    ... def mine(stepsize): ...
    >>> mine(lr=0.1)
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadParameter: lr = 0.1 is not an option of mine; the step size is called stepsize: stepsize=0.1
    """
    code = function.__code__
    known = [name for name in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount] if name != "self"]

    @wraps(function)
    def checked(*arguments: P.args, **options: P.kwargs) -> R:
        for name, value in options.items():
            if name not in known:
                raise BadParameter(name, value, f"is not an option of {function.__name__}", instead(name, value, known))
        return function(*arguments, **options)

    return checked


def instead(name: str, value: Any, known: Collection[str]) -> str:
    """Return the fix for an unknown option: the name of the step size, or the nearest known option."""
    if name.lower() in STEP_WORDS:
        if "stepsize" not in known:
            return f"the step size is the method's: pass it as async_sgd(stepsize={value!r})"
        return f"the step size is called stepsize: stepsize={value!r}"
    if name.lower() in WORKER_WORDS and "engine" in known:
        return f"the engine has them: pass engine=asgd.engines.processes(workers={value!r})"
    return nearest(name, known)


def nearest(word: Any, known: Iterable[str]) -> str:
    """Return the fix for a mistyped name: a name that shares a word with it, the most similar name, or all names.

    >>> nearest("fedasyn", ["fedasync", "mifa"]), nearest("x", ["fedasync", "mifa"])
    ('did you mean fedasync?', 'pass one of: fedasync, mifa')
    >>> nearest("sgd", ["dc_asgd", "async_sgd"])
    'did you mean async_sgd?'
    """
    from difflib import get_close_matches  # imported here, because few programs need it

    word, known = str(word), list(dict.fromkeys(known))
    lower = {name.lower(): name for name in reversed(known)}
    typed = f"_{word.lower()}_"
    within = [name for name in map(str.lower, known) if name and (typed in f"_{name}_" or f"_{name}_" in typed)]
    near = [min(within, key=len)] if within else get_close_matches(word.lower(), lower, 1)
    return f"did you mean {lower[near[0]]}?" if near else f"pass one of: {', '.join(known)}"
