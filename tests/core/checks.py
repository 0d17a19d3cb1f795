"""What must hold for every server, whatever happens to it, as one checker that several tests share.

`Watch` stands between a test and a server. It keeps a ledger of its own, fed only by the events that go in and
the commands and `ended` that come out, and after every event compares the server with that ledger. `drive` sends
a long random sequence of good and bad events through a watch. test_machine.py does the same with Hypothesis, and
test_bugs.py asserts that these very checks fail for servers with a bug put in on purpose.

Every assertion starts with the name of its check, so that a test can say which one must fail.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core import errors
from asyncsgd.core.aggregation import Buffer, Each
from asyncsgd.core.dispatch import AlwaysBusy, Shuffled, Uniform
from asyncsgd.core.events import (
    Arrival,
    Arrived,
    Assign,
    Cancel,
    Changed,
    Command,
    Drain,
    Ended,
    Event,
    Job,
    Joined,
    Left,
    Lost,
    Outcome,
    Reply,
)
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD
from asyncsgd.core.server import Server
from asyncsgd.core.steps import Constant, Step
from asyncsgd.core.vectors import Vector
from asyncsgd.run.checkpoints import pack, unpack

# ------------------------------------------------------------------------------------------ looking at a server


def fingerprint(server: Server) -> tuple[Any, ...]:
    """All that a server is, byte for byte: two servers with the same one cannot be told apart."""
    arrays, text = pack(server.state())
    return (
        text,
        tuple((name, a.dtype.str, a.shape, a.tobytes()) for name, a in sorted(arrays.items())),
        server.x.tobytes(),
        server.output.tobytes(),
        (server.iteration, server.version, server.max_concurrency, server.concurrency, server.workers),
        server.in_flight,
    )


def plain(commands: tuple[Command, ...]) -> list[tuple[Any, ...]]:
    """Commands as values that compare with ==."""
    return [
        ("assign", c.job, c.slot, c.point.tobytes()) if isinstance(c, Assign) else ("cancel", c.job) for c in commands
    ]


def through_file(
    server: Server, directory: Path, method: Method | None = None, kernels: Callable[[], Kernels] = Kernels
) -> Server:
    """Save the server to real files and restore it from them."""
    arrays, text = pack(server.state())
    np.savez(directory / "arrays.npz", **arrays)
    (directory / "state.json").write_text(text, encoding="utf-8")
    with np.load(directory / "arrays.npz", allow_pickle=False) as stored:
        read = {name: stored[name] for name in stored.files}
    state = unpack(read, (directory / "state.json").read_text(encoding="utf-8"))
    return type(server).restore(state, method or server.method, kernels=kernels())


def refused(
    server: Server, event: Any, kind: type[BaseException], before: tuple[Any, ...] | None = None
) -> BaseException:
    """Check that the event is refused with exactly this error and that the server is as it was; the error."""
    before = before or fingerprint(server)
    error = _error(server, event)
    name = type(error).__name__ if error else "nothing"
    assert type(error) is kind, f"errors: {event!r} raised {name}, not {kind.__name__}: {error}"
    assert fingerprint(server) == before, f"refusal: {event!r} was refused but changed the server"
    return error  # type: ignore[return-value]


def _error(server: Server, event: Any) -> BaseException | None:
    try:
        server.handle(event)
    except Exception as error:
        return error
    return None


# ------------------------------------------------------------------------------------------ a step rule that listens


@dataclass
class Heard:
    """What the step rule was told last, and what it is to do wrong next (None: nothing)."""

    facts: dict[str, Any] = field(default_factory=dict)
    fault: Any = None


TOLD = (
    "worker",
    "job",
    "iteration",
    "delay",
    "staleness",
    "version",
    "concurrency",
    "max_concurrency",
    "workers",
)


class Mishap(Exception):
    """Raised by a step rule that was told to fail."""


@dataclass(frozen=True)
class Spy(Step):
    """Behaves like ``inner`` and writes down what it is told."""

    inner: Step = field(default_factory=lambda: Constant(1.0))
    heard: Heard = field(default_factory=Heard, compare=False)

    def weight(self, arrival: Arrival) -> float:
        if self.heard.fault is Mishap:
            raise Mishap
        if self.heard.fault is not None:
            return self.heard.fault
        facts = {name: getattr(arrival, name) for name in TOLD}
        facts |= {"x": arrival.x.tobytes(), "point": arrival.point.tobytes()}
        facts["weight"] = self.inner.weight(arrival)
        self.heard.facts = facts
        return facts["weight"]


def spied(method: Method) -> Method:
    """The same method, with a step rule that can be questioned."""
    return method.using(step=Spy(method.step.stepsize, method.step))


# ------------------------------------------------------------------------------------------ the ledger


@dataclass
class Entry:
    """What the ledger knows of a job."""

    job: Job
    point: Vector
    """The view that was handed out."""
    copy: bytes
    """What it held then."""
    iteration: int
    version: int
    entered: int
    slot: int
    memberships: int = 0
    """The number of t with the job in C_t, counted as sets just before each arrival."""
    outcome: Outcome = Outcome.IN_FLIGHT
    ended: Ended | None = None


class Watch:
    """A server under observation; send every event through `handle` or `refuse`."""

    def __init__(self, server: Server, kernels: Callable[[], Kernels] = Kernels) -> None:
        self.server = server
        self.kernels = kernels  # for copies of the server
        self.rule = server.method.dispatch
        self.spy: Heard = server.method.step.heard  # type: ignore[attr-defined]
        self.twins: list[Server] = []
        self.entries: list[Entry] = []
        self.queues: dict[int, list[int]] = {}
        self.active: set[int] = set()  # C_t
        self.t = 0
        self.sum_of_sizes = 0  # of |C_0|, ..., |C_{t-1}|
        self.sum_recorded = 0  # the same, from what the server wrote into `ended`
        self.largest = 0
        self.most_versions = 0
        self.buffered: list[tuple[float, Vector]] = []
        self.left: int | None = None  # mini-batches that may still be handed out
        self.factor = 1.0  # of the steps
        self.own_data = server.state()["batches"]["by_worker"] is not None
        self._check_state()

    # -------------------------------------------------------------------------------------- in

    def handle(self, event: Event) -> Reply:
        """Send an event that must be taken, and check everything."""
        server = self.server
        x_before, version_before, outputs = server.x.copy(), server.version, server.output.tobytes()
        if isinstance(event, Arrived):
            self.sum_of_sizes += len(self.active)
            self.largest = max(self.largest, len(self.active))
            for number in self.active:
                self.entries[number].memberships += 1
        present = len(self.queues)
        try:
            reply = server.handle(event)
        except errors.OutOfOrder as error:
            raise AssertionError(f"FIFO: {event!r} is at the head of its queue, yet: {error}") from error
        except errors.AsyncSGDError as error:
            raise AssertionError(f"errors: {event!r} must be taken, yet: {error}") from error
        self._check_twins(event, reply)
        if isinstance(event, Arrived):
            self._check_heard(event, x_before, version_before, present)
            self.t += 1
        self._check_ended(event, reply, version_before, present)
        self._take_event(event)
        self._check_commands(event, reply.commands, x_before, version_before)
        self._check_model(event, x_before, version_before, outputs)
        self._check_state()
        return reply

    def refuse(self, event: Any, kind: type[BaseException]) -> BaseException:
        """Send an event that must be refused."""
        return self._refuse(event, kind, fingerprint(self.server))

    def refuse_everything(self) -> None:
        """Send every bad event there is at this moment."""
        before = fingerprint(self.server)
        for event, kind in self.bad_events():
            self._refuse(event, kind, before)

    def _refuse(self, event: Any, kind: type[BaseException], before: tuple[Any, ...]) -> BaseException:
        error = refused(self.server, event, kind, before)
        for twin in self.twins:  # whose states are compared after the next event
            assert type(_error(twin, event)) is kind, f"restore: {event!r} is refused in another way"
        return error

    def fork(self, directory: Path) -> None:
        """Save and restore; from now on the copy gets the same events and must do the same."""
        twin = through_file(self.server, directory, kernels=self.kernels)
        assert fingerprint(twin) == fingerprint(self.server), "restore: the restored server differs from the saved one"
        self.twins = [*self.twins[-1:], twin]

    # -------------------------------------------------------------------------------------- checks

    def _check_twins(self, event: Event, reply: Reply) -> None:
        heard = self.spy.facts
        for twin in self.twins:
            other = twin.handle(event)
            assert plain(other.commands) == plain(reply.commands), f"restore: other commands after {event!r}"
            assert other.ended == reply.ended, f"restore: other jobs ended by {event!r}"
            assert twin.x.tobytes() == self.server.x.tobytes(), f"restore: another model after {event!r}"
            assert fingerprint(twin) == fingerprint(self.server), f"restore: another state after {event!r}"
        self.spy.facts = heard

    def _check_heard(self, event: Arrived, x_before: Vector, version_before: int, present: int) -> None:
        entry, told = self.entries[event.job], self.spy.facts
        expected = {
            "worker": entry.job.worker,
            "job": event.job,
            "iteration": self.t,
            "delay": self.t - entry.iteration,
            "staleness": version_before - entry.version,
            "version": version_before,
            "concurrency": len(self.active),
            "max_concurrency": self.largest,
            "workers": present,
            "x": x_before.tobytes(),
            "point": entry.copy,
        }
        for name, value in expected.items():
            assert told[name] == value, f"{name}: the step rule was told {told[name]}, it is {value}"

    def _check_ended(self, event: Event, reply: Reply, version_before: int, present: int) -> None:
        commands, ended = reply.commands, reply.ended
        ends = [e.job.id for e in ended]
        assert len(set(ends)) == len(ends), f"once: a job ended twice by one event: {ends}"
        assert set(ends) <= self.active, f"once: {ends} ended, but in flight were {sorted(self.active)}"
        match event:
            case Arrived():
                weight = self.spy.facts["weight"]
                first, outcomes = [event.job], [Outcome.APPLIED if weight else Outcome.DROPPED]
            case Lost():
                first, outcomes = [event.job], [event.outcome]
            case Left():
                first = self.queues[event.worker]
                outcomes = [Outcome.LOST] * len(first)
            case _:
                first, outcomes = [], []
        cancelled = [c.job.id for c in commands if isinstance(c, Cancel)]
        assert ends == [*first, *cancelled], f"once: {event!r} ended {ends}, expected {first} and cancelled {cancelled}"
        expected = outcomes + [Outcome.CANCELLED] * len(cancelled)
        assert [e.outcome for e in ended] == expected, f"outcome: {[e.outcome for e in ended]}, expected {expected}"
        if self.rule.restart_after is not None:
            ahead = [self.server.version - self.entries[number].version for number in cancelled]
            assert min(ahead, default=self.rule.restart_after) >= self.rule.restart_after, f"restart: too soon, {ahead}"
        if not isinstance(event, Arrived):  # what is stale or over was cancelled by the arrival that made it so
            assert not cancelled, f"once: {event!r} cancelled {cancelled}"
        size = len(self.active)  # those ended by this event leave one after the other
        for e in ended:
            entry, arrived = self.entries[e.job.id], e.outcome.arrived
            assert e.job == entry.job, f"once: job {e.job.id} changed while in flight"
            assert e.iteration == (self.t - 1 if arrived else self.t), f"record: iteration of {e}"
            assert e.version == (version_before if arrived else self.server.version), f"record: version of {e}"
            assert (e.concurrency, e.workers) == (size, present), f"record: |C_t| = {size}, n = {present}, not {e}"
            assert (e.step > 0) <= (e.outcome is Outcome.APPLIED), f"record: step of {e}"
            size -= 1
            if arrived:
                self.sum_recorded += e.concurrency
                if self.rule.early:  # the next jobs have left before others are cancelled
                    size += len(_until_cancel(commands))
            entry.outcome, entry.ended = e.outcome, e
            self.active.remove(e.job.id)
            self.queues[e.job.worker].remove(e.job.id)

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Joined):
            self.queues |= {worker: [] for worker in event.workers}
        elif isinstance(event, Left):
            assert self.queues.pop(event.worker) == [], "once: a worker left and a job of it did not end"
        elif isinstance(event, Drain):
            self.left = event.after
        elif isinstance(event, Changed):
            self.factor *= event.step_factor

    def _check_commands(
        self, event: Event, commands: tuple[Command, ...], x_before: Vector, version_before: int
    ) -> None:
        server = self.server
        early = self.rule.early and isinstance(event, Arrived)
        for command in commands:
            if isinstance(command, Cancel):
                early = False  # what replaces a cancelled job leaves after the model has moved
                continue
            job, point = command.job, command.point
            iteration, version, x = (
                (self.t - 1, version_before, x_before) if early else (self.t, server.version, server.x)
            )
            assert job.id == len(self.entries), f"once: job {job.id} follows job {len(self.entries) - 1}"
            assert job.worker in self.queues, f"once: job {job.id} was given to {job.worker}, who is not here"
            assert (job.iteration, job.version) == (iteration, version), (
                f"assigned: {job}, expected iteration {iteration} and version {version}"
            )
            assert point.tobytes() == x.tobytes(), f"assigned: the point of {job} is not x^({iteration})"
            assert job.entered == self.t, f"assigned: {job} enters C_{self.t}"
            assert not point.flags.writeable, f"read-only: the point of {job} can be written to"
            self._check_batch(job)
            self.entries.append(Entry(job, point, point.tobytes(), iteration, version, self.t, command.slot))
            self.active.add(job.id)
            self.queues[job.worker].append(job.id)

    def _check_batch(self, job: Job) -> None:
        assert self.left != 0, f"drain: {job} was handed out though the server drains"
        wanted = server_steps = self.server.method.work.steps
        if self.left is not None:
            wanted = min(server_steps, self.left)
            self.left -= wanted
        assert job.steps == wanted, f"batch: {job} has {job.steps} mini-batches, expected {wanted}"
        before = [entry.job for entry in self.entries if not self.own_data or entry.job.worker == job.worker]
        handed_out = sum(earlier.steps for earlier in before)
        assert job.batch == handed_out, f"batch: {job}, but {handed_out} mini-batches were handed out before"

    def _check_model(self, event: Event, x_before: Vector, version_before: int, output_before: bytes) -> None:
        server = self.server
        moved = server.version - version_before
        if not isinstance(event, Arrived):
            assert moved == 0, f"version: moved by {event!r}"
        assert moved in (0, 1), f"version: one event moved it by {moved}"
        if moved == 0:
            assert server.x.tobytes() == x_before.tobytes(), f"version: {event!r} changed the model, not the version"
            assert server.output.tobytes() == output_before, f"version: {event!r} changed the output, not the version"
        assert not server.x.flags.writeable, "read-only: server.x can be written to"
        assert not server.output.flags.writeable, "read-only: server.output can be written to"
        method = server.method
        simple = (
            isinstance(method.aggregation, Each | Buffer) and type(method.optimizer) is SGD and not method.transforms
        )
        if not (isinstance(event, Arrived) and simple):
            return
        weight, expected = self.spy.facts["weight"], x_before
        eta = float(method.step.stepsize) * self.factor
        size = method.aggregation.size if isinstance(method.aggregation, Buffer) else 1
        if weight:
            self.buffered.append((weight, event.update))
        if len(self.buffered) == size:
            if isinstance(method.aggregation, Each):
                expected = x_before - (eta * weight) * event.update
            else:
                (w, g), *rest = self.buffered
                total = w * g
                for w, g in rest:
                    total = total + w * g
                expected = x_before - eta * (total / size)
            self.buffered = []
        assert server.x.tobytes() == expected.tobytes(), f"model: after {event!r} it is {server.x}, expected {expected}"
        step, own = self.entries[event.job].ended.step, eta * weight / size  # type: ignore[union-attr]
        assert step == own, f"step: that of job {event.job} is recorded as {step}, it is {own}"

    def _check_state(self) -> None:
        server, rule, n = self.server, self.rule, len(self.queues)
        assert server.iteration == self.t, f"iteration: {server.iteration}, {self.t} have arrived"
        assert server.workers == tuple(self.queues), f"workers: {server.workers}, present are {tuple(self.queues)}"
        assert server.max_concurrency == self.largest, f"max_concurrency: {server.max_concurrency}, not {self.largest}"
        assert server.draining == (self.left == 0), f"drain: draining is {server.draining}, {self.left} are left"
        assert server.step_factor == self.factor, f"step: the factor is {server.step_factor}, not {self.factor}"
        handed_out = sum(entry.job.steps for entry in self.entries)
        assert server.batches == handed_out, f"batch: {server.batches} handed out, by the ledger {handed_out}"
        # every job is somewhere, and only once
        in_flight = [job.id for job in server.in_flight]
        assert in_flight == sorted(self.active), f"in flight: {in_flight}, by the ledger {sorted(self.active)}"
        assert server.concurrency == len(self.active), f"in flight: {server.concurrency}, not {len(self.active)}"
        for number, entry in enumerate(self.entries):
            known = server.outcome(number)
            assert known is entry.outcome, f"outcome: job {number} is {known!r}, by the ledger {entry.outcome!r}"
            assert (entry.outcome is Outcome.IN_FLIGHT) == (number in self.active), f"outcome: job {number}"
        queued = [number for queue in self.queues.values() for number in queue]
        assert sorted(queued) == sorted(self.active), f"FIFO: queues hold {queued}, in flight are {in_flight}"
        # concurrency: bounded, and kept
        limit = rule.limit(n)
        assert len(self.active) <= limit, f"concurrency: {len(self.active)} in flight, at most {limit} allowed"
        if n == 0:
            assert not self.active, "concurrency: nobody is here, yet jobs are in flight"
        elif self.left == 0:
            pass  # the server drains
        elif isinstance(rule, AlwaysBusy):
            wanted = n if rule.concurrency is None else min(n, rule.concurrency)
            assert len(self.active) == wanted, f"concurrency: {len(self.active)} in flight, {wanted} promised"
            assert all(len(queue) <= 1 for queue in self.queues.values()), "concurrency: a busy worker got a job"
        elif isinstance(rule, Uniform | Shuffled):
            assert len(self.active) == rule.concurrency, f"concurrency: {len(self.active)}, {rule.concurrency} promised"
        else:
            assert self.active, "concurrency: workers are here and none has a job"
            assert all(len(queue) <= 1 for queue in self.queues.values()), "concurrency: a busy worker got a job"
        if rule.restart_after is not None:
            ahead = [server.version - self.entries[number].version for number in self.active]
            assert max(ahead, default=0) < rule.restart_after, f"restart: jobs {ahead} versions behind go on"
        # points
        slots: dict[int, int] = {}
        for number in self.active:
            entry = self.entries[number]
            assert entry.point.tobytes() == entry.copy, f"points: that of job {number} changed while in flight"
            assert server.point(number).tobytes() == entry.copy, f"points: server.point({number}) changed"
            assert slots.setdefault(entry.slot, entry.version) == entry.version, "points: a slot holds two versions"
        versions = len({self.entries[number].version for number in self.active})
        assert len(slots) == versions, f"points: {versions} versions in flight lie in {len(slots)} slots"
        self.most_versions = max(self.most_versions, versions)
        bound = self.most_versions + (2 if rule.early else 1)
        held = server._update.points.slots
        assert held <= bound, f"buffers: {held}, but never more than {self.most_versions} versions were in flight"
        self._check_identity()

    def _check_identity(self) -> None:
        """paper-notes.md: the sum over jobs of the number of t in 0..T with the job in C_t equals Σ|C_t|, t = 0..T."""
        total = 0
        for number, entry in enumerate(self.entries):
            end = entry.ended
            if end is None:
                counted, spent = entry.memberships + 1, self.server.iteration - entry.job.entered + 1
            else:
                counted, spent = entry.memberships, end.iteration - entry.job.entered + end.outcome.arrived
            assert spent == counted, f"identity: job {number} says it was in {spent} sets C_t, it was in {counted}"
            if not self.rule.early:  # then the delay alone says it
                assert entry.job.entered == entry.job.iteration, f"identity: {entry.job}"
            total += spent
        sizes = self.sum_of_sizes + len(self.active)
        assert total == sizes, f"identity: delays add up to {total}, concurrency to {sizes}"
        assert self.sum_recorded + self.server.concurrency == sizes, "identity: the recorded |C_t| do not add up"

    # -------------------------------------------------------------------------------------- bad input

    def bad_events(self) -> list[tuple[Any, type[BaseException]]]:
        """Everything that can be wrong now, with the error it must raise."""
        count, dim, dtype = len(self.entries), self.server.x.shape[0], self.server.x.dtype
        fine = np.ones(dim, dtype)
        free = max(self.queues, default=0) + 1
        bad: list[tuple[Any, type[BaseException]]] = [
            ("go", errors.BadEvent),
            (None, errors.BadEvent),
            (Assign, errors.BadEvent),
            (Arrived(count, fine), errors.UnknownJob),
            (Arrived(-1, fine), errors.UnknownJob),
            (Arrived("0", fine), errors.UnknownJob),  # type: ignore[arg-type]
            (Arrived(None, fine), errors.UnknownJob),  # type: ignore[arg-type]
            (Arrived(0.5, fine), errors.UnknownJob),  # type: ignore[arg-type]
            (Lost(count + 7), errors.UnknownJob),
            (Left(free), errors.BadEvent),
            (Left(-1), errors.BadEvent),
            (Joined([free, free]), errors.BadEvent),
            (Joined([free, -1]), errors.BadEvent),
            (Joined([free, 1 << 63]), errors.BadEvent),
        ]
        bad += [(Joined([free, worker]), errors.BadEvent) for worker in self.queues]
        bad += [(Changed(1e308), errors.BadEvent)] if self.factor >= 2 else []
        bad += [(Changed(1e-323), errors.BadEvent)] if self.factor < 0.1 else []
        for number, entry in enumerate(self.entries[-30:], start=max(0, count - 30)):
            if entry.outcome.arrived:
                bad += [(Arrived(number, fine), errors.RepeatedJob), (Lost(number), errors.RepeatedJob)]
            elif entry.outcome is Outcome.CANCELLED:
                bad += [(Arrived(number, fine), errors.CancelledJob), (Lost(number), errors.CancelledJob)]
            elif entry.outcome is not Outcome.IN_FLIGHT:
                bad += [(Arrived(number, fine), errors.EndedJob), (Lost(number), errors.EndedJob)]
        for worker, queue in self.queues.items():
            if not queue:
                continue
            job = queue[0]
            broken = [fine.copy() for _ in range(3)]
            for vector, value in zip(broken, (np.nan, np.inf, -np.inf), strict=True):
                vector[job % dim] = value
            bad += [(Arrived(job, vector), errors.NotFinite) for vector in broken]
            other = np.float32 if dtype == np.float64 else np.float64
            bad += [
                (Arrived(job, fine, worker + 1), errors.WrongWorker),
                (Arrived(job, np.ones(dim + 1, dtype)), errors.WrongLength),
                (Arrived(job, fine[:0]), errors.WrongLength),
                (Arrived(job, fine.astype(other)), errors.WrongDtype),
                (Arrived(job, fine.astype(int)), errors.WrongDtype),
                (Arrived(job, fine.reshape(1, -1)), errors.WrongType),
                (Arrived(job, fine.tolist()), errors.WrongType),
                (Arrived(job, 1.0), errors.WrongType),  # type: ignore[arg-type]
                (Arrived(job, None), errors.WrongType),  # type: ignore[arg-type]
            ]
            bad += [(Arrived(late, fine), errors.OutOfOrder) for late in queue[1:]]
            bad += [
                (Lost(job, outcome), errors.BadEvent)
                for outcome in Outcome
                if outcome not in (Outcome.LOST, Outcome.REJECTED)
            ]
        return bad

    def bad_steps(self) -> None:
        """A step rule that fails, or returns what is no step, changes nothing either."""
        fine = np.ones_like(self.server.x)
        for queue in self.queues.values():
            if queue:
                for fault in (np.nan, np.inf, -1.0, "much", Mishap):
                    self.spy.fault = fault
                    try:
                        self.refuse(Arrived(queue[0], fine), Mishap if fault is Mishap else errors.BadStep)
                    finally:
                        self.spy.fault = None
                return


def _until_cancel(commands: tuple[Command, ...]) -> list[Command]:
    first = next((place for place, c in enumerate(commands) if isinstance(c, Cancel)), len(commands))
    return commands[:first]


# ------------------------------------------------------------------------------------------ a long random run


def drive(watch: Watch, *, steps: int = 120, seed: int = 0, directory: Path | None = None) -> None:
    """Send many events of every kind, good and bad, chosen by a seeded generator."""
    rng = random.Random(seed)
    dim, dtype = watch.server.x.shape[0], watch.server.x.dtype

    def busy() -> list[int]:
        return [worker for worker, queue in watch.queues.items() if queue]

    def arrive() -> None:
        if busy():
            worker = rng.choice(busy())
            g = np.array([rng.randint(-8, 8) / 8 + 0.0625 for _ in range(dim)], dtype)
            watch.handle(Arrived(watch.queues[worker][0], g, rng.choice((None, worker))))

    def lose() -> None:
        if watch.active:
            outcome = rng.choice((Outcome.LOST, Outcome.REJECTED))
            watch.handle(Lost(rng.choice(sorted(watch.active)), outcome))

    def join() -> None:
        away = [worker for worker in range(8) if worker not in watch.queues]
        watch.handle(Joined(rng.sample(away, min(len(away), rng.randint(0, 3)))))

    def leave() -> None:
        if len(watch.queues) > 1 or rng.random() < 0.3:
            watch.handle(Left(rng.choice(sorted(watch.queues)))) if watch.queues else None

    def drain() -> None:
        watch.handle(Drain(rng.choice((None, 1)) if watch.left == 0 else rng.choice((0, 1, 2, 9))))

    def change() -> None:
        watch.handle(Changed(rng.choice((0.25, 0.5, 2.0, 3.0))))

    def bad() -> None:
        watch.refuse(*rng.choice(watch.bad_events()))

    def save() -> None:
        if directory is not None:
            watch.fork(directory)

    actions: list[Callable[[], None]] = [arrive, lose, join, leave, bad, save, watch.bad_steps, drain, change]
    watch.handle(Joined([3, 0, 5]))
    for action in rng.choices(actions, weights=[60, 6, 4, 3, 20, 3, 1, 3, 2], k=steps):
        action()
        if watch.left == 0 and not watch.active:  # else nothing would happen any more
            watch.handle(Drain(rng.choice((None, None, 1))))
    watch.refuse_everything()


NEEDED = {
    "stepsize": 0.1,
    "concurrency": 3,
    "clients": 2,
    "batch": 2,
    "limit": 4,
    "smoothness": 1.0,
    "splits": 2,
    "threshold": 0.5,
}
"""Values for the arguments that recipes need, by name."""
