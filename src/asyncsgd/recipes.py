"""Recipes by name: what each one takes, and the method that a name and options make.

The command line and the TOML files of simulations share this module. A recipe takes its own options, which are the
arguments of the function in `asyncsgd.methods`, and those in `COMMON`, which put something on top of any method.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import Any, TypeVar

from asyncsgd import aggregation, compression, optimizers, schedules
from asyncsgd.core.aggregation import Aggregation
from asyncsgd.core.compression import Compression
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Optimizer
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.validate import instead, nearest
from asyncsgd.core.work import LocalSteps
from asyncsgd.methods.listing import recipes as recipes

T = TypeVar("T")
COMMON = {
    "clip": "Scale down updates with a norm above this value.",
    "noise": "Multiplier z of the Gaussian noise N(0, (z·clip)²) added to every applied sum; needs clip.",
    "momentum": "Momentum β of the server's optimizer.",
    "optimizer": "The server's optimizer: sgd, momentum, adamw, delayed_nesterov, look_ahead, muon, or a class of "
    "torch.optim such as RAdam.",
    "local_steps": "Number of steps that a worker takes per job; needs local_stepsize if jobs are gradients.",
    "local_stepsize": "Step size of the local steps.",
    "local_optimizer": "Optimizer of the local steps: sgd, momentum, adamw or muon.",
    "local_state": "State of the local optimizer: fresh starts it in every job, kept continues it from the worker's "
    "last applied job.",
    "local_clip": "Scale down gradients of local steps with a norm above this value.",
    "per_worker": "Local steps of each worker's jobs: a list with one number per worker, or speed for fewer steps on "
    "slower workers.",
    "scaled": "Divide the result of local steps by their step size, so that it has the scale of a gradient.",
    "proximal": "Strength of the pull of local steps towards the model that they started from.",
    "compressed": "Code used to send updates, with error feedback: float16, bfloat16, int8, int4 or top_k.",
    "compressed_down": "Code used to send models to workers: float16, bfloat16, int8 or int4.",
    "weighted": "Weigh updates by the examples that workers report, as federated averaging does.",
    "aggregation": "How a full buffer is merged: buffer (the mean), median, trimmed_mean or krum. Its size is that of "
    "the method's buffer, unless given.",
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
    "delayed_nesterov": optimizers.delayed_nesterov,
    "look_ahead": optimizers.look_ahead,
    "muon": optimizers.muon,
}
CODES: dict[str, Callable[..., Compression]] = {
    "float16": compression.float16,
    "bfloat16": compression.bfloat16,
    "int8": compression.int8,
    "int4": compression.int4,
    "top_k": compression.top_k,
}
AGGREGATIONS: dict[str, Callable[..., Aggregation]] = {
    "buffer": aggregation.buffer,
    "median": aggregation.median,
    "trimmed_mean": aggregation.trimmed_mean,
    "krum": aggregation.krum,
}
LOCAL = {
    "local_steps": "steps",
    "local_stepsize": "stepsize",
    "local_optimizer": "optimizer",
    "local_state": "state",
    "local_clip": "clip",
    "per_worker": "per_worker",
    "proximal": "proximal",
    "scaled": "scaled",
}
"""Options about local steps, and the names of the same options in `Method.local`."""
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

    >>> work = make("fedasync", {"concurrency": 4, "local_steps": 5, "local_stepsize": 0.1}).work
    >>> work.steps, work.stepsize, work.optimizer
    (5, 0.1, SGD())
    >>> make("async_sgd", {"stepsize": 0.1, "clip": 1.0, "optimizer": "momentum"}).optimizer
    Momentum(beta=0.9, nesterov=False)
    """
    if recipe is None:
        known = recipes()
        if name not in known:
            raise BadParameter("method", name, "is not a method", nearest(name, known))
        recipe = known[name]
    own, common = _split(name, inspect.signature(recipe).parameters, _read(options))
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
    common = _read(common)
    for option in common:
        if option not in ("stepsize", *COMMON):
            fix = instead(option, common[option], ["stepsize", *COMMON])
            raise BadParameter(option, common[option], f"is not an option of {method.name}", fix)
    if "stepsize" in common:
        method = method.using(step=method.step.with_peak(common["stepsize"]))
    method = _with_schedule(method, common)
    _check_flags({"scaled": bool, "weighted": bool}, common)
    method = _with_local_steps(method, common)
    if "optimizer" in common or "momentum" in common:
        if method.optimizer != SGD():
            option = "optimizer" if "optimizer" in common else "momentum"
            kind = type(method.optimizer).__name__
            raise BadParameter(option, common[option], f"cannot replace {kind} of {method.name}", "leave it out")
        method = method.using(optimizer=_server_optimizer(common))
    if "aggregation" in common:
        method = method.using(aggregation=_aggregation(method, common["aggregation"]))
    if common.get("weighted"):
        with _naming({"weights": "weighted"}):
            method = method.weighted()
    if "noise" in common and "clip" not in common:
        raise BadParameter("clip", None, "is missing", "noise needs it: pass the norm that updates are clipped to")
    if "clip" in common:
        with _naming({"norm": "clip"}):
            method = method.clipped(common["clip"], noise=common.get("noise", 0.0))
    codes = {option: _code(option, common[option]) for option in ("compressed", "compressed_down") if option in common}
    if codes:
        with _naming({"down": "compressed_down"}):
            method = method.compressed(codes.get("compressed"), down=codes.get("compressed_down"))
    return method


