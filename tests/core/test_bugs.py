"""The checks of checks.py pass for the real server and fail, by name, for every bug of bugs.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from core.bugs import BUGS
from core.checks import Watch, drive, spied

from asyncsgd.core.server import Server
from asyncsgd.methods import async_sgd, fedbuff, federated_async_sgd

METHODS = {
    "plain": async_sgd(0.25),
    "buffer": fedbuff(0.5, concurrency=4, buffer=3),
    "uniform": federated_async_sgd(0.25, concurrency=5),
}


def run(kind: type[Server], method: str, directory: Path) -> None:
    for seed in range(3):
        drive(Watch(kind(np.zeros(3), spied(METHODS[method]), seed)), seed=seed, directory=directory)


@pytest.mark.parametrize("method", METHODS)
def test_the_real_server_passes(method: str, tmp_path: Path) -> None:
    run(Server, method, tmp_path)


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    kind = bug.plant(monkeypatch)
    with pytest.raises(AssertionError, match=rf"^{bug.check}: "):
        run(kind, bug.method, tmp_path)
    monkeypatch.undo()
    run(Server, bug.method, tmp_path)  # and it is the bug that is caught, nothing else
