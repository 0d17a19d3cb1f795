"""`flwr run` on Flower's simulation engine: stock ClientApps of NumPy and of PyTorch, synchronous and not."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("ray", reason="the extra 'flower' is not installed")

from flower.client_apps import LEGACY, MESSAGES, accuracies, needs, with_server
from flower.deployment import APP, DIGITS, DILOCO
from flower.programs import Programs, free_port
from safetensors.numpy import load_file

import asyncsgd as asgd
from asyncsgd.run.directory import in_use
from asyncsgd.run.read import read_lines, read_trace

pytestmark = [
    pytest.mark.flower,
    pytest.mark.timeout(600),
    # Ray starts its workers by a line of words that it does not quote.
    pytest.mark.skipif(" " in sys.prefix, reason="Flower's simulation starts no client below a path with a space"),
]
CLIENTS = 4


class Simulation(Programs):
    """A SuperLink that simulates its SuperNodes."""

    def superlink(self) -> subprocess.Popen[bytes]:
        port = free_port()
        lines = (
            "[superlink]",
            'default = "here"',
            "[superlink.here]",
            f'address = "127.0.0.1:{port}"',
            "insecure = true",
        )
        (self.home / "config.toml").write_text("\n".join((*lines, "")), "utf-8")
        where = ("--host", "127.0.0.1", "--port", str(port))
        process = self.start("superlink", "flower-superlink", "--insecure", "--simulation", *where)
        self.until(lambda: healthy(port) or process.poll() is not None, "the SuperLink")
        assert process.poll() is None, self.said()
        return process

    def flwr_run(self, app: Path, *options: str, **config: Any) -> str:
        """Until it has ended, unless the options say otherwise."""
        size = f"num-supernodes={CLIENTS} client-resources-num-cpus=1 init-args-num-cpus={CLIENTS}"
        words = " ".join(f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items())
        how = options or ("--stream",)
        return self.run("flwr", "run", str(app), "here", *how, "--federation-config", size, "--run-config", words)


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.fixture(scope="module")
def simulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulation]:
    with Simulation(tmp_path_factory.mktemp("simulation")) as here:
        here.superlink()
        yield here


def test_numpy_clients_synchronous_and_not(simulation: Simulation, tmp_path: Path) -> None:
    methods = ("rounds", "algorithm-2", "private", "compressed")
    said = simulation.flwr_run(APP, methods=" ".join(methods), directory=str(tmp_path), minimum=CLIENTS, rounds=6)
    for name in methods:
        assert (tmp_path / name / "run.json").exists(), said
        trace = read_trace(tmp_path / name)
        trace.check()
        assert trace.iterations == (12 if name == "rounds" else 24), said  # its rounds have two arrivals
        mean = read_lines(tmp_path / name, "metrics.jsonl")[-1]["mean"]
        assert mean < 9.0, f"{name}: it began at 10 and the clients pull towards 0, 1, 2 and 3"
        kinds = {
            row["kind"] for row in read_lines(tmp_path / name, "journal.jsonl") if row["event"] == "client_metrics"
        }
        assert kinds == {"train", "evaluate"}
        assert load_file(tmp_path / name / "carried.safetensors")["count"] > 0 if name != "private" else True
    assert read_trace(tmp_path / "rounds").delay.max() < CLIENTS
    assert read_lines(tmp_path / "private", "metrics.jsonl")[-1]["epsilon"] > 0
    journal = read_lines(tmp_path / "compressed", "journal.jsonl")
    assert not [row for row in journal if row["event"] in ("rejected", "failed")]
    remembered = [row["highest"]["remembers"] for row in journal if row.get("kind") == "train"]
    assert remembered[-1] == 1.0  # Flower keeps the node's state


def test_flwr_stop_ends_a_run_with_a_checkpoint(simulation: Simulation, tmp_path: Path) -> None:
    """There is no other one but that of the start: the next would come after a million iterations."""
    directory = tmp_path / "async"
    config: dict[str, Any] = {"methods": "async", "directory": str(tmp_path), "minimum": CLIENTS, "evaluate": False}
    said = simulation.flwr_run(APP, "--format", "json", checkpoint_every=1_000_000, rounds=1_000_000, **config)
    simulation.until(lambda: len(read_lines(directory, "metrics.jsonl")) > 3, "some training")
    simulation.run("flwr", "stop", json.loads(said)["run-id"], "here")
    simulation.until(lambda: len(list((directory / "checkpoints").glob("[0-9]*"))) > 1, "the last checkpoint")
    simulation.until(lambda: not in_use(directory), "the ServerApp to let go")
    first, last = sorted((directory / "checkpoints").glob("[0-9]*"))
    assert int(first.stem) == 0
    assert int(last.stem) > 8
    [stopped] = [row for row in read_lines(directory, "journal.jsonl") if row["event"] in ("stopped", "ended")]
    assert stopped["iteration"] == int(last.stem)
    rounds = int(last.stem) // CLIENTS + 1
    simulation.flwr_run(APP, resume=True, rounds=rounds, **config)
    trace = read_trace(directory)
    trace.check()
    assert trace.iterations == rounds * CLIENTS


def test_pytorch_clients_with_batchnorm_and_whole_numbers(simulation: Simulation, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    directory = tmp_path / "digits"
    said = simulation.flwr_run(
        DIGITS,
        method="delay-adaptive",
        clients=CLIENTS,
        directory=str(directory),
        rounds=6,
        target=2.0,
        fast_seconds=0.0,
        slow_seconds=1.0,
        slow_clients=1,
    )
    assert (directory / "run.json").exists(), said
    trace = read_trace(directory)
    trace.check()
    assert trace.iterations == 24, said
    journal = read_lines(directory, "journal.jsonl")
    assert {row["worker"] for row in journal if row["event"] == "joined"} == set(range(CLIENTS))
    assert set(trace.worker) <= set(range(CLIENTS))  # a busy machine decides who is fast enough to be applied
    rows = read_lines(directory, "metrics.jsonl")
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.1
    carried = load_file(directory / "carried.safetensors")
    assert carried["layers.1.num_batches_tracked"] > 0
    assert (carried["layers.1.running_var"] > 0).all()
    evaluated = [row for row in journal if row.get("kind") == "evaluate"]
    assert evaluated[0]["metrics"].keys() == {"loss", "accuracy"}
    page = tmp_path / "page.html"
    asgd.report(directory, page)
    assert "train_loss" in page.read_text("utf-8")


@pytest.mark.parametrize("name", [*LEGACY, *MESSAGES])
def test_an_app_with_its_changed_server(simulation: Simulation, tmp_path: Path, name: str) -> None:
    """The ClientApp is the same. Legacy apps run with Flower's own FedAvg first: ServerApp(server_fn=...)."""
    needs(name)
    # Two rounds show that the stock server works: the comparison is in benchmarks/federated/four_apps.py.
    for module, rounds in {"server_app": 2, "async_server_app": 5}.items():
        if module == "async_server_app" or name in LEGACY:
            output = tmp_path / f"{module}-accuracy"
            config = {"output": str(output), "directory": str(tmp_path / "run"), "num_server_rounds": rounds}
            said = simulation.flwr_run(with_server(name, module, tmp_path), clients=CLIENTS, **config)
            assert output.exists(), said
            assert accuracies(output)[-1] > 0.7
    journal = read_lines(tmp_path / "run", "journal.jsonl")
    assert not [row for row in journal if row["event"] in ("failed", "rejected")]
    assert {row["worker"] for row in journal if row["event"] == "joined"} == set(range(CLIENTS))
    assert {row["kind"] for row in journal if row["event"] == "client_metrics"} == {"train", "evaluate"}
    assert read_trace(tmp_path / "run").iterations == 5 * CLIENTS


