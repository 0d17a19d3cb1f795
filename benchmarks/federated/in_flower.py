"""FedAvg and FedBuff in Flower's own simulation, in real time: clients sleep as long as slow machines would compute.

The setting, the data and the step sizes are those of the part `accuracy`. The simulation's time, in units of a fast
client's job, stands beside the measured seconds.
"""

from __future__ import annotations

import json
import math
import statistics
import tempfile
from pathlib import Path
from typing import Any

import federation
import numpy as np
import setting
from setting import AT_ONCE, BATCH, BUFFER, CLIENTS, HELD, LEVELS, STEPS, Setting

SECONDS = 0.5
"""Of a job of a fast client."""
NAMES = {"FedAvg": "flower-fedavg", "FedBuff": "fedbuff", "FedBuff, idle clients": "fedbuff-idle"}
LIMIT = 600
"""Updates after which a run that did not reach the level ends."""


def write_data(path: Path, seed: int) -> float:
    """Write the rows of all clients, and return the accuracy to reach."""
    task, where = setting.task(seed), Setting()
    bounds = np.asarray(task.rows.bounds).reshape(CLIENTS, 2)
    held = {"test_features": task.test_features, "test_labels": task.test_labels}
    np.savez(path, features=task.features, labels=task.labels, bounds=bounds, ridge=task.rows.ridge, **held)
    return LEVELS[0] * setting.best_accuracy(seed, where.split)


def reached(rows: list[dict[str, float]], target: float) -> float:
    """Return the time of the first of `HELD` evaluations in a row at the target."""
    good = [row["accuracy"] >= target for row in rows]
    found = (rows[k]["time"] for k in range(len(rows) - HELD + 1) if all(good[k : k + HELD]))
    return next(found, math.inf)


def finite(seconds: float) -> float | None:
    """Return a time for JSON: None if the accuracy was not reached."""
    return round(seconds, 2) if math.isfinite(seconds) else None


def part(options: Any) -> dict[str, Any]:
    """Run the contestants in turns, seed by seed."""
    level = f"{LEVELS[0]:.0%}"
    tuned = json.loads(options.output.read_text("utf-8"))["accuracy"]["contestants"]
    found: dict[str, dict[str, list[float]]] = {name: {"seconds": [], "simulated units": []} for name in NAMES}
    for seed in range(options.rounds):
        with (
            tempfile.TemporaryDirectory(prefix="asyncsgd-bench-") as folder,
            federation.superlink(Path(folder)) as environment,
        ):
            home = Path(folder)
            target = write_data(home / "data.npz", seed)
            for name, method in NAMES.items():
                local, server = tuned[name][level]["steps"]
                simulated = setting.measure(setting.methods(name, Setting())[local, server], Setting(), seed).times[0]
                config = {"data": str(home / "data.npz"), "method": method, "target": target, "held": HELD}
                config |= {"clients": CLIENTS, "at_once": AT_ONCE, "buffer": BUFFER, "updates": LIMIT, "seed": seed}
                config |= {"stepsize": server, "local_stepsize": local, "steps": STEPS, "batch": BATCH}
                config |= {"seconds": SECONDS, "factor": Setting().factor, "slow": Setting().slow}
                rows = federation.run(home, environment, f"{method}-{seed}", actors=AT_ONCE, **config).rows
                seconds = reached(rows, target)
                found[name]["seconds"].append(finite(seconds))
                found[name]["simulated units"].append(finite(simulated))
                print(f"   seed {seed}  {name:22} {seconds:7.1f} s, simulated {simulated * SECONDS:7.1f} s", flush=True)
    base = found["FedAvg"]["seconds"]
    for name, row in found.items():
        pairs = zip(base, row["seconds"], strict=True)
        row["times as soon as FedAvg"] = [round(a / b, 3) if a and b else 0.0 for a, b in pairs]
        print(f"   {name:22} {statistics.median(row['times as soon as FedAvg']):.2f} times as soon as FedAvg")
    return {"seconds of a fast job": SECONDS, "level": LEVELS[0], "contestants": found}
