"""The parts of examples/language_model.py: its model, its data and its task. The whole script is slow."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch

import asyncsgd as asgd

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "examples" / "language_model.py"


@pytest.fixture(scope="module")
def example():
    torch.set_num_threads(1)  # as in tasks.torch_zoo
    spec = importlib.util.spec_from_file_location("language_model", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["language_model"] = module
    spec.loader.exec_module(module)
    yield module
    del sys.modules["language_model"]


def test_the_text_is_that_of_the_standard_library(example):
    text = example.sources(1_000_000)
    assert len(text) == 1_000_000
    assert text == example.sources(1_000_000)
    data = example.Text(text[:1000])
    assert len(data) == 999 // 128
    row, following = data[0], data[1]
    assert bytes(row["tokens"].tolist()) == text[:128]
    assert torch.equal(row["tokens"][1:], row["labels"][:-1])
    assert row["labels"][-1] == following["tokens"][0]


def test_no_token_sees_those_after_it(example):
    torch.manual_seed(0)
    model = example.TinyGPT(vocab=256, layers=2, width=32)
    tokens = torch.randint(0, 256, (1, 128))
    changed = tokens.clone()
    changed[0, 100:] = 7
    first, second = model(tokens).logits, model(changed).logits
    assert torch.equal(first[0, :100], second[0, :100])
    assert not torch.equal(first[0, 100:], second[0, 100:])
    assert model(tokens).loss is None


@pytest.mark.slow
def test_the_task_learns_and_keeps_the_tie(example):
    task = example.task(megabytes=0.05)
    assert (task.batches_per_epoch, task.epoch_rows) == (12, 371)
    x = task.initial()
    start = task.evaluate(x)
    assert start["loss"] == pytest.approx(np.log(256), abs=0.5)
    for batch in range(4):
        update = task.update(x, batch % 2, batch, batch)
        x -= 0.2 * update / max(1.0, np.linalg.norm(update))
    after = task.evaluate(x)
    assert after["loss"] < start["loss"] - 0.3
    assert after["perplexity"] == pytest.approx(np.exp(after["loss"]))
    names = [name for name, _, _ in task.layout()]
    assert "embed.weight" in names
    assert "head.weight" not in names
    model = task.module(x)
    assert model.head.weight is model.embed.weight
    assert example.complete(model, "def ", length=3).startswith("def ")


@pytest.mark.slow
def test_the_task_reaches_a_worker(example):
    task = example.task(megabytes=0.05)
    again = cloudpickle.loads(cloudpickle.dumps(task))
    assert np.array_equal(again.update(task.initial(), 1, 5, 3), task.update(task.initial(), 1, 5, 3))


@pytest.mark.slow
@pytest.mark.processes
def test_the_script_trains_resumes_and_writes_the_model(tmp_path):
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}

    def call(*arguments):
        command = [sys.executable, str(SCRIPT), "--workers", "2", "--warmup", "2", "--directory", "gpt", *arguments]
        return subprocess.run(
            command, capture_output=True, encoding="utf-8", check=False, timeout=900, env=environment, cwd=tmp_path
        )

    done = call("--iterations", "6")
    assert done.returncode == 0, done.stderr
    assert "perplexity " in done.stdout
    done = call("--iterations", "8", "--resume")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "model.safetensors").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_the_script_trains_workers_that_are_far_apart(tmp_path):
    command = [sys.executable, str(SCRIPT), "--method", "async_diloco", "--unit", "0.0001", "--iterations", "6"]
    done = subprocess.run(
        [*command, "--directory", "gpt"],
        capture_output=True,
        encoding="utf-8",
        check=False,
        timeout=900,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "perplexity " in done.stdout
    assert "6 updates of 482,304 bytes" in done.stdout
    assert (tmp_path / "gpt" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["async_diloco", "diloco", "decoupled_diloco"])
def test_workers_that_are_far_apart_learn(example, name):
    task = example.task(megabytes=0.05, size=example.SMALL)
    method = example.far_apart(name, warmup=10, total=400)
    run = asgd.simulate(task, method, asgd.durations.fixed(example.SECONDS), iterations=4, every=4)
    assert run.metrics["loss"][-1] < run.metrics["loss"][0] - 0.5


@pytest.mark.filterwarnings("ignore:precision")  # a CPU without bfloat16 is slow at it
def test_a_batch_in_bfloat16_is_near_the_one_in_float32(example):
    def updates(precision):
        torch.manual_seed(0)
        return asgd.tasks.torch(
            example.TinyGPT(vocab=256, layers=1, width=32),
            step=lambda model, batch: model(batch["tokens"], labels=batch["labels"]).loss,
            data=example.Text(example.sources(2000)),
            batch_size=4,
            sampling="epochs",
            precision=precision,
        )

    plain, half = (updates(precision) for precision in ("float32", "bfloat16"))
    exact, update = (task.update(plain.initial(), 0, 0, 0) for task in (plain, half))
    assert not np.array_equal(exact, update)
    assert np.linalg.norm(exact - update) < 0.05 * np.linalg.norm(exact)
