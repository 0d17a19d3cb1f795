"""The page about Flower's strategies names all of them, and its calls work."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from docs.pages import DOCS, blocks
from flwr.app import ArrayRecord, Context, MetricRecord, RecordDict
from flwr.server import strategy as legacy
from flwr.serverapp import strategy as theirs

import asyncsgd as asgd
from asyncsgd.flower.round_rules import ClientName

PAGE = DOCS / "guides" / "flower-strategy.md"
TEXT = PAGE.read_text("utf-8")
ROWS = [line for line in TEXT.splitlines() if line.startswith("| ")]
FIRST = " ".join(row.split("|")[1] for row in ROWS)
"""The first cells of all tables."""
LEGACY = " ".join(
    line.split("|")[1] for line in TEXT.partition("## Translate the legacy module")[2].splitlines() if line[:2] == "| "
)
"""The first cells of the tables of the legacy module."""
CALLS = sorted({call for row in ROWS for call in re.findall(r"`((?:asgd\.fed|method\.)[^`]*)`", row.split("|")[2])})


@pytest.mark.parametrize("module", [theirs, legacy], ids=["serverapp", "legacy"])
def test_no_strategy_of_flower_is_left_out(module: Any) -> None:
    missing = [name for name in module.__all__ if name not in ("Result", "Strategy") and f"`{name}`" not in FIRST]
    assert not missing


@pytest.mark.parametrize("module", [theirs, legacy], ids=["serverapp", "legacy"])
def test_no_parameter_of_fedavg_is_left_out(module: Any) -> None:
    names = [*inspect.signature(module.FedAvg).parameters]
    cells = LEGACY if module is legacy else FIRST
    assert not [name for name in names if f"`{name}`" not in cells]


def test_no_argument_of_start_is_left_out() -> None:
    for name in list(inspect.signature(theirs.FedAvg.start).parameters)[3:]:
        assert f"{name}=" in FIRST, name


def test_every_gap_has_a_reason() -> None:
    gaps = [row for row in ROWS if row.split("|")[2].strip() == "–"]
    assert len(gaps) >= 8
    assert all(re.search(r"gap[:,] \w+", row.split("|")[3]) for row in gaps)


@pytest.mark.parametrize("call", CALLS)
def test_every_call_makes_a_method(call: str) -> None:
    if "torch" in call:
        pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    names = {"asgd": asgd, "method": asgd.fedbuff(1.0, concurrency=8, buffer=4)}
    assert isinstance(eval(call, names), asgd.Method)


def test_there_are_calls() -> None:
    assert len(CALLS) >= 9


def test_the_functions_of_the_page_work() -> None:
    found: dict[str, Any] = {}
    for block in blocks(PAGE):
        if block.info == "python":
            exec(compile(block.text, str(PAGE), "exec"), found)
    assert found["train_config"](4, ClientName(0, 17, "clinic-a")) == {"lr": 0.05, "epochs": 1}
    metrics = [RecordDict({"any": MetricRecord({"num-examples": n, "accuracy": a})}) for n, a in ((1, 0.0), (3, 1.0))]
    legacy_mean = found["adapted"](lambda rows: {"accuracy": sum(n * row["accuracy"] for n, row in rows) / 4})
    assert legacy_mean(metrics, "num-examples") == {"accuracy": 0.75}
    for record, loss in zip(metrics, (4.0, 8.0), strict=True):
        record["any"]["loss"] = loss
    assert legacy_mean(metrics, "num-examples") == {"accuracy": 0.75, "loss": 7.0}
    context = Context(1, 2, {"name": "clinic-b"}, RecordDict(), {})
    content = found["content_of_reply"](ArrayRecord(), MetricRecord({"num-examples": 1}), context)
    assert content["who"]["name"] == "clinic-b"
