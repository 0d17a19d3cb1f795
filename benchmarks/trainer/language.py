"""The language model of examples/language_model.py: loss after equal tokens, and tokens per second.

**Loss.** The synchronous loop is what a PyTorch user writes: the same rows in the same order, AdamW with the same
schedule, weight decay and clipping. The asynchronous run is simulated with two equal workers, so every update but the
first is late by exactly one. It computes the same numbers as a real run with this order of arrivals. Each of three
seeds has its own initial model and its own order of rows. The loop comes twice: with the mini-batch of one worker and
as many updates, and with the mini-batches of both workers in one step, as DistributedDataParallel would have it. All
are tuned with as many peaks of the step size and the same values of AdamW's β1, as a delay acts like more momentum: a
quarter of the updates, with the first seed.

**Speed.** Tokens per second of `asgd.train` with two worker processes and the script's own mini-batches, over those of
the same worker processes that compute gradients at a model that never changes, without a server.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import sys
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

WORKERS = 2
ITERATIONS = {1: 16_800, 32: 700}
"""Number of updates of the part about the loss, by the rows of a mini-batch: two to three passes over the text. With
one row, noise costs more than a delay of one. The script's own mini-batches have 32."""
TUNING = 4
"""Tuning takes this fraction of the updates."""
SPEED_ROWS, SPEED_ITERATIONS = 32, 100
"""The same for the speed."""
BETAS, DECAY, BETA2 = (0.9, 0.5), 0.1, 0.95
EXCLUDED = ("bias", "norm", "embed")
SEEDS = (0, 1, 2)
WANTED_LOSS, WANTED_SPEED = 1.02, 0.9


class Setting(NamedTuple):
    """What all contestants are tuned with."""

    peak: float
    beta: float


