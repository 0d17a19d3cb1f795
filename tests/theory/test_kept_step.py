"""How much of the total step the rules of Theorem 2 keep, in every run: elastic, lossy, and the worst one there is."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

from asyncsgd.core.dispatch import AlwaysBusy, Batch, FirstOf, Shuffled, Uniform
from asyncsgd.core.events import Arrived, Joined, Left, Lost, Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.server import Server
from asyncsgd.core.steps import DelayAdaptive, DropAbove
from asyncsgd.theory import theorem2
from asyncsgd.trace import Recorder

DISPATCH = (
    *(AlwaysBusy(), AlwaysBusy(concurrency=2), AlwaysBusy(restart=3), Batch()),
    *(Uniform(1), Uniform(4), Shuffled(4), FirstOf(clients=2, ask=4), FirstOf(clients=3, ask=3)),
)
EARLY = (AlwaysBusy(sample_early=True), AlwaysBusy(concurrency=2, sample_early=True), Uniform(3, sample_early=True))
UPDATE = np.zeros(1)


class Driven:
    """A server that a test tells what happens next, and how much of the steps it has kept."""

    def __init__(self, step, dispatch, workers):
        self.server = Server(np.zeros(1), Method("driven", step, dispatch), seed=1)
        self.recorder = Recorder()
        self.kept, self.newcomer = 0.0, workers
        self.handle(Joined(range(workers)))

    def handle(self, event):
        reply = self.server.handle(event)
        self.recorder.record(0.0, reply.commands, reply.ended)
        self.kept += sum(ended.step for ended in reply.ended)

    @property
    def share(self):
        return self.kept / max(1, self.server.iteration)

    def answer(self, worker):
        """The oldest job of a worker arrives, if it has one: jobs of a worker run first in, first out."""
        for job in self.server.in_flight:
            if job.worker == worker:
                return self.handle(Arrived(job.id, UPDATE))

    def happens(self, kind, whom, often):
        server = self.server
        if kind == "joins":
            self.handle(Joined([self.newcomer]))
            self.newcomer += 1
        elif kind == "leaves" and len(server.workers) > 1:
            self.handle(Left(server.workers[whom % len(server.workers)]))
        elif kind in ("lost", "rejected") and server.in_flight:
            self.handle(Lost(server.in_flight[whom % server.concurrency].id, Outcome[kind.upper()]))
        elif kind == "answers" and server.in_flight:
            worker = server.in_flight[whom % server.concurrency].worker
            for _ in range(often):  # one worker alone for a while is what makes the others late
                self.answer(worker)


kinds = st.sampled_from(["answers"] * 6 + ["joins", "leaves", "lost", "rejected"])
happenings = st.lists(st.tuples(kinds, st.integers(0, 9), st.integers(1, 12)), min_size=1, max_size=40)


@given(st.sampled_from(DISPATCH), st.integers(1, 6), happenings)
@examples(300)
def test_the_rule_keeps_three_quarters_and_more_whoever_comes_goes_or_loses_jobs(dispatch, workers, happenings):
    run = Driven(DelayAdaptive(1.0), dispatch, workers)
    for happening in happenings:
        run.happens(*happening)
        if run.server.iteration:
            assert run.share >= 0.75 + 0.25 / run.server.max_concurrency - 1e-12
    if run.server.iteration:
        trace = run.recorder.trace(run.server.concurrency)
        promised = theorem2(trace.delays.concurrency, smoothness=1.0, gap=1.0, noise_variance=0.0).share
        assert theorem2(trace, smoothness=1.0, gap=1.0, noise_variance=0.0).share >= promised - 1e-12


@given(st.sampled_from(EARLY), st.integers(1, 6), happenings)
@examples(150)
def test_with_jobs_handed_out_early_it_keeps_three_quarters(dispatch, workers, happenings):
    run = Driven(DelayAdaptive(1.0), dispatch, workers)
    for happening in happenings:
        run.happens(*happening)
        if run.server.iteration:
            assert run.share >= 0.75


@given(st.sampled_from(DISPATCH), st.integers(1, 6), happenings)
@examples(150)
def test_dropping_above_twice_the_concurrency_keeps_more_than_half(dispatch, workers, happenings):
    run = Driven(DropAbove(1.0), dispatch, workers)
    for happening in happenings:
        run.happens(*happening)
        if run.server.iteration:
            assert run.share >= 0.5 + 0.5 / run.server.max_concurrency - 1e-12


@pytest.mark.parametrize(("workers", "turn"), [(2, 4), (3, 3)])
def test_no_larger_share_can_be_promised(workers, turn):
    """Workers that take turns: every first update of a turn has delay 2τ_C, every other one has delay 0."""
    run = Driven(DelayAdaptive(1.0), AlwaysBusy(), workers)
    for t in range(12_000):
        run.answer(t // turn % workers)
    assert run.share == pytest.approx(0.75 + 0.25 / workers, abs=1e-3)
    assert theorem2(workers, smoothness=1.0, gap=1.0, noise_variance=0.0).share == 0.75 + 0.25 / workers


def test_jobs_handed_out_early_need_the_weaker_form():
    """Delays then count from the arrival that freed the worker: 1 and 2τ_C here, in turns of three."""
    run = Driven(DelayAdaptive(1.0), AlwaysBusy(sample_early=True), 2)
    for t in range(12_000):
        run.answer(t // 3 % 2)
    assert run.share == pytest.approx(5 / 6, abs=1e-3)
    assert run.share < 0.75 + 0.25 / 2
