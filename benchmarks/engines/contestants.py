"""Ways to share one model that users would write themselves: each takes a task and returns updates per second.

All contestants compute with one thread, and the measurement starts once all workers are computing.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import threading
import time
from copy import deepcopy

import numpy as np
from workload import STEP, WORKERS, Meter


def one_thread() -> None:
    import torch

    torch.set_num_threads(1)


# The two yardsticks.


def bare_loop(dimension: int, seconds: float, gradients: int = 1) -> float:
    """Measure the limit: one core writes the newest model straight into the buffer that the next worker reads."""
    import torch

    x, buffer = torch.zeros(dimension), torch.zeros(dimension)
    given = [torch.full((dimension,), 1e-6) for _ in range(gradients)]
    for g in given:
        torch.add(x, g, alpha=-STEP, out=buffer)
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        for k in range(6):
            torch.add(x, given[k % gradients], alpha=-STEP, out=buffer)
            x, buffer = buffer, x
        count += 6
    return count / (now - begin)


def no_server(task, seconds: float) -> float:
    """Measure the workers alone, at a model that never changes."""
    context = multiprocessing.get_context("spawn")
    results, barrier = context.Queue(), context.Barrier(WORKERS)
    pool = [context.Process(target=_alone, args=(task, w, seconds, barrier, results)) for w in range(WORKERS)]
    for process in pool:
        process.start()
    total = sum(results.get() for _ in pool)
    for process in pool:
        process.join()
    return total


def _alone(task, worker, seconds, barrier, results) -> None:
    one_thread()
    x = task.initial()
    out = np.empty_like(x)
    for seed in range(3):
        task.update_into(x, worker, seed, out)
    barrier.wait()
    count, begin = 0, time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        task.update_into(x, worker, count, out)
        count += 1
    results.put(count / (now - begin))


# asyncsgd.


def asyncsgd(task, seconds: float, expected: float) -> float:
    """Measure `asgd.train` as a user calls it; ``expected`` updates per second determine how many to ask for."""
    import asyncsgd as asgd

    iterations = max(30, int(1.5 * seconds * expected))
    engine = asgd.engines.processes(workers=WORKERS, threads=1)
    run = asgd.train(task, asgd.async_sgd(STEP), engine=engine, iterations=iterations, every=iterations, progress=False)
    warm = iterations // 3  # the first gradients of torch are slow
    return (iterations - 1 - warm) / float(run.trace.time[-1] - run.trace.time[warm])


# Threads.


def threads(task, seconds: float) -> float:
    """Measure worker threads in the server's process; each gets a copy of the newest model."""
    import torch

    x = torch.from_numpy(task.initial().copy())
    gradients: queue.SimpleQueue = queue.SimpleQueue()
    models = [queue.SimpleQueue() for _ in range(WORKERS)]

    def work(worker: int) -> None:
        own = deepcopy(task)  # a torch module can be used by one thread only
        seed = worker
        while (model := models[worker].get()) is not None:
            gradients.put((worker, torch.from_numpy(own.update(model.numpy(), worker, seed))))
            seed += WORKERS

    pool = [threading.Thread(target=work, args=(worker,)) for worker in range(WORKERS)]
    for thread, model in zip(pool, models, strict=True):
        thread.start()
        model.put(x.clone())
    meter, over = Meter(seconds), False
    while not over:
        worker, gradient = gradients.get()
        x.add_(gradient, alpha=-STEP)
        models[worker].put(x.clone())
        over = meter.tick()
    for model in models:
        model.put(None)
    for thread in pool:
        thread.join()
    return meter.per_second


# multiprocessing.Queue.


def process_queue(task, seconds: float) -> float:
    """Measure `multiprocessing.Queue` with NumPy arrays."""
    return _queues(task, seconds, multiprocessing.get_context("spawn"), tensors=False)


def torch_queue(task, seconds: float) -> float:
    """Measure the queue of `torch.multiprocessing`, which moves tensors to shared memory."""
    import torch.multiprocessing

    return _queues(task, seconds, torch.multiprocessing.get_context("spawn"), tensors=True)


def _queues(task, seconds, context, tensors) -> float:
    import torch

    gradients, models = context.Queue(), [context.Queue() for _ in range(WORKERS)]
    pool = [
        context.Process(target=_queue_worker, args=(task, worker, models[worker], gradients, tensors))
        for worker in range(WORKERS)
    ]
    for process in pool:
        process.start()
    x = task.initial()
    tensor = torch.from_numpy(x)
    for model in models:
        model.put(tensor.clone() if tensors else x)
    meter, over = Meter(seconds), False
    while not over:
        worker, gradient = gradients.get()
        if tensors:
            tensor.add_(gradient, alpha=-STEP)
            models[worker].put(tensor.clone())
        else:
            x -= STEP * gradient
            models[worker].put(x)
        over = meter.tick()
    for process in pool:
        process.terminate()
    for process in pool:
        process.join()
    for each in (gradients, *models):
        each.cancel_join_thread()
        each.close()
    return meter.per_second