def test_the_comparison_of_the_example(tmp_path: Path) -> None:
    """The program that the README tells to run, in a small setting; it leaves nothing running."""
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    with Programs(tmp_path) as here:
        pace = ("--config", "fast-seconds=0.0", "--config", "slow-seconds=0.5", "--config", "slow-clients=1")
        small = ("--clients", "2", "--target", "0.3", "--config", "rounds=20", *pace)
        output = tmp_path / "output"
        said = here.run(
            sys.executable,
            str(DIGITS / "compare.py"),
            "flower-fedavg",
            "delay-adaptive",
            "--output",
            str(output),
            *small,
        )
        assert not here.relatives()
    head, flowers, ours = said.splitlines()[:3]
    assert head.split() == ["method", "time", "updates", "best", "to", "accuracy", "0.3"]
    for line, name in ((flowers, "flower-fedavg"), (ours, "delay-adaptive")):
        method, *numbers = line.split()
        assert method == name
        assert float(numbers[-1]) >= 0.3, said
        assert numbers[1] == "s", said
    assert "delay-adaptive" in (output / "report.html").read_text("utf-8")
    assert read_trace(output / "delay-adaptive").iterations <= 40


def test_the_example_of_diloco(simulation: Simulation, tmp_path: Path) -> None:
    """Clients that own their loop, compressed messages, and fewer steps for clients that are slower."""
    pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    said = simulation.flwr_run(DILOCO, clients=CLIENTS, directory=str(tmp_path / "diloco"), rounds=5)
    assert (tmp_path / "diloco" / "run.json").exists(), said
    trace = read_trace(tmp_path / "diloco")
    trace.check()
    assert trace.iterations == 20, said
    assert trace.jobs.steps.max() == 20
    rows = read_lines(tmp_path / "diloco", "metrics.jsonl")
    assert rows[-1]["accuracy"] > rows[0]["accuracy"] + 0.1, said
    assert not [row for row in read_lines(tmp_path / "diloco", "journal.jsonl") if row["event"] == "rejected"], said
