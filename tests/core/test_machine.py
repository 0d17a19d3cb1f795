"""Hypothesis drives the server through every kind of event, for every dispatch rule; `checks.Watch` looks on."""

from __future__ import annotations

import tempfile
from collections import Counter
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from core.checks import Watch, drive, spied
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test
from markers import examples, share

from asyncsgd.core.aggregation import Buffer, Memory
from asyncsgd.core.dispatch import AlwaysBusy, Batch, Dispatch, FirstOf, Shuffled, Uniform
from asyncsgd.core.errors import CancelledJob
from asyncsgd.core.events import Arrived, Changed, Drain, Joined, Left, Lost, Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import Adam, Momentum
from asyncsgd.core.outer_optimizers import DelayedNesterov, LookAhead
from asyncsgd.core.server import Server
from asyncsgd.core.steps import Constant, DelayAdaptive, DropAbove, DropStale, Polynomial
from asyncsgd.core.transforms import Clip, Compensate, Interpolate
from asyncsgd.core.work import LocalSteps

DISPATCH: dict[str, Dispatch] = {
    "always_busy": AlwaysBusy(),
    "always_busy_two": AlwaysBusy(concurrency=2),
    "always_busy_early": AlwaysBusy(sample_early=True),
    "always_busy_two_early": AlwaysBusy(concurrency=2, sample_early=True),
    "restart": AlwaysBusy(restart=2),
    "restart_at_once": AlwaysBusy(restart=1),
    "restart_two_early": AlwaysBusy(concurrency=2, restart=2, sample_early=True),
    "batch": Batch(),
    "uniform_one": Uniform(1),
    "uniform": Uniform(4),
    "uniform_early": Uniform(3, sample_early=True),
    "uniform_one_early": Uniform(1, sample_early=True),
    "shuffled": Shuffled(4),
    "shuffled_early": Shuffled(3, sample_early=True),
    "first_of": FirstOf(clients=2, ask=4),
    "first_of_default": FirstOf(clients=3),
    "first_of_all": FirstOf(clients=2, ask=2),
}

UPDATE: dict[str, Method] = {
    "plain": Method("plain", Constant(0.25)),
    "local": Method("local", Constant(0.25), work=LocalSteps(3, 0.1)),
    "buffer": Method("buffer", Polynomial(0.5), aggregation=Buffer(3)),
    "noise": Method("noise", Constant(0.5), aggregation=Buffer(2, noise=0.1), transforms=(Clip(0.5),)),
    "memory": Method("memory", Constant(0.25), aggregation=Memory()),
    "drop": Method("drop", DropAbove(0.25, threshold=1)),
    "drop_stale": Method("drop_stale", DropStale(0.25, limit=1), aggregation=Buffer(2)),
    "momentum": Method("momentum", DelayAdaptive(0.1), optimizer=Momentum(0.5)),
    "adam": Method("adam", Constant(0.1), optimizer=Adam(amsgrad=True)),
    "delayed": Method("delayed", Polynomial(0.25), optimizer=DelayedNesterov(0.5, every=3, activation=0.2)),
    "ahead": Method("ahead", Constant(0.25), optimizer=LookAhead(0.5, ahead=True)),
    "by_examples": Method("by_examples", Constant(0.5), aggregation=Buffer(3, by_examples=True)),
    "average": Method("average", Constant(0.25), average=True, transforms=(Compensate(adaptive=True), Interpolate())),
}

WORKERS = range(7)
DIM = 3


