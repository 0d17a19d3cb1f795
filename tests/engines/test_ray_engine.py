"""Options of the Ray engine, and the errors for wrong ones. No cluster is started here."""

from __future__ import annotations

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines.inline import Inline

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.engines import EngineError, Group, ray
from asyncsgd.engines._ray import cluster
from asyncsgd.engines._ray.handle import WorkerHandle, explain, missing
from asyncsgd.engines._ray.orphan_cleanup import living, naming, orphans
from asyncsgd.engines._ray.worker import Worker, WorkerConfig
from asyncsgd.engines.lifecycle import Lifecycle, Rules, Stage
from asyncsgd.run.lookup import named_engine


def test_importing_the_engines_does_not_import_ray() -> None:
    program = "import sys, asyncsgd.engines as e; e.ray(2); print('ray' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.split() == ["False", "False"]


def test_the_arguments_are_those_of_the_public_interface() -> None:
    both = ["job_timeout", "start_timeout", "slowdown", "min_seconds"]
    assert list(inspect.signature(ray).parameters) == ["workers", "address", "at_least", *both, "logs", "runtime_env"]
    assert list(inspect.signature(asgd.engines.processes).parameters) == ["workers", "devices", "threads", *both]
    needs = ["workers", "num_cpus", "num_gpus", "resources", "threads"]
    assert list(inspect.signature(Group).parameters) == needs


def test_workers_that_are_all_alike() -> None:
    engine = ray(Group(3, num_cpus=2, num_gpus=0.5, resources={"big": 1}), slowdown={2: 10})
    assert engine.groups == (Group(3, num_cpus=2, num_gpus=0.5, resources={"big": 1}),)
    assert (engine.workers, engine.threads, engine.keeps_state) == (3, 2, True)
    assert engine.slowdown == (1.0, 1.0, 10.0)
    assert engine.groups[0].needs == {"CPU": 2, "GPU": 0.5, "big": 1}


