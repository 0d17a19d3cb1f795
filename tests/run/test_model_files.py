"""What a run hands on: its module, model files that other programs load, tables, figures, and a run read back."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import train
from run.tasks import Exploding

import asyncsgd as asgd
from asyncsgd import cli
from asyncsgd.core.errors import BadCheckpoint, BadParameter, MissingLibrary, NotTrusted
from asyncsgd.run.callbacks import SaveBest

torch = pytest.importorskip("torch")
from safetensors.numpy import load_file as load_arrays  # noqa: E402
from safetensors.torch import load_file, load_model  # noqa: E402
from torch import nn  # noqa: E402

torch.set_num_threads(1)


class Tied(nn.Module):
    """An embedding whose weights are those of the output layer, a frozen part, buffers, and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.norm = nn.BatchNorm1d(6)
        self.frozen = nn.Linear(6, 6, dtype=torch.float32)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.ones((), dtype=torch.bfloat16))
        self.output = nn.Linear(6, 12)
        self.output.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        return self.output(self.frozen(self.norm(self.embedding(tokens))) * self.scale.float())


def tied_task() -> Any:
    torch.manual_seed(0)
    tokens = torch.arange(48) % 12
    return asgd.tasks.torch(Tied(), nn.CrossEntropyLoss(), (tokens, (tokens + 1) % 12), batch_size=8)


