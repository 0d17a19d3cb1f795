"""`verify` notices every flip, cut and loss in a run directory; `repair` saves what it can and deletes nothing."""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from markers import share
from run.common import Notes, events, sound, train
from run.tasks import BOWL, Exploding
from run.test_commands import call
from run.test_nothing_is_deleted import Killed, contents

import asyncsgd as asgd
from asyncsgd.core.errors import NoRun
from asyncsgd.run import BadRunDirectory, Callback, Control, LiveView, checkpoints
from asyncsgd.run.checksums import NAME
from asyncsgd.run.read import read_lines, read_trace
from asyncsgd.run.repair import repair
from asyncsgd.run.verify import verify
from asyncsgd.trace import Trace

NOISY = asgd.fedbuff(0.1, concurrency=2, buffer=2).clipped(1.0, noise=0.1)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that has ended, with every kind of file that a run of a named task without Flower can have."""
    directory = tmp_path_factory.mktemp("ended") / "run"
    train(directory, iterations=70, method=NOISY, task=BOWL, callbacks=[asgd.callbacks.SaveBest("loss")])
    assert {"best.safetensors", "initial.safetensors", "noise.jsonl"} <= {path.name for path in files(directory)}
    return directory


@pytest.fixture(scope="module")
def diverged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with the other kinds: last_finite and job.pkl. Its workers kept the state of their optimizers."""
    directory = tmp_path_factory.mktemp("diverged") / "run"
    method = asgd.async_sgd(1.0).local(2, 0.05, optimizer=asgd.optimizers.adamw(), state="kept")
    options = {"task": Exploding(0.1), "engine": asgd.engines.processes(1)}
    run = train(directory, 70, method, callbacks=[asgd.callbacks.SaveBest("loss")], **options)
    assert run.diverged is not None
    assert {"last_finite.safetensors", "best.safetensors", "job.pkl"} <= {path.name for path in files(directory)}
    return directory


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its last checkpoint, with a tail in every file."""
    folder = tmp_path_factory.mktemp("killed")

    class Dies(Callback):
        def on_evaluation(self, view: LiveView, metrics: object, control: Control) -> None:
            if view.iteration == 70:
                for thread in threading.enumerate():  # a checkpoint that is being written would be copied in pieces
                    if thread.name == "asyncsgd-checkpoint":
                        thread.join()
                shutil.copytree(folder / "alive", folder / "run")  # what a kill would leave: nothing is closed
                raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("asyncsgd.run.progress.TICK", 0.0)  # everything is flushed at once
        with pytest.raises(Killed):
            train(folder / "alive", iterations=90, callbacks=[Dies()])
    return folder / "run"


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def damages(directory: Path, seed: int) -> tuple[Path, str, bytes | None]:
    """A random file, what happens to it, and what it then holds (None: it is gone)."""
    rng = random.Random(seed)
    path = rng.choice(files(directory))
    data, kind = path.read_bytes(), rng.choice(["flip", "flip", "cut", "gone"])
    if kind == "gone" or not data:
        return path, "gone", None
    if kind == "cut":
        return path, kind, data[: rng.randrange(len(data))]
    place = rng.randrange(len(data))
    return path, kind, data[:place] + bytes([data[place] ^ 1 << rng.randrange(8)]) + data[place + 1 :]


def read(directory: Path) -> tuple[object, ...]:
    """All that readers see of a run."""
    lines = [read_lines(directory, name) for name in ("metrics.jsonl", "journal.jsonl", "noise.jsonl")]
    newest = checkpoints.read(checkpoints.listed(directory / "checkpoints")[0])
    return *lines, read_trace(directory), newest.iteration, newest.state["update"]["points"]["live"].keys()


def harmless(directory: Path, path: Path) -> bool:
    """The proof: only .lock may change unnoticed. It is empty, no reader opens it, and a run makes it again."""
    if path.name != ".lock":
        return False
    assert asgd.replay(directory).compared == read_trace(directory).iterations
    return True


def judge(directory: Path, seeds: Iterator[int] | range) -> None:
    before = read(directory)
    for seed in seeds:
        path, kind, data = damages(directory, seed)
        saved = path.read_bytes()
        path.unlink() if data is None else path.write_bytes(data)
        try:
            name = str(path.relative_to(directory))
            named = [finding.file for finding in verify(directory) if finding.damage]
            if name not in named:
                assert harmless(directory, path), f"seed {seed}: {kind} of {name} was not noticed, only {named}"
                assert read(directory) == before
        finally:
            path.write_bytes(saved)
    assert verify(directory) == []


@pytest.mark.slow
@pytest.mark.processes
def test_200_random_damages_are_noticed(diverged: Path) -> None:
    judge(diverged, range(200))


@pytest.mark.slow
def test_1000_random_damages_are_noticed(ended: Path) -> None:
    judge(ended, range(1000, 2000))


def test_readers_refuse_what_they_read(ended: Path) -> None:
    """Not only `verify`: whoever reads a damaged file, or the place of a lost one, says so."""
    before, refused = read(ended), 0
    for seed in range(5000, 5060):
        path, kind, data = damages(ended, seed)
        saved = path.read_bytes()
        path.unlink() if data is None else path.write_bytes(data)
        try:
            try:
                assert asgd.replay(ended).model_compared
                assert read(ended) == before, f"seed {seed}: {kind} of {path} changed what is read"
            except asgd.AsyncSGDError as error:
                refused += 1
                said = str(error)
            else:
                said = path.name
            assert path.name in said, f"seed {seed}: {kind} of {path}: {said}"
        finally:
            path.write_bytes(saved)
    assert refused > 40


# ---------------------------------------------------------------------------------------------- a run that was killed


def test_a_run_that_was_killed_is_sound(killed: Path) -> None:
    assert [finding for finding in verify(killed) if finding.damage] == []


def test_what_a_kill_tore_is_a_note(killed: Path, tmp_path: Path) -> None:
    """And harmless: all up to the last checkpoint is there, and a resume reads no more."""
    copy = tmp_path / "run"
    shutil.copytree(killed, copy)
    for name in ("metrics.jsonl", "journal.jsonl", "fingerprints.bin", "trace.log"):
        with (copy / name).open("ab") as file:
            file.write(b'{"ite')
    found = verify(copy)
    assert {finding.file for finding in found} == {"metrics.jsonl", "journal.jsonl", "fingerprints.bin", "trace.log"}
    assert not any(finding.damage for finding in found)
    assert repair(copy) == []
    sound(train(copy, iterations=90, resume=True), 90)
    assert verify(copy) == []


@pytest.mark.parametrize("name", ["metrics.jsonl", "journal.jsonl", "fingerprints.bin", "trace.log"])
def test_a_killed_run_whose_files_are_cut_at_every_byte(killed: Path, name: str) -> None:
    """Up to what the last checkpoint relies on a cut is noticed; behind it, it is as if the kill had come earlier."""
    mark = checkpoints.read(checkpoints.listed(killed / "checkpoints")[0]).marks[name]
    data = (killed / name).read_bytes()
    try:
        for size in {*range(0, len(data), max(1, len(data) // 40)), mark.size, mark.size - 1}:
            (killed / name).write_bytes(data[:size])
            damaged = [finding.file for finding in verify(killed) if finding.damage]
            assert damaged == ([name] if size < mark.size else []), size
    finally:
        (killed / name).write_bytes(data)


# ---------------------------------------------------------------------------------------------- repair


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def lose(path: Path) -> None:
    path.unlink()


REPAIRED = [
    "trace.parquet",
    "trace.log",
    "metrics.jsonl",
    "journal.jsonl",
    "fingerprints.bin",
    NAME,
    "newest",
    "oldest",
]


# A third in `make quick`: every file, and every kind of damage.
@pytest.mark.parametrize(("damage", "name"), share(product([flip, halve, lose], REPAIRED), every=3))
def test_repair_makes_it_sound_and_it_can_be_resumed(tmp_path: Path, name: str, damage: Callable[[Path], None]) -> None:
    run = train(tmp_path / "run", iterations=70)
    listed = checkpoints.listed(tmp_path / "run" / "checkpoints")
    path = {"newest": listed[0], "oldest": listed[-1]}.get(name, tmp_path / "run" / name)
    damage(path)
    left = path.read_bytes() if path.exists() else None
    done = repair(tmp_path / "run")
    assert done
    assert done[-1] == f"{NAME} is rebuilt"
    assert verify(tmp_path / "run") == []
    if left is not None:  # nothing is deleted
        aside = tmp_path / "run" / "damaged-1" / path.relative_to(tmp_path / "run")
        assert aside.read_bytes() == left
    assert read_trace(tmp_path / "run").jobs.outcome.tobytes() == run.trace.jobs.outcome.tobytes()
    again = train(tmp_path / "run", iterations=90, resume=True)
    assert again.trace.iterations == 90
    again.trace.check()
    if name != "journal.jsonl":  # a replay needs to know who was there, and how many threads there were
        assert asgd.replay(tmp_path / "run").x.tobytes() == again.x.tobytes()
    assert verify(tmp_path / "run") == []


def test_a_rebuilt_trace_is_the_same(ended: Path, tmp_path: Path) -> None:
    for name in ("trace.parquet", "trace.log"):
        copy = tmp_path / name
        shutil.copytree(ended, copy)
        before = Trace.read(copy / name)
        halve(copy / name)
        repair(copy)
        assert Trace.read(copy / name) == before


def test_a_killed_run_with_a_damaged_log_keeps_its_beginning(killed: Path, tmp_path: Path) -> None:
    copy = tmp_path / "run"
    shutil.copytree(killed, copy)
    newest, older, *_ = checkpoints.listed(copy / "checkpoints")
    place = checkpoints.read(older).marks["trace.log"].size + 20
    data = bytearray((copy / "trace.log").read_bytes())
    data[place] ^= 1
    (copy / "trace.log").write_bytes(data)
    with pytest.raises(BadRunDirectory, match=r"trace\.log is gone or damaged .*asyncsgd repair DIR"):
        train(copy, iterations=90, resume=True)
    done = repair(copy)
    assert f"checkpoints/{newest.name} needs more of trace.log than is left; it is now in damaged-1" in done
    notes = Notes()
    sound(train(copy, iterations=90, resume=True, callbacks=[notes]), 90)
    assert [row["iteration"] for row in events(copy, "resumed")] == [int(older.stem)]


def test_without_run_json_nothing_is_touched(tmp_path: Path) -> None:
    train(tmp_path / "run", iterations=20)
    flip(tmp_path / "run" / "run.json")
    before = contents(tmp_path)
    with pytest.raises(BadRunDirectory, match=r"run\.json is damaged"):
        repair(tmp_path / "run")
    assert contents(tmp_path) == before


def test_a_second_repair_goes_to_the_next_folder(tmp_path: Path) -> None:
    train(tmp_path / "run", iterations=20)
    for number in (1, 2):
        flip(tmp_path / "run" / "trace.parquet")
        repair(tmp_path / "run")
        assert (tmp_path / "run" / f"damaged-{number}" / "trace.parquet").exists()
    assert repair(tmp_path / "run") == []


def test_a_directory_without_a_run(tmp_path: Path) -> None:
    for function in (verify, repair):
        with pytest.raises(NoRun, match="holds no run"):
            function(tmp_path)


@pytest.mark.slow
def test_the_commands(tmp_path: Path) -> None:
    train(tmp_path / "run", iterations=20)
    directory = str(tmp_path / "run")
    assert call("verify", directory)[:2] == (0, f"{directory} is sound\n")
    flip(tmp_path / "run" / "trace.parquet")
    code, said, _ = call("verify", directory)
    assert code == 1
    assert said.startswith("damaged: trace.parquet is damaged (it does not match checksums.json)\n")
    code, said, _ = call("repair", directory)
    assert code == 0
    assert "trace.parquet is rebuilt from trace.log" in said
    assert call("verify", directory, "--json")[:2] == (0, '{\n  "sound": true,\n  "findings": []\n}\n')
    assert call("verify", str(tmp_path / "nothing"))[0] == 2
    assert call("verify")[0] == 2


def test_every_job_is_one_mini_batch_today(ended: Path) -> None:
    jobs = read_trace(ended).jobs
    assert np.array_equal(jobs.batch, jobs.job)
    assert (jobs.steps == 1).all()
