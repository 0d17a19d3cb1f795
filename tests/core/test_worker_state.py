"""The rule of worker state: it is that of the worker's applied jobs since it joined, whatever else happened.

`play` leads a worker through a history of jobs and returns every message that it sent and what it would send next.
`expected` computes the same from the applied jobs alone. Deliberate bugs show that the comparison can fail.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

import asyncsgd as asgd
from asyncsgd.core.random import below, derive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.core.worker import Workers, WorkerState

DIM = 5
KEPT = asgd.async_sgd(0.5).local(3, 0.05, optimizer=asgd.optimizers.adamw(weight_decay=0.1), state="kept")
WORK: dict[str, Work] = {
    "kept AdamW": KEPT.job,
    "kept momentum": asgd.async_sgd(0.5).local(2, 0.05, optimizer=asgd.optimizers.momentum(), state="kept").job,
    "error memory": asgd.async_sgd(0.5).compressed("int4").job,
    "fading error memory": asgd.async_sgd(0.5).compressed(asgd.compression.top_k(0.3, decay=0.7)).job,
    "both": KEPT.compressed("int8", down="bfloat16").job,
    "neither": asgd.async_sgd(0.5).local(2, 0.1).job,
}
OUTCOMES = ("applied", "dropped", "rejected", "cancelled", "lost", "lost before it began", "never judged", "rejoin")
"""What becomes of a job; "rejoin" is the death of the worker with the job, and a new one in its place."""
HISTORIES = st.lists(st.sampled_from(OUTCOMES), max_size=12)


class Pull:
    """A task whose gradient depends on the point, the worker and the seed."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        shift = [below(derive(seed, place), 1000)[1] / 500 - 1.0 + worker for place in range(len(x))]
        return (x * 0.75 - np.array(shift)).astype(x.dtype)


def point(job: int) -> Vector:
    """The model that job number ``job`` starts from."""
    return np.linspace(-1, 1, DIM, dtype=np.float32) * np.float32(1 + job / 7)


def send(state: WorkerState, job: int) -> Vector:
    """Compute a job, and return its update as it reaches the server."""
    x = state.start(point(job))
    return state.sent(state.compute(Pull(), x, 1, derive(5, job), None, job)).copy()


def play(kind: type[WorkerState], work: Work, history: Sequence[str]) -> list[bytes]:
    """Return what the worker sent for every applied job since it joined last, and for one job more."""
    state, used = kind(work, point(0)), []
    for job, outcome in enumerate(history):
        if outcome == "lost before it began":
            state.settle(used=False)
            continue
        update = send(state, job)
        if outcome == "rejoin":
            state, used = kind(work, point(0)), []
        elif outcome == "applied":
            used.append(update.tobytes())
            state.settle(used=True)
        elif outcome != "never judged":
            state.settle(used=False)
    return [*used, send(state, len(history)).tobytes()]


def expected(work: Work, history: Sequence[str]) -> list[bytes]:
    """The same, by a worker that joins now and does nothing but the jobs that were applied."""
    joined = max((place + 1 for place, outcome in enumerate(history) if outcome == "rejoin"), default=0)
    jobs = [place for place in range(joined, len(history)) if history[place] == "applied"]
    state, sent = WorkerState(work, point(0)), []
    for job in jobs:
        sent.append(send(state, job).tobytes())
        state.settle(used=True)
    return [*sent, send(state, len(history)).tobytes()]


@pytest.mark.parametrize("name", WORK)
@examples(60)
@given(history=HISTORIES)
def test_the_state_is_that_of_the_applied_jobs_since_the_worker_joined(name: str, history: list[str]) -> None:
    assert play(WorkerState, WORK[name], history) == expected(WORK[name], history)


@examples(30)
@given(histories=st.lists(HISTORIES, min_size=2, max_size=3), order=st.randoms(use_true_random=False))
def test_workers_in_one_process_do_not_share_their_state(histories: list[list[str]], order: random.Random) -> None:
    """Jobs of several workers interleave; each worker sends what it would send alone."""
    work, alone = WORK["both"], [expected(WORK["both"], history) for history in histories]
    everyone, sent, done = Workers(work, point(0)), [[] for _ in histories], [0] * len(histories)
    turns = [worker for worker, history in enumerate(histories) for _ in range(len(history) + 1)]
    order.shuffle(turns)
    for worker in turns:
        job = done[worker]
        outcome = [*histories[worker], "applied"][job]
        done[worker] += 1
        if outcome == "lost before it began":
            continue
        task = Pull()
        task.update = lambda x, _, seed: Pull().update(x, 1, seed)  # type: ignore[method-assign]
        update = everyone.compute(task, point(job), worker, derive(5, job), None, job).tobytes()
        everyone.settle(worker, outcome == "applied")
        if outcome == "rejoin":
            everyone.forget(worker)
            sent[worker] = []
        elif outcome == "applied":
            sent[worker].append(update)
    assert sent == alone


