"""What .ci/dist.py expects of the wheel, tried here without building it: its words must be those of today."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
EXTRAS = {
    "torch": ["torch"],
    "ray": ["ray"],
    "flower": ["flwr"],
    "report": ["matplotlib"],
    "tensorboard": ["tensorboard", "torch"],
    "mlflow": ["mlflow"],
    "wandb": ["wandb"],
}
"""The modules of an extra, which the test takes away."""


@pytest.fixture(scope="module")
def dist() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "dist.py"))


@pytest.mark.processes
@pytest.mark.slow
def test_commands_that_need_no_extra(dist: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(dist["MINE"], "utf-8")
    for name in ("straggler.toml", "durations.csv"):
        shutil.copy(ROOT / "examples" / name, tmp_path)
    for words, command in dist["WORKS"].items():
        if command[0] == "plan":  # speaks of the extra only where it is missing
            continue
        program, env = Path(sys.executable).with_name("asyncsgd"), {**os.environ, "COLUMNS": "200"}
        done = subprocess.run([program, *command], cwd=tmp_path, env=env, capture_output=True, encoding="utf-8")
        assert (done.returncode, words in done.stdout + done.stderr) == (0, True), (command, done)


@pytest.mark.slow
def test_calls_that_need_an_extra(dist: dict[str, Any]) -> None:
    missing = sorted({module for extra in dist["RAISES"].values() for module in EXTRAS[extra]})
    lines = [
        "import sys",
        f"sys.modules.update(dict.fromkeys({missing}))",
        "import numpy as np, asyncsgd as asgd",
    ]
    for call in dist["RAISES"]:
        lines += [f"try: {call}", "except ModuleNotFoundError as error: print(' '.join(str(error).split()))"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    for text, (call, extra) in zip(done.stdout.splitlines(), dist["RAISES"].items(), strict=True):
        assert f"pip install 'asyncsgd[{extra}]'" in text, call
