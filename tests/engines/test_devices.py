"""Which device each worker computes on, and how its task is told. There is no GPU here: names and a fake task."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines.tasks import Choosy, told

import asyncsgd as asgd
from asyncsgd.cli.run_commands import _engine_options
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrived, Assign, Job, Joined
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Gradient
from asyncsgd.engines import Died, Group, devices, processes, ray
from asyncsgd.engines._processes import pool as pool_module
from asyncsgd.engines._ray.worker import Loaded, Worker, WorkerConfig
from asyncsgd.engines.base import Engine
from asyncsgd.engines.devices import tell, visible_gpus
from asyncsgd.run.lookup import named_engine
from asyncsgd.testing.bench import Bowl


def updates(engine: Engine, task: Any) -> dict[int, Vector]:
    """Return the first update of each worker."""
    found: dict[int, Vector] = {}
    with engine.start(task, Gradient(), task.initial()) as pool:
        point = pool.allocate(4)
        point[:] = 1.0
        while len(found) < engine.workers:
            for report in pool.poll(0.2):
                if isinstance(report, Joined):
                    for worker in report.workers:
                        pool.execute(Assign(Job(worker, worker, 0, 0, 0, seed=worker), point, 0))
                elif isinstance(report, Arrived):
                    assert report.worker is not None
                    found[report.worker] = report.update.copy()
    return found


def here(device: str) -> tuple[str, bool]:
    return device, True


# ---------------------------------------------------------------------------------------------- worker processes


@pytest.mark.processes
@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, ["cpu", "cpu", "cpu"]),
        ("cpu", ["cpu", "cpu", "cpu"]),
        (["cuda:0", "cuda:1"], ["cuda:0", "cuda:1", "cuda:0"]),
        (["meta", "cpu", "mps"], ["meta", "cpu", "mps"]),
    ],
)
def test_workers_take_devices_in_turn(given: Any, expected: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each task is told in the process that computes, before the first job."""
    monkeypatch.setattr("asyncsgd.engines._processes.visible_gpus", lambda: 0)
    task = Choosy()
    found = updates(processes(3, devices=given), task)
    assert [told(found[worker])[:2] for worker in range(3)] == [here(device) for device in expected]
    assert task.device == "none"  # the server's own task computes where it did