# ------------------------------------------------------------------------------------------ deliberate bugs


class AlwaysSettled(WorkerState):
    """A dropped or lost job advances the state too."""

    def settle(self, used: bool) -> None:
        super().settle(True)


class WorksInPlace(WorkerState):
    """A job changes the memory itself, in place of a copy."""

    def compute(self, *arguments: Any) -> Vector:
        patch = pytest.MonkeyPatch()
        patch.setattr("asyncsgd.core.worker.deepcopy", lambda memory: memory)
        with patch.context():
            try:
                return super().compute(*arguments)
            finally:
                patch.undo()


class NeverSettled(WorkerState):
    """An applied job does not advance the state."""

    def settle(self, used: bool) -> None:
        super().settle(False)


class ForgetsTheRest(WorkerState):
    """What encoding left over is lost when a job is dropped."""

    def settle(self, used: bool) -> None:
        super().settle(used)
        if not used and self._left is not None:
            self._left[:] = 0


class Survives(WorkerState):
    """A worker that takes the place of a dead one goes on with the state of the dead one."""

    last: WorkerState | None = None

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        if Survives.last is not None:
            before = deepcopy(Survives.last.__dict__)
            self.__dict__.update({name: before[name] for name in ("_memory", "_left")})
        Survives.last = self


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        (AlwaysSettled, "kept AdamW"),
        (AlwaysSettled, "error memory"),
        (AlwaysSettled, "fading error memory"),
        (WorksInPlace, "kept AdamW"),
        (WorksInPlace, "both"),
        (NeverSettled, "kept momentum"),
        (NeverSettled, "error memory"),
        (ForgetsTheRest, "error memory"),
        (Survives, "kept AdamW"),
        (Survives, "error memory"),
    ],
)
def test_a_deliberate_bug_is_caught(kind: type[WorkerState], name: str) -> None:
    draw, wrong = random.Random(3), 0
    for _ in range(40):
        Survives.last = None
        history = draw.choices(OUTCOMES, weights=[6, 1, 1, 1, 1, 1, 1, 1], k=draw.randint(3, 12))
        wrong += play(kind, WORK[name], history) != expected(WORK[name], history)
    assert wrong > 10


# ------------------------------------------------------------------------------------------ what error feedback means


@examples(30)
@given(verdicts=st.lists(st.booleans(), min_size=1, max_size=12))
def test_what_was_sent_and_what_is_left_is_what_was_computed(verdicts: list[bool]) -> None:
    """Σ sent + what is left = Σ update, over the applied jobs, to rounding; the next message sends what is left."""
    code, rest = asgd.compression.int4(), np.empty(DIM)
    state = WorkerState(asgd.async_sgd(0.5).compressed(code).job, np.zeros(DIM))
    sent, computed, left = np.zeros(DIM), np.zeros(DIM), np.zeros(DIM)
    for job, used in enumerate(verdicts):
        update = np.array([below(derive(job, place), 1000)[1] / 500 - 1 for place in range(DIM)])
        message = state.sent(update)
        if used:
            sent, computed, left = sent + message, computed + update, (update + left) - message
        state.settle(used)
    np.testing.assert_allclose(sent + left, computed, atol=1e-12)
    assert np.abs(left).max() < 0.3  # half a unit of int4, where the largest number is 7 units
    code.decode(code.encode(left), rest)
    np.testing.assert_array_equal(state.sent(np.zeros(DIM)), rest)


def test_a_state_that_fades() -> None:
    """With decay β the next total is u + β e: a naive loop of SparseLoCo's rule, e ← β e + u, without the largest."""
    state = WorkerState(asgd.async_sgd(0.5).compressed(asgd.compression.top_k(0.3, decay=0.7)).job, np.zeros(DIM))
    left = [0.0] * DIM
    for job in range(8):
        update = [below(derive(job, place), 1000)[1] / 500 - 1 for place in range(DIM)]
        total = [u + 0.7 * e for u, e in zip(update, left, strict=True)]
        largest = sorted(range(DIM), key=lambda place: -abs(total[place]))[:2]
        naive = [total[place] if place in largest else 0.0 for place in range(DIM)]
        left = [t - n for t, n in zip(total, naive, strict=True)]
        assert state.sent(np.array(update)).tolist() == naive
        state.settle(used=True)
