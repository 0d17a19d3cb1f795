"""Nodes that differ, come and go: a real cluster of several nodes, and runs that are replayed to the bit."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from run.test_kept_state import check_killed, killed_and_resumed

import asyncsgd as asgd
from asyncsgd.core.events import Arrived, Assign, Job, Joined
from asyncsgd.core.work import Gradient
from asyncsgd.engines import EngineError, Group
from asyncsgd.engines._ray import cluster
from asyncsgd.engines._ray.cluster import loopback, probe
from asyncsgd.run import Callback
from asyncsgd.testing.bench import Bowl, WritingBowl

if TYPE_CHECKING:
    from engines.ray_nodes import Nodes

    from asyncsgd.core.vectors import Vector
    from asyncsgd.run import TrainingRun

pytestmark = pytest.mark.ray

ENDLESS = 1_000_000


class Staged(WritingBowl):
    """Its metric ``act`` says how far the play has come; workers know nothing of it, and say which process they are."""

    def __init__(self, stage: Stage, dim: int = 50_000) -> None:
        super().__init__(dim, np.float32)
        self.stage: Stage | None = stage
        self.folder = stage.directory.parent
        self.told, self.begun = 0, 0

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        if self.told != os.getpid():  # once, and at one stroke, as the server may be about to read it
            self.told, self.begun = os.getpid(), 0
            new = self.folder / f"{self.told}.new"
            new.write_text(str(self.told), "utf-8")
            new.replace(who(self.folder / "run", worker))
        self.begun += 1
        if self.begun == 2:  # the server hands out a job only after the last one's update has arrived
            arrived(self.folder / "run", worker).touch()
        return super().update(x, worker, seed)

    def use_device(self, device: str) -> None:
        """Groups with GPUs need this method; there are none here."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "stage": None}

    def evaluate(self, x: Vector) -> dict[str, Any]:
        assert self.stage is not None
        return {**super().evaluate(x), "act": float(self.stage.act)}


class Stage(Callback):
    """Steps of a test: each is a condition that is checked periodically, and an action once it holds."""

    def __init__(
        self, directory: Path, *acts: tuple[Callable[[list[dict[str, Any]]], bool], Callable[[], Any]]
    ) -> None:
        self.directory, self.acts, self.act = directory, acts, 0

    def on_evaluation(self, view: Any, metrics: Mapping[str, Any], control: Any) -> None:
        if self.act < len(self.acts):
            holds, do = self.acts[self.act]
            if holds(journal(self.directory)):
                do()
                self.act += 1


def journal(directory: Path) -> list[dict[str, Any]]:
    """What has been written down so far; the newest lines may be missing."""
    file = directory / "journal.jsonl"
    text = file.read_text("utf-8") if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def count(rows: list[dict[str, Any]], event: str, worker: int | None = None) -> int:
    return sum(row["event"] == event and worker in (None, row["worker"]) for row in rows)


def nothing() -> None:
    pass


def who(directory: Path, worker: int) -> Path:
    """Where a worker says which process it is, when it begins its first job."""
    return directory.parent / f"process of worker {worker}"


def arrived(directory: Path, worker: int) -> Path:
    """What a worker writes once its first update has arrived."""
    return directory.parent / f"an update of worker {worker}"


def forget(directory: Path, *workers: int) -> None:
    """Let the next process of each of these workers write again that its first update has arrived."""
    for worker in workers:
        arrived(directory, worker).unlink(missing_ok=True)


def kill_worker(directory: Path, worker: int) -> None:
    os.kill(int(who(directory, worker).read_text("utf-8")), signal.SIGKILL)


def play(stage: Stage, engine: asgd.engines.Engine, **options: Any) -> TrainingRun:
    return asgd.train(
        Staged(stage),
        asgd.async_sgd(0.1),
        engine=engine,
        iterations=ENDLESS,
        every=20,
        until=f"act >= {len(stage.acts)}",
        directory=stage.directory,
        callbacks=[stage],
        progress=False,
        **options,
    )


