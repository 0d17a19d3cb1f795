"""The Ray engine passes the conformance suite, with memory that is shared and through the object store.

A pool of actors takes seconds to start: scenarios are chosen so that each can find something that no other does.
``ASYNCSGD_SCENARIOS=all`` plays all of them, every way.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any

import pytest

import asyncsgd as asgd
from asyncsgd.engines._ray import vector_store
from asyncsgd.testing import SCENARIOS, Abilities, check_engine

pytestmark = pytest.mark.usefixtures("nodes")

ABILITIES = Abilities(stops=False, cleans_up=False)  # a job that runs is not stopped, and the cluster lives on
POOL = [name for name in SCENARIOS if not name.startswith("train") and name != "closing"]
ALL = os.environ.get("ASYNCSGD_SCENARIOS") == "all"


def chosen(*names: str) -> list[str]:
    assert set(names) <= set(SCENARIOS)
    return [name for name in SCENARIOS if name != "closing"] if ALL else list(names)


def check(scenario: str, shared_memory: bool = True) -> None:
    def engine(*arguments: Any, **more: Any) -> Any:
        return replace(asgd.engines.ray(*arguments, **more), shared_memory=shared_memory)

    check_engine(engine, abilities=ABILITIES, only=scenario, patience=300.0)


@pytest.mark.parametrize(
    "scenario",
    chosen(
        *POOL,
        "train with federated_async_sgd, early",
        "train with ringmaster",
        "train with over_selection and kills",
    ),
)
def test_shared_memory(scenario: str) -> None:
    check(scenario)


@pytest.mark.parametrize(
    "scenario",
    chosen(
        "order",
        "updates stay",
        "cancelling",
        "killed",
        "train with fedbuff",
        "train with mifa and rubbish",
        "train with federated_async_sgd and kills",
    ),
)
def test_object_store(scenario: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not depend on how vectors travel is played once, above."""
    monkeypatch.setattr(vector_store, "SMALL", 0)  # every point goes through it
    check(scenario, shared_memory=False)


@pytest.mark.parametrize("scenario", chosen("train with delay_adaptive"))
def test_along_with_the_call(scenario: str) -> None:
    """Small vectors, to workers on other machines."""
    check(scenario, shared_memory=False)


@pytest.mark.parametrize("shared_memory", [True, False])
@pytest.mark.parametrize(
    "scenario",
    chosen(
        "kept state",
        "train with kept state and compression and kills",
        "train with over_selection, kept state and rubbish",
    ),
)
def test_kept_state(scenario: str, shared_memory: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replayed to the bit, whatever happened to jobs and workers."""
    monkeypatch.setattr(vector_store, "SMALL", 0)
    check(scenario, shared_memory=shared_memory)


def test_closing() -> None:
    """The cluster lives on, but nothing of a pool does: neither its processes nor what the server held for them."""
    check_engine(asgd.engines.ray, abilities=Abilities(stops=False), only="closing")
