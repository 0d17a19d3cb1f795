"""A resume with other data, another size of mini-batches or another order is refused, and nothing changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from engines.inline import Inline
from run.common import sound

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.testing.bench import Bowl

torch = pytest.importorskip("torch")

ROWS = 48


def task(rows: int = ROWS, **options: Any) -> Any:
    inputs = torch.arange(rows * 2, dtype=torch.float32).reshape(rows, 2) / rows
    given = {"batch_size": 4, "sampling": "epochs", **options}
    data = given.pop("data", (inputs, inputs.sum(1, keepdim=True)))
    return asgd.tasks.torch(torch.nn.Linear(2, 1), data=data, loss=torch.nn.MSELoss(), **given)


def train(directory: Path, chosen: Any, **options: Any) -> asgd.Run:
    given = {"iterations": 20, "progress": False, **options}
    return asgd.train(chosen, asgd.async_sgd(0.01), Inline(2), directory=directory, **given)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"rows": 50}, "data = '50 rows' is not what the run started with; resume with the same data .48 rows."),
        ({"batch_size": 8}, "batch_size = 8 is not what the run started with; resume with batch_size=4"),
        ({"sampling": "replacement"}, "sampling = 'replacement' is not what .* resume with sampling='epochs'"),
        ({"sampling_seed": 3}, "sampling_seed = 3 is not what .* resume with sampling_seed=0"),
        ({"accumulate": 2}, "accumulate = 2 is not what .* resume with accumulate=1"),
        ({"precision": "bfloat16"}, "precision = 'bfloat16' is not what .* resume with precision='float32'"),
    ],
    ids=str,
)
def test_refused(tmp_path: Path, options: dict[str, Any], problem: str) -> None:
    train(tmp_path, task())
    before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
    with pytest.raises(BadParameter, match=problem):
        train(tmp_path, task(**options), iterations=40, resume=True)
    assert {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()} == before
    sound(train(tmp_path, task(), iterations=40, resume=True), 40)  # type: ignore[arg-type]


def test_what_changes_no_bit_may_change(tmp_path: Path) -> None:
    train(tmp_path, task())
    sound(train(tmp_path, task(loaders=1), iterations=40, resume=True), 40)  # type: ignore[arg-type]


def test_a_run_of_an_earlier_version_did_not_write_the_options(tmp_path: Path) -> None:
    train(tmp_path, task())
    config = json.loads((tmp_path / "run.json").read_text("utf-8"))
    rows = {"data": [ROWS], "batch_size": 4, "sampling": "epochs", "sampling_seed": 0}
    assert config["options"] == {**rows, "accumulate": 1, "precision": "float32", "compile": False}
    from asyncsgd.run.configuration import check_same

    check_same({**config, "options": {"data": [50]}}, {key: config[key] for key in config if key != "options"})


def test_a_stream_has_no_rows_to_compare() -> None:
    def stream(worker: int, batch: int, seed: int) -> Any:
        inputs = torch.rand(4, 2)
        return inputs, inputs.sum(1, keepdim=True)

    made = asgd.tasks.torch(torch.nn.Linear(2, 1), data=stream, loss=torch.nn.MSELoss(), test=stream(0, 0, 0))
    assert made.fixed_options["data"] == "a stream"
    assert "batch_size" not in made.fixed_options


def test_a_task_of_ones_own_may_state_options(tmp_path: Path) -> None:
    """A tuple comes back from run.json as a list, and the data need not be numbers of rows."""

    class Mine(Bowl):
        fixed_options: Any = {"data": 7, "shape": (2, 3)}  # noqa: RUF012 - tasks may have any attribute

    train(tmp_path, Mine())
    sound(train(tmp_path, Mine(), iterations=30, resume=True), 30)  # type: ignore[arg-type]
    Mine.fixed_options = {"data": 8, "shape": (2, 3)}
    with pytest.raises(BadParameter, match=r"data = .8. is not what the run started with; resume with the same data"):
        train(tmp_path, Mine(), iterations=40, resume=True)