class ServerMachine(RuleBasedStateMachine):
    """Everything that can happen to a server; the subclasses below say which dispatch rule it follows."""

    dispatch: Dispatch

    @initialize(
        update=st.sampled_from(sorted(UPDATE)),
        dtype=st.sampled_from((np.float32, np.float64)),
        seed=st.integers(0, 2**64 - 1),
        first=st.integers(0, 5),
        batches=st.sampled_from(("all", "worker")),
    )
    def start(self, update: str, dtype: type, seed: int, first: int, batches: str) -> None:
        method = spied(UPDATE[update].using(dispatch=self.dispatch))
        self.watch = Watch(Server(np.linspace(-1, 1, DIM).astype(dtype), method, seed, batches=batches))
        self.dtype = dtype
        if first:
            self.watch.handle(Joined(range(first)))

    def busy(self) -> bool:
        return bool(self.watch.active)

    def update_of(self, salt: int) -> np.ndarray:
        return (np.array([salt % 7 - 3, salt % 11 - 5, salt % 13 - 6]) / 4 + 0.0625).astype(self.dtype)

    # ---------------------------------------------------------------------------------- what happens

    @rule(data=st.data())
    def join_one(self, data: st.DataObject) -> None:
        away = [worker for worker in WORKERS if worker not in self.watch.queues]
        if away:
            worker = data.draw(st.sampled_from(away))
            self.watch.handle(Joined(data.draw(st.sampled_from((worker, [worker], np.int64(worker))))))

    @rule(data=st.data())
    def join_group(self, data: st.DataObject) -> None:
        away = [worker for worker in WORKERS if worker not in self.watch.queues]
        group = data.draw(st.lists(st.sampled_from(away), unique=True)) if away else []
        self.watch.handle(Joined(group))

    @precondition(lambda self: self.watch.queues)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.watch.handle(Left(data.draw(st.sampled_from(sorted(self.watch.queues)))))

    @precondition(busy)
    @rule(data=st.data(), salt=st.integers(0, 1000), says_who=st.booleans())
    def arrive(self, data: st.DataObject, salt: int, says_who: bool) -> None:
        worker = data.draw(st.sampled_from([worker for worker, queue in self.watch.queues.items() if queue]))
        job = self.watch.queues[worker][0]
        self.watch.handle(Arrived(job, self.update_of(salt), worker if says_who else None))

    @precondition(busy)
    @rule(choices=st.lists(st.integers(0, 1000), min_size=2, max_size=12))
    def arrive_many(self, choices: list[int]) -> None:
        for salt in choices:
            heads = [queue[0] for queue in self.watch.queues.values() if queue]
            if not heads:
                break  # the server drains
            self.watch.handle(Arrived(heads[salt % len(heads)], self.update_of(salt)))

    @precondition(busy)
    @rule(data=st.data(), outcome=st.sampled_from((Outcome.LOST, Outcome.REJECTED)))
    def lose_or_reject(self, data: st.DataObject, outcome: Outcome) -> None:
        self.watch.handle(Lost(data.draw(st.sampled_from(sorted(self.watch.active))), outcome))

    @rule(after=st.one_of(st.none(), st.integers(0, 20)))
    def drain(self, after: int | None) -> None:
        self.watch.handle(Drain(after))

    @precondition(lambda self: self.watch.left == 0)
    @rule()
    def stop_draining(self) -> None:
        self.watch.handle(Drain(None))

    @rule(factor=st.sampled_from((0.5, 0.7, 2.0)))
    def change_the_step(self, factor: float) -> None:
        self.watch.handle(Changed(factor))

    @rule(salt=st.integers(0, 1000))
    def late_for_cancelled(self, salt: int) -> None:
        late = [n for n, entry in enumerate(self.watch.entries) if entry.outcome is Outcome.CANCELLED]
        if late:
            self.watch.refuse(Arrived(late[salt % len(late)], self.update_of(salt)), CancelledJob)

    @rule(data=st.data())
    def bad_event(self, data: st.DataObject) -> None:
        bad = self.watch.bad_events()
        for place in data.draw(st.lists(st.integers(0, len(bad) - 1), min_size=1, max_size=6)):
            self.watch.refuse(*bad[place])

    @rule()
    def bad_step(self) -> None:
        self.watch.bad_steps()

    @rule()
    def save_and_restore(self) -> None:
        with tempfile.TemporaryDirectory() as directory:
            self.watch.fork(Path(directory))

    def teardown(self) -> None:
        if not hasattr(self, "watch"):
            return
        self.watch.refuse_everything()
        for worker in tuple(self.watch.queues):  # everybody goes: every job has ended, once
            self.watch.handle(Left(worker))
        ends = Counter(entry.outcome for entry in self.watch.entries)
        assert ends[Outcome.IN_FLIGHT] == 0
        assert ends.total() == len(self.watch.entries)


@pytest.mark.timeout(600)  # for the day it fails: making the example small takes minutes
@pytest.mark.parametrize("name", DISPATCH)
def test_server_keeps_its_promises(name: str) -> None:
    machine = type(f"Machine_{name}", (ServerMachine,), {"dispatch": DISPATCH[name]})
    run_state_machine_as_test(
        machine,
        settings=examples(25, stateful_step_count=30, suppress_health_check=list(HealthCheck)),
    )


# A seventh of the pairs in `make quick`: that is more than one per dispatch rule, and 7 does not divide the number of
# update rules, so every rule of both kinds is in some pair.
@pytest.mark.parametrize(("name", "update"), share(product(DISPATCH, UPDATE), every=7))
def test_a_long_run_of_every_pair_of_rules(name: str, update: str, tmp_path: Path) -> None:
    """Hypothesis finds short sequences; these are long, and none of the pairs is left to chance."""
    method = spied(UPDATE[update].using(dispatch=DISPATCH[name]))
    watch = Watch(Server(np.linspace(-1, 1, DIM), method, seed=7))
    drive(watch, steps=100, seed=len(name) + len(update), directory=tmp_path)
    ends = {entry.outcome for entry in watch.entries}
    assert Outcome.LOST in ends or Outcome.REJECTED in ends
    assert watch.t > 30, "the run is too tame to mean anything"


def test_every_outcome_occurs(tmp_path: Path) -> None:
    """The runs above are worth something only if they reach all the ways in which a job can end."""
    seen: set[Outcome] = set()
    for dispatch, update in (("first_of", "plain"), ("uniform", "drop"), ("restart", "plain")):
        watch = Watch(Server(np.zeros(DIM), spied(UPDATE[update].using(dispatch=DISPATCH[dispatch])), seed=1))
        drive(watch, steps=200, seed=3, directory=tmp_path)
        seen |= {entry.outcome for entry in watch.entries}
    assert seen == set(Outcome)


def test_the_bound_on_buffers_is_tight() -> None:
    """One more than the versions in flight have ever been; two more where the next job leaves early."""
    for dispatch, bound in ((Uniform(1), 1 + 1), (Uniform(1, sample_early=True), 1 + 2), (AlwaysBusy(), 4 + 1)):
        watch = Watch(Server(np.zeros(DIM), spied(Method("plain", Constant(0.25), dispatch))))
        watch.handle(Joined(range(4)))
        for _ in range(20):
            watch.handle(Arrived(min(watch.active), np.ones(DIM)))
        assert watch.most_versions == bound - (2 if dispatch.early else 1)
        assert watch.server._update.points.slots == bound
