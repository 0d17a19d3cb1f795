"""Fashion-MNIST with two workers, beside DistributedDataParallel over gloo: gradients per second, and time to 86 %.

Both sides compute the same gradients: the same model, loss, rows per batch and one thread per worker. A step of DDP
averages two gradients, one per process. A slow worker sleeps three times as long as its own gradient takes, on both
sides. With DDP the gradient is a forward and a backward pass without the all-reduce, which overlaps the backward pass
and is not slower on a slow worker. Each process times it before the run, under ``no_sync``, both at the same time.
"""

from __future__ import annotations

import gzip
import multiprocessing
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np

FOLDER = Path("/usr/share/datasets/fashion-mnist")
"""Where Debian's package dataset-fashion-mnist puts its files."""
WORKERS, BATCH, ACCURACY = 2, 32, 0.86
STEPSIZES = (0.05, 0.1, 0.2)
GRADIENTS = {"mlp": 6000, "cnn": 1500}
"""Gradients to time; the first third is not counted."""
EVERY = 200
"""Gradients between two evaluations on the way to the accuracy."""
MOST = 20_000
"""Gradients after which a contestant counts as not having reached the accuracy."""
WARM_UP, TIMED = 20, 50
"""Gradients before those that are timed to know how long the slow worker of DDP sleeps, and their number."""
SLOWEST = (1, 4)
WANTED = {("cnn", 1): 1.1, ("mlp", 1): 2.5, ("cnn", 4): 2.3, ("mlp", 4): 2.3}


def read(name: str, folder: Path = FOLDER) -> tuple[np.ndarray, np.ndarray]:
    """Return (images as rows of 784 numbers in 0..1, labels) of ``train`` or ``t10k``."""
    if not folder.exists():
        raise SystemExit(f"{folder} does not exist; install Debian's package: apt-get install dataset-fashion-mnist")
    with gzip.open(folder / f"{name}-images-idx3-ubyte.gz") as file:
        images = np.frombuffer(file.read(), np.uint8, offset=16).reshape(-1, 784)
    with gzip.open(folder / f"{name}-labels-idx1-ubyte.gz") as file:
        labels = np.frombuffer(file.read(), np.uint8, offset=8)
    return images.astype(np.float32) / 255, labels.astype(np.int64)


def model(kind: str):
    import torch
    from torch import nn

    torch.manual_seed(0)
    if kind == "mlp":
        return nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    convolutions += [nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *convolutions, nn.Flatten(), nn.Linear(32 * 49, 10))


# asyncsgd.


def task(kind: str):
    import torch
    from torch import nn

    import asyncsgd as asgd

    torch.set_num_threads(1)
    return asgd.tasks.torch(model(kind), nn.CrossEntropyLoss(), read("train"), batch_size=BATCH, test=read("t10k"))


def engine(slow: float):
    import asyncsgd as asgd

    return asgd.engines.processes(WORKERS, threads=1, slowdown=[1.0, slow] if slow > 1 else None)


def our_speed(kind: str, slow: float, gradients: int) -> float:
    """Measure gradients per second of `asgd.train` as a user calls it."""
    import asyncsgd as asgd

    problem = task(kind)
    run = asgd.train(problem, asgd.async_sgd(0.05), engine(slow), iterations=gradients, every=gradients, progress=False)
    warm = gradients // 3  # the first gradients of torch are slow
    return (gradients - 1 - warm) / float(run.trace.time[-1] - run.trace.time[warm])


def our_time(kind: str, slow: float, stepsize: float) -> float:
    """Measure the seconds until the accuracy is reached, evaluations included."""
    import asyncsgd as asgd

    method = asgd.delay_adaptive(stepsize) if slow > 1 else asgd.async_sgd(stepsize)
    run = asgd.train(
        task(kind), method, engine(slow), iterations=MOST, every=EVERY, until=f"accuracy >= {ACCURACY}", progress=False
    )
    reached = np.flatnonzero(run.metrics["accuracy"] >= ACCURACY)
    return float(run.metrics["time"][reached[0]]) if len(reached) else float("inf")


# DistributedDataParallel.


