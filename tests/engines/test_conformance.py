"""Every engine passes `check_engine`; every bug of bugs.py is caught by it, by name."""

from __future__ import annotations

from functools import partial

import pytest
from engines.bugs import BUGS, LeavesProcesses
from engines.inline import ABILITIES, Inline, InlinePool, UncheckedPool

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.testing import SCENARIOS, BadEngine, check_engine

pytestmark = pytest.mark.processes


@pytest.mark.slow
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_processes(scenario: str) -> None:
    check_engine(asgd.engines.processes, only=scenario)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [InlinePool, UncheckedPool])
def test_an_engine_of_few_abilities(kind: type[InlinePool]) -> None:
    """What it cannot do is not asked of it; the rest is. The server may check updates in the engine's place."""
    check_engine(partial(Inline, kind=kind), abilities=ABILITIES)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_caught(name: str) -> None:
    bug = BUGS[name]
    try:
        with pytest.raises(BadEngine, match=rf"^{bug.scenario}: .*({bug.words})"):
            bug.play()
    finally:
        for pool in LeavesProcesses.left:
            super(LeavesProcesses, pool).close()
        LeavesProcesses.left.clear()


def test_the_scenario_must_exist() -> None:
    with pytest.raises(BadParameter, match="only = 'nothing' is not a scenario; pass one of joining, order"):
        check_engine(asgd.engines.processes, only="nothing")
