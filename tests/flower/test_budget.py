"""The budget of ε and the limit on contributions: how much clients may give, and how a run ends that used it up."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("dp_accounting", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, towards
from flower.serving import ARRAYS, QUIET, Ear, clients, error, quiet, serve
from flower.virtual import World, steady, virtual_bench

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, EngineError
from asyncsgd.core.events import Arrived, Joined, Left, Outcome
from asyncsgd.engines.base import Exhausted, Note
from asyncsgd.flower import Clients
from asyncsgd.flower.allowance import Allowance
from asyncsgd.flower.privacy import Accountant, Book, Count, Privacy, allowed_squares, counted, gaussian_epsilon
from asyncsgd.run.configuration import journal

PRIVATE = asgd.fedbuff(0.5, concurrency=2, buffer=2).clipped(1.0, noise=4.0)


@pytest.mark.parametrize("kind", ["pld", "rdp"])
@pytest.mark.parametrize(("z", "epsilon"), [(4.0, 3.0), (1.0, 8.0), (30.0, 1.0), (1.0, 60.0)])
def test_the_limit_is_the_largest_number_within_the_budget(kind: Any, z: float, epsilon: float) -> None:
    squares = allowed_squares(z, Privacy(epsilon, accountant=kind))
    assert gaussian_epsilon(z / np.sqrt(squares), 1e-5, kind) <= epsilon
    assert gaussian_epsilon(z / np.sqrt(squares + 1), 1e-5, kind) > epsilon


def test_what_is_reported_is_within_the_budget_to_the_last_digit() -> None:
    """A budget between the exact ε of eight updates and the rounded one that is reported leaves seven."""
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    reported = gaussian_epsilon(4.0 / np.sqrt(8), 1e-5)
    budget = float(np.nextafter(reported, 0.0))
    assert GaussianPrivacyLoss(4.0 / np.sqrt(8)).get_delta_for_epsilon(budget) <= 1e-5  # so the formula admits eight
    assert allowed_squares(4.0, Privacy(reported)) == 8
    assert allowed_squares(4.0, Privacy(budget)) == 7


@given(st.integers(1, 60), st.lists(st.integers(0, 2), max_size=60), st.integers(1, 5))
def test_clients_that_are_admitted_never_exceed_the_limit(limit: int, order: list[int], size: int) -> None:
    """Admission when a job is sent is enough, whatever other clients do before its update arrives."""
    book = Book(limit, 1.0)
    drive(book, order, size)
    assert max(book.squares.values(), default=0) <= limit


def test_a_book_that_forgets_that_updates_of_one_sum_add_up_is_caught() -> None:
    """The deliberate bug: n updates in one sum counted as n, not as n²."""

    class Forgetful(Book):
        def admits(self, worker: int) -> bool:
            return self.squares.get(worker, 0) + self.sum.get(worker, 0) + 1 <= (self.limit or 0)

    with pytest.raises(EngineError, match="would take client 0 above the budget"):
        drive(Forgetful(5, 1.0), [0] * 6, 3)
    drive(Book(5, 1.0), [0] * 6, 3)


def drive(book: Book, order: list[int], size: int) -> None:
    """Clients that answer in this order; each gets a job if the book admits it after its last answer."""
    count = Count(size, book)
    state = count.init(np.zeros(1))
    sent = {worker: book.admits(worker) for worker in range(3)}
    for worker in order:
        if sent[worker]:
            count.apply(state, np.zeros(1), type("Arrival", (), {"worker": worker, "version": 0}))  # type: ignore[arg-type]
        sent[worker] = book.admits(worker)
        assert not (book.exhausted(worker) and book.admits(worker))


def test_the_last_line_of_defence_releases_nothing(tmp_path: Path) -> None:
    """A release above the limit, which the pool never asks for: neither written nor counted."""
    book = Book(4, 3.0)
    book.open(tmp_path, begun=False)
    book.released(0, {0: 2})
    with pytest.raises(EngineError, match=r"would take client 0 above the budget ε = 3; the run stopped before it"):
        book.released(1, {1: 1, 0: 1})
    book.close()
    assert book.squares == {0: 4}
    assert (tmp_path / "releases.jsonl").read_text("utf-8").count("version") == 1


def test_a_run_stops_before_its_budget_is_exceeded(tmp_path: Path) -> None:
    """The budget is 3: ε ends below it, and one more update of any client would be above."""
    options = {"every": 4, "evaluate": error, "privacy": Privacy(3.0), **QUIET}
    run = serve(clients(1.0, 2.0), ARRAYS, PRIVATE, iterations=1000, directory=tmp_path, **options)
    assert run.stopped_early is not None
    assert run.stopped_early.startswith("privacy budget: no connected client can contribute any more without exceeding")
    assert run.privacy is not None
    assert 2.0 < run.privacy.epsilon <= 3.0
    assert round(run.privacy.contributions**2) <= allowed_squares(4.0, Privacy(3.0)) == 8
    assert run.metrics["epsilon"].max() <= 3.0
    notes = [row for row in journal(tmp_path) if row["event"] == "used_up"]
    assert all("would exceed the budget ε = 3" in row["reason"] for row in notes)
    again = serve(clients(1.0, 2.0), ARRAYS, PRIVATE, iterations=1000, directory=tmp_path, **options, resume=True)
    assert again.trace.iterations == run.trace.iterations
    assert again.stopped_early == run.stopped_early
    more = serve(
        clients(1.0, 2.0),
        ARRAYS,
        PRIVATE,
        iterations=1000,
        directory=tmp_path,
        resume=True,
        **{**options, "privacy": Privacy(4.0)},
    )
    assert more.trace.iterations > run.trace.iterations
    assert more.privacy is not None
    assert 3.0 < more.privacy.epsilon <= 4.0


def test_no_update_is_thrown_away_at_the_end_of_a_budget() -> None:
    """Every update that arrived was used, also with several jobs of a client in a queue."""
    method = asgd.federated_async_sgd(0.1, concurrency=6).clipped(1.0, noise=4.0)
    run = serve(clients(1.0, 2.0, 3.0), ARRAYS, method, iterations=1000, privacy=Privacy(3.0), **QUIET)
    assert Counter(run.trace.worker.tolist()) == {0: 8, 1: 8, 2: 8}  # sums of one update: Σ c² is the number of updates
    assert run.faults.rejected == 0
    assert set(run.trace.outcome.tolist()) == {Outcome.APPLIED}


def test_a_budget_that_cannot_be_kept_is_refused() -> None:
    for method, epsilon, words in (
        (asgd.fedbuff(1.0, concurrency=2).clipped(1.0), 3.0, "cannot be kept: the method adds no noise; add noise"),
        (PRIVATE, 0.5, r"is less than one update costs with noise = 4, which is 0\.9263; pass more noise"),
    ):
        with pytest.raises(BadParameter, match=rf"epsilon = {epsilon} {words}"):
            counted(method, Privacy(epsilon))


def test_a_client_gives_at_most_max_updates(tmp_path: Path) -> None:
    ear = Ear()
    options = {"directory": tmp_path, "callbacks": [ear], "every": 5, **quiet(max_updates=4)}
    run = serve(clients(1.0, 2.0, 3.0), ARRAYS, asgd.federated_async_sgd(0.1, concurrency=6), iterations=100, **options)
    assert Counter(run.trace.worker.tolist()) == {0: 4, 1: 4, 2: 4}
    assert run.stopped_early == "every connected client has contributed max_updates = 4 updates"
    assert sum("gets no more jobs: it has contributed max_updates = 4 updates" in note for note in ear.notes) == 1
    assert {row["worker"] for row in journal(tmp_path) if row["event"] == "used_up"} == {0, 1, 2}


def test_max_updates_counts_what_a_resume_kept(tmp_path: Path) -> None:
    method = asgd.federated_async_sgd(0.1, concurrency=3)
    first = serve(clients(1.0, 2.0), ARRAYS, method, iterations=5, directory=tmp_path, **quiet(max_updates=4))
    assert first.stopped_early is None
    rest = serve(
        clients(1.0, 2.0), ARRAYS, method, iterations=50, directory=tmp_path, resume=True, **quiet(max_updates=4)
    )
    assert Counter(rest.trace.worker.tolist()) == {0: 4, 1: 4}


def test_a_new_client_continues_where_others_have_given_all() -> None:
    """A run ends only if no connected client may contribute: here a third one connects in time."""
    grid = clients(1.0, 2.0)
    answers = itertools.count(1)
    inner = towards(1.0)
    asked = threading.Event()

    def third(message: Any) -> Any:
        asked.set()
        return towards(3.0)(message)

    def fetches(message: Any) -> Any:
        if 99 not in grid.clients and next(answers) == 2:
            grid.add(99, third)
        if 99 in grid.clients and not asked.is_set():
            return None  # its second answer comes when the third client has been found, however long that takes
        return inner(message)

    grid.clients[next(iter(grid.clients))] = fetches
    run = serve(grid, ARRAYS, asgd.async_sgd(0.1), iterations=50, **quiet(max_updates=3))
    assert run.stopped_early is not None
    assert Counter(run.trace.worker.tolist()) == {0: 3, 1: 3, 2: 3}


# ---------------------------------------------------------------------------------------------- in the pool


def test_a_client_waits_for_the_release_if_its_share_of_a_sum_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit 5 and sums of 3: two updates in one sum cost 4. A third would cost 9, so the client waits, then gives 1."""
    book = Book(5, 3.0)
    accountant = Accountant(4.0, 1.0, Privacy(3.0), book, size=3)
    world = World(monkeypatch)
    world.paces = [steady(1.0), steady(1.0)]
    with virtual_bench(world, towards(1.0), towards(2.0), accountant=accountant) as here:
        for held in ({0: 1}, {0: 2}):
            report = _arrives(here, 0)
            book.sum = held
            here.pool.used(report, True)
        here.expect(Left, worker=0)
        assert not here.of(Exhausted)
        report = _arrives(here, 1)
        book.released(1, {0: 2, 1: 1})
        book.sum = {}
        here.pool.used(report, True)
        here.until(lambda: sum(0 in joined.workers for joined in here.of(Joined)) == 2, "client 0 again")
        report = _arrives(here, 0)
        book.sum = {0: 1}
        here.pool.used(report, True)
        here.expect(Note, event="used_up")
        for number in (2, 3):
            report = _arrives(here, 1)
            book.sum = {0: 1, 1: number - 1}
            here.pool.used(report, True)
        here.expect(Exhausted)


def _arrives(here: Any, worker: int) -> Arrived:
    job = here.give(worker)
    found: Arrived = here.expect(Arrived, job=job)
    return found


def test_the_sum_that_a_resume_continues_is_known() -> None:
    """Seven updates in sums of three: the last one is in a sum that is not released yet."""
    book = Book(9, 3.0)
    allowance = Allowance(None, Accountant(4.0, 1.0, Privacy(3.0), book, size=3))
    trace = asgd.Trace.from_history(workers=[0, 1, 1, 0, 0, 1, 2], assigned=[0] * 7, arrived=list(range(7)))
    allowance.resumed(trace)
    assert dict(book.sum) == {2: 1}


def test_options_are_checked() -> None:
    with pytest.raises(BadParameter, match="max_updates = 0 must be an integer"):
        Clients(max_updates=0)
    grid = FakeGrid([towards(1.0)] * 2)
    with pytest.raises(BadParameter, match=r"epsilon = 1\.0 cannot be kept"):
        serve(grid, ARRAYS, asgd.async_sgd(0.1), iterations=2, privacy=Privacy(1.0), **QUIET)
