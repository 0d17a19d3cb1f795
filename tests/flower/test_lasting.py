"""What outlives a run of `a run: checkpoints, names of clients, kept updates, the ε spent."""

from __future__ import annotations

import json
import pickle
import shutil
import stat
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, failing, towards
from flower.serving import ARRAYS, QUIET, Ear, clients, error, quiet, serve
from flwr.app import ArrayRecord

import asyncsgd as asgd
from asyncsgd.core.errors import AsyncSGDError, BadParameter, BadRunDirectory, EngineError, UsageError
from asyncsgd.flower import KeptUpdates, Privacy

ALONE = quiet(minimum=1, keep_updates=True)


class Stop(Exception):
    pass


def test_a_run_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    """As when ServerApp or SuperLink die: the same clients are the same workers, and the trace is one."""

    def stops(iteration: int, arrays: ArrayRecord) -> dict[str, float]:
        if iteration == 20:
            raise Stop
        return {"loss": error(iteration, arrays)["loss"]}

    options: dict[str, Any] = {
        "iterations": 40,
        "every": 5,
        "checkpoints": asgd.Checkpoints(every=5),
        "directory": tmp_path,
        **QUIET,
    }
    with pytest.raises(Stop):
        serve(clients(1.0, 2.0, 3.0), ARRAYS, asgd.mifa(0.3), evaluate=stops, **options)
    with pytest.raises(BadParameter, match="already contains a run; pass resume=True"):
        serve(clients(1.0, 2.0, 3.0), ARRAYS, asgd.mifa(0.3), evaluate=error, **options)
    grid = clients(1.0, 2.0, 3.0)
    grid.add(50, towards(2.0))  # one more than before
    run = serve(grid, ARRAYS, asgd.mifa(0.3), evaluate=error, resume=True, **options)
    assert run.trace.iterations == 40
    measured = run.metrics["iteration"].tolist()
    assert measured[:4] == [0, 5, 10, 15]
    assert 20 <= measured[4] <= 25  # updates arrive while an evaluation goes wrong
    assert [iteration for iteration in measured if iteration > 25] == [30, 35, 40]
    assert [row["node"] for row in json.loads((tmp_path / "clients.json").read_text("utf-8"))][3] == "50"
    assert set(run.trace.worker[20:]) <= {0, 1, 2, 3}
    events = [json.loads(line)["event"] for line in (tmp_path / "journal.jsonl").read_text("utf-8").splitlines()]
    assert events.count("started") == events.count("resumed") == 1
    assert run.arrays["n"].numpy() > 0
    assert (tmp_path / "carried.safetensors").exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(("lost", "words"), [("run.json", "but no run.json"), ("checkpoints", "but no checkpoint")])
def test_a_run_that_lost_a_part_is_refused_and_left_as_it_is(
    tmp_path: Path, resume: bool, lost: str, words: str
) -> None:
    options: dict[str, Any] = {"iterations": 12, "directory": tmp_path, **quiet(keep_updates=True)}
    serve(clients(1.0, 2.0), ARRAYS, PRIVATE, **options)
    path = tmp_path / lost
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    with pytest.raises(AsyncSGDError, match=words if lost == "run.json" or resume else "already contains a run"):
        serve(clients(1.0, 2.0), ARRAYS, PRIVATE, resume=resume, **options)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("method", [asgd.mifa(0.3), asgd.fedbuff(0.5, concurrency=2, buffer=2).clipped(1.0, noise=4.0)])
def test_a_finished_run_is_returned_as_it_is(tmp_path: Path, method: Any) -> None:
    options: dict[str, Any] = {"iterations": 20, "directory": tmp_path, "evaluate": error, "resume": True, **QUIET}
    first = serve(clients(1.0, 2.0), ARRAYS, method, evaluate_clients=True, **options)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    ear = Ear()
    again = serve(clients(), ARRAYS, method, evaluate_clients=True, callbacks=[ear], **options)
    assert ear.notes == ["already at 20 iterations; pass iterations=N to continue"]
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    for name in first.arrays:
        assert again.arrays[name].numpy().tobytes() == first.arrays[name].numpy().tobytes()
    assert (again.privacy, again.client_metrics) == (first.privacy, first.client_metrics)


def test_carried_arrays_go_on_too(tmp_path: Path) -> None:
    options: dict[str, Any] = {"directory": tmp_path, "resume": True, **QUIET}
    first = serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.3), iterations=20, **options)
    grid = clients(1.0, 2.0)
    second = serve(grid, ARRAYS, asgd.async_sgd(0.3), iterations=22, **options)
    sent = grid.messages[0].content["arrays"]["n"].numpy()
    assert sent == first.arrays["n"].numpy() > 0
    assert second.arrays["n"].numpy() >= sent


