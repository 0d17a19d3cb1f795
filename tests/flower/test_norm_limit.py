"""Updates that are much longer than usual: refused, reported, counted, and the model unchanged."""

from __future__ import annotations

import itertools
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import FOREVER, bench
from flower.fake import Client, FakeGrid, record, reply, towards
from flower.serving import ARRAYS, Ear, quiet, serve
from flwr.app import Message

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, EngineError
from asyncsgd.engines.base import Arrived, Note, Rejected, Replied
from asyncsgd.flower import Clients
from asyncsgd.flower.norm_limit import NormLimit, fitting
from asyncsgd.run.configuration import journal

HUGE = 1e30


def expected(norms: list[tuple[int, float]]) -> list[bool]:
    """Straight from the rule: which of these (client, norm) are accepted."""
    accepted: list[tuple[int, float]] = []
    verdicts, highest = [], 0.0
    for worker, length in norms:
        lengths = [value for _, value in accepted]
        good = True
        if len(lengths) >= 20:
            bound = 10 * median(lengths[-50:])
            highest = max(highest, bound)
            own = [value for other, value in accepted if other == worker]
            good = length <= bound or bool(own and length <= 3 * own[-1] and length <= highest)
        verdicts.append(good)
        if good and length > 0:
            accepted.append((worker, length))
    return verdicts


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.01, 0.1, 0.5, 1.0, 2.0, 4.0, 9.0, 11.0, 40.0, HUGE])),
        max_size=120,
    )
)
def test_the_bound_is_the_rule(norms: list[tuple[int, float]]) -> None:
    limit = NormLimit("auto")
    assert [limit.judge(worker, length) is None for worker, length in norms] == expected(norms)


@pytest.mark.parametrize(
    ("before", "length", "good"),
    [
        ([1.0] * 19, HUGE, True),  # no bound yet
        ([1.0] * 20, 10.0, True),
        ([1.0] * 20, 10.001, False),
        ([1.0] * 100, float("inf"), False),  # the norm of finite numbers may overflow
        ([100.0] * 30 + [1.0] * 50, 11.0, False),  # the bound follows a scale that shrinks
        ([1.0] * 20 + [5.0] * 26, 49.0, True),  # ... and one that grows
        ([0.0] * 50, HUGE, True),  # nothing is known
        ([1.0] * 20 + [0.0] * 80, 9.0, True),  # clients that return the model unchanged do not lower the bound
    ],
)
def test_the_bound_follows_the_run(before: list[float], length: float, good: bool) -> None:
    limit = NormLimit("auto")
    assert all(limit.judge(0, value) is None for value in before)
    assert (limit.judge(1, length) is None) == good


def test_a_client_with_other_data_is_not_refused_as_the_others_converge() -> None:
    limit = NormLimit("auto")
    for step in range(300):
        assert limit.judge(0, 0.97**step) is None
        assert limit.judge(1, 0.97**step) is None
        if step % 5 == 0:
            assert limit.judge(2, 1.0) is None


def test_a_client_that_diverges_is_refused_in_the_end() -> None:
    """Each update is like its last one, but the bound was never that high."""
    limit = NormLimit("auto")
    length, accepted = 1.0, 1.0
    for _ in range(100):
        for worker in range(4):
            assert limit.judge(worker, 1.0) is None
        length *= 1.5
        if limit.judge(4, length) is None:
            accepted = length
    assert 5.0 < accepted <= 10.0


# ---------------------------------------------------------------------------------------------- in a run


def broken_at(job: int, value: float = HUGE, target: float = 1.0) -> Client:
    """A client that is like the others, except for its answer to one of its jobs, or to all from there on."""
    count, honest = itertools.count(), towards(target)

    def client(message: Message) -> Any:
        if message.metadata.message_type == "train" and next(count) == job:
            sent = message.content["arrays"].items()
            return reply(
                record(**{name: np.full_like(array.numpy(), value) for name, array in sent if name != "n"}, n=0)
            )
        return honest(message)

    return client