def _rank(rank, kind, slow, gradients, stepsize, folder, results) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=WORKERS)
    images, labels = (torch.from_numpy(part) for part in read("train"))
    network, loss = DistributedDataParallel(model(kind)), nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(network.parameters(), lr=stepsize)
    draws = torch.Generator().manual_seed(rank)

    def gradient_of(rows) -> None:
        loss(network(images[rows]), labels[rows]).backward()

    took = []
    with network.no_sync():
        for _ in range(WARM_UP + TIMED):
            optimizer.zero_grad()
            rows = torch.randint(len(images), (BATCH,), generator=draws)
            before = time.perf_counter()
            gradient_of(rows)
            took.append(time.perf_counter() - before)
    pause = (slow - 1) * statistics.median(took[WARM_UP:]) if rank == 1 else 0.0
    until = gradients is None
    test = tuple(torch.from_numpy(part) for part in read("t10k")) if until and rank == 0 else None
    steps = (MOST if until else gradients) // WORKERS
    flag = torch.zeros(1)
    begin, warm = time.perf_counter(), 0.0
    for step in range(steps):
        if not until and step == steps // 3:
            warm = time.perf_counter()
        rows = torch.randint(len(images), (BATCH,), generator=draws)
        optimizer.zero_grad()
        if pause:  # before the all-reduce, as a slow machine would arrive there late
            time.sleep(pause)
        gradient_of(rows)
        optimizer.step()
        if until and (step + 1) * WORKERS % EVERY == 0:
            if test is not None:
                with torch.no_grad():
                    found = torch.cat([network.module(part) for part in test[0].split(256)]).argmax(1)
                flag[0] = float((found == test[1]).double().mean()) >= ACCURACY
            dist.broadcast(flag, 0)
            if flag.item():
                break
    now = time.perf_counter()
    if rank == 0:
        reached = now - begin if flag.item() else float("inf")
        results.put(reached if until else WORKERS * (steps - steps // 3) / (now - warm))
    dist.destroy_process_group()


def ddp(kind: str, slow: float, gradients: int | None, stepsize: float = 0.05) -> float:
    """Measure gradients per second, or with ``gradients=None`` the seconds until the accuracy is reached."""
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [
            context.Process(target=_rank, args=(rank, kind, slow, gradients, stepsize, folder, results))
            for rank in range(WORKERS)
        ]
        for process in ranks:
            process.start()
        value = results.get()
        for process in ranks:
            process.join()
    return value


# Both, in turns.


def part(options) -> dict:
    """Measure both contestants in turns; return the figures. Rows that are not measured keep their figures."""
    figures = {name: row for name, row in options.before.items() if "slowest worker" in name}
    for kind in ("mlp", "cnn"):
        for slow in options.slowest or SLOWEST:
            found = measured(kind, slow, options)
            figures[f"{kind}, slowest worker {slow}x"] = found
            print(f"   {kind}, slowest worker {slow}x: {found}", flush=True)
    return figures


def measured(kind: str, slow: int, options) -> dict:
    """Return the figures of a model and a factor."""
    gradients = options.gradients or GRADIENTS[kind]
    ours, theirs = [], []
    for _ in range(options.rounds):
        theirs.append(ddp(kind, slow, gradients))
        ours.append(our_speed(kind, slow, gradients))
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    times: dict[str, dict[float, float]] = {"asyncsgd": {}, "ddp": {}}
    for stepsize in options.stepsizes or STEPSIZES:
        times["asyncsgd"][stepsize] = our_time(kind, slow, stepsize)
        times["ddp"][stepsize] = ddp(kind, slow, None, stepsize)
    return {
        "rounds": options.rounds,
        "gradients_per_second_over_ddp": round(statistics.median(ratios), 3),
        "ratios": [round(ratio, 3) for ratio in ratios],
        "wanted": WANTED.get((kind, slow)),
        "gradients_per_second": round(statistics.median(ours), 1),
        "gradients_per_second_of_ddp": round(statistics.median(theirs), 1),
        "seconds_to_accuracy": {name: {str(e): round(t, 2) for e, t in rows.items()} for name, rows in times.items()},
        "time_to_accuracy_over_ddp": round(min(times["asyncsgd"].values()) / min(times["ddp"].values()), 3),
    }