def test_a_failing_client_does_not_end_the_run(tmp_path: Path) -> None:
    ear = Ear()
    run = serve(
        FakeGrid([towards(1.0), failing, towards(3.0)]),
        ARRAYS,
        asgd.async_sgd(0.2),
        iterations=60,
        directory=tmp_path,
        callbacks=[ear],
        **quiet(pause=3600.0),
    )
    assert run.trace.iterations == 60
    assert run.faults.exceptions == 3
    assert any(
        note.startswith("client 1 (node 9223372036854775824) is left out for 3600 s after repeated failures")
        for note in ear.notes
    )
    assert any("1 of the clients were left out for a while" in note for note in ear.notes)


def test_if_all_fail_the_run_ends_with_a_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="every client fails"):
        serve(FakeGrid([failing, failing]), ARRAYS, asgd.async_sgd(0.2), iterations=5, directory=tmp_path, **QUIET)
    assert list((tmp_path / "checkpoints").iterdir())


def test_what_flower_ends_is_saved_first(tmp_path: Path) -> None:
    """As `flwr stop` does in simulation, where the ServerApp has a thread of its own."""
    from flwr.supercore.exit.exit_handler import trigger_exit_handlers

    errors: list[Exception] = []
    begun = threading.Event()

    def evaluate(iteration: int, arrays: ArrayRecord) -> None:
        if iteration:
            begun.set()

    def app() -> None:
        endless: dict[str, Any] = {"iterations": 10**9, "checkpoints": asgd.Checkpoints(every=10**9), "every": 5}
        try:
            serve(
                clients(1.0, 2.0),
                ARRAYS,
                asgd.async_sgd(0.2),
                evaluate=evaluate,
                directory=tmp_path,
                **endless,
                **QUIET,
            )
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=app)
    thread.start()
    assert begun.wait(60)
    trigger_exit_handlers(run_before_force_exit=True)
    assert max(int(saved.stem) for saved in (tmp_path / "checkpoints").iterdir()) >= 5
    thread.join(60)
    assert "Flower's run has ended (it was stopped); start it again with resume=True" in str(errors[0])
    trigger_exit_handlers(run_before_force_exit=True)  # there is no run to wait for


# ---------------------------------------------------------------------------------------------- replay


def test_the_servers_side_can_be_replayed_if_updates_are_kept(tmp_path: Path) -> None:
    method = asgd.fedbuff(1.0, concurrency=4, buffer=3).clipped(2.0, noise=0.5)
    here = tmp_path / "here"
    run = serve(clients(1.0, 2.0), ARRAYS, method, iterations=30, directory=here, **quiet(keep_updates=True))
    again = asgd.replay(here)
    assert again.compared == 30
    assert again.model_compared
    assert again.x.tobytes() == run.x.tobytes()
    there = here.rename(tmp_path / "there")
    with pytest.raises(BadRunDirectory, match=r"initial\.npy cannot be read \(No such file"):
        asgd.replay(there)
    assert asgd.replay(there, task=KeptUpdates(there), method=run.method).model_compared


def test_otherwise_replay_says_why_it_cannot(tmp_path: Path) -> None:
    serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.2), iterations=5, directory=tmp_path, **QUIET)
    with pytest.raises(UsageError, match=r"Flower clients computed the updates .*; pass clients=asgd.flower.Clients"):
        asgd.replay(tmp_path)


def test_nothing_of_the_users_function_is_pickled(tmp_path: Path) -> None:
    lock = threading.Lock()  # cannot be pickled

    def evaluate(iteration: int, arrays: ArrayRecord) -> dict[str, float]:
        with lock:
            return {"loss": 1.0}

    serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.2), iterations=5, evaluate=evaluate, directory=tmp_path, **QUIET)
    with (tmp_path / "job.pkl").open("rb") as file:
        task, _ = pickle.load(file)
    assert type(task).__name__ == "AbsentUpdates"


# ---------------------------------------------------------------------------------------------- differential privacy


