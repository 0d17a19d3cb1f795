"""What a method leaves to the run is fixed when the run starts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from engines.inline import Inline
from run.common import sound, train

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter

METHOD = asgd.methods.staleness_aware(0.05, splits=2)


def test_a_resume_keeps_what_the_run_was_bound_to(tmp_path: Path) -> None:
    train(tmp_path / "run", 40, METHOD, engine=Inline(6))
    config = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert config["bound"] == {"workers": 6, "iterations": 40, "batches": None}
    assert "aggregation=Buffer(size=3" in config["method"]
    run = train(tmp_path / "run", 80, METHOD, engine=Inline(2), resume=True)  # of its own it would be a buffer of one
    assert run.method.aggregation == asgd.aggregation.buffer(3)
    assert json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["bound"] == config["bound"]
    sound(run, 80)


def test_an_engine_whose_workers_keep_nothing_starts_nothing(tmp_path: Path) -> None:
    for method, words in (
        (asgd.async_sgd(0.05).compressed("float16"), "compressed = 'float16'"),
        (asgd.async_sgd(0.05).compressed(down="bfloat16"), "compressed = 'bfloat16'"),
        (asgd.async_sgd(1.0).local(2, 0.1, optimizer=asgd.optimizers.adamw(), state="kept"), "state = 'kept'"),
    ):
        problem = "needs workers that can keep state and decode models, which those of Inline cannot; use"
        with pytest.raises(BadParameter, match=f"{words} {problem} "):
            train(tmp_path / "run", 40, method)
        assert not (tmp_path / "run").exists()