def test_groups_of_workers() -> None:
    engine = ray([Group(1, num_cpus=0.5), Group(2, num_cpus=3), Group(1, threads=7)])
    assert (engine.workers, engine.threads) == (4, [1, 3, 3, 7])
    assert [group.num_cpus for group in engine.group] == [0.5, 3, 3, 1]
    assert ray(Group(2, threads=2)).threads == 2


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "workers = 0 must be an integer of at least 1"),
        ({"workers": []}, r"workers = \[\] are not groups; pass a number, or asgd.engines.Group"),
        ({"workers": [2, 3]}, r"workers = \[2, 3\] are not groups"),
        ({"workers": 2, "min_seconds": [1]}, r"min_seconds = \[1\] has 1 values for 2 workers"),
        ({"workers": 2, "at_least": 3}, "at_least = 3 is more than the 2 workers"),
        ({"workers": 2, "slowdown": {2: 3}}, "names worker 2, which does not exist"),
        ({"workers": 2, "start_timeout": 0}, "start_timeout = 0 must be"),
    ],
)
def test_what_cannot_be_asked(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        ray(**options)


@pytest.mark.parametrize(
    ("needs", "words"),
    [
        ({"num_cpus": -1}, "num_cpus = -1 must be a finite number that is not negative"),
        ({"num_gpus": -1}, "num_gpus = -1 must be a finite number that is not negative"),
        ({"resources": {"GPU": 1}}, "names GPU, which has its own option; pass num_gpus=1"),
        ({"resources": {"big": 0}}, r"resources\['big'\] = 0 must be a positive"),
        ({"resources": ["big"]}, r"resources = \['big'\] is not a mapping"),
        ({"threads": 0}, "threads = 0 must be"),
    ],
)
def test_what_a_group_cannot_need(needs: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        Group(2, **needs)


def test_run_json_says_what_it_takes_to_go_on() -> None:
    before = ray([Group(2), Group(1, num_cpus=2, resources={"big": 1})], address="auto", at_least=2)
    described = json.loads(json.dumps(before.describe()))
    assert described["engine"] == "ray"
    assert named_engine(described, {}) == before
    assert named_engine(described, {"address": "here:1"}).address == "here:1"
    assert named_engine(described, {"at_least": 1}).at_least == 1
    one = json.loads(json.dumps(ray(Group(3, num_cpus=2, resources={"big": 1})).describe()))
    assert named_engine(one, {"workers": 4}) == ray(Group(4, num_cpus=2, resources={"big": 1}))


def test_a_change_leaves_the_rest_of_each_group_as_it_was() -> None:
    before = ray([Group(2, num_gpus=0.5), Group(1, num_cpus=2, resources={"big": 1})], at_least=3)
    described = json.loads(json.dumps(before.describe()))
    again = named_engine(described, {"threads": 3, "num_cpus": 4})
    assert again == ray(
        [Group(2, 4, num_gpus=0.5, threads=3), Group(1, 4, resources={"big": 1}, threads=3)], at_least=3
    )
    with pytest.raises(
        BadParameter, match=r"--workers = 2 is ambiguous: the run has 2 groups of workers; also pass what"
    ):
        named_engine(described, {"workers": 2})
    assert named_engine(described, {"workers": 2, "num_cpus": 1}) == ray(2, at_least=2)  # there are not 3 any more
    with pytest.raises(BadParameter, match=r"at_least = 3 is more than the 2 workers"):
        named_engine(described, {"workers": 2, "num_cpus": 1, "at_least": 3})


def test_the_directory_that_is_sent_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """run.json keeps the absolute path, so that a resume works from another directory."""
    monkeypatch.chdir(tmp_path)
    engine = named_engine({"engine": "ray", "workers": 2}, {"working_dir": "."})
    assert engine == ray(2, runtime_env={"working_dir": str(tmp_path)})
    monkeypatch.chdir("/")
    described = json.loads(json.dumps(engine.describe()))
    assert described["working_dir"] == str(tmp_path)
    assert named_engine(described, {}) == engine
    assert "working_dir" not in ray(2, runtime_env={"working_dir": "s3://user:secret@bucket/it.zip"}).describe()
    with pytest.raises(BadParameter, match=r"--working-dir = '.*none' is not a directory"):
        named_engine(described, {"working_dir": str(tmp_path / "none")})


class Told(asgd.Callback):
    def __init__(self) -> None:
        self.words: list[str] = []

    def on_note(self, text: str) -> None:
        self.words.append(text)

    def on_start(self, view: Any) -> None:
        self.words.append("started")


def test_a_start_that_takes_long_is_announced(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [ray(2, address=address).opening for address in (None, "auto", "host:6379")] == [
        "starting Ray on this machine",
        "looking for the Ray cluster",
        "connecting to the Ray cluster at host:6379",
    ]
    monkeypatch.setattr(Inline, "opening", "starting")
    told = Told()
    options: dict[str, Any] = {"iterations": 3, "callbacks": [told], "progress": False}
    asgd.train(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), engine=Inline(2), **options)
    assert told.words == ["starting", "started"]


def test_passwords_stay_out_of_run_json() -> None:
    engine = ray(2, runtime_env={"env_vars": {"TOKEN": "secret"}})
    assert "secret" not in json.dumps(engine.describe()) + repr(engine)


@pytest.mark.parametrize(
    ("described", "changes", "words"),
    [
        ("processes", {"address": "auto"}, "--address = 'auto' is an option of another engine; pass --engine ray"),
        ("processes", {"at_least": 2}, "--at-least = 2 is an option of another engine; pass --engine ray"),
        ("processes", {"working_dir": "."}, "--working-dir = '.' is an option of another engine; pass --engine ray"),
    ],
)
def test_an_option_of_another_engine(described: str, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        named_engine({"engine": described, "workers": 2}, changes)


# ---------------------------------------------------------------------------------------------- words


def test_why_a_worker_is_gone() -> None:
    said = """The actor died unexpectedly before finishing this task.
\tclass_name: Worker
\tpid: 4711
The actor is dead because its worker process has died. Worker exit type: SYSTEM_ERROR Worker exit detail: Worker \
unexpectedly exits with a connection error code 2. End of file. Some common causes include: (1) the process was \
killed."""
    assert explain(Exception(said)) == (
        "is gone: its worker process has died (unexpectedly exits with a connection error code 2)"
    )
    assert explain(Exception("The actor died because its node has died.")) == "is gone: its node has died"
    assert explain(TimeoutError()) == "is gone: TimeoutError"
    lost = (
        "Failed to retrieve object 12ab. To see more, set a variable.\n\nAll copies of 12ab have been lost. Look there."
    )
    assert explain(Exception(lost)) == "is gone: All copies of 12ab have been lost"


def test_who_is_missing() -> None:
    handles = [WorkerHandle(number, Group(1, num_cpus=2, resources={"big": 1})) for number in range(4)]
    life = Lifecycle(4, Rules())
    for number in range(4):
        life.started(number, 0.0, Stage.WAITING if number in (1, 2) else Stage.LOADING)
    life.ready(0, 0.0)
    life.workers[3].reason = "cannot load the task:\nTraceback\n  ...\nModuleNotFoundError: No module named 'mine'\n"
    said = missing(handles, life, 4, 119.8, "2 nodes with 1 of 8 CPU free")
    assert said.startswith(
        "1 of the 4 workers that the run needs were ready after 120 s: workers 1, 2 wait for room on a node; worker 3 "
        "loads the task. Worker 3 cannot load the task: ModuleNotFoundError: No module named 'mine'. Ray was asked for "
        "nodes with 2 CPU, 1 big free; the cluster has 2 nodes with 1 of 8 CPU free."
    )


def test_what_a_killed_server_leaves_behind_and_what_belongs_to_another() -> None:
    ours, theirs = 7, 8
    processes = {
        1: ("init", 0, 1),
        10: ("python", 1, ours),
        11: ("raylet", 10, ours),
        12: ("ray::Worker.compute", 11, ours),
        13: ("ray::Worker.compute", 12, ours),  # a child of that worker, which has kept its name
        20: ("ray::RuntimeEnvAgent", 1, ours),
        21: ("ray::Worker", 20, ours),
        22: ("ray::Worker", 99, ours),  # its parent has ended
        30: ("ray::Worker", 1, theirs),
        40: ("python", 20, ours),
    }
    assert orphans(ours, processes) == [20, 21, 22]
    assert os.getpid() in living()


def test_a_process_is_known_by_the_folder_it_was_told_of(tmp_path: Path) -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", program, f"--session={tmp_path}/ray/session"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs: before that, the kernel may not have its words yet
        group = os.getpgid(0)
        processes = {process.pid: ("python", os.getpid(), group), os.getpid(): ("python", 1, group)}
        assert naming(str(tmp_path), group, processes) == [process.pid]
        assert naming(str(tmp_path), group, {process.pid: ("python", 1, group + 1)}) == []
        assert naming(str(tmp_path / "other"), group, processes) == []


def test_memory_of_another_machine_leaves_no_descriptor_open() -> None:
    worker = Worker()
    here, nowhere = os.open("/dev/null", os.O_RDWR), 10**6
    try:
        worker._config = WorkerConfig(
            0, 1, "float64", 1, 1.0, 0.0, "cpu", (), (os.getpid(), here, nowhere, nowhere, b"key")
        )
        before = os.listdir("/proc/self/fd")
        assert not worker._attach()
        assert os.listdir("/proc/self/fd") == before
    finally:
        os.close(here)


@pytest.mark.parametrize(
    ("seconds", "kind", "words"), [(3, SystemExit, "143"), (107, EngineError, "it gave up after 107 s")]
)
def test_sigterm_while_ray_starts(
    seconds: int, kind: type[BaseException], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM from another process, or from Ray itself, which gives up this way."""
    now = [1000.0]
    monkeypatch.setattr(cluster, "time", SimpleNamespace(monotonic=lambda: now[0]))

    def init(**_: Any) -> None:
        now[0] += seconds
        raise SystemExit(15)

    here = cluster.Cluster.__new__(cluster.Cluster)
    here.ray = SimpleNamespace(init=init)
    with pytest.raises(kind, match=words):
        here._init("Ray could not be started")


@pytest.mark.parametrize(("number", "kind"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)])
def test_a_signal_that_ray_swallows_while_it_starts(number: signal.Signals, kind: type[BaseException]) -> None:
    """An exception that a handler raises inside a ``__del__`` goes nowhere."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))

    def init(**_: Any) -> None:
        with contextlib.suppress(SystemExit, KeyboardInterrupt):
            os.kill(os.getpid(), number)
            os.getpid()  # a handler runs between two steps

    here = cluster.Cluster.__new__(cluster.Cluster)
    here.ray = SimpleNamespace(init=init)
    try:
        with pytest.raises(kind) as caught:
            here._init("Ray could not be started")
        assert number == signal.SIGINT or caught.value.args == (143,)
        here.ray = SimpleNamespace(init=lambda **_: None)
        here._init("Ray could not be started")
        assert signal.set_wakeup_fd(-1) == -1
    finally:
        signal.signal(signal.SIGTERM, before)


def test_ray_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    engine = ray(2)
    task = asgd.tasks.quadratic(workers=2)
    with pytest.raises(asgd.errors.UsageError, match=r"needs Ray; install it with: pip install 'asyncsgd\[ray\]'"):
        engine.start(task, asgd.async_sgd(0.1).work, task.initial())