def test_epsilon_is_reported_with_every_evaluation(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra 'flower' is not installed")
    method = asgd.fedbuff(0.5, concurrency=2, buffer=2).clipped(1.0, noise=4.0)
    options: dict[str, Any] = {"every": 10, "directory": tmp_path, "resume": True, **QUIET}
    options["privacy"] = Privacy(delta=1e-6)
    run = serve(clients(1.0, 2.0), ARRAYS, method, iterations=30, **options)
    spent = run.metrics["epsilon"]
    assert spent[0] == 0.0
    assert (np.diff(spent) > 0).all()
    assert run.privacy is not None
    assert run.privacy.epsilon == spent[-1]
    assert (run.privacy.delta, run.privacy.noise_multiplier, run.privacy.clip) == (1e-6, 4.0, 1.0)
    worst = max(sum(c * c for c in _times(run.trace.worker.tolist(), worker)) for worker in (0, 1))
    assert run.privacy.contributions == np.sqrt(worst)
    assert run.arrays["n"].numpy() == 0  # noise does not protect it, so it stays
    longer = serve(clients(1.0, 2.0), ARRAYS, method, iterations=40, **options)
    assert longer.metrics["epsilon"][-1] > spent[-1]
    assert any("counted per SuperNode key: a SuperNode without a key" in note for note in run.config["notes"])


def _times(order: list[int], worker: int) -> list[int]:
    return [order[start : start + 2].count(worker) for start in range(0, len(order) - 1, 2)]


PRIVATE = asgd.fedbuff(0.5, concurrency=2, buffer=2).clipped(1.0, noise=4.0)


def seeds_of(directory: Path) -> list[int]:
    return [json.loads(line)["seed"] for line in (directory / "noise.jsonl").read_text("utf-8").splitlines()]


def test_the_seed_of_the_noise_is_secret(tmp_path: Path) -> None:
    """The noise is secret, whatever seed is given, and not on the page of the run."""
    for name in ("one", "two"):
        serve(clients(1.0, 2.0), ARRAYS, PRIVATE, iterations=4, directory=tmp_path / name, seed=3, **QUIET)
    [one], [two] = seeds_of(tmp_path / "one"), seeds_of(tmp_path / "two")
    assert one != two
    page = asgd.report(tmp_path / "one", tmp_path / "page.html").read_text("utf-8")
    for text in (page, *((tmp_path / "one" / name).read_text("utf-8") for name in ("run.json", "journal.jsonl"))):
        assert str(one) not in text
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700
    plain = serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=2, directory=tmp_path / "open", **QUIET)
    assert plain.privacy is None
    assert not (tmp_path / "open" / "noise.jsonl").exists()


def test_kept_updates_are_for_the_owner_alone(tmp_path: Path) -> None:
    serve(clients(1.0), ARRAYS, asgd.async_sgd(0.1), iterations=2, directory=tmp_path, **ALONE)
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def crash(directory: Path, iterations: int) -> None:
    """Take the directory back to a checkpoint, as if the machine had died before the next one."""
    for path in (directory / "checkpoints").glob("*.safetensors"):
        if int(path.stem) > iterations:
            path.unlink()


def test_after_a_crash_noise_is_new_and_what_was_lost_is_counted(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra 'flower' is not installed")
    method = asgd.fedbuff(1.0, concurrency=1, buffer=1).clipped(1.0, noise=4.0)
    still = FakeGrid([towards(0.0, rate=0.0)])  # updates of 0: the model is the sum of the noise
    options: dict[str, Any] = {
        "every": 100,
        "checkpoints": asgd.Checkpoints(every=1, keep=100),
        "directory": tmp_path,
        **ALONE,
    }
    first = serve(still, ARRAYS, method, iterations=6, **options)
    crash(tmp_path, 2)
    again = FakeGrid([towards(0.0, rate=0.0)])
    second = serve(again, ARRAYS, method, iterations=6, resume=True, **options)
    assert len(set(seeds_of(tmp_path))) == 2
    assert not np.isclose(first.x, second.x).any()
    assert first.privacy is not None
    assert second.privacy is not None
    assert (first.privacy.contributions**2, second.privacy.contributions**2) == pytest.approx((6, 10))
    replayed = asgd.replay(tmp_path)
    assert replayed.model_compared
    assert replayed.x.tobytes() == second.x.tobytes()


def test_epsilon_is_known_at_once_after_a_resume(tmp_path: Path) -> None:
    pytest.importorskip("dp_accounting", reason="the extra 'flower' is not installed")
    options: dict[str, Any] = {"directory": tmp_path, **QUIET}
    first = serve(clients(1.0, 2.0), ARRAYS, PRIVATE, iterations=20, **options)
    second = serve(clients(1.0, 2.0), ARRAYS, PRIVATE, iterations=20, resume=True, **options)
    assert first.privacy is not None
    assert second.privacy == first.privacy
    assert first.privacy.epsilon > 0


def test_damage_to_what_flower_keeps_is_noticed(tmp_path: Path) -> None:
    """Kept updates, carried arrays and releases; every flip of a byte in the middle, every file that is lost."""
    from asyncsgd.run.verify import verify

    options: dict[str, Any] = {"directory": tmp_path, **quiet(keep_updates=True)}
    run = serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.2), iterations=5, **options)
    assert verify(tmp_path) == []
    names = [f"updates/{job:012d}.npy" for job in run.trace.job]  # that of a job still in flight is not read
    for name in (*names, "updates/initial.npy", "carried.safetensors"):
        data = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(data[:-9] + bytes([data[-9] ^ 2]) + data[-8:])
        assert name in [finding.file for finding in verify(tmp_path)]
        (tmp_path / name).unlink()
        assert name in [finding.file for finding in verify(tmp_path)]
        (tmp_path / name).write_bytes(data)
    assert verify(tmp_path) == []
