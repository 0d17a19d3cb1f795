"""Devices: which one each worker computes on, and how its task learns about it.

An engine chooses one device per worker and names it as PyTorch does: ``cpu``, ``cuda:0``, ``mps``. The worker passes
the name to ``task.use_device(device)`` in its own process, after the task was loaded there and before the first job.
So the server needs no GPU, and never opens one: it only compares names.

A task without ``use_device`` computes on the CPU. A model larger than one device is not supported: a worker has one.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadParameter

CPU = "cpu"
KINDS = (CPU, "cuda", "mps", "xpu", "hpu", "xla", "meta")
"""Kinds of devices, by PyTorch's names. ROCm calls its GPUs ``cuda`` too."""
NAME = re.compile(rf"({'|'.join(KINDS)})(:\d+)?")
GPU_FILE = re.compile(r"nvidia\d+")
LONGEST = 300


def check_devices(devices: str | Sequence[str] | None) -> tuple[str, ...]:
    """Return the names of the devices, in order; an empty tuple for None.

    >>> check_devices(["cuda:0", "cuda:1"]), check_devices("cpu"), check_devices(None)
    (('cuda:0', 'cuda:1'), ('cpu',), ())
    """
    if devices is None:
        return ()
    names = [devices] if isinstance(devices, str) else devices
    example = 'pass names such as "cpu" or ["cuda:0", "cuda:1"]'
    if not isinstance(names, Sequence) or not names:
        raise BadParameter("devices", devices, "is not a list of devices", example)
    for name in names:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise BadParameter("devices", name, "is not a device", f"{example}; the kinds are {', '.join(KINDS)}")
    return tuple(names)


def visible_gpus() -> int:
    """Return the number of CUDA GPUs that PyTorch can use on this machine; 0 if PyTorch is not installed.

    If PyTorch is already imported, it is asked. Otherwise it is not imported for this, as that takes seconds: its
    version file says whether it was built for CUDA, and the driver has one file ``/dev/nvidia0``, ``/dev/nvidia1``, ...
    per GPU, of which ``CUDA_VISIBLE_DEVICES`` may select some. GPUs of other makers are found only if PyTorch is
    imported; name them in ``devices``.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        return int(torch.cuda.device_count())
    files = _gpu_files()
    selected = os.environ.get("CUDA_VISIBLE_DEVICES")
    if selected is not None:
        names = [name.strip() for name in selected.split(",")]
        unusable = [place for place, name in enumerate(names) if name in ("", "-1")]  # CUDA ignores all from there on
        files = min(files, unusable[0] if unusable else len(names))
    return files if files and _built_for_cuda() else 0


def _gpu_files() -> int:
    return sum(GPU_FILE.fullmatch(name) is not None for name in os.listdir("/dev")) if os.path.isdir("/dev") else 0


def _built_for_cuda() -> bool:
    found = find_spec("torch")
    for folder in (found.submodule_search_locations or []) if found is not None else []:
        try:
            text = (Path(folder) / "version.py").read_text("utf-8")
        except OSError:
            continue
        return re.search(r"^cuda\b[^=]*=\s*['\"]", text, re.MULTILINE) is not None
    return False


def can_use_devices(task: Any) -> bool:
    """Return whether the task has the method ``use_device``."""
    return callable(getattr(task, "use_device", None))


def check_task(task: Any, name: str, value: Any) -> None:
    """Raise `BadParameter` about this argument unless the task can use a device other than the CPU."""
    if not can_use_devices(task):
        problem = f"is for tasks that choose their device, and {type(task).__name__} has no method use_device(device)"
        raise BadParameter(name, value, problem, f"add the method, or leave {name} out to compute on the CPU")


def tell(task: Any, device: str) -> str:
    """Call ``task.use_device(device)`` if the task has that method. Return why that failed, or an empty text.

    Only a worker calls this, in its own process.
    """
    if not can_use_devices(task):
        return ""
    try:
        task.use_device(device)
    except BaseException as error:  # also SystemExit, so that the server learns why the worker is not ready
        if isinstance(error, BadParameter):
            return f"it {error.problem}"
        lines = str(error).strip().splitlines() or ["no reason given"]
        return f"{type(error).__name__}: {lines[0][:LONGEST]}"
    return ""
