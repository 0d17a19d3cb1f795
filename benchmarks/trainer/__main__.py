"""Measure the trainer, as ratios in one interleaved run: make bench-trainer.

Each part is a module with a function ``part(options)`` that prints its figures and returns them for results.json, where
they stand under the name of the part. Parts that are not measured keep their figures there. ``options.before`` holds
the earlier figures of a part, for those that measure only some of their rows.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
from pathlib import Path

import fashion
import language
import memory
import optimizers

PARTS = {
    "optimizers": optimizers.part,
    "memory": memory.part,
    "fashion": fashion.part,
    "tokens": language.speeds,
    "language": language.losses,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=0.5, help="seconds to measure each contestant in a round")
    parser.add_argument("--sizes", type=lambda text: int(float(text)), nargs="+", help="numbers of parameters")
    parser.add_argument("--gradients", type=int, help="gradients to time in the part fashion")
    parser.add_argument("--slowest", type=int, nargs="+", help="factors of the slow worker in the part fashion")
    parser.add_argument("--stepsizes", type=float, nargs="+", help="step sizes to try in the part fashion")
    parser.add_argument("--rows", type=int, nargs="+", choices=tuple(language.ITERATIONS), help="for the part language")
    parser.add_argument("--iterations", type=int, help="updates of the part language")
    parser.add_argument("--threads", type=int, help="threads of the server and of torch; default: all")
    parser.add_argument("--parts", nargs="+", default=tuple(PARTS), choices=tuple(PARTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    figures = json.loads(options.output.read_text("utf-8")) if options.output.exists() else {}
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    for name in options.parts:
        options.before = figures.get(name, {})
        figures[name] = {"machine": machine, "rounds": options.rounds, **PARTS[name](options)}
    options.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(f"wrote {options.output.name}")


if __name__ == "__main__":
    main()
