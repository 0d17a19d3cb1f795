"""The checks of checks.py pass for the real server and fail, by name, for every bug of bugs.py."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from core.bugs import BUGS
from core.checks import Watch, drive, spied

from asyncsgd.compiled.kernels import CompiledKernels
from asyncsgd.core.events import Ended, Outcome
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.server import Server
from asyncsgd.methods import async_sgd, fedavg, fedbuff, federated_async_sgd
from asyncsgd.optimizers import adamw

METHODS = {
    "plain": async_sgd(0.25),
    "buffer": fedbuff(0.5, concurrency=4, buffer=3),
    "uniform": federated_async_sgd(0.25, concurrency=5),
    "cancels": fedavg(0.25, clients=2, ask=4),
    "local": async_sgd(0.25).local(3, 0.1),
    "compiled": async_sgd(0.25).clipped(0.5).using(optimizer=adamw()),
}


def run(kind: type[Server], method: str, directory: Path) -> None:
    for seed in range(3):
        batches = "worker" if method == "local" else "all"
        kernels = (lambda: CompiledKernels(1)) if method == "compiled" else Kernels
        server = kind(np.zeros(3), spied(METHODS[method]), seed, kernels=kernels(), batches=batches)
        drive(Watch(server, kernels), seed=seed, directory=directory)


@pytest.mark.parametrize("method", METHODS)
def test_the_real_server_passes(method: str, tmp_path: Path) -> None:
    run(Server, method, tmp_path)


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_caught(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bug = BUGS[name]
    kind = bug.plant(monkeypatch)
    with pytest.raises(AssertionError, match=rf"^{bug.check}: "):
        run(kind, bug.method, tmp_path)  # the same run that the real server passes above


def test_the_identity_alone_sees_a_miscount() -> None:
    """Other checks see most bugs first; so show that the identity is no tautology, one wrong number at a time."""
    watch = Watch(Server(np.zeros(3), spied(METHODS["uniform"])))
    drive(watch, seed=1)
    watch._check_identity()

    def wrong(number: int, **change: int) -> None:
        entry = watch.entries[number]
        right = entry.ended
        assert isinstance(right, Ended)
        entry.ended = replace(right, **change)
        with pytest.raises(AssertionError, match=r"^identity: "):
            watch._check_identity()
        entry.ended = right

    by_outcome = {entry.outcome: number for number, entry in enumerate(watch.entries)}
    for outcome in (Outcome.APPLIED, Outcome.LOST, Outcome.REJECTED):
        number = by_outcome[outcome]
        wrong(number, iteration=watch.entries[number].ended.iteration + 1)  # type: ignore[union-attr]
    wrong(by_outcome[Outcome.LOST], outcome=Outcome.APPLIED)
    lost = watch.entries[by_outcome[Outcome.LOST]]
    lost.ended, ended = None, lost.ended  # it stays in C_t
    with pytest.raises(AssertionError, match=r"^identity: "):
        watch._check_identity()
    lost.ended = ended
    for name in ("sum_of_sizes", "sum_recorded"):
        setattr(watch, name, getattr(watch, name) + 1)
        with pytest.raises(AssertionError, match=r"^identity: "):
            watch._check_identity()
        setattr(watch, name, getattr(watch, name) - 1)
    watch._check_identity()
