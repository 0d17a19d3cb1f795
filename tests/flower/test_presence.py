"""Nodes and their numbers: the same client is the same worker, from one start to the next."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from asyncsgd.flower.clients import ClientNumbers


def node(number: int, registered: int, key: bytes = b"") -> SimpleNamespace:
    return SimpleNamespace(node_id=number, registered_at=f"{registered:03d}", public_key=key)


def test_numbers_follow_the_order_of_registration() -> None:
    numbers = ClientNumbers(None, simulated=False, resume=False)
    found = numbers.number([node(2**64 - 1, 3), node(5, 1), node(9, 2)])
    assert {worker: info.node_id for worker, info in found.items()} == {0: 5, 1: 9, 2: 2**64 - 1}
    assert list(numbers.number([node(77, 0), node(9, 2)])) == [3, 1]
    assert numbers.name(2) == str(2**64 - 1)


def test_numbers_are_remembered(tmp_path: Path) -> None:
    ClientNumbers(tmp_path, simulated=False, resume=False).number([node(5, 1), node(9, 2)])
    again = ClientNumbers(tmp_path, simulated=False, resume=True)
    assert list(again.number([node(9, 1), node(4, 2)])) == [1, 2]


def test_a_new_run_begins_at_zero(tmp_path: Path) -> None:
    ClientNumbers(tmp_path, simulated=False, resume=False).number([node(5, 1)])
    assert list(ClientNumbers(tmp_path, simulated=False, resume=False).number([node(9, 1)])) == [0]


def test_a_key_is_worth_more_than_a_node_id(tmp_path: Path) -> None:
    """The SuperLink was set up again: other ids, the same keys."""
    ClientNumbers(tmp_path, simulated=False, resume=False).number([node(5, 1, b"a"), node(9, 2, b"b")])
    again = ClientNumbers(tmp_path, simulated=False, resume=True)
    assert list(again.number([node(70, 1, b"b"), node(71, 2, b"a"), node(72, 3, b"c")])) == [1, 0, 2]
    third = ClientNumbers(tmp_path, simulated=False, resume=True)
    assert list(third.number([node(71, 1)])) == [0]


def test_simulated_nodes_are_known_by_their_order(tmp_path: Path) -> None:
    ClientNumbers(tmp_path, simulated=True, resume=False).number([node(50, 2), node(90, 1)])
    again = ClientNumbers(tmp_path, simulated=True, resume=True)
    found = again.number([node(7, 1), node(3, 2), node(1, 3)])
    assert {worker: info.node_id for worker, info in found.items()} == {0: 7, 1: 3, 2: 1}