def _read(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options with step sizes of local steps, and lists of steps, in the form that methods take.

    A schedule is a table, and a list may be a text such as ``40,20``, as the command line has it.
    """
    read = dict(options)
    for option in ("local_stepsize", "inner_stepsize"):
        if isinstance(read.get(option), Mapping):
            table = dict(read[option])
            if "peak" not in table:
                raise BadParameter(f"{option}.peak", None, "is missing", "pass the largest step size")
            with _naming({"peak": f"{option}.peak"}):
                read[option] = _schedule(option, table, table.pop("peak"), {})
    given = read.get("per_worker")
    if isinstance(given, str) and given.replace(",", "").isdecimal():
        read["per_worker"] = [int(number) for number in given.split(",") if number]
    return read


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
    """Put local steps on a method, or change those that it has."""
    given = {name: common[option] for option, name in LOCAL.items() if option in common}
    if not given:
        return method
    before: dict[str, Any] = {}
    if isinstance(method.work, LocalSteps):
        before = {part.name: getattr(method.work, part.name) for part in fields(method.work)}
    elif "steps" not in given and "stepsize" not in given:
        option = next(option for option in LOCAL if option in common)
        fix = "pass local_steps and local_stepsize too"
        raise BadParameter(option, common[option], f"has no meaning for {method.name}, whose jobs are gradients", fix)
    else:
        for option in ("local_steps", "local_stepsize"):
            if option not in common:
                raise BadParameter(option, None, "is missing", "pass local_steps and local_stepsize together")
    if "optimizer" in given:
        given["optimizer"] = _optimizer("local_optimizer", given["optimizer"])
    with _naming({name: option for option, name in LOCAL.items()}):
        return method.local(**before | given)


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
    with _naming({"peak": "stepsize"}):
        made = _schedule("schedule", common["schedule"], method.step.peak, shared)
    return method.using(step=replace(method.step, stepsize=made))


def _schedule(name: str, given: Any, peak: Any, shared: Mapping[str, Any]) -> Schedule:
    """Return the schedule that a name or a table describes; ``shared`` are options from outside the table."""
    kind, options = _kind_of(given)
    spelled = {option: f"{name}.{option}" for option in options}
    for option, value in shared.items():
        if option in options:
            raise BadParameter(option, value, f"contradicts {name} = {given!r}", "leave one of the two out")
        options[option] = value
    if not isinstance(kind, str) or kind not in SCHEDULES:
        where = f"{name}.kind" if isinstance(given, Mapping) else name
        if kind is None:
            raise BadParameter(where, kind, "is missing", f"pass one of {', '.join(SCHEDULES)}")
        raise BadParameter(where, kind, "is not a schedule", nearest(kind, SCHEDULES))
    parameters = inspect.signature(SCHEDULES[kind]).parameters
    with _naming(spelled):
        for option, value in options.items():
            if option not in parameters or option == "peak":
                known = [known for known in parameters if known != "peak"]
                raise BadParameter(option, value, f"is not an option of {kind}", nearest(option, known))
        for needed, parameter in parameters.items():
            if parameter.default is parameter.empty and needed not in ("peak", *options):
                shown = needed if needed in COMMON and name == "schedule" else f"{name}.{needed}"
                raise BadParameter(shown, None, "is missing", f"{kind} needs it: pass one")
        return SCHEDULES[kind](peak, **options)


def _server_optimizer(common: Mapping[str, Any]) -> Optimizer:
    """Return the server's optimizer, of the options ``optimizer`` and ``momentum``."""
    if "optimizer" not in common:
        with _naming({"beta": "momentum"}):
            return optimizers.momentum(common["momentum"])
    given = common["optimizer"]
    if "momentum" not in common:
        return _optimizer("optimizer", given)
    kind, options = _kind_of(given)
    if kind not in (None, "momentum") or "beta" in options:
        fix = "leave one of the two out"
        raise BadParameter("momentum", common["momentum"], f"contradicts optimizer = {given!r}", fix)
    with _naming({"optimizer.beta": "momentum"}):
        return _optimizer("optimizer", {**options, "kind": "momentum", "beta": common["momentum"]})


def _optimizer(name: str, given: Any) -> Optimizer:
    """Return the optimizer that a name, or a table with the name under ``kind`` and options, describes."""
    kind, options = _kind_of(given)
    if kind is None:
        fix = f"pass one of {', '.join(OPTIMIZERS)}, or a class of torch.optim such as RAdam"
        raise BadParameter(f"{name}.kind", None, "is missing", fix)
    with _naming({"kind": name, **{option: f"{name}.{option}" for option in options}}):
        if not isinstance(kind, str) or kind not in OPTIMIZERS:
            return _of_torch(kind, options)
        return _call(kind, OPTIMIZERS[kind], options)


def _aggregation(method: Method, given: Any) -> Aggregation:
    """Return the rule that a name, or a table with the name under ``kind`` and options, describes."""
    kind, options = _kind_of(given)
    if not isinstance(kind, str) or kind not in AGGREGATIONS:
        raise BadParameter("aggregation", kind, "is not a rule for buffers", nearest(kind, AGGREGATIONS))
    size = getattr(method.aggregation, "size", None)
    if "size" not in options:
        if size is None:
            fix = f'pass the number of updates to merge: aggregation = {{kind = "{kind}", size = 10}}'
            raise BadParameter("aggregation.size", None, f"is missing, because {method.name} has no buffer", fix)
        options["size"] = size
    with _naming({option: f"aggregation.{option}" for option in (*options, "buffer")}):
        return _call(kind, AGGREGATIONS[kind], options)


def _code(name: str, given: Any) -> Compression:
    """Return the code that a name, or a table with the name under ``kind`` and options, describes."""
    if isinstance(given, Compression):
        return given
    kind, options = _kind_of(given)
    if not isinstance(kind, str) or kind not in CODES:
        raise BadParameter(name, kind, "is not a code", nearest(kind, CODES))
    with _naming({option: f"{name}.{option}" for option in options}):
        return _call(kind, CODES[kind], options)


def _kind_of(given: Any) -> tuple[Any, dict[str, Any]]:
    """Return the name and the options of a part, given as a name or as a table."""
    options = dict(given) if isinstance(given, Mapping) else {"kind": given}
    return options.pop("kind", None), options


def _call(kind: str, function: Callable[..., T], options: Mapping[str, Any]) -> T:
    parameters = inspect.signature(function).parameters
    for option, value in options.items():
        if option not in parameters:
            raise BadParameter(option, value, f"is not an option of {kind}", nearest(option, parameters))
    _check_flags({key: parameter.annotation for key, parameter in parameters.items()}, options)
    return function(**options)


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