def method(setting: Setting, iterations: int):
    import asyncsgd as asgd

    schedule = asgd.schedules.cosine(setting.peak, warmup=iterations // 8)
    optimizer = asgd.optimizers.adamw(setting.beta, BETA2, weight_decay=DECAY, exclude=EXCLUDED)
    return asgd.delay_adaptive(schedule).clipped(1.0).using(optimizer=optimizer)


def with_rows(rows: int, seed: int):
    from examples import language_model as example

    return example.task(seed=seed, size=example.USUAL._replace(rows=rows, accumulate=1))


def speed(iterations: int) -> float:
    """Return the tokens per second of `asgd.train` as a user calls it."""
    import asyncsgd as asgd
    from examples import language_model as example

    engine = asgd.engines.processes(WORKERS, threads=1)
    chosen = method(Setting(1e-3, BETAS[0]), iterations)
    run = asgd.train(example.task(), chosen, engine, iterations=iterations, every=iterations, progress=False)
    warm = iterations // 5
    passed = float(run.trace.time[-1] - run.trace.time[warm])
    return (iterations - 1 - warm) * SPEED_ROWS * example.LENGTH / passed


def asynchronous(rows: int, seed: int, setting: Setting, iterations: int) -> float:
    """Return the loss on held-out text of two equal workers."""
    import torch

    import asyncsgd as asgd

    torch.set_num_threads(1)
    speeds = asgd.durations.fixed([1.0] * WORKERS)
    chosen = method(setting, iterations)
    run = asgd.simulate(with_rows(rows, seed), chosen, speeds, iterations=iterations, every=iterations, seed=seed)
    return float(run.metrics["loss"][-1])


def synchronous(rows: int, seed: int, setting: Setting, iterations: int, workers: int = 1) -> float:
    """Return the loss on held-out text of a plain PyTorch loop with the same number of tokens."""
    import torch

    import asyncsgd as asgd
    from asyncsgd.tasks.epochs import rows_of_batch
    from examples import language_model as example

    torch.set_num_threads(1)
    task = with_rows(rows, seed)
    rows, iterations = workers * rows, iterations // workers
    model = task.module(task.initial()).train()
    plain = [p for name, p in model.named_parameters() if any(word in name for word in EXCLUDED)]
    others = [p for name, p in model.named_parameters() if not any(word in name for word in EXCLUDED)]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": others, "weight_decay": DECAY}]
    optimizer = torch.optim.AdamW(groups, lr=setting.peak, betas=(setting.beta, BETA2))
    schedule = asgd.schedules.cosine(setting.peak, warmup=iterations // 8, total=iterations)
    text = example.sources(1_000_000)
    data = example.Text(text[: len(text) * 19 // 20])
    for step in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = schedule.value(step)
        places = rows_of_batch(step, rows, len(data), seed)
        batch = torch.utils.data.default_collate([data[int(place)] for place in places])
        optimizer.zero_grad()
        model(batch["tokens"], labels=batch["labels"]).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    trained = [p for p in model.parameters() if p.requires_grad]
    x = np.concatenate([p.detach().numpy().reshape(-1) for p in trained])
    return float(task.evaluate(x)["loss"])


def _alone(worker: int, jobs: int, barrier, results) -> None:
    import torch

    from examples import language_model as example

    torch.set_num_threads(1)
    task = example.task()
    x = task.initial()
    out = np.empty_like(x)
    task.update_into(x, worker, 0, out, 0)
    barrier.wait()
    begin = time.perf_counter()
    for job in range(jobs):
        task.update_into(x, worker, job, out, job)
    results.put(jobs * SPEED_ROWS * example.LENGTH / (time.perf_counter() - begin))


def without_server(jobs: int) -> float:
    """Return the tokens per second of the same processes, at a model that never changes."""
    context = multiprocessing.get_context("spawn")
    results, barrier = context.Queue(), context.Barrier(WORKERS)
    workers = [context.Process(target=_alone, args=(worker, jobs, barrier, results)) for worker in range(WORKERS)]
    for process in workers:
        process.start()
    total = sum(results.get() for _ in workers)
    for process in workers:
        process.join()
    return total


KINDS = {
    "asynchronous": asynchronous,
    "synchronous": synchronous,
    "synchronous, both workers": partial(synchronous, workers=WORKERS),
}
PEAKS = {
    "asynchronous": (2.5e-4, 5e-4, 1e-3, 2e-3),
    "synchronous": (1e-3, 2e-3, 4e-3, 8e-3),
    "synchronous, both workers": (1e-3, 2e-3, 4e-3, 8e-3),
}
"""As many peaks of the step size for each; the best lies between others."""


Job = tuple[str, int, int, Setting, int]


def _loss(job: Job) -> float:
    kind, rows, seed, setting, iterations = job
    found = KINDS[kind](rows, seed, setting, iterations)
    print(f"   {kind}, {rows} rows, seed {seed}, {_named(setting)}: loss {found:.4f}", flush=True)
    return found


def _named(setting: Setting) -> str:
    return f"peak {setting.peak:g}, β1 {setting.beta:g}"


def losses(options) -> dict:
    """Measure the loss for each number of rows of a mini-batch."""
    figures = {name: row for name, row in options.before.items() if name.isdigit()}
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        for rows in options.rows or ITERATIONS:
            figures[str(rows)] = _losses(pool, rows, options.iterations or ITERATIONS[rows])
    return {"wanted_loss": WANTED_LOSS, "seeds": len(SEEDS), **figures}


def _losses(pool, rows: int, iterations: int) -> dict:
    """Tune all with the first seed, and compare them at their best with all seeds."""
    settings = {kind: [Setting(peak, beta) for peak in PEAKS[kind] for beta in BETAS] for kind in KINDS}
    tried = [(kind, rows, SEEDS[0], setting, iterations // TUNING) for kind in KINDS for setting in settings[kind]]
    tuning = dict(zip(tried, pool.map(_loss, tried, chunksize=1), strict=True))
    best = {kind: min((job for job in tried if job[0] == kind), key=tuning.__getitem__)[3] for kind in KINDS}
    wanted = [(kind, rows, seed, best[kind], iterations) for seed in SEEDS for kind in KINDS]
    found = dict(zip(wanted, pool.map(_loss, wanted, chunksize=1), strict=True))
    columns = {kind: [found[kind, rows, seed, best[kind], iterations] for seed in SEEDS] for kind in KINDS}
    means = {kind: statistics.mean(values) for kind, values in columns.items()}
    return {
        "iterations": iterations,
        "best": {kind: _named(setting) for kind, setting in best.items()},
        "tuning": {kind: {_named(job[3]): round(tuning[job], 4) for job in tried if job[0] == kind} for kind in KINDS},
        "losses": {kind: [round(value, 4) for value in values] for kind, values in columns.items()},
        "loss_over": {kind: round(means["asynchronous"] / mean, 4) for kind, mean in means.items()},
    }


def speeds(options) -> dict:
    """Measure tokens per second in turns."""
    ratios = []
    for _ in range(min(options.rounds, 5)):
        before = without_server(SPEED_ITERATIONS // 5)
        here = speed(SPEED_ITERATIONS)
        ratios.append(here / ((before + without_server(SPEED_ITERATIONS // 5)) / 2))
        print(f"   tokens per second over those without a server: {ratios[-1]:.3f}", flush=True)
    return {
        "tokens_per_second_over_no_server": round(statistics.median(ratios), 3),
        "speeds": [round(value, 3) for value in ratios],
        "wanted_speed": WANTED_SPEED,
    }
