"""Measure all servers with the clients of one run, and write the figures to a file."""

from __future__ import annotations

import json
import time
from pathlib import Path

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from bench_app.contestants import CLIENTS, measured

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    while len(list(grid.get_node_ids())) < CLIENTS:
        time.sleep(0.2)
    found = measured(grid, int(config["parameters"]), int(config["updates"]), int(config["rounds"]))
    output = Path(str(config["output"]))
    output.with_suffix(".part").write_text(json.dumps(found), "utf-8")
    output.with_suffix(".part").rename(output)
