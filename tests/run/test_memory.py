"""A run that does not fit into memory is refused before a worker starts; excluded parameters survive a resume."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import sound, train

import asyncsgd as asgd
from asyncsgd.compiled.kernels import LONG
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.layout import Layout
from asyncsgd.run import memory
from asyncsgd.run.last_good import LARGE
from asyncsgd.run.memory import available, check_memory, remembered, worker_vectors
from asyncsgd.run.options import Evaluation, RunRequest
from asyncsgd.tasks._torch.task import TorchTask
from asyncsgd.tasks.base import Copies
from asyncsgd.testing.bench import Bowl

MEMINFO = "MemTotal:       24000000 kB\nMemFree:        1000 kB\nMemAvailable:   16000000 kB\n"


def put(root: Path, path: str, text: str) -> None:
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


def test_the_machine_says_what_is_available(tmp_path: Path) -> None:
    assert available(tmp_path) is None
    put(tmp_path, "proc/meminfo", MEMINFO)
    assert available(tmp_path) == 16_000_000 * 1024


def test_a_container_has_less(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/cgroup", "0::/jobs/mine\n")
    put(tmp_path, "sys/fs/cgroup/jobs/mine/memory.max", "max\n")
    put(tmp_path, "sys/fs/cgroup/jobs/mine/memory.current", "100\n")
    assert available(tmp_path) == 16_000_000 * 1024
    put(tmp_path, "sys/fs/cgroup/jobs/memory.max", "5000\n")
    put(tmp_path, "sys/fs/cgroup/jobs/memory.current", "3000\n")
    assert available(tmp_path) == 2000
    put(tmp_path, "sys/fs/cgroup/jobs/memory.stat", "anon 5\ninactive_file 700\n")
    assert available(tmp_path) == 2700


def test_the_first_version_of_control_groups(tmp_path: Path) -> None:
    put(tmp_path, "proc/meminfo", MEMINFO)
    put(tmp_path, "proc/self/cgroup", "5:cpu,memory:/mine\n3:devices:/\n")
    put(tmp_path, "sys/fs/cgroup/memory/mine/memory.limit_in_bytes", "9000\n")
    put(tmp_path, "sys/fs/cgroup/memory/mine/memory.usage_in_bytes", "10000\n")
    assert available(tmp_path) == 0


def test_this_machine_is_asked() -> None:
    if Path("/proc/meminfo").exists():
        assert (available() or 0) > 1_000_000


def test_too_little_memory_is_an_error_with_the_numbers() -> None:
    method = asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.adamw())
    x = np.zeros(1_000_000, np.float32)
    check_memory(method, x, 2, free=44_000_000)
    with pytest.raises(BadParameter) as caught:
        check_memory(method, x, 2, free=43_999_999)
    assert str(caught.value) == (
        "workers = 2 need 44 MB of memory on the server for 1,000,000 parameters of float32 "
        "(points 8.0 MB, updates 8.0 MB, optimizer 8.0 MB, copies 20 MB), and 44 MB are free; "
        "use fewer workers, a smaller concurrency, an optimizer that remembers less or a smaller model"
    )


def test_memories_of_every_worker_are_counted_before_they_exist() -> None:
    x = np.zeros(10**6, np.float32)
    check_memory(asgd.fedbuff(0.1, concurrency=4), x, 1000, free=10**9)
    with pytest.raises(BadParameter) as caught:
        check_memory(asgd.fedbuff(0.1, concurrency=4, calibrated=True), x, 1000, free=10**9)
    assert "workers = 1000 need 8.1 GB of memory on the server" in str(caught.value)
    assert "memories 4" in str(caught.value)
    assert str(caught.value).endswith("or a method that does not remember an update of every worker")


@pytest.mark.parametrize(
    ("method", "vectors"), [(asgd.fedbuff(1.0, concurrency=4, calibrated=True), 13), (asgd.mifa(0.1), 11)]
)
def test_what_a_method_remembers_is_stated(method: asgd.Method, vectors: int) -> None:
    task, engine = asgd.tasks.quadratic(workers=10, dim=1000), asgd.engines.processes(10)
    request = RunRequest(task=task, method=method, engine=engine, iterations=1, evaluation=Evaluation(1))
    size, more = f"{8 * vectors} kB of memory on the server for 10 workers", "8.0 kB more for each further one"
    assert remembered(request) == f"{method.name} remembers one update per worker: {size}, {more}"
    assert remembered(replace(request, method=asgd.fedbuff(1.0, concurrency=4))) is None


def test_a_large_model_in_a_directory_needs_a_copy_less() -> None:
    x = np.zeros(LARGE // 4, np.float32)
    check_memory(asgd.async_sgd(0.1), x, 2, free=6 * LARGE, directory=True)  # 2 points, 2 updates, 2 copies
    for few, directory in ((x, False), (x[1:], True)):
        with pytest.raises(BadParameter, match=r"copies 201 MB"):
            check_memory(asgd.async_sgd(0.1), few, 2, free=6 * LARGE, directory=directory)


def test_copies_of_the_task_of_workers_and_of_best_models_are_counted() -> None:
    """A perceptron on two worker processes with the best model of one metric."""
    x, held = np.zeros(1_000_000, np.float32), TorchTask
    known = {"task": held, "best": 1, "on_this_machine": True}
    # 2 points, 2 updates, 3 copies, 2 of the task, 4 of the best model, 2 that all workers share, 2 of each worker
    check_memory(asgd.async_sgd(0.1), x, 2, free=76_000_000, **known)
    with pytest.raises(BadParameter) as caught:
        check_memory(asgd.async_sgd(0.1), x, 2, free=75_999_999, **known)
    assert (
        "workers = 2 need 76 MB of memory for the server and its worker processes for 1,000,000 parameters of float32 "
        "(points 8.0 MB, updates 8.0 MB, copies 12 MB, task 8.0 MB, best models 16 MB, worker processes 24 MB), "
        "and 76 MB are free; use fewer workers"
    ) in str(caught.value)


def test_local_work_and_codes_need_memory_in_each_worker() -> None:
    def each(method: asgd.Method) -> int:
        return worker_vectors(method.job, Copies(), 5) // 5

    local = asgd.async_sgd(0.1).local(20, 0.1, optimizer=asgd.optimizers.adamw())
    kept = asgd.async_sgd(0.1).local(20, 0.1, optimizer=asgd.optimizers.adamw(), state="kept")
    assert [each(method) for method in (asgd.async_sgd(0.1), local, kept)] == [1, 4, 6]
    assert each(asgd.async_sgd(0.1).compressed("int8", down="bfloat16")) == 4


@pytest.mark.parametrize("engine", [asgd.engines.processes(2), Inline(2)], ids=lambda engine: type(engine).__name__)
def test_a_run_tells_what_it_holds(engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Holds(Bowl):
        copies = Copies(server=1)

    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(BadParameter, match=r"task 800 B, best models 3\.2 kB") as caught:
        train(tmp_path / "run", 40, task=Holds(dim=100), engine=engine, callbacks=[asgd.callbacks.SaveBest("loss")])
    assert ("worker processes 1.6 kB" in str(caught.value)) == engine.on_this_machine


def test_a_run_that_does_not_fit_starts_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available", lambda: 1000)
    with pytest.raises(BadParameter, match=r"workers = 2 need .* are free"):  # starting one would need a marker
        train(tmp_path / "run", 40, engine=asgd.engines.processes(2))
    assert not (tmp_path / "run" / "run.json").exists()


class Named(Bowl):
    """A bowl with names."""

    def __init__(self, bias: int = 5) -> None:
        super().__init__(dim=20)
        self.bias = bias

    def layout(self) -> Layout:
        return (("weight", 0, (20 - self.bias,)), ("bias", 20 - self.bias, (self.bias,)))


METHOD = asgd.async_sgd(0.05).using(optimizer=asgd.optimizers.adamw(weight_decay=0.5, exclude="bias"))


def test_excluded_parameters_are_recorded_resumed_and_replayed(tmp_path: Path) -> None:
    plain = train(None, 60, METHOD.using(optimizer=asgd.optimizers.adamw(weight_decay=0.5)), task=Named())
    train(tmp_path / "run", 30, METHOD, task=Named())
    config = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert config["parts"]["optimizer"]["ranges"] == [[15, 20]]
    run = train(tmp_path / "run", 60, METHOD, task=Named(), resume=True)
    sound(run, 60)
    assert not np.array_equal(run.x[15:], plain.x[15:])
    again = asgd.replay(tmp_path / "run", task=Bowl(dim=20))  # which has no names
    assert again.x.tobytes() == run.x.tobytes()
    assert again.model_compared


def test_another_layout_is_another_run(tmp_path: Path) -> None:
    train(tmp_path / "run", 30, METHOD, task=Named())
    with pytest.raises(BadParameter, match="is not what the run started with"):
        train(tmp_path / "run", 60, METHOD, task=Named(bias=7), resume=True)


def test_names_that_match_nothing_start_nothing(tmp_path: Path) -> None:
    method = METHOD.using(optimizer=asgd.optimizers.adamw(weight_decay=0.1, exclude=("bias", "norm")))
    with pytest.raises(BadParameter, match=r"exclude = 'norm' matches no parameter; .* weight, bias"):
        train(tmp_path / "run", 30, method, task=Named())
    assert not (tmp_path / "run" / "run.json").exists()


def test_compiled_threads_and_the_numpy_of_a_replay_agree(tmp_path: Path) -> None:
    """The model is long enough for several threads; a replay uses the plain passes of the core."""
    method = asgd.delay_adaptive(0.05).clipped(100.0).using(optimizer=asgd.optimizers.adamw(weight_decay=0.1))
    assert LONG <= 600_000
    sound(train(tmp_path, 12, method, task=Bowl(600_000, np.float32), checkpoints=asgd.Checkpoints(every=6)), 12)