def _queue_worker(task, worker, models, gradients, tensors) -> None:
    import torch

    one_thread()
    seed = worker
    while True:
        model = models.get()
        gradient = task.update(model.numpy() if tensors else model, worker, seed)
        gradients.put((worker, torch.from_numpy(gradient) if tensors else gradient))
        seed += WORKERS


# torch.distributed.rpc.


def torch_rpc(task, seconds: float) -> float:
    """Measure torch RPC: workers send their gradient and get the newest model back, as in PyTorch's tutorials."""
    context = multiprocessing.get_context("spawn")
    results, port = context.Queue(), _free_port()
    pool = [
        context.Process(target=_rpc_process, args=(task, rank, port, seconds, results)) for rank in range(WORKERS + 1)
    ]
    for process in pool:
        process.start()
    found = results.get()
    for process in pool:
        process.join()
    return found


class _RpcServer:
    """The server in rank 0, with the lock that the tutorials use."""

    lock = threading.Lock()
    over = threading.Event()
    x = None
    meter: Meter

    @classmethod
    def push(cls, gradient):
        with cls.lock:
            if not cls.over.is_set():
                cls.x.add_(gradient, alpha=-STEP)
                if cls.meter.tick():
                    cls.over.set()
            return None if cls.over.is_set() else cls.x


def _push(gradient):
    return _RpcServer.push(gradient)


def _rpc_process(task, rank, port, seconds, results) -> None:
    import torch
    import torch.distributed.rpc as rpc

    one_thread()
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), GLOO_SOCKET_IFNAME="lo", TP_SOCKET_IFNAME="lo")
    if rank == 0:
        _RpcServer.x, _RpcServer.meter = torch.from_numpy(task.initial()), Meter(seconds)
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=WORKERS + 1)
    if rank == 0:
        _RpcServer.over.wait()
        results.put(_RpcServer.meter.per_second)
    else:
        x, seed = torch.from_numpy(task.initial()), rank
        while x is not None:
            gradient = torch.from_numpy(task.update(x.numpy(), rank - 1, seed))
            x = rpc.rpc_sync("rank0", _push, args=(gradient,))
            seed += WORKERS
    rpc.shutdown()


def _free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


# Starting a worker.


def spawned_worker(task) -> float:
    """Return the seconds until a process of `multiprocessing` (spawn) has computed its first gradient."""
    context = multiprocessing.get_context("spawn")
    ready = context.Event()
    begin = time.perf_counter()
    process = context.Process(target=_first_gradient, args=(task, ready))
    process.start()
    ready.wait()
    found = time.perf_counter() - begin
    process.join()
    return found


def _first_gradient(task, ready) -> None:
    one_thread()
    task.update(task.initial(), 0, 0)
    ready.set()


def replaced_worker(task, times: int) -> tuple[list[float], list[float]]:
    """Return the seconds from SIGKILL until the replacement has joined, and until its first gradient has arrived."""
    import asyncsgd as asgd
    from asyncsgd.core.events import Arrived, Joined
    from asyncsgd.core.server import Server

    x = task.initial()
    method = asgd.async_sgd(STEP)
    joined, answered = [], []
    with asgd.engines.processes(workers=WORKERS, threads=1).start(task, method.work, x) as pool:
        server = Server(x, method, allocate=pool.allocate)
        killed, begin, joined_at, pids = -1, 0.0, 0.0, {}
        while len(answered) < times:
            for report in pool.poll(1.0):
                now = time.perf_counter()
                if isinstance(report, Joined) and killed in report.workers:
                    joined_at = now
                if isinstance(report, Arrived):
                    worker = report.worker
                    pids[worker] = int(report.update[0])
                    if worker == killed and joined_at:
                        joined.append(joined_at - begin)
                        answered.append(now - begin)
                        killed = -1
                if type(report).__name__ not in ("Died",):
                    for command in server.handle(report).commands:
                        pool.execute(command)
            if killed < 0 and len(pids) == WORKERS:
                killed, begin, joined_at = len(answered) % WORKERS, time.perf_counter(), 0.0
                os.kill(pids.pop(killed), signal.SIGKILL)
    return joined, answered
