"""What each test needs, which tests share one process, and how long each kind may take.

Markers are documented in CONTRIBUTING.md. A test that uses one of the fixtures in `NEEDS` gets its marker by itself;
so does every test in tests/flower; the rest carry theirs where they stand. Three rules hold for all of them:

- Tests of one *group* run in one process of pytest-xdist: everything marked ``ray`` or ``browser``, and the tests of
  tests/flower that use a fixture in `NEEDS` or are slow, so that a Ray cluster, a SuperLink and Chromium start once. So
  does every module whose tests share a fixture of module scope.
- The groups start first, the longest first. With two processes the small tests then fill what remains.
- Each marker has a budget (`BUDGETS`). It is judged only where a yardstick, timed between the tests, says that the
  machine is as fast as the one the budgets were measured on; elsewhere no test depends on the machine's speed.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Container, Iterable
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

import pytest
from hypothesis import settings

Case = TypeVar("Case")

NEEDS = {"nodes": "ray", "browser": "browser", "federation": "flower", "simulation": "flower"}
"""Fixtures that start something, and the marker of tests that use them."""

FLOWER = Path(__file__).parent / "flower"
"""The folder whose tests need the package flwr, and therefore all carry its marker."""

MARKERS = ("flower", "ray", "browser", "docs", "processes", "slow")
"""The first of them that a test has is the kind that its seconds count for; tests without any are ``quick``."""

GROUPS = ("flower", "ray", "browser")
"""Markers whose tests share one process: longest first."""

PATIENCE = 900.0
"""Seconds that a test may take which starts programs of others. For all other tests pyproject.toml says it."""

BUDGETS = {"flower": 3600, "ray": 1800, "browser": 260, "docs": 260, "processes": 1800, "slow": 800, "quick": 1000}
"""Seconds for all tests of a kind together, on the machine whose yardstick takes `YARDSTICK` seconds.

They are about twice what was seen there, because seconds of tests that start processes vary by a third from run to run,
however fast plain Python is. In a fresh clone the first test that needs compiled code waits up to a minute for the
compiler, whatever its kind."""

YARDSTICK = 0.0970
"""Seconds that `_yardstick` took, the mean over a run on two cores that did nothing else."""

TOLERANCE = 1.3
"""How much slower than `YARDSTICK` a machine may be for its seconds to be comparable."""


def examples(number: int, **others: Any) -> settings:
    """Return Hypothesis settings for this many examples: a tenth in the profile ``quick``, 1,000 in ``search``.

    ``@settings(max_examples=300)`` would beat every profile.
    """
    profile = os.environ.get("HYPOTHESIS_PROFILE")
    wanted = {"quick": max(3, number // 10), "search": max(1000, number)}.get(profile or "", number)
    return settings(max_examples=wanted, **others)


def share(cases: Iterable[Case], every: int) -> list[Case]:
    """Return the cases that a test is run with: all of them, or every ``every``-th in the profile ``quick``."""
    return list(cases)[:: every if os.environ.get("HYPOTHESIS_PROFILE") == "quick" else 1]


def kind(markers: Container[str]) -> str:
    """Return the kind of a test with these markers, the one that its seconds count for."""
    return next((name for name in MARKERS if name in markers), "quick")


def _yardstick() -> float:
    """Time a fixed piece of work: plain Python, as most of the tests are.

    It takes longer than a turn of the scheduler, so that a machine with other work to do is seen to be slow.
    """
    start = time.perf_counter()
    table = {}
    for number in range(1_200_000):
        table[number % 997] = number
    return time.perf_counter() - start


class Markers:
    """The plugin: marks and sorts tests when they are collected, adds up their seconds at the end."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.tests: dict[str, int] = defaultdict(int)
        self.yardsticks: list[float] = []
        self._next = 0.0

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            starts = [NEEDS[fixture] for fixture in getattr(item, "fixturenames", ()) if fixture in NEEDS]
            fake = FLOWER in item.path.parents and not starts and not item.get_closest_marker("slow")
            for name in starts:
                item.add_marker(name)
            group = next((name for name in GROUPS if item.get_closest_marker(name) and not fake), None) or _shared(item)
            if FLOWER in item.path.parents:
                item.add_marker("flower")
            if group is not None:
                item.add_marker(pytest.mark.xdist_group(group))
                _name_group(item, group)
            if any(item.get_closest_marker(name) for name in GROUPS) and not item.get_closest_marker("timeout"):
                item.add_marker(pytest.mark.timeout(PATIENCE))
            item.user_properties.append(("kind", kind({mark.name for mark in item.iter_markers()})))
        items.sort(key=_turn)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        if time.monotonic() > self._next:
            self._next = time.monotonic() + 10.0
            item.user_properties.append(("yardstick", _yardstick()))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        name = dict(report.user_properties).get("kind", "quick")  # its keywords hold names of folders too
        self.seconds[name] += report.duration
        if report.when == "teardown":
            self.tests[name] += 1
            self.yardsticks += [value for key, value in report.user_properties if key == "yardstick"]

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
        if not config.getoption("budgets"):
            return
        terminalreporter.section("time by kind of test")
        for name, seconds in sorted(self.seconds.items(), key=lambda row: -row[1]):
            line = f"{name:10} {self.tests[name]:5} tests {seconds:6.0f} s, budget {BUDGETS[name]} s"
            terminalreporter.write_line(line)
        speed = self.speed
        terminalreporter.write_line(f"The yardstick took {speed:.2f} times as long as on the reference machine.")
        if speed > TOLERANCE:
            terminalreporter.write_line("This machine is slower or busier, so the budgets are not judged.")
        for line in self.exceeded():
            terminalreporter.write_line(line, red=True)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus == 0 and session.config.getoption("budgets") and self.exceeded():
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @property
    def speed(self) -> float:
        """How many times as long as on the reference machine the yardstick took, on average."""
        return mean(self.yardsticks) / YARDSTICK if self.yardsticks else float("inf")

    def exceeded(self) -> list[str]:
        """Name the kinds of tests that took longer than their budget, on a machine that may be compared."""
        if self.speed > TOLERANCE:
            return []
        fix = "Make one of them faster, or raise the budget in tests/markers.py and say why."
        return [
            f"{name} tests took {seconds:.0f} s; their budget is {BUDGETS[name]} s. {fix}"
            for name, seconds in self.seconds.items()
            if seconds > BUDGETS[name]
        ]


def _shared(item: pytest.Item) -> str | None:
    """Name the group of a test that shares a fixture of module scope with others: its module."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {})
    if any(definition.scope == "module" for definitions in found.values() for definition in definitions):
        return item.location[0]
    return None


def _name_group(item: pytest.Item, group: str) -> None:
    """Write the group into the test's name, where pytest-xdist's controller reads it.

    xdist 3.8 does so itself, but in an attribute that pytest 9.2 no longer reads: ``--dist loadgroup`` has no effect.
    """
    if getattr(item.config.option, "loadgroup", False) and hasattr(item, "_id"):
        item._id = type(item._id).parse(f"{item.nodeid}@{group}")


def _turn(item: pytest.Item) -> int:
    """Order the tests: groups by `GROUPS`, then modules that share a fixture, then the slow ones, then the rest."""
    group = item.get_closest_marker("xdist_group")
    if group is not None:
        return GROUPS.index(group.args[0]) if group.args[0] in GROUPS else len(GROUPS)
    return len(GROUPS) + (1 if item.get_closest_marker("slow") else 2)
