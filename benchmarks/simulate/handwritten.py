"""Loops that users would write instead: in C, in NumPy, with SimPy, with torch autograd and a heap."""

from __future__ import annotations

import ctypes
import heapq
import shutil
import subprocess
import tempfile
from pathlib import Path

import numpy as np


def compile_c() -> ctypes.CDLL:
    """Build loop.c for this machine."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("the comparison with C needs a compiler: install gcc and run this again")
    target = Path(tempfile.mkdtemp()) / "loop.so"
    source = Path(__file__).with_name("loop.c")
    subprocess.run([compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", target, source, "-lm"], check=True)
    library = ctypes.CDLL(str(target))
    array = np.ctypeslib.ndpointer(dtype=np.float64, flags="C_CONTIGUOUS")
    common = [array, ctypes.c_double, ctypes.c_int, ctypes.c_long, array]
    library.run_quadratic.argtypes = [ctypes.c_int, array, array, *common]
    library.run_logistic.argtypes = [ctypes.c_int, ctypes.c_int, array, array, *common]
    library.run_quadratic.restype = library.run_logistic.restype = ctypes.c_double
    return library


def numpy_loop(gradient, x, eta, slow, steps):
    """Run the same loop in NumPy, with the norm at every step."""
    x = x.copy()
    points = [x.copy(), x.copy()]
    norms = np.empty(steps)
    for t in range(steps):
        w = int(t % (slow + 1) == slow - 1)
        x -= eta * gradient(points[w])
        points[w] = x.copy()
        norms[t] = np.linalg.norm(gradient(x))
    return norms


def simpy_schedule(seconds, iterations):
    """Return the order of arrivals of always-busy workers, from SimPy."""
    import simpy

    environment = simpy.Environment()
    order: list[int] = []
    done = environment.event()

    def worker(number):
        while True:
            yield environment.timeout(seconds[number])
            order.append(number)
            if len(order) == iterations:
                done.succeed()

    for number in range(len(seconds)):
        environment.process(worker(number))
    environment.run(until=done)
    return order


def torch_loop(features, labels, rows, seconds, iterations, alpha, local_stepsize, batch, seed):
    """Run FedAsync as public frameworks simulate it: torch autograd and a heap in Python, one local step per job."""
    import torch

    torch.manual_seed(seed)
    x_all, y_all = torch.as_tensor(features), torch.as_tensor(labels)
    classes = int(labels.max()) + 1
    model = torch.nn.Linear(features.shape[1], classes, dtype=torch.float64)
    with torch.no_grad():
        model.weight.zero_()
        model.bias.zero_()
    loss = torch.nn.CrossEntropyLoss()
    generator = np.random.default_rng(seed)
    current = {name: value.clone() for name, value in model.state_dict().items()}
    heap = [(seconds[w], w, w, 0, current) for w in range(len(seconds))]
    heapq.heapify(heap)
    jobs = len(heap)
    for version in range(iterations):
        time, _, worker, assigned, point = heapq.heappop(heap)
        model.load_state_dict(point)
        optimizer = torch.optim.SGD(model.parameters(), lr=local_stepsize)
        picked = generator.choice(rows[worker], batch)
        optimizer.zero_grad()
        loss(model(x_all[picked]), y_all[picked]).backward()
        optimizer.step()
        weight = alpha / (1 + version - assigned) ** 0.5
        current = {name: (1 - weight) * current[name] + weight * value for name, value in model.state_dict().items()}
        heapq.heappush(heap, (time + seconds[worker], jobs, worker, version + 1, current))
        jobs += 1
    return current
