"""Find step sizes: six trials for each contestant with a quarter of the tokens, three with all, in simulated time.

Asynchronous DiLoCo with compression takes the step sizes of the one without. `setting.py` holds the best ones. The part
also tries what we did not choose: momentum, other numbers of local steps, and state that starts afresh.
"""

from __future__ import annotations

from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import ddp
import quality
import setting

import asyncsgd as asgd

SEED = 0
INNER, OUTER = (1.6e-2, 2.4e-2), ((1.0, 0.0), (1.5, 0.0), (0.7, 0.9))
"""Step sizes of AdamW, and (step size, momentum) of the server; 0.7 and 0.9 are those of the papers."""
PEAKS = {"ddp": (4e-3, 8e-3, 1.2e-2, 1.6e-2, 2.4e-2, 3.2e-2), "plain": (1e-3, 2e-3, 4e-3, 8e-3, 1.2e-2, 1.6e-2)}


def others() -> dict[str, asgd.Method]:
    """Return variants of asynchronous DiLoCo that we did not choose, and decoupled DiLoCo."""
    make, base = setting.async_diloco, setting.async_diloco()
    decoupled = {
        "steps": setting.STEPS,
        "inner_stepsize": setting.schedule(setting.PEAKS[setting.BUDGET]["async_diloco"]),
    }
    plain = asgd.optimizers.momentum(0.9, nesterov=True)
    return {
        "async_diloco, fresh state": make(kept=False),
        "async_diloco, momentum 0.5": make(outer=1.0, momentum=0.5),
        "async_diloco, 20 steps": make(steps=20),
        "async_diloco, 200 steps": make(steps=200),
        "async_diloco, 50 steps each, step 2": setting.equal_steps(outer=2.0),
        "async_diloco, Nesterov at each arrival, 0.07": base.using(
            optimizer=plain, step=asgd.steps.constant(0.07), name="nesterov"
        ),
        "decoupled_diloco": setting.keep(asgd.decoupled_diloco(setting.OUTER, momentum=0.0, **decoupled)),
        "diloco, fresh state": setting.diloco(kept=False),
    }


def trials() -> dict[str, tuple[str, tuple[float, ...]]]:
    """Return (contestant, numbers to try) by the name of the trial."""
    found: dict[str, tuple[str, tuple[float, ...]]] = {}
    for name, peaks in PEAKS.items():
        found |= {f"{name} {peak:g}": (name, (peak,)) for peak in peaks}
    for name in ("diloco", "async_diloco", "equal_steps"):
        found |= {
            f"{name} {peak:g}, {outer:g}, {m:g}": (name, (peak, outer, m)) for peak in INNER for outer, m in OUTER
        }
    return found


WHOLE = {
    "ddp": tuple((peak,) for peak in (8e-3, 1.6e-2, 2.4e-2)),
    "plain": tuple((peak,) for peak in (4e-3, 8e-3, 1.2e-2)),
    "diloco": tuple((peak, 1.5) for peak in (8e-3, 1.6e-2, 2.4e-2)),
    "async_diloco": tuple((peak, 1.5) for peak in (8e-3, 1.6e-2, 2.4e-2)),
    "equal_steps": tuple((peak, 1.5) for peak in (8e-3, 1.6e-2, 2.4e-2)),
}
"""What is tried with all tokens: the step size of AdamW, and the server's that was best with a quarter of them."""


def _trial(name: str, numbers: tuple[float, ...]) -> float:
    if name == "ddp":
        return ddp.alone(SEED, *numbers)
    return quality.loss(getattr(setting, name)(*numbers), SEED)


def _other(name: str) -> float:
    return quality.loss(others()[name], SEED)


def part(options: Any) -> dict[str, Any]:
    """Try all step sizes, and return the losses."""
    setting.use(setting.QUARTER)
    start = {"initializer": setting.use, "initargs": (setting.QUARTER,)}
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn"), **start) as pool:
        asked = {name: pool.submit(_trial, *trial) for name, trial in trials().items()}
        asked |= {name: pool.submit(_other, name) for name in others()}
        quarter = _losses(asked)
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        whole = _losses(
            {
                f"{name} {', '.join(f'{number:g}' for number in numbers)}": pool.submit(_trial, name, numbers)
                for name, tried in WHOLE.items()
                for numbers in tried
            }
        )
    return {"seed": SEED, f"{setting.QUARTER} mini-batches": quarter, f"{setting.WHOLE} mini-batches": whole}


def _losses(asked: dict[str, Future[float]]) -> dict[str, float]:
    losses = {}
    for name, answer in asked.items():
        losses[name] = round(answer.result(), 4)
        print(f"   {name}: {losses[name]}", flush=True)
    return losses
