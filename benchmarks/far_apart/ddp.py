"""DistributedDataParallel over gloo: AdamW on the mean of four gradients, with the same pauses as our workers."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from typing import Any

import setting


def _optimizer(network: Any) -> Any:
    import torch

    return torch.optim.AdamW(network.parameters(), lr=0.0, weight_decay=setting.DECAY)


def _value(peak: float, step: int) -> float:
    """Return the step size of one step, which uses as many mini-batches as there are ranks."""
    return setting.schedule(peak).value(step * setting.WORKERS)


def _batch(data: Any, number: int, count: int) -> Any:
    """Return mini-batches number to number + count - 1 of the epoch, as one."""
    import numpy as np
    import torch

    from asyncsgd.tasks.epochs import rows_of_batch

    rows = [rows_of_batch(number + k, setting.SIZE.rows, len(data), 0) for k in range(count)]
    return torch.utils.data.default_collate([data[int(row)] for row in np.concatenate(rows)])


def _loss(network: Any, test: Any) -> float:
    import torch

    total = 0.0
    with torch.no_grad():
        for begin in range(0, len(test), 64):
            batch = torch.utils.data.default_collate([test[row] for row in range(begin, min(begin + 64, len(test)))])
            total += float(network(batch["tokens"], labels=batch["labels"]).loss) * len(batch["tokens"])
    return total / len(test)


def alone(seed: int, peak: float) -> float:
    """Return the loss at the end of the same steps in one process: the four mini-batches of a step are one batch.

    Their mean gradient is that of the all-reduce, up to rounding.
    """
    import torch

    torch.set_num_threads(1)
    network = setting.model(seed)
    data, test = setting.texts(seed)
    optimizer = _optimizer(network)
    for step in range(setting.BUDGET // setting.WORKERS):
        for group in optimizer.param_groups:
            group["lr"] = _value(peak, step)
        batch = _batch(data, step * setting.WORKERS, setting.WORKERS)
        optimizer.zero_grad()
        network(batch["tokens"], labels=batch["labels"]).loss.backward()
        optimizer.step()
    return _loss(network, test)


def _rank(rank: int, seed: int, peak: float, unit: float, budget: int, every: int, folder: str, results: Any) -> None:
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    setting.use(budget)
    steps = budget // setting.WORKERS
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=setting.WORKERS)
    network = DistributedDataParallel(setting.model(seed))
    data, test = setting.texts(seed)
    optimizer, least = _optimizer(network), unit * setting.SECONDS[rank]
    curve = []
    dist.barrier()
    begin, paused = time.perf_counter(), 0.0
    for step in range(steps):
        before = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = _value(peak, step)
        optimizer.zero_grad()
        batch = _batch(data, step * setting.WORKERS + rank, 1)
        value = network(batch["tokens"], labels=batch["labels"]).loss
        # Sleep before the all-reduce, which is a part of `backward`: a slow machine would arrive there late. A backward
        # pass takes about twice as long as a forward pass.
        time.sleep(max(0.0, least - 3 * (time.perf_counter() - before)))
        value.backward()
        optimizer.step()
        if rank == 0 and ((step + 1) % every == 0 or step + 1 == steps):
            now = time.perf_counter()
            curve.append((now - begin - paused, _loss(network.module, test)))
            paused += time.perf_counter() - now  # our evaluations run beside the training, so these do not count
    if rank == 0:
        results.put(curve)
    dist.destroy_process_group()


def real(seed: int, peak: float, unit: float, every: int = 50) -> list[tuple[float, float]]:
    """Return (seconds, loss) along a real run of four processes."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, seed, peak, unit, setting.BUDGET, every, folder, results))
            for rank in range(setting.WORKERS)
        ]
        for process in ranks:
            process.start()
        curve = results.get()
        for process in ranks:
            process.join()
    return curve
