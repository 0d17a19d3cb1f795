"""Half precision and compiled models through worker processes: a replay in one process gives the same bits."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'asyncsgd[torch]'")

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]


def trained_and_replayed(directory: Path, **options: Any) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(128, 12)
    labels = (inputs[:, 0] > inputs[:, 1]).long()
    model = torch.nn.Sequential(torch.nn.Linear(12, 16), torch.nn.GELU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 2))
    loss, data = torch.nn.CrossEntropyLoss(), (inputs, labels)
    task = asgd.tasks.torch(model, loss, data, batch_size=16, sampling="epochs", test=data, **options)
    method = asgd.delay_adaptive(0.01).clipped(1.0).using(optimizer=asgd.optimizers.adamw(weight_decay=0.1))
    # Compiling is a part of a worker's first job.
    engine = asgd.engines.processes(2, threads=1, start_timeout=500.0, job_timeout=500.0)
    run = asgd.train(task, method, engine, epochs=3, directory=directory, progress=False)
    assert run.trace.iterations == 24
    assert run.metrics["loss"][-1] < run.metrics["loss"][0]
    again = asgd.replay(directory)
    assert again.compared == 24
    assert again.model_compared
    assert again.x.tobytes() == run.x.tobytes()


@pytest.mark.filterwarnings("ignore:precision")  # a CPU without bfloat16 is slow at it
def test_bfloat16(tmp_path: Path) -> None:
    trained_and_replayed(tmp_path, precision="bfloat16")


@pytest.mark.skipif(" " in sys.prefix, reason="PyTorch gives the linker a path with a space as two")
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")  # of torch's compiler
def test_a_compiled_model(tmp_path: Path) -> None:
    from asyncsgd.tasks._torch.checks import check_compiler

    try:
        check_compiler()
    except BadParameter as error:
        pytest.skip(f"torch.compile does not work here: {error}")
    trained_and_replayed(tmp_path, compile=True)
