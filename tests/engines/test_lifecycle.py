"""A worker's life under random histories: see lifecycle_world.py. Every bug of lifecycle_bugs.py is caught."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from engines.lifecycle_bugs import BUGS
from engines.lifecycle_world import METHODS, World
from hypothesis import HealthCheck
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from markers import examples

from asyncsgd.core.events import Assign, Cancel, Job, Joined
from asyncsgd.engines.base import Died
from asyncsgd.engines.lifecycle import Attendance, Kill, Lifecycle, Rules, Stage, Start
from asyncsgd.testing import BadEngine

TIMES = (0.1, 1.0, 3.0, 6.0, 25.0, 301.0)
SECONDS = (0.0, 1.0, 16.0, 40.0)
AGAIN = ("", "started", "ready")
HOW = ("done", "done", "done", "rejected", "failed", "stopped")
RULES = {
    "processes": Rules(job_timeout=5.0, start_timeout=20.0, deaths_in_a_row=3),
    "patient": Rules(start_timeout=20.0, deaths_in_a_row=10**9),
    "ray": Rules(
        job_timeout=5.0, start_timeout=20.0, deaths_in_a_row=3, continue_without=True, backoff=True, silence=2.0
    ),
    "kept state": Rules(ahead=1, deaths_in_a_row=10**9, continue_without=True, backoff=True, silence=2.0),
}


class LifeMachine(RuleBasedStateMachine):
    """What can happen to workers, in any order. A drawn number selects a possible worker, modulo their count."""

    kind: type[Lifecycle] = Lifecycle
    world: World
    again: Callable[[], None]

    @initialize(
        rules=st.integers(0, 3),
        workers=st.integers(1, 4),
        method=st.integers(0, len(METHODS) - 1),
        seed=st.integers(0, 1000),
        open_at_once=st.sampled_from((True, True, False)),
    )
    def begin(self, rules: int, workers: int, method: int, seed: int, open_at_once: bool) -> None:
        self.world = World(self.kind, list(RULES.values())[rules], workers, list(METHODS)[method], seed)
        self.again = lambda: self.begin(rules, workers, method, seed, open_at_once)
        if open_at_once:  # as engines begin: everybody is there
            self.world.tick()
            for worker in self.world.workers:
                self.world.start(worker, instantly=True)
            self.world.life.open()
            self.world.life.begin()
            self.world.deliver()

    def alive(self) -> bool:
        return not self.world.ended

    def chosen(self, among: list[int], number: int) -> int:
        return among[number % len(among)]

    @precondition(lambda self: self.world.ended)
    @rule()
    def begin_again(self) -> None:
        """The run has ended with an error, as it should: begin another."""
        self.again()

    @precondition(lambda self: self.alive() and not self.world.life.opened)
    @rule()
    def open(self) -> None:
        self.world.life.open()

    @precondition(lambda self: self.alive())
    @rule(seconds=st.sampled_from(TIMES))
    def pass_time(self, seconds: float) -> None:
        self.world.now += seconds

    @precondition(lambda self: self.alive() and self.world.in_stage(Stage.LOADING))
    @rule(number=st.integers(0, 3))
    def become_ready(self, number: int) -> None:
        self.world.ready(self.chosen(self.world.in_stage(Stage.LOADING), number))

    @precondition(lambda self: self.alive() and self.world.computing())
    @rule(number=st.integers(0, 3), how=st.sampled_from(HOW), seconds=st.sampled_from(SECONDS))
    def finish(self, number: int, how: str, seconds: float) -> None:
        self.world.finish(self.chosen(self.world.computing(), number), how, seconds)

    @precondition(lambda self: self.alive() and self.world.computing())
    @rule(who=st.sets(st.integers(0, 3), min_size=1), seconds=st.sampled_from((0.1, 1.0, 4.0)))
    def finish_some(self, who: set[int], seconds: float) -> None:
        """What happens most of the time: updates come, and the server reads them."""
        self.world.now += seconds
        for worker in who & set(self.world.computing()):
            self.world.finish(worker, "done", seconds)
        self.world.deliver()

    @precondition(lambda self: self.alive() and self.world.in_stage(Stage.READY))
    @rule(number=st.integers(0, 3))
    def answer_a_question(self, number: int) -> None:
        self.world.heard(self.chosen(self.world.in_stage(Stage.READY), number))

    @precondition(lambda self: self.alive() and self.world.in_stage(Stage.READY) + self.world.in_stage(Stage.LOADING))
    @rule(number=st.integers(0, 3), again=st.sampled_from(AGAIN))
    def die(self, number: int, again: str) -> None:
        """Also with a replacement that is there in the list that says that it left."""
        world = self.world
        worker = self.chosen(world.in_stage(Stage.READY) + world.in_stage(Stage.LOADING), number)
        world.die(worker)
        if again and not world.ended and not world.twins[worker].retired and world.now >= world.twins[worker].start_at:
            world.start(worker, instantly=again == "ready")

    @precondition(lambda self: self.alive())
    @rule(instantly=st.booleans(), obey=st.booleans(), at_once=st.booleans())
    def tick(self, instantly: bool, obey: bool, at_once: bool) -> None:
        """A kill is a proposal, and takes a while."""
        for action in self.world.tick():
            if self.world.ended:
                return
            match action:
                case Start(worker=worker):
                    self.world.start(worker, instantly=instantly)
                case Kill(worker=worker) if obey:
                    self.world.kill(action)
                    if at_once:
                        self.world.die(worker)

    @precondition(lambda self: self.alive())
    @rule()
    def deliver(self) -> None:
        self.world.deliver()

    @precondition(lambda self: self.alive() and len(self.world.server.workers) > 1)
    @rule(number=st.integers(0, 3), first=st.booleans())
    def retire(self, number: int, first: bool) -> None:
        """Its process may live for a while, and may be a replacement that the server does not know yet."""
        worker = self.chosen(sorted(self.world.server.workers), number)
        self.world.deliver(retire=worker if first or worker in self.world.life.present else None, first=first)

    @invariant()
    def holds(self) -> None:
        if self.alive():
            self.world.check()


def test_a_sound_life() -> None:
    how = examples(60, stateful_step_count=50, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(LifeMachine, settings=how)  # type: ignore[no-untyped-call]


def drive(machine: LifeMachine, seed: int) -> None:
    """The same rules, drawn by hand: many histories in the time that Hypothesis needs for one."""
    dice = random.Random(seed)
    who = partial(dice.randrange, 4)
    machine.begin(
        dice.randrange(4), dice.randint(1, 4), dice.randrange(len(METHODS)), seed, open_at_once=dice.random() < 0.7
    )
    for _ in range(150):
        world = machine.world
        may: list[Callable[[], None]] = [machine.deliver, lambda: machine.pass_time(dice.choice(TIMES))]
        may += [lambda: machine.tick(dice.random() < 0.5, dice.random() < 0.7, dice.random() < 0.5)] * 2
        if world.ended:
            may = [machine.begin_again]
        else:
            if not world.life.opened:
                may.append(machine.open)
            if world.in_stage(Stage.LOADING):
                may += [lambda: machine.become_ready(who())] * 2
            if world.in_stage(Stage.READY):
                may.append(lambda: machine.answer_a_question(who()))
            if world.in_stage(Stage.READY) + world.in_stage(Stage.LOADING):
                may.append(lambda: machine.die(who(), dice.choice(AGAIN)))
            if world.computing():
                may += [lambda: machine.finish(who(), dice.choice(HOW), dice.choice(SECONDS))] * 3
                may += [lambda: machine.finish_some({who(), who()}, dice.choice(SECONDS))] * 2
            if len(world.server.workers) > 1 and dice.random() < 0.3:
                may.append(lambda: machine.retire(who(), dice.random() < 0.5))
        dice.choice(may)()
        machine.holds()


def drive_many(machine: Callable[[], LifeMachine]) -> None:
    for seed in range(300):
        drive(machine(), seed)


@pytest.mark.slow
def test_a_sound_life_driven_by_hand() -> None:
    """What the bugs below are caught by finds nothing in the real one."""
    drive_many(LifeMachine)


@pytest.mark.parametrize("name", BUGS)
def test_the_bug_is_caught(name: str) -> None:
    bug = BUGS[name]
    machine = type("Machine", (LifeMachine,), {"kind": bug.kind})
    with pytest.raises((AssertionError, BadEngine), match=bug.words):
        drive_many(machine)


# ---------------------------------------------------------------------------------------------- by example


def test_all_that_are_there_join_together_and_in_order() -> None:
    attendance = Attendance()
    attendance.came(2)
    attendance.came(0)
    attendance.begin()
    assert attendance.take() == []
    attendance.open()
    attendance.begin()
    assert attendance.take() == [Joined([0, 2])]


def test_cancelling_one_job_leaves_the_others_of_that_worker() -> None:
    life = Lifecycle(1, Rules(ahead=1))
    life.started(0, 0.0)
    life.ready(0, 0.0)
    life.open()
    life.begin()
    jobs = [Job(number, 0, 0, 0, 0, seed=number) for number in range(4)]
    for job in jobs:
        assert life.assign(Assign(job, np.zeros(2), 0))
    life.sent(0, "place", 0.0)
    assert life.cancel(Cancel(jobs[2])) is None  # it waits
    assert life.cancel(Cancel(jobs[0])) == 0  # it is being computed
    assert [life.wants(job.id) for job in jobs] == [False, True, False, True]
    assert life.answered(0, 0, 1.0) == ("place", False)
    for job in (1, 3):
        assert life.peek(0) is not None
        assert not life.sent(0, job, 1.0)
        assert life.answered(0, job, 1.0, 0.5) == (job, True)
        assert life.peek(0) is None  # its verdict is not known
        life.begin()
    assert life.peek(0) is None


def alone(*jobs: int) -> Lifecycle:
    """A worker that keeps state, with these jobs waiting for it."""
    life = Lifecycle(1, Rules(ahead=1))
    life.started(0, 0.0)
    life.ready(0, 0.0)
    life.open()
    life.begin()
    for number in jobs:
        assert life.assign(Assign(Job(number, 0, 0, 0, 0, seed=number), np.zeros(2), 0))
    return life


@pytest.mark.parametrize("applied", [True, False])
def test_a_verdict_lets_the_next_job_go_and_travels_with_it(applied: bool) -> None:
    life = alone(5, 6, 7)
    assert not life.sent(0, None, 0.0)
    life.answered(0, 5, 1.0, 0.5)
    life.judged(0, 4, True)  # on another update
    assert life.peek(0) is None
    life.judged(0, 5, applied)
    assert life.peek(0) is not None
    assert life.sent(0, None, 1.0) is applied
    life.answered(0, 6, 2.0)  # it failed: no verdict is to come
    assert not life.sent(0, None, 2.0)


def test_workers_without_state_wait_for_no_verdict() -> None:
    life = Lifecycle(1, Rules())
    life.started(0, 0.0)
    life.ready(0, 0.0)
    life.open()
    life.begin()
    for number in range(3):
        assert life.assign(Assign(Job(number, 0, 0, 0, 0, seed=number), np.zeros(2), 0))
    life.sent(0, None, 0.0)
    life.sent(0, None, 0.0)
    life.answered(0, 0, 1.0, 0.5)
    assert life.peek(0) is not None


def test_the_default_limit_is_twenty_times_the_longest_job_and_at_least_five_minutes() -> None:
    assert Lifecycle(1, Rules()).allowed == 300.0
    life = Lifecycle(1, Rules())
    life.longest = 15.0
    assert life.allowed == 300.0
    life.longest = 16.0
    assert life.allowed == 320.0
    assert Lifecycle(1, Rules(job_timeout=2.0)).allowed == 2.0


def test_the_first_job_of_many_steps_may_take_five_minutes_for_each() -> None:
    life = Lifecycle(1, Rules(steps=500))
    assert life.allowed == 500 * 300.0
    life.longest = 600.0
    assert life.allowed == 20 * 600.0
    assert Lifecycle(1, Rules(job_timeout=2.0, steps=500)).allowed == 2.0


def test_somebody_was_there_until_he_died() -> None:
    """However long the server has not looked: a long evaluation is not an absence."""
    life = Lifecycle(1, Rules(), now=0.0)
    life.started(0, 1.0, Stage.WAITING)
    life.tick(50.0)
    assert life.alone_since == 0.0
    life.started(0, 60.0)
    life.ready(0, 61.0)
    life.died(0, "is gone", 500.0)
    assert life.alone_since == 500.0


def test_who_dies_too_often_is_named_with_the_reason() -> None:
    life = Lifecycle(2, Rules(deaths_in_a_row=2, continue_without=True))
    for _ in range(2):
        life.died(0, "was killed by SIGSEGV", 0.0)
    assert life.take() == [
        Died(0, "was killed by SIGSEGV"),
        Died(
            0,
            "was killed by SIGSEGV; it has died 2 times in a row without finishing a job: the run continues without it",
        ),
    ]
    assert life.retired == {0}
