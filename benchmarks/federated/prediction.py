"""Predict the time per update of 1,000 clients in Flower's simulation from a pilot run with 250 of them.

Clients only sleep, each for a time of its own. Flower's simulation engine has as many Ray actors as jobs are in flight,
so no job waits for an actor. What Flower itself takes per message is part of the pilot's durations: pilot and run have
the same number of jobs in flight, so they load the machine alike.

The 250 clients of the pilot are a sample: their mean differs from that of all clients by 3 % (one standard deviation).
So we also predict with the seconds that each of the 1,000 clients sleeps, plus what Flower took in the pilot.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

import federation
import numpy as np

import asyncsgd as asgd

CLIENTS, PILOT = 1000, 250
AT_ONCE = 8
UPDATES, PILOT_UPDATES = 1000, 750
SECONDS, SPREAD = 0.3, 0.4
"""The median of the clients' seconds per job, and the standard deviation of their logarithm."""
GOAL = 0.15


def config(clients: int, updates: int, seed: int) -> dict[str, Any]:
    """Return the app's settings. Client k of the pilot sleeps as long as client k of the run."""
    return {
        "clients": clients,
        "updates": updates,
        "at_once": AT_ONCE,
        "seconds": SECONDS,
        "spread": SPREAD,
        "slow": 0,
        "seed": seed,
        "method": "algorithm-2",
    }


def pace(trace: asgd.trace.Trace) -> float:
    """Return seconds per update, from the end of the first jobs in flight to the end of the run."""
    jobs = trace.jobs
    ended = np.sort(jobs.ended_time[jobs.arrived])
    return float((ended[-1] - ended[AT_ONCE - 1]) / (len(ended) - AT_ONCE))


def predict(pilot: asgd.durations.Durations, clients: int, at_once: int, updates: int, seed: int) -> asgd.Run:
    """Simulate ``clients`` clients that are copies of those of the pilot, or a few less if they do not divide."""
    many = asgd.durations.concatenate([pilot] * (clients // pilot.workers))
    task = asgd.tasks.quadratic(workers=many.workers, dim=2)
    method = asgd.federated_async_sgd(0.001, concurrency=at_once)
    return asgd.simulate(task, method, many, iterations=updates, every=updates, seed=seed)


def predicted(durations: asgd.durations.Durations) -> float:
    """Return the simulated seconds per update of all clients, as a mean over five seeds."""
    return statistics.fmean(pace(predict(durations, CLIENTS, AT_ONCE, UPDATES, seed).trace) for seed in range(5))


def slept(seed: int, clients: int) -> np.ndarray:
    """Return how long each client sleeps, as fed_app.client_app draws it."""
    draws = [np.random.default_rng((seed, client)).standard_normal() for client in range(clients)]
    return SECONDS * np.exp(SPREAD * np.asarray(draws))


def part(options: Any) -> dict[str, Any]:
    """Measure pilot and run in turns, and compare."""
    rows = []
    for seed in range(options.rounds):
        with (
            tempfile.TemporaryDirectory(prefix="asyncsgd-bench-") as folder,
            federation.superlink(Path(folder)) as environment,
        ):
            home = Path(folder)
            small = federation.run(home, environment, "pilot", actors=AT_ONCE, **config(PILOT, PILOT_UPDATES, seed))
            large = federation.run(home, environment, "run", actors=AT_ONCE, **config(CLIENTS, UPDATES, seed))
            assert small.trace is not None
            assert large.trace is not None
            pilot = asgd.durations.from_trace(small.trace)
            seen = pilot.workers
            means = np.asarray(pilot.means)
            own = float(means.mean() - slept(seed, PILOT).mean())
            exact = asgd.durations.fixed((slept(seed, CLIENTS) + own).tolist())
            found = pace(large.trace)
            row = {
                "measured seconds per update": round(found, 5),
                "predicted over measured": round(predicted(pilot) / found, 4),
                "predicted over measured, all sleeps known": round(predicted(exact) / found, 4),
                "pilot: clients seen": seen,
                "standard error of the pilot's mean": round(float(means.std() / means.mean() / seen**0.5), 4),
                "Flower's own seconds per job in the pilot": round(own, 4),
                "sleep of the pilot's clients over that of all": round(
                    float(slept(seed, PILOT).mean() / slept(seed, CLIENTS).mean()), 4
                ),
                "seconds of the 1,000 in Flower": round(large.seconds, 1),
            }
            rows.append(row)
            print("   " + ", ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    worst = max(abs(row["predicted over measured"] - 1) for row in rows)
    print(f"   worst error {worst:.1%}; our target is {GOAL:.0%}", flush=True)
    return {"clients": CLIENTS, "in flight": AT_ONCE, "goal": GOAL, "worst error": round(worst, 4), "rounds": rows}
