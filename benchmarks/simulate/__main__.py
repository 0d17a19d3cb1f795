"""Compare the simulator with what users would write instead, as ratios in one interleaved run: make bench-simulate.

Every round times all contestants one after the other; a ratio is the median over the rounds of the ratios within a
round, so that a slow minute of the machine slows both sides. Figures go to the terminal and to results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
import warnings
from pathlib import Path

import handwritten
import numpy as np

import asyncsgd as asgd
from asyncsgd.core.dispatch import AlwaysBusy, Uniform
from asyncsgd.simulation import compiled_replay
from asyncsgd.simulation._simulate import arrivals_of
from asyncsgd.simulation.schedule import schedule

SLOW = 16
LANES = 128


def seconds(function) -> float:
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def interleaved(rounds: int, **contestants) -> dict[str, np.ndarray]:
    """Return the seconds of every contestant in every round, after one warm-up run each."""
    for function in contestants.values():
        function()
    times = {name: np.empty(rounds) for name in contestants}
    for k in range(rounds):
        for name, function in contestants.items():
            times[name][k] = seconds(function)
    return times


def ratio(slow: np.ndarray, fast: np.ndarray) -> float:
    return float(np.median(slow / fast))


def loops(name, task, c_run, gradient, steps, rounds):
    """Compare one lane and many lanes with the loop in C and in NumPy, with the norm at every step."""
    x0, eta = task.initial(), 0.02
    method = asgd.async_sgd(eta)
    arrivals = arrivals_of(asgd.durations.fixed([1.0, float(SLOW)]), method, steps, 0)
    norms, measure = np.empty(steps), compiled_replay.Measure(every=1, wanted=("gradient_norm",))
    few = max(200, steps // 50)

    def lanes(count):
        sizes = list(np.geomspace(eta / 4, eta, count))
        return compiled_replay.replay_lanes(arrivals, task, method, [(size, 0) for size in sizes], measure)

    def in_c():
        c_run(x0.copy(), eta, SLOW, steps, norms)

    in_c()
    theirs = handwritten.numpy_loop(gradient, x0, eta, SLOW, few)
    assert np.allclose(norms[:few], theirs, rtol=1e-9), "the C loop computes something else"
    one = compiled_replay.replay_lanes(arrivals, task, method, [(eta, 0)], measure).metrics["gradient_norm"][1:, 0]
    assert np.allclose(one[:few], norms[:few], rtol=1e-9), "ours computes something else"
    times = interleaved(
        rounds,
        c=in_c,
        numpy=lambda: handwritten.numpy_loop(gradient, x0, eta, SLOW, few),
        one=lambda: compiled_replay.replay_lanes(arrivals, task, method, [(eta, 0)], measure),
        many=lambda: lanes(LANES),
        whole=lambda: asgd.simulate(task, method, asgd.durations.fixed([1.0, float(SLOW)]), iterations=steps, every=1),
    )
    per_step = {key: float(np.median(values)) / (few if key == "numpy" else steps) for key, values in times.items()}
    return {
        "steps": steps,
        "ns_per_step": {key: round(1e9 * value, 1) for key, value in per_step.items()},
        f"{name}: one lane / C": (ratio(times["c"], times["one"]), 0.7),
        f"{name}: one lane / NumPy": (ratio(times["numpy"] / few, times["one"] / steps), 50.0),
        f"{name}: each of {LANES} lanes on all cores / C": (ratio(times["c"], times["many"] / LANES), 4.0),
        f"{name}: simulate() with trace and identity / C": (ratio(times["c"], times["whole"]), None),
    }


def quadratic(library, rounds):
    task = asgd.tasks.paper_quadratic()
    hessian, linear = dense(task)
    return loops(
        "quadratic",
        task,
        lambda *rest: library.run_quadratic(len(linear), hessian, linear, *rest),
        lambda x: hessian @ x - linear,
        100_000,
        rounds,
    )


def dense(task):
    """Return H and c of a quadratic, from its own gradients."""
    size = len(task.initial())
    linear = -task.update(np.zeros(size), 0, 0)
    hessian = np.stack([task.update(unit, 0, 0) + linear for unit in np.eye(size)], axis=1)
    return np.ascontiguousarray(hessian), linear


def logistic(library, rounds):
    task = asgd.tasks.logistic(m=100, dim=20, workers=2)
    features, labels = np.ascontiguousarray(task.features), np.ascontiguousarray(task.signs, dtype=float)

    def gradient(x):
        z = labels * (features @ x)
        return features.T @ (-labels / (1 + np.exp(z))) / len(labels)

    return loops(
        "logistic",
        task,
        lambda *rest: library.run_logistic(*features.shape, features, labels, *rest),
        gradient,
        5_000,
        rounds,
    )


def schedules(rounds):
    random = np.random.default_rng(0)
    small, events, few = random.uniform(1, 2, 1000), 1_000_000, 20_000
    durations = asgd.durations.fixed(small)
    order = handwritten.simpy_schedule(small, 2_000)
    plan = schedule(AlwaysBusy(), durations, iterations=2_000)
    assert order == plan.job_worker[plan.arrival_job].tolist(), "SimPy sees other arrivals"
    large = asgd.durations.fixed(random.uniform(1, 2, 1_000_000))
    drawn = {n: asgd.durations.exponential(random.uniform(1, 2, n)) for n in (1_000, 1_000_000)}
    many = 4_000_000
    times = interleaved(
        rounds,
        simpy=lambda: handwritten.simpy_schedule(small, few),
        ours=lambda: schedule(AlwaysBusy(), durations, iterations=events),
        large=lambda: schedule(AlwaysBusy(), large, iterations=many),
        drawn=lambda: schedule(Uniform(100), drawn[1_000], iterations=events),
        drawn_large=lambda: schedule(Uniform(100_000), drawn[1_000_000], iterations=many),
    )
    return {
        "ns_per_event": {
            key: round(float(np.median(values)) / per * 1e9, 1)
            for (key, values), per in zip(times.items(), (few, events, many, events, many), strict=True)
        },
        "schedule, 1000 workers / SimPy": (ratio(times["simpy"] / few, times["ours"] / events), 25.0),
        "schedule, cost per event at 10^6 workers over 10^3 (at most 5)": (
            ratio(times["large"] / many, times["ours"] / events),
            -5.0,
        ),
        "schedule of Algorithm 2, exponential, 10^6 over 10^3": (
            ratio(times["drawn_large"] / many, times["drawn"] / events),
            None,
        ),
    }


MEMORY = """
import resource, numpy as np, asyncsgd as asgd
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.simulation.schedule import schedule
durations = asgd.durations.fixed(np.random.default_rng(0).uniform(1, 2, 1_000_000))
plan = schedule(AlwaysBusy(), durations, iterations=10_000_000)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2)
"""

SECOND_PROCESS = """
import sys, time
begin = time.perf_counter()
import asyncsgd as asgd
from asyncsgd.simulation import replay_kernel, schedule_kernel
task = asgd.tasks.paper_quadratic()
for slow in (2.0, 4.0):
    asgd.sweep(task, asgd.async_sgd, asgd.durations.fixed([1.0, slow]), stepsizes=asgd.grid(1e-2, 1, 21),
               iterations=2000, target=1e-8)
