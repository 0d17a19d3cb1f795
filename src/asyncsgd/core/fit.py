"""Whether a vector fits the model: the checks that everything from outside has to pass."""

from __future__ import annotations

import numpy as np

from asyncsgd.core.errors import BadParameter, NotFinite, WrongDtype, WrongLength, WrongType
from asyncsgd.core.events import Vector
from asyncsgd.core.vectors import is_finite


def check_model(x: Vector) -> None:
    """Refuse what is no flat model of finite numbers."""
    if not isinstance(x, np.ndarray) or x.ndim != 1 or x.size == 0 or x.dtype not in (np.float32, np.float64):
        shown = f"shape {x.shape}, {x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__
        fix = "pass a one-dimensional NumPy array of float32 or float64"
        raise BadParameter("x", shown, "is not a flat model", fix)
    if not is_finite(x):
        raise BadParameter("x", "NaN or infinity", "is no starting point", "initialise the model with numbers")


def check_update(g: Vector, x: Vector, worker: int, job: int | None) -> None:
    """Refuse an update that does not fit the model x, or that is not finite."""
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
