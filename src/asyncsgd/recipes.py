"""Recipes by name: what each one takes, and the method that a name and options make.

The command line and the TOML files of simulations share this module. A recipe takes its own options, which are the
arguments of the function in `asyncsgd.methods`, and those in `COMMON`, which put something on top of any method.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from asyncsgd import optimizers, schedules
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Optimizer
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.validate import instead, nearest
from asyncsgd.core.work import LocalSteps
from asyncsgd.methods.listing import recipes as recipes

COMMON = {
    "clip": "Scale down updates with a norm above this value.",
    "noise": "Multiplier z of the Gaussian noise N(0, (z·clip)²) added to every applied sum; needs clip.",
    "momentum": "Momentum β of the server's optimizer.",
    "optimizer": "The server's optimizer: sgd, momentum, adamw, or a class of torch.optim such as RAdam.",
    "local_steps": "Number of SGD steps that a worker takes per job; needs local_stepsize.",
    "local_stepsize": "Step size of the local steps.",
    "scaled": "Divide the result of local steps by their step size, so that it has the scale of a gradient.",
    "proximal": "Strength of the pull of local steps towards the model that they started from.",
    "compressed": "Precision used to send updates, with error feedback: float16 or bfloat16 (Ray only).",
    "schedule": "How the step size changes; stepsize is its peak: constant, linear, cosine, inverse_sqrt, "
    "warmup_stable_decay.",
    "warmup": "Number of iterations in which the schedule grows to its peak; needs schedule.",
    "total": "Iteration at which the schedule ends (default: the run's iterations); needs schedule.",
    "final": "Share of the peak that is left when the schedule ends; needs schedule.",
}
"""Options that every recipe takes, with their help."""
OPTIMIZERS: dict[str, Callable[..., Optimizer]] = {
    "sgd": optimizers.sgd,
    "momentum": optimizers.momentum,
    "adamw": optimizers.adamw,
}
SCHEDULES: dict[str, Callable[..., Schedule]] = {
    "constant": schedules.constant,
    "linear": schedules.linear,
    "cosine": schedules.cosine,
    "inverse_sqrt": schedules.inverse_sqrt,
    "warmup_stable_decay": schedules.warmup_stable_decay,
}


def make(name: str, options: Mapping[str, Any], recipe: Callable[..., Any] | None = None) -> Method:
    """Make the method of this name with these options: its own and those of `COMMON`.

    ``recipe`` is a function to call in place of the one of that name. Errors are `BadParameter` and name the option.

    >>> make("fedasync", {"concurrency": 4, "local_steps": 5, "local_stepsize": 0.1}).work
    LocalSteps(steps=5, stepsize=0.1, scaled=False, proximal=0.0)
    >>> make("async_sgd", {"stepsize": 0.1, "clip": 1.0, "optimizer": "momentum"}).optimizer
    Momentum(beta=0.9, nesterov=False)
    """
    if recipe is None:
        known = recipes()
        if name not in known:
            raise BadParameter("method", name, "is not a method", nearest(name, known))
        recipe = known[name]
    own, common = _split(name, inspect.signature(recipe).parameters, options)
    method = recipe(**own)
    if not isinstance(method, Method):
        fix = "name a method such as asgd.async_sgd(0.1), or a function that returns one"
        raise BadParameter("method", name, f"is a {type(method).__name__}", fix)
    return adapt(method, common)


def adapt(method: Method, common: Mapping[str, Any]) -> Method:
    """Return the method with options of `COMMON`, or another stepsize, applied.

    >>> from asyncsgd.methods import async_sgd
    >>> adapt(async_sgd(0.1), {"momentum": 0.9, "stepsize": 0.2}).step
    Constant(stepsize=0.2)
    >>> adapt(async_sgd(0.1), {"schedule": "cosine", "warmup": 200}).step
    Constant(stepsize=cosine(0.1, warmup=200))
    """
    for option in common:
        if option not in ("stepsize", *COMMON):
            fix = instead(option, common[option], ["stepsize", *COMMON])
            raise BadParameter(option, common[option], f"is not an option of {method.name}", fix)
    if "stepsize" in common:
        method = method.using(step=method.step.with_peak(common["stepsize"]))
    method = _with_schedule(method, common)
    _check_flags({"scaled": bool}, common)
    method = _with_local_steps(method, common)
    if "optimizer" in common or "momentum" in common:
        if method.optimizer != SGD():
            option = "optimizer" if "optimizer" in common else "momentum"
            kind = type(method.optimizer).__name__
            raise BadParameter(option, common[option], f"cannot replace {kind} of {method.name}", "leave it out")
        method = method.using(optimizer=_optimizer(common))
    if "noise" in common and "clip" not in common:
        raise BadParameter("clip", None, "is missing", "noise needs it: pass the norm that updates are clipped to")
    if "clip" in common:
        with _naming({"norm": "clip"}):
            method = method.clipped(common["clip"], noise=common.get("noise", 0.0))
    if "compressed" in common:
        with _naming({"up": "compressed"}):
            method = method.compressed(common["compressed"])
    return method


def _split(
    name: str, parameters: Mapping[str, inspect.Parameter], options: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the recipe's own options, and the common ones."""
    own: dict[str, Any] = {}
    common: dict[str, Any] = {}
    open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for option, value in options.items():
        if option in parameters or (open_ended and option not in COMMON):
            own[option] = value
        elif option in COMMON:
            common[option] = value
        elif option == "stepsize":
            fix = "name a method, or a function of the stepsize that returns one"
            raise BadParameter("method", name, "does not take a stepsize", fix)
        else:
            fix = instead(option, value, [*parameters, *COMMON])
            raise BadParameter(option, value, f"is not an option of {name}", fix)
        if isinstance(value, int) and abs(value) >= 1 << 62:
            raise BadParameter(option, value, "is too large", "pass a smaller number")
    _check_flags({key: parameter.annotation for key, parameter in parameters.items()}, own)
    for taken in parameters.values():
        named = taken.kind in (taken.POSITIONAL_OR_KEYWORD, taken.KEYWORD_ONLY)
        if named and taken.default is taken.empty and taken.name not in own:
            raise BadParameter(taken.name, None, "is missing", f"{name} needs it: pass one")
    return own, common