def test_one_answer_of_1e30_does_not_change_the_model(tmp_path: Path) -> None:
    """The same run accepts it if the bound is off, and the model is destroyed."""
    method, ear = asgd.async_sgd(0.1), Ear()
    options: dict[str, Any] = {"iterations": 100, "callbacks": [ear], **quiet(minimum=3)}

    def grid(value: float = HUGE) -> FakeGrid:
        return FakeGrid([towards(1.0), towards(2.0), broken_at(15, value)])

    run = serve(grid(), ARRAYS, method, directory=tmp_path / "bounded", **options)
    assert np.abs(run.x).max() < 10
    assert run.faults.rejected == 1
    [row] = [row for row in journal(tmp_path / "bounded") if row["event"] == "rejected"]
    assert row["worker"] == 2
    assert "more than 10 times the median norm" in row["reason"]
    [note] = [note for note in ear.notes if note.startswith("client 2 (node 9223372036854775835): the update has norm")]
    assert "if such updates are right, pass Clients(max_norm=None), or a number" in note
    [total] = [row for row in journal(tmp_path / "bounded") if row["event"] == "too_long_in_total"]
    assert total["refused"] == {"2": 1}
    assert any("1 update refused as too long, 1 of them from client 2" in note for note in ear.notes)
    open_to_all = {**options, **quiet(minimum=3, max_norm=None)}
    assert np.abs(serve(grid(1e15), ARRAYS, method, **open_to_all).x).max() > 1e10


def test_a_refused_reply_changes_no_statistics_and_reaches_no_callback() -> None:
    """Neither do its integers and running statistics count, which have no bound of their own: they are medians."""

    def client(message: Message) -> Any:
        return next(answers)(message)

    answers = itertools.chain([towards(1.0)] * 20, [broken_at(0)], itertools.repeat(towards(1.0)))
    with bench(client) as here:
        for _ in range(20):
            here.expect(Arrived, job=here.give(0))
        counted = int(here.pool.carried["n"])
        assert counted > 0
        here.expect(Rejected, job=here.give(0))
        assert int(here.pool.carried["n"]) == counted
        assert len(here.of(Replied)) == 20  # no callback sees it
        here.expect(Arrived, job=here.give(0))


def test_a_client_that_is_always_too_long_is_left_out_and_told_why() -> None:
    with bench(towards(1.0), towards(100.0), rules=Clients(max_failures=2, pause=FOREVER)) as here:
        for _ in range(20):
            here.expect(Arrived, job=here.give(0))
        here.give(1)
        here.give(1)
        here.until(lambda: here.of(Note, event="left_out"), "the pause")
        assert len(here.of(Note, event="too_long")) == 1  # the second one is counted, and not reported again
        [total] = [note for note in here.pool.finish() if note.event == "too_long_in_total"]
        assert total.details == {"refused": {"1": 2}}


def test_if_all_updates_grow_at_once_the_error_names_the_option() -> None:
    def always(message: Message) -> Any:
        return broken_at(0, 50.0)(message) if next(asked) >= 25 else towards(1.0)(message)

    asked = itertools.count()
    with pytest.raises(EngineError, match=r"every client fails.*more than 10 times the median norm"):
        serve(FakeGrid([always]), ARRAYS, asgd.async_sgd(0.01), iterations=100, **quiet(minimum=1, pause=FOREVER))


def test_clipping_switches_the_bound_off() -> None:
    """A clipped update is short, and the method's own rule decides what a long one counts."""
    clipped = asgd.async_sgd(0.1).clipped(1.0)
    assert fitting(Clients(), clipped).max_norm is None
    assert fitting(Clients(), asgd.async_sgd(0.1)).max_norm == "auto"
    assert fitting(Clients(max_norm=5.0), clipped).max_norm == 5.0
    run = serve(FakeGrid([towards(1.0), broken_at(25)]), ARRAYS, clipped, iterations=80, **quiet())
    assert run.faults.rejected == 0
    assert np.abs(run.x).max() < 10


def test_the_option_is_checked() -> None:
    assert Clients().max_norm == "auto"
    with pytest.raises(BadParameter, match="max_norm = 'always' is unknown; pass \"auto\", a number, or None"):
        Clients(max_norm="always")  # type: ignore[arg-type]
