"""The guide to federated training shows code that works, and methods that there are."""

from __future__ import annotations

import re
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from docs.pages import DOCS, ROOT, blocks
from flower.client_apps import APPS
from flower.fake import FakeGrid, towards
from flwr.app import ArrayRecord, ConfigRecord, Context, Message
from flwr.serverapp import Grid

import asyncsgd as asgd

GUIDE = DOCS / "guides" / "federated.md"
PYTHON = [block.text for block in blocks(GUIDE) if block.info == "python"]
CHANGE = next(block.text for block in blocks(GUIDE) if block.info == "diff")
METHODS = re.findall(r"^\|[^|]*\| `((?:asgd|method).*?)` \|", GUIDE.read_text("utf-8"), re.MULTILINE)


def after(change: str) -> str:
    """The code as it is once the change has been made."""
    lines = [line for line in change.splitlines() if not line.startswith("-")]
    return "\n".join(line[1:] for line in lines)


@pytest.mark.slow
@pytest.mark.parametrize("code", [after(CHANGE), PYTHON[0]], ids=["change", "options"])
def test_the_server_app_trains(code: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    found: dict[str, Any] = {}

    def main(function: Any) -> Any:
        found["main"] = function
        return function

    def net() -> Any:
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3))

    def evaluate(iteration: int, arrays: ArrayRecord) -> dict[str, float]:
        net().load_state_dict(arrays.to_torch_state_dict())
        return {"accuracy": 0.5}

    names = {
        **{"app": SimpleNamespace(main=lambda: main), "asgd": asgd, "Net": net, "torch": torch, "Grid": Grid},
        **{"ArrayRecord": ArrayRecord, "ConfigRecord": ConfigRecord, "Context": Context, "Message": Message},
        **{"config": ConfigRecord({"lr": 0.05}), "evaluate": evaluate},
    }
    places = (("/data/runs/digits", str(tmp_path / "run")), ("model.pt", str(tmp_path / "model.pt")))
    for name, place in places:
        code = code.replace(name, place)
    grid = FakeGrid([towards(1.0), towards(3.0)])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        exec(compile(code, str(GUIDE), "exec"), names)
        found["main"](grid, None)
    assert not caught  # Algorithm 2 gives every client its share
    state = torch.load(tmp_path / "model.pt")
    assert state["1.num_batches_tracked"] > 0
    assert not grid.wrong


def test_the_migration_is_that_of_an_app() -> None:
    """Every line of the guide is in the app that the simulation runs before and after its migration."""
    change = next(block.text for block in blocks(GUIDE) if block.info == "diff" and "server_fn" in block.text)
    folder = APPS / "numpy_legacy" / "numpy_legacy"
    for sign, name in (("-", "server_app.py"), ("+", "async_server_app.py")):
        lines = {line.strip() for line in (folder / name).read_text("utf-8").splitlines()}
        told = [line[1:].strip() for line in change.splitlines() if line.startswith(sign)]
        assert len(told) > 10
        assert not [line for line in told if line not in lines]


def test_other_code_runs() -> None:
    for code in PYTHON[1:]:
        exec(compile(code, str(GUIDE), "exec"), {"asgd": asgd})


@pytest.mark.parametrize("call", METHODS)
def test_there_is_such_a_method(call: str) -> None:
    found = eval(call.replace("...", "concurrency=8, buffer=4"), {"asgd": asgd, "method": asgd.async_sgd(0.1)})
    assert isinstance(found, asgd.Method)


def test_the_guide_names_methods() -> None:
    assert len(METHODS) >= 8


def test_measured_figures_reach_the_guide() -> None:
    place = spec_from_file_location("figures", DOCS / "site" / "figures.py")
    assert place is not None
    assert place.loader is not None
    figures = module_from_spec(place)
    place.loader.exec_module(figures)
    page = figures.filled(GUIDE.read_text("utf-8"), ROOT / "benchmarks")
    assert page.count("| Flower's FedAvg |") == page.count("| asyncsgd, asynchronous |") == 3
