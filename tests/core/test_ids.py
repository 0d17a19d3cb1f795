"""Ids, outcomes and seeds are whole numbers: True, 0.0 or an array gets an error of ours, and nothing changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core.checks import refused

from asyncsgd import methods
from asyncsgd.core import errors
from asyncsgd.core.errors import BadEvent, BadParameter
from asyncsgd.core.events import Arrived, Joined, Left, Lost, Outcome
from asyncsgd.core.server import Server

FINE = np.ones(3)
NOT_IDS = [
    True, False, np.True_, 0.0, 1.0, np.float64(1.0), "0", [0], (1,), {}, None, np.array(1), np.array([0]),
    np.array([0, 1]), np.zeros((2, 2)), float("nan"), 1j,
]  # fmt: skip


@pytest.fixture
def server() -> Server:
    """Jobs 0 and 1 in flight at workers 0 and 1, so that False, True, 0.0 and 1.0 could pass for all of these."""
    server = Server(np.zeros(3), methods.async_sgd(0.1))
    server.handle(Joined([0, 1]))
    return server


def shown(value: Any) -> str:
    return repr(value)


@pytest.mark.parametrize("value", NOT_IDS, ids=shown)
def test_a_job_that_is_not_a_whole_number(server: Server, value: Any) -> None:
    for event in (Arrived(value, FINE), Lost(value)):
        assert repr(value) in str(refused(server, event, errors.UnknownJob))
    with pytest.raises(errors.UnknownJob, match="never assigned"):
        server.point(value)


@pytest.mark.parametrize("value", [value for value in NOT_IDS if value is not None], ids=shown)
def test_a_worker_that_is_not_a_whole_number(server: Server, value: Any) -> None:
    for job in (0, 1):
        error = refused(server, Arrived(job, FINE, value), BadEvent)
        assert f"worker {value!r} answered job {job}" in str(error)
        assert "whole number" in str(error)


def test_numpy_integers_name_workers(server: Server) -> None:
    server.handle(Arrived(0, FINE, np.uint8(0)))  # type: ignore[arg-type]
    refused(server, Arrived(1, FINE, np.int64(0)), errors.WrongWorker)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [b"0", bytearray(b"01"), memoryview(b"0"), "0", [b"0"]], ids=type)
def test_bytes_are_not_workers(value: Any) -> None:
    """Python iterates over bytes as numbers: b"0" would be worker 48."""
    with pytest.raises(BadEvent, match="joined; pass a whole number, or several"):
        Joined(value)


@pytest.mark.parametrize("value", NOT_IDS, ids=shown)
def test_leaving_under_what_is_not_a_whole_number(server: Server, value: Any) -> None:
    assert f"worker {value!r} left" in str(refused(server, Left(value), BadEvent))


@pytest.mark.parametrize("value", [True, np.True_, 0.0, [0, True], [0.0], np.array(1), np.array([0.0, 1.0])], ids=shown)
def test_joining_under_what_is_not_a_whole_number(value: Any) -> None:
    with pytest.raises(BadEvent, match="pass a whole number"):
        Joined(value)


def test_an_array_of_integers_joins() -> None:
    assert Joined(np.arange(3)).workers == (0, 1, 2)


@pytest.mark.parametrize("outcome", [4.0, np.float64(4.0), True, "LOST", np.array(4), np.array([4, 3]), [4]], ids=shown)
def test_an_outcome_that_is_not_one(server: Server, outcome: Any) -> None:
    assert "Outcome.LOST or Outcome.REJECTED" in str(refused(server, Lost(0, outcome), BadEvent))


@pytest.mark.parametrize("outcome", [4, np.int64(4), np.uint8(3)], ids=shown)
def test_the_number_of_an_outcome_will_do(server: Server, outcome: Any) -> None:
    server.handle(Lost(0, outcome))
    assert server.outcome(0) is Outcome(int(outcome))


@pytest.mark.parametrize("seed", [True, 0.0, 1.5, "3", None, np.array([3]), np.array(3), [3]], ids=shown)
def test_a_seed_that_is_not_a_whole_number(server: Server, seed: Any) -> None:
    with pytest.raises(BadParameter, match=r"^seed = .* is not an integer; pass seed=0"):
        Server(np.zeros(3), methods.async_sgd(0.1), seed)
    with pytest.raises(BadParameter, match=r"^seed = .* is not an integer; pass seed=0"):
        server.reseed(seed)


def test_any_integer_is_a_seed() -> None:
    for seed in (0, -1, 2**64 - 1, 2**70, np.int64(3), np.uint64(2**64 - 1)):
        server = Server(np.zeros(3), methods.async_sgd(0.1), seed)  # type: ignore[arg-type]
        assert [0 <= command.job.seed < 2**64 for command in server.handle(Joined([0, 1])).commands] == [True, True]
        server.reseed(seed)  # type: ignore[arg-type]