def _check_flags(kinds: Mapping[str, Any], options: Mapping[str, Any]) -> None:
    """Refuse a text or a number in place of true or false: most would count as true."""
    for option, value in options.items():
        if kinds.get(option) in (bool, "bool") and not isinstance(value, bool):
            raise BadParameter(option, value, "is of the wrong type", "write true or false")


def _with_local_steps(method: Method, common: Mapping[str, Any]) -> Method:
    details = {option: common[option] for option in ("scaled", "proximal") if option in common}
    if "local_steps" in common or "local_stepsize" in common:
        for option in ("local_steps", "local_stepsize"):
            if option not in common:
                raise BadParameter(option, None, "is missing", "pass local_steps and local_stepsize together")
        with _naming({"steps": "local_steps", "stepsize": "local_stepsize"}):
            return method.local(common["local_steps"], common["local_stepsize"], **details)
    if details:
        if not isinstance(method.work, LocalSteps):
            [(option, value), *_] = details.items()
            fix = "pass local_steps and local_stepsize too"
            raise BadParameter(option, value, f"has no meaning for {method.name}, whose jobs are gradients", fix)
        return method.using(work=replace(method.work, **details))
    return method


def _with_schedule(method: Method, common: Mapping[str, Any]) -> Method:
    """Put a schedule on the step size, given as a name, or as a table with the name under ``kind`` and options."""
    shared = {option: common[option] for option in ("warmup", "total", "final") if option in common}
    if "schedule" not in common:
        for option, value in shared.items():
            fix = f"pass schedule too, one of {', '.join(SCHEDULES)}"
            raise BadParameter(option, value, "is an option of a schedule", fix)
        return method
    if isinstance(method.step.stepsize, Schedule):
        problem = f"cannot replace {method.step.stepsize!r} of {method.name}"
        raise BadParameter("schedule", common["schedule"], problem, "leave it out")
    given = common["schedule"]
    options = dict(given) if isinstance(given, Mapping) else {"kind": given}
    kind = options.pop("kind", None)
    spelled = {option: f"schedule.{option}" for option in options}
    for option, value in shared.items():
        if option in options:
            raise BadParameter(option, value, f"contradicts schedule = {given!r}", "leave one of the two out")
        options[option] = value
    if not isinstance(kind, str) or kind not in SCHEDULES:
        name = "schedule.kind" if isinstance(given, Mapping) else "schedule"
        if kind is None:
            raise BadParameter(name, kind, "is missing", f"pass one of {', '.join(SCHEDULES)}")
        raise BadParameter(name, kind, "is not a schedule", nearest(kind, SCHEDULES))
    parameters = inspect.signature(SCHEDULES[kind]).parameters
    with _naming({"peak": "stepsize"} | spelled):
        for option, value in options.items():
            if option not in parameters or option == "peak":
                known = [name for name in parameters if name != "peak"]
                raise BadParameter(option, value, f"is not an option of {kind}", nearest(option, known))
        for name, parameter in parameters.items():
            if parameter.default is parameter.empty and name not in ("peak", *options):
                shown = name if name in COMMON else f"schedule.{name}"
                raise BadParameter(shown, None, "is missing", f"{kind} needs it: pass one")
        return method.using(step=replace(method.step, stepsize=SCHEDULES[kind](method.step.peak, **options)))


