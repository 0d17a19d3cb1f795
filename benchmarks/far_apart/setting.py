"""What all contestants share: the model, the text, the speeds of the workers, and the tokens they may use.

Four workers take 0.58, 0.75, 1.51 and 3.33 units of time for a mini-batch. Everyone gets the same number of
mini-batches of 512 tokens, and a step size that warms up and decays to zero over these mini-batches.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Subset

import asyncsgd as asgd

sys.path.insert(0, str(Path(__file__).parents[2]))

from examples import language_model as example

SIZE = example.Size(layers=1, width=16, length=32, rows=16, accumulate=1)
SECONDS = example.SECONDS
WORKERS = len(SECONDS)
WHOLE, QUARTER = 19_200, 4_800
"""Mini-batches of all workers together: two passes over the text, and a quarter of that for real time and tuning."""
BUDGET = WHOLE
"""The mini-batches of the part that is measured; `use` changes it."""
HELD_OUT = 1024
"""Rows on which the loss is measured."""
TOKENS = SIZE.rows * SIZE.length
"""Tokens of a mini-batch."""
STEPS = 50
"""Local steps of a job: H."""
DECAY = 0.1
EQUAL = "async_diloco, 50 steps each"
INT8 = "async_diloco, 50 steps each, int8 up"
SMALL = "async_diloco, 50 steps each, int4 up, bfloat16 down"


def use(budget: int) -> None:
    """Measure with this many mini-batches in this process."""
    global BUDGET
    BUDGET = budget


def texts(seed: int, budget: int | None = None) -> tuple[Subset, example.Text]:
    """Return the text to train on, ``budget`` mini-batches in the order of this seed, and the text held out."""
    cut = HELD_OUT * SIZE.length + 1
    text = example.sources(cut + (budget or BUDGET) * TOKENS + 1)
    data = example.Text(text[cut:], SIZE.length)
    order = torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))
    return Subset(data, order.tolist()), example.Text(text[:cut], SIZE.length)


def model(seed: int) -> example.TinyGPT:
    """Return the model before training. It has 7,920 parameters."""
    torch.manual_seed(seed)
    return example.TinyGPT(vocab=256, layers=SIZE.layers, width=SIZE.width, length=SIZE.length)


def task(seed: int, budget: int | None = None) -> asgd.tasks.TorchTask:
    """Return the task; the seed decides the initial model and the order of the rows."""
    torch.set_num_threads(1)
    data, test = texts(seed, budget)
    return asgd.tasks.torch(
        model(seed),
        step=lambda model, batch: model(batch["tokens"], labels=batch["labels"]).loss,
        data=data,
        batch_size=SIZE.rows,
        sampling="epochs",
        test=test,
    )


def schedule(peak: float, budget: int | None = None) -> asgd.schedules.Schedule:
    """Return the step size that every contestant uses: warm-up, then cosine decay."""
    total = budget or BUDGET
    return asgd.schedules.cosine(peak, warmup=total // 12, total=total)


PEAKS = {
    QUARTER: {"ddp": 3.2e-2, "plain": 1.2e-2, "diloco": 2.4e-2, "async_diloco": 2.4e-2, "equal_steps": 2.4e-2},
    WHOLE: {"ddp": 1.6e-2, "plain": 8e-3, "diloco": 2.4e-2, "async_diloco": 8e-3, "equal_steps": 2.4e-2},
}
"""The best step size of AdamW that `tuning` found, for each number of mini-batches."""
OUTER = 1.5
"""The best step size of the server that `tuning` found, without momentum; it is the same for all."""


def plain(peak: float | None = None) -> asgd.Method:
    """Return asynchronous AdamW: every gradient is sent, and late ones get a smaller step."""
    value = schedule(peak or PEAKS[BUDGET]["plain"])
    return asgd.delay_adaptive(value).using(optimizer=asgd.optimizers.adamw(weight_decay=DECAY))


def diloco(peak: float | None = None, outer: float = OUTER, momentum: float = 0.0, *, kept: bool = True) -> asgd.Method:
    """Return synchronous DiLoCo."""
    value = schedule(peak or PEAKS[BUDGET]["diloco"])
    method = asgd.diloco(outer, steps=STEPS, inner_stepsize=value, momentum=momentum)
    return keep(method) if kept else method


def async_diloco(
    peak: float | None = None, outer: float = OUTER, momentum: float = 0.0, *, kept: bool = True, **options: Any
) -> asgd.Method:
    """Return asynchronous DiLoCo: Delayed Nesterov, and by default steps by measured speed."""
    value = schedule(peak or PEAKS[BUDGET]["async_diloco"])
    given = {"steps": STEPS, "inner_stepsize": value, "momentum": momentum, **options}
    method = asgd.async_diloco(outer, **given)
    return keep(method) if kept else method


def equal_steps(
    peak: float | None = None, outer: float = OUTER, momentum: float = 0.0, *, budget: int | None = None
) -> asgd.Method:
    """Return asynchronous DiLoCo whose workers all take as many steps per job."""
    value = schedule(peak or PEAKS[BUDGET]["equal_steps"], budget)
    return async_diloco(None, outer, momentum, per_worker=None, inner_stepsize=value)


def keep(method: asgd.Method) -> asgd.Method:
    """Return the same method with inner state that stays on the worker from job to job."""
    return method.using(work=replace(method.work, state="kept"))


def contestants() -> dict[str, asgd.Method]:
    """Return the methods of this library, by the name under which the figures stand."""
    dylu, equal = async_diloco(), equal_steps()
    return {
        "diloco": diloco(),
        "async_diloco": dylu,
        EQUAL: equal,
        INT8: equal.compressed("int8"),
        SMALL: equal.compressed("int4", down="bfloat16"),
        "async_diloco, 50 steps each, top_k up": equal.compressed(asgd.compression.top_k(0.01)),
        "plain": plain(),
    }