@pytest.mark.processes
def test_gpus_are_used_if_there_are_any(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsgd.engines._processes.visible_gpus", lambda: 2)
    assert processes().workers == 2
    found = updates(processes(3), Choosy())
    assert [told(found[worker])[0] for worker in range(3)] == ["cuda:0", "cuda:1", "cuda:0"]
    assert processes(3).devices_for(Bowl()) == ["cpu"] * 3  # it cannot be told


@pytest.mark.processes
def test_a_device_that_is_not_there_ends_the_start() -> None:
    words = (
        r"devices = 'cuda:7' cannot be used by worker 1 \(RuntimeError: cuda:7 is not there\); "
        r"pass devices that this machine has \(GPUs that PyTorch sees: \d+\), or devices='cpu'"
    )
    with pytest.raises(BadParameter, match=words) as error:
        updates(processes(2, devices=["cuda:0", "cuda:7"]), Choosy("cuda:7"))
    assert "never was" not in str(error.value)  # one sentence


class Dying(Choosy):
    """Its first worker ends at its first job; its replacement finds no device."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.mark = folder / "dead"

    def use_device(self, device: str) -> None:
        self.broken = device if self.mark.exists() else ""
        super().use_device(device)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        self.mark.touch()
        os._exit(3)


@pytest.mark.processes
def test_a_device_that_is_lost_later_is_the_reason_of_the_death(tmp_path: Path) -> None:
    task = Dying(tmp_path)
    reasons = []
    with processes(1, devices="cuda:0").start(task, Gradient(), task.initial()) as pool:
        point = pool.allocate(4)
        while len(reasons) < 2:
            for report in pool.poll(0.2):
                if isinstance(report, Joined):
                    pool.execute(Assign(Job(0, 0, 0, 0, 0, seed=0), point, 0))
                elif isinstance(report, Died):
                    reasons.append(report.reason)
    assert reasons == [
        "ended by itself with exit code 3",
        "cannot use the device cuda:0 (RuntimeError: cuda:0 is not there)",
    ]


REFUSED = "is for tasks that choose their device, and Bowl has no method use_device.device.; add the method, or leave"


@pytest.mark.processes
def test_a_task_that_cannot_be_told_is_refused_before_workers_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "ForkClient", None)
    with pytest.raises(BadParameter, match=f"devices = 'cuda:0' {REFUSED}"):
        processes(2, devices=["cpu", "cuda:0"]).start(Bowl(), Gradient(), Bowl().initial())
    assert processes(2, devices="cpu").devices_for(Bowl()) == ["cpu", "cpu"]


@pytest.mark.ray
def test_a_task_that_cannot_be_told_is_refused_before_ray_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BadParameter, match=f"num_gpus = 0.5 {REFUSED}"):
        ray([Group(2), Group(1, num_gpus=0.5)]).start(Bowl(), Gradient(), Bowl().initial())


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], r"devices = \[\] is not a list of devices; pass names such as"),
        (0, "devices = 0 is not a list of devices"),
        ("gpu:0", "devices = 'gpu:0' is not a device; pass names such as .*; the kinds are cpu, cuda, mps"),
        (["cuda:0", "cuda:x"], "devices = 'cuda:x' is not a device"),
        (["cpu", 1], "devices = 1 is not a device"),
    ],
)
def test_what_is_not_a_device(given: Any, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        processes(2, devices=given)


def test_how_many_workers_there_are_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsgd.engines._processes.visible_gpus", lambda: 3)
    monkeypatch.setattr("asyncsgd.engines._processes.processors", lambda: 7)
    assert processes().workers == 3
    assert processes(devices=["cuda:0", "cuda:0", "cpu"]).workers == 3
    assert processes(devices="cuda:1").workers == 1
    assert processes(devices="cpu").workers == 7
    assert processes(5, devices="cuda:1").workers == 5
    monkeypatch.setattr("asyncsgd.engines._processes.visible_gpus", lambda: 0)
    assert processes().workers == 7


# ---------------------------------------------------------------------------------------------- which GPUs are there


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """A machine with four GPUs and a PyTorch for CUDA, which is not imported."""
    (tmp_path / "version.py").write_text("__version__ = '2.9'\ncuda: Optional[str] = '12.8'\nhip = None\n", "utf-8")
    files = ["null", "nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidiactl", "nvidia-uvm"]
    monkeypatch.setattr(devices, "os", SimpleNamespace(listdir=lambda _: files, path=os.path, environ=os.environ))
    monkeypatch.setattr(devices, "find_spec", lambda _: SimpleNamespace(submodule_search_locations=[str(tmp_path)]))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return SimpleNamespace(files=files, version=tmp_path / "version.py")


@pytest.mark.parametrize(
    ("selected", "number"), [(None, 4), ("0,2", 2), ("", 0), ("-1", 0), ("1, 0,-1,2", 2), ("0,1,2,3,4,5", 4)]
)
def test_the_files_of_the_driver_and_what_is_selected(
    machine: Any, selected: str | None, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if selected is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", selected)
    assert visible_gpus() == number
    assert "torch" not in sys.modules


def test_a_pytorch_for_the_cpu_sees_none(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.version.write_text("cuda: Optional[str] = None\n", "utf-8")
    assert visible_gpus() == 0
    machine.version.unlink()
    assert visible_gpus() == 0
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    assert visible_gpus() == 0


def test_a_pytorch_that_is_imported_is_asked(machine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(cuda=SimpleNamespace(device_count=lambda: 9))
    monkeypatch.setitem(sys.modules, "torch", fake)
    assert visible_gpus() == 9


# ---------------------------------------------------------------------------------------------- records and commands


def test_a_resume_takes_the_same_devices_or_others() -> None:
    described = processes(3, devices=["cuda:0", "cuda:1"], threads=2).describe()
    assert named_engine(described, {}) == processes(3, devices=["cuda:0", "cuda:1"], threads=2)
    assert named_engine(described, {"devices": ["cpu"]}) == processes(3, devices="cpu", threads=2)
    assert named_engine(processes(3).describe(), {}) == processes(3)
    with pytest.raises(BadParameter, match=r"--devices = \['cpu'\] is an option of another engine; pass --engine proc"):
        named_engine(ray(2).describe(), {"devices": ["cpu"]})


def test_the_option_of_the_command_line() -> None:
    given = {"devices": "cuda:0,cuda:1", "workers": 2, "min_seconds": "0,0.5"}
    engine = named_engine({"engine": "processes"}, _engine_options(given))
    assert engine == processes(2, devices=["cuda:0", "cuda:1"], min_seconds=[0, 0.5])
    with pytest.raises(BadParameter, match="devices = ' cuda:1' is not a device"):
        named_engine({"engine": "processes"}, _engine_options({"devices": "cuda:0, cuda:1", "workers": 2}))


# ---------------------------------------------------------------------------------------------- Ray


def config(device: str) -> WorkerConfig:
    return WorkerConfig(0, 4, "float64", 1, 1.0, 0.0, device, (), None)


def test_a_worker_of_ray_answers_why_it_has_no_gpu() -> None:
    import cloudpickle

    def load(task: Any, device: str) -> Loaded:
        return Worker().load(cloudpickle.dumps((task, Gradient())), config(device))

    assert load(Choosy(), "cuda:0") == Loaded()
    assert load(Choosy("cuda:0"), "cuda:0") == Loaded(no_device="RuntimeError: cuda:0 is not there")
    assert load(Choosy("cpu"), "cpu").error == "RuntimeError: cpu is not there"
    assert load(Bowl(), "cpu") == Loaded()


def test_what_a_task_raises_is_one_sentence() -> None:
    def refuse(device: str) -> None:
        raise BadParameter("device", device, "is not available here", "pass cpu")

    def leave(device: str) -> None:
        raise SystemExit  # not sys.exit(), which Ray replaces

    assert tell(Bowl(), "cuda:0") == ""
    assert tell(SimpleNamespace(use_device=refuse), "cuda:0") == "it is not available here"
    assert tell(SimpleNamespace(use_device=leave), "cuda:0") == "SystemExit: no reason given"


@pytest.mark.usefixtures("nodes")
def test_unequal_nodes_of_ray(nodes: Any) -> None:
    """Two nodes declare a GPU that is not there: Ray hides the others from each worker. The server's node has none."""
    added = [nodes.add(1, num_gpus=2), nodes.add(1, num_gpus=1)]
    try:
        engine = ray([Group(2), Group(3, num_cpus=0, num_gpus=1)])
        found = [told(update) for _, update in sorted(updates(engine, Choosy()).items())]
        assert [device[:2] for device in found] == [here("cpu")] * 2 + [here("cuda:0")] * 3
        assert sorted(visible for _, _, visible in found[2:]) == [0, 0, 1]
        with pytest.raises(BadParameter) as error:
            updates(ray([Group(1), Group(1, num_cpus=0, num_gpus=0.5)]), Choosy("cuda:0"))
        assert "num_gpus = 0.5 gave worker 1 on node " in str(error.value)
        assert "a GPU that its task cannot use (RuntimeError: cuda:0 is not there); install" in str(error.value)
    finally:
        for node in added:
            nodes.kill(node)
    assert asgd.engines.Group(1).device == "cpu"
