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


def composed(kind: str, multipliers: list[float], delta: float) -> float:
    """The ε of several Gaussian mechanisms, by an accountant of the library that composes them one by one."""
    import dp_accounting

    make = {"pld": dp_accounting.pld.PLDAccountant, "rdp": dp_accounting.rdp.RdpAccountant}[kind]
    accountant: Any = make()
    for multiplier in multipliers:
        accountant.compose(dp_accounting.GaussianDpEvent(multiplier))
    return float(accountant.get_epsilon(delta))


@pytest.mark.parametrize("kind", ["pld", "rdp"])
@examples(10)
@given(times=st.lists(st.integers(1, 2), min_size=1, max_size=5), z=st.floats(2.0, 5.0))
def test_gaussians_compose_to_one(kind: str, times: list[int], z: float) -> None:
    """One mechanism with multiplier z / √(Σ c²) costs what all of them cost, by the accountant itself.

    The PLD accountant rounds upwards at every composition, so composing once is at most as large, by very little.
    """
    apart = composed(kind, [z / c for c in times], 1e-5)
    together = gaussian_epsilon(z / np.sqrt(sum(c * c for c in times)), 1e-5, kind)
    assert together == pytest.approx(apart, rel=1e-9 if kind == "rdp" else 1e-6)
    assert together <= apart * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["pld", "rdp"])
@pytest.mark.parametrize("z", [0.9, 1.0, 4.0 / np.sqrt(7), 20.0])
def test_epsilon_is_that_of_the_library(kind: str, z: float) -> None:
    """To every digit, where the grid is the library's own."""
    assert gaussian_epsilon(z, 1e-5, kind) == composed(kind, [z], 1e-5)


@pytest.mark.parametrize("z", [0.25, 0.05, 0.001])
def test_a_wide_grid_is_an_upper_bound_and_close(z: float) -> None:
    """The exact δ at the ε found: below the one asked for, and above it for a slightly smaller ε."""
    found = gaussian_epsilon(z, 1e-5)
    assert exact_delta(z, found) <= 1e-5 < exact_delta(z, 0.9 * found)
    assert found <= gaussian_epsilon(z, 1e-5, "rdp")


def exact_delta(z: float, epsilon: float) -> float:
    """δ(ε) = Φ(1/2z - εz) - e^ε Φ(-1/2z - εz), Theorem 8 of Balle and Wang (2018)."""
    from scipy.special import log_ndtr, ndtr

    return float(ndtr(0.5 / z - epsilon * z) - np.exp(epsilon + log_ndtr(-0.5 / z - epsilon * z)))


def test_a_known_number() -> None:
    """The Gaussian mechanism with multiplier 1 at δ = 1e-5: 4.3772 exactly (Balle and Wang 2018), 4.7285 by Rényi."""
    assert gaussian_epsilon(1.0, 1e-5, "rdp") == pytest.approx(4.7285, abs=1e-3)
    assert gaussian_epsilon(1.0, 1e-5) == pytest.approx(4.3772, abs=1e-4)
    assert exact_delta(1.0, gaussian_epsilon(1.0, 1e-5)) <= 1e-5


def test_without_noise_nothing_is_counted() -> None:
    method = asgd.fedbuff(1.0, concurrency=4).clipped(1.0)
    assert counted(method, Privacy()) == (method, None)


def test_what_cannot_be_accounted_is_refused() -> None:
    private = asgd.async_sgd(0.1).clipped(1.0, noise=1.0)
    with pytest.raises(BadParameter, match="Compensate' changes updates after they are clipped"):
        counted(private.using(transforms=(*private.transforms, Compensate())), Privacy())
    for options, words in (
        ({"delta": 1.0}, r"delta = 1\.0 protects nothing"),
        ({"epsilon": 0.0}, r"epsilon = 0\.0 must be"),
        ({"accountant": "moments"}, 'accountant = \'moments\' is unknown; pass "pld" or "rdp"'),
    ):
        with pytest.raises(BadParameter, match=words):
            Privacy(**options)  # type: ignore[arg-type]


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