kernels = (replay_kernel.advance_built_in, schedule_kernel.run)
print(sum(sum(kernel.stats.cache_misses.values()) for kernel in kernels), time.perf_counter() - begin)
"""


def other_processes():
    def run(code):
        return subprocess.run(
            [sys.executable, "-c", code], check=True, capture_output=True, encoding="utf-8"
        ).stdout.split()

    run(SECOND_PROCESS)
    misses, whole = run(SECOND_PROCESS)
    return {
        "GiB of a process with 10^6 workers and 10^7 events (at most 2)": (float(run(MEMORY)[0]), -2.0),
        "functions compiled again by a second process (at most 0)": (float(misses), -0.0),
        "seconds of that second process, imports included": (float(whole), None),
    }


def figure():
    """Measure 141 step sizes for 8 delays of the paper's quadratic figure."""
    task = asgd.tasks.paper_quadratic()

    def run():
        for slow in (1, 2, 4, 8, 16, 32, 64, 128):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                asgd.sweep(
                    task,
                    asgd.async_sgd,
                    asgd.durations.fixed([1.0, float(slow)]),
                    stepsizes=asgd.grid(1e-5, 1e2, 141),
                    iterations=10_000,
                    target=1e-14,
                )

    run()
    return {"seconds for 141 steps x 8 delays of the paper's quadratic figure (at most 10)": (seconds(run), -10.0)}


def federated(rounds):
    """Measure FedAsync on a linear model 60 -> 10, one local step, batch 32: the kind of work of FLGo and FLSim."""
    import torch

    torch.set_num_threads(1)
    random = np.random.default_rng(0)
    workers, per_worker = 100, 60
    features = random.standard_normal((workers * per_worker, 60))
    labels = random.integers(0, 10, workers * per_worker)
    task = asgd.tasks.softmax(features, labels, workers=workers, batch=32)
    speeds = random.uniform(1, 10, workers)
    method = asgd.fedasync(0.6, concurrency=workers).local(1, 0.1).using(dispatch=AlwaysBusy())
    rows = np.arange(workers * per_worker).reshape(workers, per_worker)
    iterations, few = 5_000, 500

    def ours():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            asgd.simulate(task, method, asgd.durations.fixed(speeds), iterations=iterations, every=iterations)

    times = interleaved(
        rounds,
        ours=ours,
        torch=lambda: handwritten.torch_loop(features, labels, rows, speeds, few, 0.6, 0.1, 32, 0),
    )
    return {
        "us_per_update": {
            "ours": round(float(np.median(times["ours"])) / iterations * 1e6, 1),
            "torch": round(float(np.median(times["torch"])) / few * 1e6, 1),
        },
        "FedAsync on Linear 60->10 / torch autograd and a heap (one core each)": (
            ratio(times["torch"] / few, times["ours"] / iterations),
            10.0,
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    library = handwritten.compile_c()
    figures: dict[str, object] = {}
    verdicts = []
    parts = {
        "quadratic": lambda: quadratic(library, options.rounds),
        "logistic": lambda: logistic(library, options.rounds),
        "schedule": lambda: schedules(options.rounds),
        "processes": other_processes,
        "figure": figure,
        "federated": lambda: federated(options.rounds),
    }
    for part, run in parts.items():
        print(f"-- {part}", flush=True)
        found = run()
        figures[part] = found
        for name, value in found.items():
            if not isinstance(value, tuple):
                print(f"   {name}: {value}")
                continue
            measured, wanted = value
            held = None if wanted is None else measured <= -wanted if wanted <= 0 else measured >= wanted
            verdicts.append(held)
            goal = "" if wanted is None else f"   (wanted {'<=' if wanted <= 0 else '>='} {abs(wanted):g})"
            print(
                f"   {'·' if held is None else 'ok' if held else 'SHORT':5} {measured:8.2f}  {name}{goal}", flush=True
            )
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    options.output.write_text(json.dumps({"machine": machine, "rounds": options.rounds, **figures}, indent=2) + "\n")
    print(f"wrote {options.output.name}; {verdicts.count(False)} figures miss their target")


if __name__ == "__main__":
    main()