def same(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def run() -> asgd.Run:
    return asgd.simulate(tied_task(), asgd.async_sgd(0.1), asgd.durations.fixed([1.0, 3.0]), iterations=20)


def test_the_module_is_the_trained_one(run: asgd.Run) -> None:
    module = run.module()
    assert isinstance(module, Tied)
    assert not module.training
    assert module.output.weight is module.embedding.weight
    trained = [p.detach().numpy().ravel() for p in module.parameters() if p.requires_grad]
    assert np.concatenate(trained).tobytes() == run.x.tobytes()


def test_safetensors_of_tied_weights(run: asgd.Run, tmp_path: Path) -> None:
    path = run.write_model(tmp_path / "model.safetensors")
    names = load_file(path).keys()
    assert "embedding.weight" in names
    assert "output.weight" not in names  # it is the same tensor, written once
    fresh = Tied()
    assert load_model(fresh, path) == (set(), [])
    assert same(fresh, run.module())
    assert fresh.output.weight is fresh.embedding.weight


@pytest.mark.parametrize("name", ["model.pt", "model.pth"])
def test_state_dict(run: asgd.Run, tmp_path: Path, name: str) -> None:
    path = run.write_model(tmp_path / name)
    fresh = Tied()
    fresh.load_state_dict(torch.load(path, weights_only=True))
    assert same(fresh, run.module())


def test_parts_of_one_tensor_are_written_apart(tmp_path: Path) -> None:
    """Buffers that are pieces of the same memory: safetensors refuses them as they are."""

    class Pieces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            whole = torch.arange(6.0)
            self.register_buffer("left", whole[:3])
            self.register_buffer("right", whole[2:])
            self.register_buffer("across", whole.view(2, 3).T)
            self.register_buffer("nothing", torch.empty(0))

        def forward(self, x: Any) -> Any:
            return self.layer(x)

    task = asgd.tasks.torch(Pieces(), nn.MSELoss(), (torch.ones(4, 2), torch.ones(4, 2)))
    made = asgd.simulate(task, asgd.async_sgd(0.1), asgd.durations.fixed([1.0]), iterations=3)
    found = load_file(made.write_model(tmp_path / "model.safetensors"))
    assert found["left"].tolist() == [0, 1, 2]
    assert found["right"].tolist() == [2, 3, 4, 5]
    assert found["across"].tolist() == [[0, 3], [1, 4], [2, 5]]
    assert found["nothing"].shape == (0,)


def test_extra_state_needs_a_state_dict(tmp_path: Path) -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> Any:
            return {"version": 3}

        def set_extra_state(self, state: Any) -> None:
            assert state == {"version": 3}

    task = asgd.tasks.torch(Extra(2, 2), nn.MSELoss(), (torch.ones(4, 2), torch.ones(4, 2)))
    made = asgd.simulate(task, asgd.async_sgd(0.1), asgd.durations.fixed([1.0]), iterations=3)
    with pytest.raises(BadParameter, match=r"cannot hold '_extra_state' of the module.*write a .pt file"):
        made.write_model(tmp_path / "model.safetensors")
    assert not list(tmp_path.iterdir())
    assert torch.load(made.write_model(tmp_path / "model.pt"), weights_only=True)["_extra_state"] == {"version": 3}


def test_a_plain_task_writes_one_vector(tmp_path: Path) -> None:
    made = train(None)
    assert load_arrays(made.write_model(tmp_path / "m.safetensors"))["x"].tobytes() == made.x.tobytes()
    assert torch.load(made.write_model(tmp_path / "m.pt"), weights_only=True)["x"].numpy().tobytes() == made.x.tobytes()
    with pytest.raises(BadParameter, match=r"task = 'Bowl' does not have a PyTorch module; use run.x"):
        made.module()


@pytest.mark.parametrize("name", ["model", "model.bin", "model.onnx"])
def test_other_formats_are_refused(run: asgd.Run, tmp_path: Path, name: str) -> None:
    with pytest.raises(BadParameter, match=r"does not name a format; end it in .safetensors, .pt or .pth"):
        run.write_model(tmp_path / name)


def test_a_file_appears_whole_or_not_at_all(run: asgd.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = run.write_model(tmp_path / "model.pt")
    before = path.read_bytes()

    def full(*given: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        run.write_model(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.pt"]


# ---------------------------------------------------------------------------------------------- tables and figures


def test_tables(run: asgd.Run) -> None:
    pandas = pytest.importorskip("pandas")
    metrics = run.to_pandas()
    assert isinstance(metrics, pandas.DataFrame)
    assert {name: list(metrics[name]) for name in metrics} == {name: list(run.metrics[name]) for name in run.metrics}
    assert len(run.to_pandas(what="trace")) == len(run.trace)
    with pytest.raises(BadParameter, match="what = 'jobs' is unknown"):
        run.to_pandas("jobs")


def test_pandas_is_optional(run: asgd.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    for what in ("metrics", "trace"):
        with pytest.raises(MissingLibrary, match=r"run.to_pandas needs pandas; install it with: pip install pandas"):
            run.to_pandas(what)


def test_a_figure(run: asgd.Run) -> None:
    pytest.importorskip("matplotlib")
    labels = [axes.get_ylabel() for axes in run.plot("accuracy").axes]
    assert labels[:2] == ["accuracy", "share of updates"]
    with pytest.raises(BadParameter, match="metric = 'speed' is not among"):
        run.plot("speed")


# ---------------------------------------------------------------------------------------------- runs read back


def test_a_run_is_read_back(tmp_path: Path) -> None:
    task = tied_task()
    made = train(tmp_path / "run", task=task, callbacks=[SaveBest("loss")])
    again = asgd.TrainingRun.read(tmp_path / "run")
    assert again.x.tobytes() == made.x.tobytes()
    assert again.trace == made.trace
    assert {name: list(v) for name, v in again.metrics.items()} == {name: list(v) for name, v in made.metrics.items()}
    assert (again.method, again.faults, again.diagnosis) == (made.method, made.faults, made.diagnosis)
    assert (again.stopped_early, again.interrupted, again.diverged) == (None, None, None)
    assert same(again.module(), made.module())
    assert again.plot().axes
    other = asgd.TrainingRun.read(tmp_path / "run", task=task, method=made.method)
    assert other.task is task


def test_averages_are_read_back(tmp_path: Path) -> None:
    """The output of such a method is not the last point."""
    made = train(tmp_path, method=asgd.async_sgd(0.05).using(average=True))
    assert asgd.TrainingRun.read(tmp_path).x.tobytes() == made.x.tobytes()


def test_a_diverged_run_gives_the_last_finite_model(tmp_path: Path) -> None:
    made = train(tmp_path, task=Exploding(at=50.0))
    assert made.diverged is not None
    again = asgd.TrainingRun.read(tmp_path)
    assert (again.diverged, again.x_iteration) == (made.diverged, made.x_iteration)
    assert again.x.tobytes() == made.x.tobytes()


def test_a_run_without_checkpoints_is_refused(tmp_path: Path) -> None:
    train(tmp_path)
    for file in (tmp_path / "checkpoints").iterdir():
        file.unlink()
    with pytest.raises(BadCheckpoint, match="has no checkpoint, so it has no model"):
        asgd.TrainingRun.read(tmp_path)


# ---------------------------------------------------------------------------------------------- the command line


def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    monkeypatch.setattr(sys, "argv", ["asyncsgd", *map(str, words)])
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = int(end.code or 0)
    out, err = capsys.readouterr()
    return code, out, err


def test_export(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    keep = SaveBest("loss")
    made = train(tmp_path / "run", task=tied_task(), callbacks=[keep])
    code, said, _ = command(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "last.safetensors")
    assert (code, said) == (
        0,
        f"{tmp_path / 'last.safetensors'}: the model of iteration 60, with {made.x.size} parameters\n",
    )
    fresh = Tied()
    load_model(fresh, tmp_path / "last.safetensors")
    assert same(fresh, made.module())
    words = ("export", tmp_path / "run", tmp_path / "best.pt", "--best", "--json")
    code, said, _ = command(monkeypatch, capsys, *words)
    row = json.loads(said)
    assert (code, row["iteration"], row["loss"]) == (0, keep.iteration, keep.best)
    fresh.load_state_dict(torch.load(tmp_path / "best.pt", weights_only=True))
    assert made.task.evaluate(flat(fresh))["loss"] == keep.best
    command(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "best.safetensors", "--best")
    other = Tied()
    load_model(other, tmp_path / "best.safetensors")
    assert same(other, fresh)


def flat(module: nn.Module) -> Any:
    return np.concatenate([p.detach().numpy().ravel() for p in module.parameters() if p.requires_grad])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "MODEL is missing; pass a file for the model, such as model.safetensors, or --chrome OUT.json"),
        (("model.pt", "--chrome", "out.json"), "MODEL = 'model.pt' and --chrome were both given"),
        (("model.zip",), "does not name a format; end it in .safetensors, .pt or .pth"),
        (("model.pt", "--best"), "best.safetensors, which does not exist; train with --save-best METRIC"),
    ],
)
def test_export_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Any, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    train(tmp_path / "run", iterations=10)
    code, _, err = command(monkeypatch, capsys, "export", "run", *words)
    assert code == 2
    assert says in err
    assert [file.name for file in tmp_path.iterdir()] == ["run"]


def test_export_of_a_damaged_best_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", callbacks=[SaveBest("loss")])
    file = tmp_path / "run" / "best.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"\x00")
    code, _, err = command(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "m.pt", "--best")
    assert (code, "best.safetensors is damaged" in err) == (1, True)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="this system has no users")
def test_a_pickle_of_another_user_needs_trust(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path / "run", callbacks=[SaveBest("loss")])
    monkeypatch.setattr(os, "getuid", lambda: 123_456)
    with pytest.raises(NotTrusted):
        asgd.TrainingRun.read(tmp_path / "run")
    code, _, err = command(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "m.safetensors")
    assert (code, "--trust" in err) == (2, True)
    assert command(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "m.safetensors", "--trust")[0] == 0
    # The best model is not a pickle, so it needs no trust.
    assert command(monkeypatch, capsys, "export", tmp_path / "run", tmp_path / "b.safetensors", "--best")[0] == 0


TASK = "asyncsgd.testing.bench:Bowl"


def test_train_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A resume keeps both without repeating the options, and an option replaces what the run had."""
    from asyncsgd.cli import run_commands

    monkeypatch.setattr(run_commands, "named_engine", lambda *given: Inline(2))
    run = tmp_path / "run"
    more = ("--every", 10, "--stepsize", 0.05, "--method", "async_sgd", "--json")
    options = ("--early-stopping", "loss:2:max", "--save-best", "loss", "--clip", "100")
    code, said, _ = command(monkeypatch, capsys, "train", TASK, "--directory", run, "--iterations", 60, *more, *options)
    assert (code, json.loads(said)["state"], json.loads(said)["iterations"]) == (0, "stopped early", 20)
    config = json.loads((run / "run.json").read_text("utf-8"))
    early = {"kind": "EarlyStopping", "metric": "loss", "mode": "max", "patience": 2}
    assert config["callbacks"] == [early, {"kind": "SaveBest", "metric": "loss", "mode": "min", "path": None}]
    assert (run / "best.safetensors").exists()
    code, said, err = command(monkeypatch, capsys, "train", "--resume", "--directory", run, "--json")
    assert (code, json.loads(said)["iterations"]) == (0, 30), err  # the next evaluation is not better either
    code, said, _ = command(
        monkeypatch, capsys, "train", TASK, "--resume", "--directory", run, "--iterations", 60, *more,
        "--clip", 100, "--early-stopping", "loss:9",
    )  # fmt: skip
    assert (code, json.loads(said)["iterations"]) == (0, 60)
    config = json.loads((run / "run.json").read_text("utf-8"))
    assert [row["kind"] for row in config["callbacks"]] == ["EarlyStopping", "SaveBest"]
    assert config["callbacks"][0]["patience"] == 9


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ("--early-stopping", "loss:0"),
            "= 'loss:0' has an unknown part '0'; write METRIC[:PATIENCE]",
        ),
        (("--early-stopping", "speed:3"), "write speed:3:min if they are, else speed:3:max"),
        (("--early-stopping", ""), "--early-stopping = '' is not a name"),
        (("--save-best", "loss:3"), "--save-best = 'loss:3' has an unknown part '3'; write METRIC[:min|max]"),
        (("--clip", "-1"), "--clip = -1"),
    ],
)
def test_train_says_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: Any, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    code, _, err = command(monkeypatch, capsys, "train", TASK, "--stepsize", 0.1, "--iterations", 10, *words)
    assert (code, says in err) == (2, True), err
    assert not list(tmp_path.iterdir())