def check_replay(run: TrainingRun) -> None:
    assert run.directory is not None
    again = asgd.replay(run.directory)
    assert again.model_compared
    assert again.compared == run.trace.iterations
    assert again.x.tobytes() == run.x.tobytes()


def placed(rows: list[dict[str, Any]], worker: int) -> list[str]:
    return [row["node"] for row in rows if row["event"] == "placed" and row["worker"] == worker]


def test_a_worker_and_a_node_die_and_a_node_joins(nodes: Nodes, tmp_path: Path) -> None:
    """The worker is replaced. The jobs on the node are lost, the others continue; workers on the new node get jobs."""
    directory = tmp_path / "run"
    lent = nodes.add(2, big=2)
    added: list[Any] = []
    stage = Stage(
        directory,
        (
            lambda rows: all(arrived(directory, worker).exists() for worker in range(4)),
            lambda: (kill_worker(directory, 0), forget(directory, 0)),
        ),
        (lambda rows: count(rows, "joined", 0) == 2, lambda: nodes.kill(lent)),
        (lambda rows: count(rows, "left") == 3, lambda: (forget(directory, 2, 3), added.append(nodes.add(2, big=2)))),
        (lambda rows: all(arrived(directory, worker).exists() for worker in (0, 2, 3)), nothing),
    )
    engine = replace(asgd.engines.ray([Group(2), Group(2, resources={"big": 1})]), shared_memory=False)
    try:
        run = play(stage, engine)
    finally:
        for node in added:
            nodes.kill(node)
    rows = journal(directory)
    lost = run.trace.jobs.worker[run.trace.jobs.outcome == asgd.Outcome.LOST]
    assert set(lost) == {0, 2, 3}
    assert run.faults.deaths >= 3  # a replacement may be placed on the dying node, before Ray knows
    assert count(rows, "left") == 3
    back = {row["worker"]: row["iteration"] for row in rows if row["event"] == "joined" and row["iteration"] > 0}
    for worker in (0, 2, 3):
        before, after = placed(rows, worker)
        assert (before != after) == (worker > 0)
        assert (run.trace.worker[back[worker] :] == worker).any()
        assert (run.trace.worker[: back[worker]] == worker).any()
    # A lost line, a lost answer or a dead node: whichever Ray has noticed first.
    assert all(row["reason"].startswith("is gone: ") for row in rows if row["event"] == "died")
    check_replay(run)


