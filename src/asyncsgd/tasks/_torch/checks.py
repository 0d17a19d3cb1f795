"""What can be said about the arguments of a torch task before anything is computed."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import warnings
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import nn

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, nearest
from asyncsgd.tasks._torch.devices import cpu_computes_in, has_accelerator
from asyncsgd.tasks._torch.model import trained
from asyncsgd.trace.columns import WHEN

PRECISIONS = ("float32", "bfloat16", "float16")


def check_module(model: Any) -> torch.dtype:
    """Return the dtype of a model; raise if the model cannot be trained."""
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise BadParameter("model", kind, "is not a torch module", "pass an nn.Module")
    if any(nn.parameter.is_lazy(value) for value in (*model.parameters(), *model.buffers())):
        fix = "run one batch through it before"
        raise BadParameter("model", kind, "has lazy layers whose shapes are not known yet", fix)
    parameters = trained(model)
    if not any(parameter.numel() for parameter in parameters):
        raise BadParameter("model", kind, "has nothing to train", "give it parameters with requires_grad=True")
    kinds = {parameter.dtype: None for parameter in parameters}
    shown = ", ".join(str(dtype).removeprefix("torch.") for dtype in kinds)
    if len(kinds) > 1:
        fix = "convert it with model.float() or model.double()"
        raise BadParameter("model", shown, "are several dtypes, and a flat vector has one", fix)
    if parameters[0].dtype not in (torch.float32, torch.float64):
        fix = 'convert it with model.float(), and pass precision="bfloat16" to compute in half precision'
        raise BadParameter("model", shown, "are too coarse to add up updates", fix)
    return parameters[0].dtype


def check_function(name: str, function: Any, example: str) -> None:
    """Raise unless the function can be called with outputs and targets; a class would make an object of them."""
    if isinstance(function, type):
        raise BadParameter(name, function.__name__, "is a class", f"pass an object of it: {function.__name__}()")
    if not callable(function):
        raise BadParameter(name, function, "is not a function", f"pass {example}")


def objective_of(loss: Any, step: Any) -> tuple[str, Any]:
    """Return (its name, the function) of the one of the two that is given; raise unless it is exactly one."""
    example = "step=lambda model, batch: model(**batch).loss"
    if loss is None and step is None:
        fix = f"pass loss=nn.CrossEntropyLoss() for pairs (input, target), or {example}"
        raise BadParameter("loss", None, "is missing, and so is step", fix)
    if loss is not None and step is not None:
        fix = "pass loss for pairs (input, target), or step for a model with its own loss, not both"
        raise BadParameter("step", getattr(step, "__name__", type(step).__name__), "comes together with a loss", fix)
    if step is None:
        check_function("loss", loss, "nn.CrossEntropyLoss()")
        return "loss", loss
    check_function("step", step, example)
    return "step", step


def check_named(name: str, functions: Any, taken: Sequence[str], example: str) -> None:
    """Raise unless this is a dict of functions whose names are free."""
    if not isinstance(functions, Mapping):
        raise BadParameter(name, functions, f"is a {type(functions).__name__}", f"pass {{'name': {example}}}")
    for key, function in functions.items():
        if key in ("loss", *WHEN, *taken):
            raise BadParameter(name, key, "is already in use", "choose another name")
        check_function(f"{name}[{key!r}]", function, example)


def batch_sizes(batch_size: Any, accumulate: int) -> tuple[int, ...]:
    """Return the rows per job, one number or one per worker; raise unless ``accumulate`` divides each."""
    several = isinstance(batch_size, list | tuple)
    if several and not batch_size:
        raise BadParameter("batch_size", batch_size, "is empty", "pass a number, or one per worker")
    for place, size in enumerate(batch_size if several else [batch_size]):
        name = f"batch_size[{place}]" if several else "batch_size"
        count(name, size)
        if size % accumulate:
            fix = f"pass a {name} that is a multiple of {accumulate}, such as {-(-size // accumulate) * accumulate}"
            raise BadParameter("accumulate", accumulate, f"does not divide {name} = {size}", fix)
    return tuple(int(size) for size in batch_size) if several else (int(batch_size),)


def check_precision(precision: Any, dtype: torch.dtype) -> None:
    """Raise for an unknown precision; warn of one that is slow here."""
    if precision not in PRECISIONS:
        raise BadParameter("precision", precision, "is not a precision", nearest(precision, PRECISIONS))
    if precision == "float32":
        return
    if dtype is not torch.float32:
        fix = 'convert the model with model.float(), or pass precision="float32", which leaves it as it is'
        raise BadParameter("precision", precision, "needs a model in float32, and this one is in float64", fix)
    if not has_accelerator() and not cpu_computes_in(precision):
        text = (
            f'precision = "{precision}": this machine has no GPU, and its CPU has no instructions for {precision}, so '
            'that autocast converts back and forth and can take 15 times as long as precision="float32". Use it for '
            "workers that have a GPU or such a CPU."
        )
        warnings.warn(text, UserWarning, stacklevel=4)


def check_compiler() -> None:
    """Raise unless torch.compile can work on this machine."""
    fix = "install one (Debian: apt install g++), or pass compile=False"
    wanted = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++", "cl"]
    if not any(shutil.which(name.split()[0]) for name in wanted):
        problem = f"needs a C++ compiler, and none of {', '.join(wanted)} is installed"
        raise BadParameter("compile", True, problem, fix)
    if sys.platform != "win32" and not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        problem = "needs the headers of Python, and there is no Python.h"
        raise BadParameter("compile", True, problem, "install them (Debian: apt install python3-dev), or compile=False")
    if " " in str(Path(torch.__file__).parent):
        problem = "cannot link in an environment whose path has a space: PyTorch gives the linker the path as two"
        raise BadParameter("compile", True, problem, "move the environment, or pass compile=False")
    try:
        torch._dynamo.eval_frame.check_if_dynamo_supported()
    except RuntimeError as error:
        raise BadParameter("compile", True, f"is not possible here ({error})", "pass compile=False") from None


def copied(model: nn.Module) -> nn.Module:
    """Return a copy of the model. A model that cannot be copied could not be sent to workers either."""
    try:
        return deepcopy(model)
    except Exception as error:
        fix = "keep open files, locks and connections out of it, or open them when first used"
        raise BadParameter("model", type(model).__name__, f"cannot be copied ({error})", fix) from error
