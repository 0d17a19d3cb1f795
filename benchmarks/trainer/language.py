"""The language model of examples/language_model.py: loss after equal tokens, and tokens per second.

The synchronous loop is what a PyTorch user writes: one process with all cores, the same rows in the same order, AdamW
with the same schedule, weight decay and clipping. Tokens per second are compared with the same worker processes that
compute gradients at a model that never changes, without a server.
"""

from __future__ import annotations

import multiprocessing
import statistics
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

WORKERS, ROWS = 2, 32
ITERATIONS, WARMUP, PEAK, DECAY = 400, 50, 1e-3, 0.1
EXCLUDED = ("bias", "norm", "embed")
SEEDS = (0, 1, 2)
WANTED_LOSS, WANTED_SPEED = 1.02, 0.9


def method():
    import asyncsgd as asgd

    peak = asgd.schedules.cosine(PEAK, warmup=WARMUP)
    optimizer = asgd.optimizers.adamw(weight_decay=DECAY, exclude=EXCLUDED)
    return asgd.delay_adaptive(peak).clipped(1.0).using(optimizer=optimizer)


def asynchronous(seed: int, iterations: int) -> tuple[float, float]:
    """Return (loss on held-out text, tokens per second) of `asgd.train` as a user calls it."""
    import asyncsgd as asgd
    from examples import language_model as example

    engine = asgd.engines.processes(WORKERS, threads=1)
    task = example.task(seed=seed)
    run = asgd.train(task, method(), engine, iterations=iterations, every=iterations, seed=seed, progress=False)
    warm = iterations // 5
    passed = float(run.trace.time[-1] - run.trace.time[warm])
    return float(run.metrics["loss"][-1]), (iterations - 1 - warm) * ROWS * example.LENGTH / passed


def synchronous(seed: int, iterations: int) -> float:
    """Return the loss on held-out text of a plain PyTorch loop with the same number of tokens."""
    import torch

    import asyncsgd as asgd
    from asyncsgd.tasks.epochs import rows_of_batch
    from examples import language_model as example

    task = example.task(seed=seed)
    model = task.module(task.initial()).train()
    plain = [p for name, p in model.named_parameters() if any(word in name for word in EXCLUDED)]
    others = [p for name, p in model.named_parameters() if not any(word in name for word in EXCLUDED)]
    groups = [{"params": plain, "weight_decay": 0.0}, {"params": others, "weight_decay": DECAY}]
    optimizer = torch.optim.AdamW(groups, lr=PEAK)
    schedule = asgd.schedules.cosine(PEAK, warmup=WARMUP, total=iterations)
    text = example.sources(1_000_000)
    data = example.Text(text[: len(text) * 19 // 20])
    for step in range(iterations):
        for group in optimizer.param_groups:
            group["lr"] = schedule.value(step)
        rows = rows_of_batch(step, ROWS, len(data), 0)
        batch = torch.utils.data.default_collate([data[int(row)] for row in rows])
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
    results.put(jobs * ROWS * example.LENGTH / (time.perf_counter() - begin))


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


def part(options) -> dict:
    """Measure both, and return the figures."""
    iterations = options.iterations or ITERATIONS
    rows, speeds = [], []
    for seed in SEEDS:
        bare = without_server(iterations // 10)
        loss, speed = asynchronous(seed, iterations)
        plain = synchronous(seed, iterations)
        speeds.append(speed / ((bare + without_server(iterations // 10)) / 2))
        rows.append((loss, plain))
        print(f"   seed {seed}: loss {loss:.4f}, synchronous {plain:.4f}, speed {speeds[-1]:.3f}", flush=True)
    losses = [statistics.mean(column) for column in zip(*rows, strict=True)]
    figures = {
        "iterations": iterations,
        "loss_over_synchronous": round(losses[0] / losses[1], 4),
        "losses": [[round(value, 4) for value in row] for row in rows],
        "wanted_loss": WANTED_LOSS,
        "tokens_per_second_over_no_server": round(statistics.median(speeds), 3),
        "speeds": [round(value, 3) for value in speeds],
        "wanted_speed": WANTED_SPEED,
    }
    print(f"   {figures}", flush=True)
    return figures
