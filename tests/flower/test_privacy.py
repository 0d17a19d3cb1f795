"""What differential privacy costs: counted as the trace says, accounted as the library says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, BadRunDirectory
from asyncsgd.core.transforms import Compensate
from asyncsgd.flower.privacy import Book, Count, Privacy, counted, gaussian_epsilon
from asyncsgd.trace.sealed import lines

pytest.importorskip("dp_accounting", reason="the extra 'flower' is not installed")


def squares(order: list[int], size: int) -> dict[int, int]:
    """Straight from the formula: Σ_f c_f², for every client."""
    found: Counter[int] = Counter()
    for start in range(0, len(order) - size + 1, size):
        for worker, times in Counter(order[start : start + size]).items():
            found[worker] += times**2
    return dict(found)


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 5), st.integers(0, 40))
def test_contributions_are_counted_and_survive_a_resume(order: list[int], size: int, stop: int) -> None:
    base = asgd.fedbuff(1.0, concurrency=4, buffer=size).clipped(1.0, noise=1.0)
    method, accountant = counted(base, Privacy())
    assert accountant is not None
    server = asgd.Server(np.zeros(2), method)
    server.handle(asgd.Joined(range(4)))
    used: list[int] = []
    for place, worker in enumerate(order):
        if place == stop:
            server = asgd.Server.restore(server.state(), method)
            assert accountant.book.squares == squares(used, size)
        first = next((job for job in server.in_flight if job.worker == worker), None)
        if first is not None:
            server.handle(asgd.Arrived(first.id, np.ones(2)))
            used.append(worker)
    expected = squares(used, size)
    assert accountant.book.squares == expected
    assert accountant.spent().contributions == np.sqrt(max(expected.values(), default=0))


@examples(20)
@given(st.lists(st.integers(1, 3), min_size=1, max_size=6), st.floats(0.5, 5.0))
def test_gaussians_compose_to_one(times: list[int], z: float) -> None:
    """One mechanism with multiplier z / √(Σ c²) costs what all of them cost, by the accountant itself."""
    import dp_accounting

    events: list[Any] = [dp_accounting.GaussianDpEvent(z / c) for c in times]
    accountant = dp_accounting.rdp.RdpAccountant()
    for event in events:
        accountant.compose(event)
    together = z / np.sqrt(sum(c * c for c in times))
    assert gaussian_epsilon(together, 1e-5) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-9)


def test_a_known_number() -> None:
    """The Gaussian mechanism with multiplier 1 at δ = 1e-5: 4.3772 exactly (Balle and Wang 2018), 4.7285 by Rényi."""
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.7285, abs=1e-3)
    assert gaussian_epsilon(1.0, 1e-5) > 4.3772


def test_without_noise_nothing_is_counted() -> None:
    method = asgd.fedbuff(1.0, concurrency=4).clipped(1.0)
    assert counted(method, Privacy()) == (method, None)


def test_what_cannot_be_accounted_is_refused() -> None:
    private = asgd.async_sgd(0.1).clipped(1.0, noise=1.0)
    with pytest.raises(BadParameter, match="Compensate' changes updates after they are clipped"):
        counted(private.using(transforms=(*private.transforms, Compensate())), Privacy())
    with pytest.raises(BadParameter, match=r"delta = 1\.0 protects nothing"):
        Privacy(delta=1.0)


def test_releases_are_on_disk_before_they_are_made(tmp_path: Path) -> None:
    """Those that a crash takes back count too, and a line that it tore does not."""
    method, accountant = counted(asgd.fedbuff(1.0, concurrency=2, buffer=1).clipped(1.0, noise=1.0), Privacy())
    assert accountant is not None
    accountant.book.open(tmp_path, begun=False)
    server = asgd.Server(np.zeros(2), method)
    server.handle(asgd.Joined([0]))
    for number in range(3):
        server.handle(asgd.Arrived(server.in_flight[0].id, np.ones(2)))
        *_, (row, _) = lines((tmp_path / "releases.jsonl").read_bytes())
        assert row == {"version": number + 1, "clients": {"0": 1}}
    accountant.book.close()
    with (tmp_path / "releases.jsonl").open("a") as file:
        file.write('{"version": 4, "cli')
    again = Book()
    again.open(tmp_path, begun=True)
    assert again.squares == {0: 3}
    again.released(1, {0: 2, 1: 1})
    again.close()
    third = Book()
    third.open(tmp_path, begun=True)
    assert third.squares == {0: 7, 1: 1}
    third.close()


def test_without_its_releases_a_run_is_not_gone_on_with(tmp_path: Path) -> None:
    with pytest.raises(BadRunDirectory, match=r"releases\.jsonl is missing, so ε is unknown; restore it"):
        Book().open(tmp_path, begun=True)


def test_counting_leaves_updates_alone() -> None:
    count = Count(1)
    g = np.ones(3)
    arrival: Any = type("Arrival", (), {"worker": 0, "version": 0})
    assert count.apply(count.init(g), g, arrival) is g
