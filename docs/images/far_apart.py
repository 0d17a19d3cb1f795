"""Draw docs/images/far-apart.svg from the figures of the benchmark: python docs/images/far_apart.py"""

from __future__ import annotations

import json
from pathlib import Path

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
SHOWN = {
    "ddp": ("DDP, sends every gradient and waits", "#999999"),
    "diloco": ("DiLoCo, waits for the slowest worker", "#c44e52"),
    "async_diloco": ("asynchronous DiLoCo", "#1f77b4"),
    "async_diloco, 50 steps each, int4 up, bfloat16 down": ("asynchronous DiLoCo, int4 up, bfloat16 down", "#2ca02c"),
}


def main() -> None:
    """Draw the loss over the seconds of the first seed."""
    found = json.loads((ROOT / "benchmarks" / "far_apart" / "results.json").read_text("utf-8"))["clock"]
    plt.rcParams.update({"svg.hashsalt": "asyncsgd", "svg.fonttype": "none", "font.size": 10})
    figure, axes = plt.subplots(figsize=(8, 3.8), layout="constrained")
    for name, (label, colour) in SHOWN.items():
        curve = found["contestants"][name]["curves"][0]
        axes.plot(*zip(*curve, strict=True), color=colour, label=label, linewidth=1.8)
        axes.plot(*curve[-1], "o", color=colour, markersize=5)
    axes.set_xlabel("seconds")
    axes.set_ylabel("loss on held-out text")
    axes.set_ylim(top=4.0)
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    target = Path(__file__).with_name("far-apart.svg")
    figure.savefig(target, metadata={"Date": None})
    target.write_text("\n".join(line.rstrip() for line in target.read_text("utf-8").splitlines()) + "\n", "utf-8")


if __name__ == "__main__":
    main()
