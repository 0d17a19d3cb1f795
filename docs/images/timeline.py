"""Draw docs/images/timeline.svg: the same eight workers, synchronous and asynchronous, from two simulated traces.

Run it with the `report` extra installed: python docs/images/timeline.py
"""

from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np

import asyncsgd as asgd

HORIZON = 21.0
WORKERS = 8


def draw(axes: plt.Axes, trace: asgd.Trace, title: str) -> mpl.cm.ScalarMappable:
    colours = mpl.cm.ScalarMappable(mpl.colors.LogNorm(1, 80), "viridis_r")
    jobs = trace.jobs
    ends = np.where(np.isnan(jobs.ended_time), np.inf, jobs.ended_time)
    done = 0
    for worker, begin, end, s, t in zip(
        jobs.worker, jobs.assigned_time, ends, jobs.assigned_iteration, jobs.ended_iteration, strict=True
    ):
        if begin >= HORIZON:
            continue
        finished = end <= HORIZON
        done += finished
        axes.barh(
            worker,
            min(end, HORIZON) - begin,
            left=begin,
            height=0.72,
            color=colours.to_rgba(1 + t - s) if finished else "#dddddd",
            edgecolor="white",
            linewidth=1.2,
        )
    axes.set_title(f"{title}: {done} gradients in {HORIZON:.0f} s", loc="left", fontsize=11)
    axes.set_yticks(range(WORKERS), [f"worker {k}" for k in range(WORKERS)], fontsize=8)
    axes.set_xlim(0, HORIZON)
    axes.invert_yaxis()
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    return colours


def main() -> None:
    task = asgd.tasks.quadratic(workers=WORKERS)
    speeds = asgd.durations.fixed([1.0, 1.15, 1.3, 1.5, 1.75, 2.0, 2.5, 10.0])
    figure, panels = plt.subplots(2, 1, figsize=(9, 5.2), sharex=True, layout="constrained")
    for axes, method, title in (
        (panels[0], asgd.minibatch_sgd(0.05), "Mini-batch SGD, all workers wait"),
        (panels[1], asgd.async_sgd(0.05), "Asynchronous SGD, no worker waits"),
    ):
        run = asgd.simulate(task, method, speeds, iterations=200)
        colours = draw(axes, run.trace, title)
    panels[1].set_xlabel("simulated seconds")
    bar = figure.colorbar(colours, ax=panels, label="delay of the gradient, in iterations", shrink=0.8)
    bar.set_ticks([1, 2, 4, 8, 16, 32, 64], labels=["0", "1", "3", "7", "15", "31", "63"])
    target = Path(__file__).with_suffix(".svg")
    figure.savefig(target, metadata={"Date": None})
    print(f"wrote {target.name}")


if __name__ == "__main__":
    mpl.rcParams["svg.hashsalt"] = "asyncsgd"  # the same bytes every time
    main()
