"""Measure the trainer, as ratios in one interleaved run: make bench-trainer.

Each part is a module with a function ``part(options)`` that prints a table and returns (figures for results.json,
number of figures that miss their target). Parts that are not measured keep their figures in results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

import optimizers

PARTS = {
    "optimizers": optimizers.part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds to measure each contestant in a round")
    parser.add_argument("--sizes", type=lambda text: int(float(text)), nargs="+", help="numbers of parameters")
    parser.add_argument("--threads", type=int, help="threads of the server and of torch; default: all")
    parser.add_argument("--parts", nargs="+", default=tuple(PARTS), choices=tuple(PARTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    figures = json.loads(options.output.read_text("utf-8")) if options.output.exists() else {}
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    short = 0
    for name in options.parts:
        found, missed = PARTS[name](options)
        figures[name] = {"machine": machine, "rounds": options.rounds, "seconds": options.seconds, **found}
        short += missed
    options.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(f"wrote {options.output.name}; {short} figures miss their target")


if __name__ == "__main__":
    main()