def _optimizer(common: Mapping[str, Any]) -> Optimizer:
    """Return the server's optimizer, given as a name, or as a table with the name under ``kind`` and options."""
    if "optimizer" not in common:
        with _naming({"beta": "momentum"}):
            return optimizers.momentum(common["momentum"])
    given = common["optimizer"]
    options = dict(given) if isinstance(given, Mapping) else {"kind": given}
    kind = options.pop("kind", "momentum" if "momentum" in common else None)
    if "momentum" in common:
        if kind != "momentum" or "beta" in options:
            fix = "leave one of the two out"
            raise BadParameter("momentum", common["momentum"], f"contradicts optimizer = {given!r}", fix)
        options["beta"] = common["momentum"]
    if kind is None:
        fix = f"pass one of {', '.join(OPTIMIZERS)}, or a class of torch.optim such as RAdam"
        raise BadParameter("optimizer.kind", None, "is missing", fix)
    spelled = {"kind": "optimizer", **{option: f"optimizer.{option}" for option in options}}
    with _naming(spelled | ({"beta": "momentum"} if "momentum" in common else {})):
        if not isinstance(kind, str) or kind not in OPTIMIZERS:
            return _of_torch(kind, options)
        parameters = inspect.signature(OPTIMIZERS[kind]).parameters
        for option, value in options.items():
            if option not in parameters:
                raise BadParameter(option, value, f"is not an option of {kind}", nearest(option, parameters))
        _check_flags({key: parameter.annotation for key, parameter in parameters.items()}, options)
        return OPTIMIZERS[kind](**options)


def _of_torch(kind: Any, options: Mapping[str, Any]) -> Optimizer:
    try:
        import torch
    except ModuleNotFoundError as error:
        fix = f"pass one of {', '.join(OPTIMIZERS)}; for those of PyTorch, pip install 'asyncsgd[torch]'"
        raise BadParameter("kind", kind, "is not an optimizer of asyncsgd", fix) from error
    if not isinstance(kind, str) or not isinstance(getattr(torch.optim, kind, None), type):
        classes = [name for name in dir(torch.optim) if isinstance(getattr(torch.optim, name), type)]
        raise BadParameter("kind", kind, "is not an optimizer", nearest(kind, [*OPTIMIZERS, *classes]))
    return optimizers.torch(kind, **options)


@contextmanager
def _naming(spelling: Mapping[str, str]) -> Iterator[None]:
    """Spell options in errors as the user did."""
    try:
        yield
    except BadParameter as error:
        name = spelling.get(error.name, error.name)
        fix = re.sub(rf"\b{re.escape(error.name)}\b", name, error.fix)
        raise BadParameter(name, error.value, error.problem, fix) from None
