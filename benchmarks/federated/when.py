"""When asynchrony helps: the number of slow clients, how slow they are, and how much the data differ.

Every contestant is tuned in every setting with one seed and eight pairs of step sizes, and measured with three others.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import accuracy
import setting
from setting import LEVELS, Setting

NAMES = ("FedAvg", "over-selection", "FedBuff", "FedBuff, idle clients", "CA²FL, idle clients", "Algorithm 2")
SETTINGS = [
    Setting(slow, factor, split)
    for slow, factor, split in (
        (0, 1.0, "iid"),
        (4, 10.0, "iid"),
        (0, 1.0, "dirichlet"),
        (4, 2.0, "dirichlet"),
        (4, 5.0, "dirichlet"),
        (4, 10.0, "dirichlet"),
        (1, 10.0, "dirichlet"),
        (10, 10.0, "dirichlet"),
    )
]
LOCAL = setting.LOCAL[1:]
SEEDS = 3


def one(name: str, where: Setting) -> tuple[tuple[float, float], list[float], float]:
    """Return the step sizes, the times to the higher level, and the updates per unit of time."""
    pair = accuracy.tuned(name, where, accuracy.TUNING[:1], LOCAL)[-1]
    runs = [setting.measure(setting.methods(name)[pair], where, seed) for seed in range(SEEDS)]
    return pair, [run.times[-1] for run in runs], statistics.fmean(run.rate for run in runs)


def part(options: Any) -> dict[str, Any]:
    """Measure all settings, and return the times that FedAvg takes over those of each other contestant."""
    rows = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        asked = {where: {name: pool.submit(one, name, where) for name in NAMES} for where in SETTINGS}
        for where, answers in asked.items():
            row: dict[str, Any] = {**where._asdict(), "times as soon as FedAvg": {}, "updates, over FedAvg's": {}}
            _, base, pace = answers["FedAvg"].result()
            for name in NAMES[1:]:
                _, times, rate = answers[name].result()
                # With infinite times on both sides nothing can be said: such a seed counts as 1.
                sooner = [1.0 if a == b else a / b for a, b in zip(base, times, strict=True)]
                row["times as soon as FedAvg"][name] = [round(value, 3) for value in sorted(sooner)]
                row["updates, over FedAvg's"][name] = round(rate / pace, 3)
            rows.append(row)
            cells = (f"{name} {statistics.median(some):.2f}" for name, some in row["times as soon as FedAvg"].items())
            print(
                f"   {where.split}, {where.slow} clients {where.factor:g} times slower: {', '.join(cells)}", flush=True
            )
    return {"level": LEVELS[-1], "seeds": SEEDS, "settings": rows}