def test_workers_that_find_no_room_join_when_a_node_does(nodes: Nodes, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    added: list[Any] = []
    stage = Stage(
        directory,
        (lambda rows: True, lambda: added.append(nodes.add(2, num_gpus=1, late=2))),
        (lambda rows: all(arrived(directory, worker).exists() for worker in (0, 1, 2)), nothing),
    )
    late = Group(2, num_cpus=0.5, num_gpus=0.5, resources={"late": 1})  # both fit on one graphics processor
    engine = asgd.engines.ray([Group(1), late], at_least=1)
    try:
        run = play(stage, engine)
    finally:
        for node in added:
            nodes.kill(node)
    rows = journal(directory)
    assert next(row["worker"] for row in rows if row["event"] == "joined") == 0
    assert set(run.trace.worker) == {0, 1, 2}
    assert len({placed(rows, 1)[0], placed(rows, 0)[0]}) == 2
    assert run.faults.deaths == 0
    check_replay(run)


def test_when_nobody_is_left_the_run_stops_and_can_go_on_elsewhere(nodes: Nodes, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    lent = nodes.add(2, big=2)
    engine = asgd.engines.ray(Group(2, resources={"big": 1}))

    def leave() -> None:
        nodes.kill(lent)
        object.__setattr__(engine, "start_timeout", 30.0)  # the start itself had more

    stage = Stage(directory, (lambda rows: count(rows, "joined") == 2, leave), (lambda rows: False, nothing))
    with pytest.raises(EngineError) as error:
        play(stage, engine)
    said = str(error.value)
    assert re.match(r"0 of the 1 workers that the run needs were ready after \d+ s: workers 0, 1 wait for room", said)
    assert "Ray was asked for nodes with 1 CPU, 1 big free; the cluster has" in said  # what is left, once Ray knows it
    run = play(Stage(directory, (lambda rows: True, nothing)), asgd.engines.processes(2), resume=True)
    counts = run.trace.counts
    assert counts[asgd.Outcome.LOST] == 2
    check_replay(run)


class Heavy(Bowl):
    """10^7 parameters, and an update that costs little: -1 for the first, so that the model counts what arrived."""

    def __init__(self) -> None:
        super().__init__(10_000_000, np.float32)

    def initial(self) -> Vector:
        return np.zeros(10_000_000, np.float32)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        g = np.full_like(x, 1e-3)
        g[0] = -1.0
        return g

    def evaluate(self, x: Vector) -> dict[str, Any]:
        return {}


HIDDEN = """
from ray._private import services
services.find_node_ids = lambda: {found}
"""


def test_a_machine_that_is_no_node_is_told_so_within_seconds(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(cluster, "NEARBY", 0.5)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}")
    for found in (set(), {"ab" * 28}):  # no node at all, one of another cluster
        (tmp_path / "sitecustomize.py").write_text(HIDDEN.format(found=found or "set()"), "utf-8")
        words = rf"this machine is not a node of the Ray cluster at {nodes.address} .*`ray start --address="
        with loopback(), pytest.raises(EngineError, match=words):
            probe(nodes.address)


def test_another_process_of_ray_is_no_head_node(nodes: Nodes) -> None:
    """It speaks gRPC too, and may have been given the port of a head node that is gone."""
    import ray

    with loopback():
        probe(nodes.address)
    # That of the head: a node that an earlier test killed may still be listed as alive.
    port = next(node["NodeManagerPort"] for node in ray.nodes() if node["NodeID"] == nodes.head)
    with pytest.raises(EngineError, match=rf"127.0.0.1:{port} is not a Ray cluster \(ray.exceptions.RpcError"):
        probe(f"127.0.0.1:{port}")


def test_large_models_stay_in_memory(nodes: Nodes, tmp_path: Path) -> None:
    """A store with room for three vectors, and jobs that want six: they wait their turn, nothing goes to disk."""
    engine = replace(asgd.engines.ray(3), shared_memory=False)
    options: dict[str, Any] = {"engine": engine, "iterations": 6, "directory": tmp_path / "run", "progress": False}
    before = spilled(nodes)
    run = asgd.train(Heavy(), asgd.async_sgd(1.0), **options)
    assert run.x[0] == 6.0
    assert run.trace.delays.maximum >= 1
    assert spilled(nodes) == before
    check_replay(run)


def spilled(nodes: Nodes) -> int:
    """How often the nodes have said that they wrote objects to disk; the files themselves are soon gone."""
    said = [file.read_text("utf-8", "replace") for file in nodes.folder.rglob("raylet*.out")]
    assert said
    return sum(text.count(":info_message:Spilled") for text in said)


def test_updates_are_read_where_they_lie(nodes: Nodes) -> None:
    task = WritingBowl(50_000, np.float32)
    engine = replace(asgd.engines.ray(1), shared_memory=False)
    with engine.start(task, Gradient(), task.initial()) as pool:
        point = pool.allocate(50_000)
        point[:] = 1.0
        arrived: list[Arrived] = []
        while not arrived:
            for report in pool.poll(0.2):
                if isinstance(report, Joined):
                    pool.execute(Assign(Job(0, 0, 0, 0, 0, seed=1), point, 0))
                elif isinstance(report, Arrived):
                    arrived.append(report)
        update = arrived[0].update
        assert not update.flags.owndata
        assert not update.flags.writeable  # Ray's own memory, which others may be reading
        assert (update == task.update(point, 0, 1)).all()


@pytest.mark.parametrize("method", ["int4", "top_k"])
def test_a_killed_server_whose_workers_keep_state(nodes: Nodes, tmp_path: Path, method: str) -> None:
    """Actors die, the server is killed twice, and the run is resumed on the same cluster: replayed to the bit."""
    check_killed(killed_and_resumed(tmp_path, method, nodes.address))
