"""Tasks with habits, in a module that workers can import."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.errors import Stopped
from asyncsgd.core.vectors import Vector
from asyncsgd.engines._processes import worker as module
from asyncsgd.engines.devices import KINDS
from asyncsgd.testing.bench import Bowl
from asyncsgd.testing.faults import job_seed


class Awkward(Bowl):
    """Job 0 fails, and its worker waits at a gate before it writes down why."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.gate = folder / f"gate-{job_seed(0, 0)}"

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        if seed == job_seed(0, 0):
            write = module.write_note

            def slowly(note: Vector, text: str) -> None:
                self.gate.read_bytes()
                write(note, text)

            module.write_note = slowly
            raise RuntimeError
        return super().update(x, worker, seed)


class Quitting(Bowl):
    """Job 0 raises what only the engine should."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        if seed == job_seed(0, 0):
            raise Stopped
        return super().update(x, worker, seed)


class Spinning(Bowl):
    """Computes for a while."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        end = time.perf_counter() + 0.002
        while time.perf_counter() < end:
            pass
        return super().update(x, worker, seed)


class Employer(Bowl):
    """Starts a process as it is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.hires = True

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.hired = subprocess.Popen([sys.executable, "-c", "pass"])


class Choosy(Bowl):
    """Has a device. Its update says which process it is in, which device it was told, and which GPUs that sees."""

    def __init__(self, broken: str = "") -> None:
        super().__init__(4)
        self.device, self.process = "none", 0
        self.broken = broken

    def use_device(self, device: str) -> None:
        assert self.device == "none"
        if device == self.broken:
            raise RuntimeError(f"{device} is not there\nand never was")
        self.device, self.process = device, os.getpid()

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        kind, _, number = self.device.partition(":")
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        numbers = (KINDS.index(kind), int(number or -1), self.process == os.getpid(), int(visible or -1))
        return np.array(numbers, dtype=float)


def told(update: Vector) -> tuple[str, bool, int]:
    """(the device, whether it was told in the process that computes, CUDA_VISIBLE_DEVICES or -1), from an update."""
    kind, number, here, visible = map(int, update)
    return KINDS[kind] + (f":{number}" if number >= 0 else ""), bool(here), visible
