"""When asynchrony helps: the number of slow clients, how slow they are, and how much the data differ.

Every contestant is tuned in every setting with one seed and eight pairs of step sizes, and measured with three others.
A federation of four clients is tuned and measured as the part accuracy is: two seeds, twelve pairs, five other seeds.
"""

from __future__ import annotations

import math
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
FOUR = [
    Setting(1, factor, split, clients=4, at_once=4, buffer=2, kept=3, asked=4)
    for factor, split in ((10.0, "iid"), (10.0, "dirichlet"))
]
"""Four clients, one of them slow. A round has all four; over-selection asks four clients and waits for three."""
LOCAL = setting.LOCAL[1:]
SEEDS, FOUR_SEEDS = 3, 5


def one(name: str, where: Setting) -> tuple[tuple[float, float], list[float], float]:
    """Return the step sizes, the times to the higher level, and the updates per unit of time."""
    pair = accuracy.tuned(name, where, accuracy.TUNING[:1], LOCAL)[-1]
    runs = [setting.measure(setting.methods(name, where)[pair], where, seed) for seed in range(SEEDS)]
    return pair, [run.times[-1] for run in runs], statistics.fmean(run.rate for run in runs)


def part(options: Any) -> dict[str, Any]:
    """Measure all settings, and return the times that FedAvg takes over those of each other contestant."""
    rows = []
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        asked = {where: {name: pool.submit(one, name, where) for name in NAMES} for where in SETTINGS}
        small = {
            where: {name: pool.submit(accuracy.times, name, where, FOUR_SEEDS) for name in NAMES} for where in FOUR
        }
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
                f"   {where.split}, {where.slow} of {where.clients} clients {where.factor:g} times slower: "
                f"{', '.join(cells)}",
                flush=True,
            )
        found = [four(where, {name: answer.result() for name, answer in small[where].items()}) for where in FOUR]
    return {"level": LEVELS[-1], "seeds": SEEDS, "settings": rows, "four clients": found}


def four(where: Setting, found: dict[str, Any]) -> dict[str, Any]:
    """Return the figures of four clients, and print them."""
    for rows in found.values():
        for level, row in rows.items():
            # Infinite times on both sides: such a seed counts as 1, as above.
            sooner = sorted(
                1.0 if math.isnan(value) else value for value in accuracy.ratios(rows, found["FedAvg"], level)
            )
            row["times as soon as FedAvg"] = [round(value, 3) if math.isfinite(value) else None for value in sooner]
    for name, rows in found.items():
        cells = (f"{level} after {accuracy.median(row['times']):.0f}" for level, row in rows.items())
        print(f"   {where.split}, {where.slow} of {where.clients} clients slow, {name}: {', '.join(cells)}", flush=True)
    return {**where._asdict(), "seeds": FOUR_SEEDS, "contestants": found}
