"""Messages over a network take their bytes times eight over the bandwidth, and a run knows its bytes."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from simulation.plain_clock import Still

import asyncsgd as asgd
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.core.errors import BadParameter
from asyncsgd.simulation import durations as du
from asyncsgd.simulation.clock import play
from asyncsgd.simulation.schedule import schedule

TASK = Still(0.0, dim=1000)  # float64: 8,000 bytes, 64,000 bits
NETWORK = du.fixed([1.0, 3.0]).with_network([64e3, 32e3], latency=0.5)


def test_exact_times_on_a_tiny_example() -> None:
    """Worker 0: 0.5 + 1 down, 1 computing, 0.5 + 1 up = 4. Worker 1: 0.5 + 2 down, 3 computing, 0.5 + 2 up = 8."""
    run = asgd.simulate(TASK, asgd.async_sgd(0.1), NETWORK, iterations=5)
    assert run.trace.time.tolist() == [4.0, 8.0, 8.0, 12.0, 16.0]
    assert run.trace.worker.tolist() == [0, 1, 0, 0, 1]
    assert run.trace.jobs.seconds[run.trace.job].tolist() == [1.0, 3.0, 1.0, 1.0, 3.0]


def test_compression_and_local_steps_change_the_times() -> None:
    """Up: 1000 numbers as int8 with four scales are 1016 bytes. Down: bfloat16, 2000 bytes. Two steps per job."""
    method = asgd.async_sgd(0.1).local(2, 0.1).compressed("int8", down="bfloat16")
    up, down = method.message_bytes(1000, "float64")
    run = asgd.simulate(TASK, method, NETWORK, iterations=3)
    one = 1.0 + 8 * (up + down) / 64e3 + 2 * 1.0
    assert run.trace.time[0] == pytest.approx(one, rel=1e-15)
    assert run.trace.time[1] == pytest.approx(2 * one, rel=1e-15)
    assert (run.bytes_up, run.bytes_down) == (3 * up, len(run.trace) * down)
    assert len(run.trace) == 5


def test_the_plain_clock_and_the_schedule_agree() -> None:
    class Own(AlwaysBusy):
        """The same rule, without a compiled form."""

    method = asgd.async_sgd(0.1).compressed("bfloat16")
    fast = asgd.simulate(TASK, method, NETWORK, iterations=20)
    slow = asgd.simulate(TASK, method.using(dispatch=Own()), NETWORK, iterations=20)
    assert "Own" in slow.slow_because
    assert "Own" not in fast.slow_because
    assert fast.trace == slow.trace


@pytest.mark.slow
def test_a_sweep_and_a_comparison_use_the_bytes_of_each_method() -> None:
    task = asgd.tasks.quadratic(dim=1000, workers=2)
    methods = {"plain": asgd.async_sgd(0.1), "light": asgd.async_sgd(0.1).compressed("int8", down="bfloat16")}
    both = asgd.compare(task, methods, NETWORK, iterations=40, target=10.0, metric="loss", window=1)
    rows = {row["method"]: row for row in both.rows()}
    assert rows["plain"]["seconds"] == both.runs["plain"].trace.time[-1]
    assert rows["light"]["seconds"] < 0.7 * rows["plain"]["seconds"]
    assert rows["light"]["seconds_to_target"] < rows["plain"]["seconds_to_target"]
    assert rows["plain"]["bytes_up"] == 40 * 8000
    assert rows["light"]["bytes_up"] == both.runs["light"].bytes_up < 40 * 1100


def test_one_network_for_all_and_its_repr() -> None:
    fleet = du.fixed([1.0, 3.0]).with_network(64e3)
    assert repr(fleet) == "<Durations: 2 workers, fixed, network>"
    assert fleet.for_messages(up=8000, down=0).lowered.up.tolist() == [1.0, 1.0]
    assert fleet.for_messages(up=8000, down=0).lowered.down.tolist() == [0.0, 0.0]
    assert repr(fleet.for_messages(up=1, down=1)) == "<Durations: 2 workers, fixed, communication>"
    assert du.fixed([1.0]).for_messages(up=9, down=9).lowered.up.tolist() == [0.0]


def test_later_communication_replaces_a_network_and_the_other_way_round() -> None:
    fleet = NETWORK.with_communication(up=2.0)
    assert not fleet.networked
    assert fleet.lowered.down.tolist() == [0.0, 0.0]
    again = fleet.with_network(64e3)
    assert again.for_messages(up=8000, down=8000).lowered.up.tolist() == [1.0, 1.0]


def test_a_network_survives_modifiers_concatenation_and_pickling() -> None:
    fleet = du.concatenate([NETWORK.with_speeds(0, [2.0], [0.5]), du.fixed([1.0]).with_communication(up=7.0)])
    for found in (fleet, pickle.loads(pickle.dumps(fleet))):
        assert found.networked
        assert found.for_messages(up=8000, down=0).lowered.up.tolist() == [1.5, 2.5, 7.0]


def test_a_network_without_a_method_is_an_error() -> None:
    words = "durations = <Durations: 2 workers, fixed, network> have a network.*no method is known"
    with pytest.raises(BadParameter, match=words):
        schedule(AlwaysBusy(), NETWORK, iterations=2)
    with pytest.raises(BadParameter, match=words):
        play(None, (None, None), NETWORK, 2, None)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("bandwidth", "latency", "words"),
    [
        (0.0, 0.0, "bandwidth = 0.0"),
        (-1.0, 0.0, "bandwidth = -1.0"),
        (np.inf, 0.0, "bandwidth = inf"),
        ([1.0, 2.0, 3.0], 0.0, "bandwidth = .* has 3 values"),
        (1.0, -0.1, "latency = -0.1"),
        ("fast", 0.0, "bandwidth = 'fast'"),
    ],
)
def test_bad_networks(bandwidth: object, latency: float, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        du.fixed([1.0, 3.0]).with_network(bandwidth, latency=latency)


def test_bytes_of_a_run_are_those_of_its_arrivals_and_jobs() -> None:
    run = asgd.simulate(asgd.tasks.quadratic(dim=3, workers=2), asgd.async_sgd(0.1), du.fixed([1, 2]), iterations=7)
    assert (run.bytes_up, run.bytes_down) == (7 * 24, 9 * 24)
