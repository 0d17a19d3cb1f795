"""Apps written as Flower's examples are, beside a slow client: their stock FedAvg server, and their asynchronous one.

The apps are those of tests/flower/apps. Both servers run in Flower's own simulation, in real time, with the same
clients, of which one waits for some seconds after training. The servers write a line with the time and the accuracy for
every model that they evaluate. The first line is the initial model's, and times count from there. Flower starts the
processes of clients when they get their first message, which may take longer than all of the training. So every client
gets two messages before the server starts. benchmarks/README.md says how the asynchronous settings were chosen.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

import federation
import numpy as np

from asyncsgd.run.read import read_trace

APPS = Path(__file__).parents[2] / "tests" / "flower" / "apps"
NAMES = ("numpy_legacy", "sklearn_legacy", "torch_legacy", "sklearn_app", "torch_app")
SERVERS = {"FedAvg": "server_app", "asynchronous": "async_server_app"}
CLIENTS = 4
SLOW_SECONDS = 1.0
"""How long client 0 waits after each training. A job of any other client takes a few tenths of a second.
With 3 s the asynchronous run ended before client 0 had answered once."""
ROUNDS = 10
"""Of FedAvg. The asynchronous server gets as many updates."""
MARGIN = 0.01
WARM = '''"""The server of the app, once the processes of all clients have started."""

import time

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import ServerApp
from {name}.{module} import app as inner

app = ServerApp()


@app.main()
def main(grid, context):
    while len(nodes := list(grid.get_node_ids())) < context.run_config["clients"]:
        time.sleep(0.2)
    for turn in range(2):  # clients answer with an error, as they have no function for queries, after loading the app
        content = RecordDict({{"config": ConfigRecord()}})
        grid.send_and_receive([Message(content, node, "query", group_id=f"warm-up-{{turn}}") for node in nodes])
    inner(grid, context)
'''


class Accuracies(NamedTuple):
    """The accuracy of every model that a server evaluated, and the seconds since the first of them."""

    seconds: list[float]
    accuracy: list[float]
    fewest: int | None
    """Updates of the client that gave the fewest, in an asynchronous run: the slow one."""

    @classmethod
    def read(cls, output: Path, run: Path) -> Accuracies:
        rows = [tuple(map(float, line.split())) for line in output.read_text("utf-8").splitlines()]
        fewest = int(np.bincount(read_trace(run).worker, minlength=CLIENTS).min()) if run.exists() else None
        return cls([when - rows[0][0] for when, _ in rows], [accuracy for _, accuracy in rows], fewest)

    def reached(self, target: float) -> float:
        """Return the seconds until the first model with this accuracy."""
        pairs = zip(self.seconds, self.accuracy, strict=True)
        return next((seconds for seconds, accuracy in pairs if accuracy >= target), math.inf)


def with_server(name: str, module: str, folder: Path) -> Path:
    """Return a copy of an app whose ServerApp warms up its clients and then calls the one in this module."""
    app = folder / f"{name}-{module}"
    shutil.copytree(APPS / name, app, ignore=shutil.ignore_patterns("__pycache__"))
    settings = (app / "pyproject.toml").read_text("utf-8")
    (app / "pyproject.toml").write_text(settings.replace(f"{name}.server_app:", f"{name}.warm:"), "utf-8")
    (app / name / "warm.py").write_text(WARM.format(name=name, module=module), "utf-8")
    return app


def measured(home: Path, environment: dict[str, str], name: str, module: str, turn: int) -> Accuracies:
    """Run an app once with one of its servers."""
    folder = home / f"{turn}"
    output, run = folder / f"{name}-{module}.accuracy", folder / f"{name}-{module}-run"
    config = {"clients": CLIENTS, "num_server_rounds": ROUNDS, "slow_seconds": SLOW_SECONDS}
    config |= {"directory": str(run)}
    app = with_server(name, module, folder)
    federation.flwr_run(environment, app, output, folder / f"{name}-{module}.log", actors=CLIENTS, **config)
    return Accuracies.read(output, run)


def compared(runs: dict[str, list[Accuracies]]) -> dict[str, Any]:
    """Return the figures of one app. The target of a repetition is the accuracy at the end of its FedAvg."""
    targets = [run.accuracy[-1] - MARGIN for run in runs["FedAvg"]]
    row: dict[str, Any] = {}
    for server, repetitions in runs.items():
        times = [run.reached(target) for run, target in zip(repetitions, targets, strict=True)]
        row[server] = {
            "accuracy at the end": [round(run.accuracy[-1], 4) for run in repetitions],
            "seconds to FedAvg's accuracy less 1 %": [round(time, 2) if time < math.inf else None for time in times],
            "seconds in all": [round(run.seconds[-1], 2) for run in repetitions],
        }
    row["updates of the slow client, of all"] = [[run.fewest, ROUNDS * CLIENTS] for run in runs["asynchronous"]]
    pairs = zip(*(row[server]["seconds to FedAvg's accuracy less 1 %"] for server in SERVERS), strict=True)
    row["times as soon as FedAvg"] = [0.0 if ours is None else round(flowers / ours, 3) for flowers, ours in pairs]
    return row


def part(options: Any) -> dict[str, Any]:
    """Run all apps with both servers in turns, ``options.rounds`` times."""
    runs: dict[str, dict[str, list[Accuracies]]] = {name: {server: [] for server in SERVERS} for name in NAMES}
    for turn in range(options.rounds):
        with (
            tempfile.TemporaryDirectory(prefix="asyncsgd-bench-") as folder,
            federation.superlink(Path(folder)) as environment,
        ):
            for name in NAMES:
                for server, module in SERVERS.items():
                    run = measured(Path(folder), environment, name, module, turn)
                    runs[name][server].append(run)
                    last, seconds = run.accuracy[-1], run.seconds[-1]
                    print(f"   turn {turn}  {name:15} {server:13} {last:.3f} after {seconds:5.1f} s", flush=True)
    found = {name: compared(runs[name]) for name in NAMES}
    for name, row in found.items():
        sooner = statistics.median(row["times as soon as FedAvg"])
        ends = ", ".join(f"{server} {statistics.fmean(row[server]['accuracy at the end']):.3f}" for server in SERVERS)
        print(f"   {name:15} {sooner:5.2f} times as soon at FedAvg's accuracy less 1 %; at the end: {ends}", flush=True)
    setting = {"clients": CLIENTS, "seconds of the slow client": SLOW_SECONDS, "rounds": ROUNDS, "margin": MARGIN}
    return {"setting": setting, "apps": found}
