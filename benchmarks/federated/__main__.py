"""Compare federated methods by their time to an accuracy, and predict Flower's speed: make bench-federated.

Each part is a module with a function ``part(options)`` that prints its figures and returns them for results.json, where
they stand under the name of the part. Parts that are not measured keep their figures there.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
from pathlib import Path

import accuracy
import four_apps
import in_flower
import many
import prediction
import when

PARTS = {
    "accuracy": accuracy.part,
    "when": when.part,
    "flower": in_flower.part,
    "prediction": prediction.part,
    "many": many.part,
    "apps": four_apps.part,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5, help="seeds of the part accuracy")
    parser.add_argument("--rounds", type=int, default=2, help="repetitions of the parts flower, prediction and apps")
    parser.add_argument("--processes", type=int, default=os.cpu_count(), help="simulations at the same time")
    parser.add_argument("--parts", nargs="+", default=tuple(PARTS), choices=tuple(PARTS))
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # context managers stop Flower's programs
    for library in ("OMP", "OPENBLAS"):  # simulations and clients share the cores: each gets one thread
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    figures = json.loads(options.output.read_text("utf-8")) if options.output.exists() else {}
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    for name in options.parts:
        print(name, flush=True)
        figures[name] = {"machine": machine, **PARTS[name](options)}
        options.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(f"wrote {options.output.name}")


if __name__ == "__main__":
    main()
