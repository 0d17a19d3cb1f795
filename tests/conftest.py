"""Settings of all tests."""

import os
import signal
from importlib.util import find_spec

import pytest
from hypothesis import settings
from markers import Markers

# A shell that starts the tests in the background may have made them ignore Ctrl-C, which some of them send.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The first call of a compiled function compiles it, so a deadline per example would only measure that.
# Tests are the same every time; HYPOTHESIS_PROFILE=search looks for new examples, quick takes a tenth of them.
settings.register_profile("project", deadline=None, derandomize=True)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=10)
settings.register_profile("search", deadline=None, derandomize=False, max_examples=1000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "project"))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--budgets", action="store_true", help="fail if tests of a kind took longer than their budget")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Markers())


@pytest.fixture(autouse=True)
def _quick_evaluations_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run wait for an evaluation however busy the machine is, so that every test finds all of its metrics.

    Tests of evaluations that take long set it back to 0.
    """
    monkeypatch.setattr("asyncsgd.run.evaluator.QUICK", 60.0)


@pytest.fixture(autouse=True)
def _ray_may_start_slowly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let tests that start Ray pass on a busy machine."""
    if request.node.get_closest_marker("ray") is not None and find_spec("ray") is not None:
        from engines.ray_nodes import be_patient

        be_patient(monkeypatch)


@pytest.fixture(autouse=True)
def _markers_are_true(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail a test that starts worker processes or Ray without the marker that says so."""
    from asyncsgd.engines._processes import Processes
    from asyncsgd.engines._ray import Ray

    for engine, marker in ((Processes, "processes"), (Ray, "ray")):
        tests_it = request.node.nodeid.startswith("tests/engines/test_ray")
        if request.node.get_closest_marker(marker) is None and not tests_it:

            def refuse(*args: object, marker: str = marker) -> None:
                pytest.fail(f"this test starts workers: mark it with @pytest.mark.{marker}")

            monkeypatch.setattr(engine, "start", refuse)
