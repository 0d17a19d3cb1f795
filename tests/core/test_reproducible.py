"""The same seed gives the same assignments: on every machine, in every process, whatever else draws numbers."""

from __future__ import annotations

import os
import random
import subprocess
import sys

import numpy as np
import pytest

from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import AlwaysBusy, Dispatch, FirstOf, Shuffled, Uniform
from asyncsgd.core.events import Arrived, Assign, Joined
from asyncsgd.core.method import Method
from asyncsgd.core.server import Server
from asyncsgd.core.steps import Constant
from asyncsgd.methods import fedbuff

DISPATCH: dict[str, Dispatch] = {"uniform": Uniform(3), "shuffled": Shuffled(3), "first_of": FirstOf(clients=2, ask=3)}

# The first 20 jobs of seed 0 with workers 0..4. A change here breaks every saved run: raise the version of the trace
# format and say so in the changelog, or undo it.
GOLDEN: dict[str, list[int]] = {
    "uniform": [2, 0, 1, 1, 3, 1, 0, 4, 0, 2, 4, 3, 2, 0, 3, 1, 3, 4, 0, 3],
    "shuffled": [2, 1, 0, 3, 4, 3, 1, 2, 4, 0, 0, 3, 4, 2, 1, 2, 1, 4, 3, 0],
    "first_of": [2, 1, 0, 1, 3, 0, 1, 4, 0, 0, 3, 4, 4, 3, 1, 3, 2, 0, 3, 4],
}
SEEDS_OF_JOBS = [17779410432249525044, 2018125146553260976, 14130757328572883653, 2792499944988373310]


def assigned(dispatch: Dispatch, seed: int, jobs: int = 20) -> list[tuple[int, int]]:
    """(worker, seed) of the first jobs, where the oldest one in flight always arrives next."""
    server = Server(np.zeros(2), Method("plain", Constant(0.1), dispatch), seed)
    commands = server.handle(Joined(range(5))).commands
    given: list[tuple[int, int]] = []
    while True:
        given += [(c.job.worker, c.job.seed) for c in commands if isinstance(c, Assign)]
        if len(given) >= jobs:
            return given[:jobs]
        commands = server.handle(Arrived(server.in_flight[0].id, np.ones(2))).commands


def workers(dispatch: Dispatch, seed: int, jobs: int = 20) -> list[int]:
    return [worker for worker, _ in assigned(dispatch, seed, jobs)]


@pytest.mark.parametrize("name", DISPATCH)
def test_golden_assignments(name: str) -> None:
    assert workers(DISPATCH[name], seed=0) == GOLDEN[name]


def test_those_who_wait_longest_come_first() -> None:
    assert workers(AlwaysBusy(concurrency=2), seed=0) == [0, 1, 2, 3, 4] * 4


def test_golden_seeds_of_jobs() -> None:
    assert [seed for _, seed in assigned(Uniform(3), seed=0, jobs=4)] == SEEDS_OF_JOBS


@pytest.mark.parametrize("name", DISPATCH)
def test_same_seed_same_assignments(name: str) -> None:
    for seed in (0, 1, 2**40, 2**64 - 1):
        assert assigned(DISPATCH[name], seed) == assigned(DISPATCH[name], seed)


@pytest.mark.parametrize("name", DISPATCH)
def test_other_seeds_other_assignments(name: str) -> None:
    lists = {tuple(workers(DISPATCH[name], seed)) for seed in range(50)}
    assert len(lists) == 50


def test_every_worker_gets_its_share() -> None:
    """Uniform draws: 5000 jobs over 5 workers, 1000 each, give or take five standard deviations of 28."""
    counts = np.bincount(workers(Uniform(3), seed=4, jobs=5000))
    assert np.abs(counts - 1000).max() < 5 * 28.3
    shuffled = np.array(workers(Shuffled(3), seed=4, jobs=5000)).reshape(-1, 5)
    assert (np.sort(shuffled, axis=1) == np.arange(5)).all(), "every block of five jobs holds every worker once"
    assert len({tuple(block) for block in shuffled.tolist()}) == 120, "and every order occurs"
    rounds = np.array(workers(FirstOf(clients=2, ask=3), seed=4, jobs=4998)).reshape(-1, 3)
    assert all(len(set(asked)) == 3 for asked in rounds.tolist()), "nobody is asked twice in a round"
    assert np.abs(np.bincount(rounds.ravel()) - 4998 / 5).max() < 5 * 28.3


def test_seeds_of_jobs_are_distinct() -> None:
    seeds = [seed for run in range(5) for _, seed in assigned(Uniform(3), run, jobs=2000)]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**64 for seed in seeds)


def test_seeds_of_jobs_do_not_depend_on_dispatch() -> None:
    """Job k draws the same samples whoever computes it."""
    lists = {tuple(seed for _, seed in assigned(dispatch, seed=9)) for dispatch in DISPATCH.values()}
    assert len(lists) == 1


# ------------------------------------------------------------------------------------------ nothing else matters

SCRIPT = """
import numpy as np
from asyncsgd.core.events import Arrived, Joined
from asyncsgd.core.server import Server
from asyncsgd.run.checkpoints import pack
from asyncsgd.methods import fedavg, fedbuff, federated_async_sgd, mifa
for method in (
    fedbuff(0.1, concurrency=4, buffer=2).clipped(1.0, noise=0.5), fedavg(0.1, clients=2, ask=4), mifa(0.1),
    federated_async_sgd(0.1, concurrency=4, order="shuffled"),
):
    server = Server(np.zeros(3), method, seed=11)
    server.handle(Joined([5, 3, 9, 1, 7]))
    for k in range(40):
        server.handle(Arrived(server.in_flight[0].id, np.arange(3) + k % 5 - 1.5))
    arrays, text = pack(server.state())
    print(text)
    for name in sorted(arrays):
        print(name, arrays[name].tobytes().hex())
"""


def run_script(hash_seed: str) -> str:
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], env=environment, capture_output=True, encoding="utf-8", check=True
    )
    return done.stdout


@pytest.mark.slow
def test_hash_seed_does_not_matter() -> None:
    first = run_script("1")
    assert len(first) > 1000
    assert first == run_script("4242")


def noisy_run() -> bytes:
    method = fedbuff(0.1, concurrency=4, buffer=2).clipped(1.0, noise=0.5)
    assert isinstance(method.aggregation, Buffer)
    assert method.aggregation.noise
    server = Server(np.zeros(3), method, seed=11)
    server.handle(Joined(range(5)))
    for _ in range(20):
        server.handle(Arrived(server.in_flight[0].id, np.ones(3)))
    return server.x.tobytes() + bytes(job.worker for job in server.in_flight)


def test_global_random_state_is_neither_read_nor_touched() -> None:
    results = []
    for seed in (0, 1):
        np.random.seed(seed)  # noqa: NPY002
        random.seed(seed)
        before, before_python = np.random.get_state(), random.getstate()  # noqa: NPY002
        results.append((noisy_run(), [assigned(dispatch, 3) for dispatch in DISPATCH.values()]))
        after = np.random.get_state()  # noqa: NPY002
        assert all(np.array_equal(one, other) for one, other in zip(before, after, strict=True))
        assert before_python == random.getstate()
    assert results[0] == results[1]
