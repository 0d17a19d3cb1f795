"""What a torch model must be to be trained here, and what its owner should know."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from asyncsgd.core.errors import BadParameter
from asyncsgd.tasks.torch_model import calibrated_norms, job_modes, trained


def check_module(model: Any) -> torch.dtype:
    """The type of the numbers of a model that can be trained; anything else is refused."""
    kind = type(model).__name__
    if not isinstance(model, nn.Module):
        raise BadParameter("model", kind, "is no torch module", "pass an nn.Module")
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
        raise BadParameter("model", shown, "are several types of numbers, and a flat vector has one", fix)
    if parameters[0].dtype not in (torch.float32, torch.float64):
        fix = "convert it with model.float(); inside forward, torch.autocast may use half precision"
        raise BadParameter("model", shown, "are numbers that updates cannot be added up in", fix)
    return parameters[0].dtype


def check_function(name: str, function: Any, example: str) -> None:
    """Whether it can be called with outputs and targets; a class would make an object of them."""
    if isinstance(function, type):
        raise BadParameter(name, function.__name__, "is a class", f"pass an object of it: {function.__name__}()")
    if not callable(function):
        raise BadParameter(name, function, "cannot be called, as it is no function", f"pass {example}")


def copied(model: nn.Module) -> nn.Module:
    """A copy of its own; a model that holds what cannot be copied could not be sent to workers either."""
    try:
        return deepcopy(model)
    except Exception as error:
        fix = "keep open files, locks and connections out of it, or open them when first used"
        raise BadParameter("model", type(model).__name__, f"cannot be copied ({error})", fix) from error


def notes(module: nn.Module, calibration: int) -> tuple[str, ...]:
    """Sentences about what is not trained by gradients."""
    probe = deepcopy(module)
    modes = job_modes(probe)
    norms = calibrated_norms(modes)
    says = []
    if not module.training:
        says.append("The model came in eval mode; jobs run it in train mode.")
    if norms:
        kinds = "/".join(dict.fromkeys(type(norm).__name__ for norm in norms))
        says.append(
            f"{kinds}: a job normalises by its own batch; running statistics are recomputed from "
            f"{calibration} rows of the training data when the model is evaluated or handed out."
        )
    theirs = {id(buffer) for norm in norms for buffer in norm.buffers(recurse=False)}
    constants = [name for name, buffer in probe.named_buffers() if id(buffer) not in theirs]
    if constants:
        shown = ", ".join(constants[:3]) + (", ..." if len(constants) > 3 else "")
        says.append(f"Constants, restored before every job: {len(constants)} buffers ({shown}).")
    frozen = sum(not parameter.requires_grad for parameter in probe.parameters())
    if frozen:
        says.append(f"Not trained: {frozen} parameters with requires_grad=False.")
    return tuple(says)
