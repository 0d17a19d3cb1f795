"""The paper's server as a pure state machine: pass it events, carry out the commands that it returns.

It has no clock, thread, file or socket. A simulated clock, worker processes, Ray or Flower drive the same object.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from asyncsgd.core import errors, refusals
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
from asyncsgd.core.jobs import Batches, Outcomes
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.method import Method
from asyncsgd.core.random import derive, output
from asyncsgd.core.update import Update
from asyncsgd.core.validate import check_model, check_update, check_work, integer, is_id
from asyncsgd.core.vectors import Vector

IN_FLIGHT = Outcome.IN_FLIGHT  # looked up once, as this is done for every job
JOB = 0x10B  # keeps the seeds of jobs apart from the draws of dispatch and noise


class Server:
    """Algorithms 1 and 2, and every method built on them.

    ``handle`` takes one event and returns a `Reply`: the commands to carry out, and the jobs that the event ended. The
    server refuses an event that cannot happen with an error, and is then as it was before. If a part of the method
    raises half-way, the server is `torn`: it takes no more events and cannot be saved.

    >>> import numpy as np
    >>> from asyncsgd.methods import async_sgd
    >>> server = Server(np.zeros(1), async_sgd(stepsize=0.5))
    >>> [command.job.worker for command in server.handle(Joined([0, 1])).commands]
    [0, 1]
    >>> reply = server.handle(Arrived(job=0, update=np.array([1.0])))
    >>> [assign] = reply.commands
    >>> assign.job.worker, assign.job.iteration, assign.point
    (0, 1, array([-0.5]))
    >>> reply.ended[0].outcome.name
    'APPLIED'
    """

    def __init__(
        self,
        x: Vector,
        method: Method,
        seed: int = 0,
        allocate: Callable[[int], Vector] | None = None,
        kernels: Kernels | None = None,
        batches: str = "all",
    ) -> None:
        check_model(x)
        integer("seed", seed)
        self.method = method
        self.seed = int(seed)
        self.iteration = 0
        """t: gradients that have arrived."""
        self.max_concurrency = 0
        """τ_C: the largest |C_t| so far."""
        self.torn = False
        """Whether a part of the method has raised half-way. It is also True for a moment while an event is handled."""
        self._job_seeds = derive(self.seed, JOB)
        self._update = Update(method, np.array(x), derive(self.seed), allocate, kernels)
        self._dispatch = method.dispatch.init(self.seed)
        self._active: dict[int, tuple[Job, int]] = {}  # C_t: job id -> (job, slot of its point), oldest first
        self._queues: dict[int, deque[int]] = {}  # worker -> ids of its jobs, first in, first out
        self._outcomes = Outcomes()  # how job k ended
        self._batches = Batches(batches, method.work)

    # ------------------------------------------------------------------------------------------ reading the state

    @property
    def x(self) -> Vector:
        """The newest point, read-only. The next event may change it: copy it to keep it."""
        return self._update.points.current

    @property
    def output(self) -> Vector:
        """The method's result so far: x, or the average if the method averages (read-only)."""
        return self._update.output

    @property
    def version(self) -> int:
        """The number of changes of the model."""
        return self._update.version

    @property
    def workers(self) -> tuple[int, ...]:
        """The workers present, in the order in which they joined."""
        return tuple(self._queues)

    @property
    def concurrency(self) -> int:
        """|C_t|: the number of jobs in flight."""
        return len(self._active)

    @property
    def in_flight(self) -> tuple[Job, ...]:
        """C_t: the jobs in flight, oldest first."""
        return tuple(job for job, _ in self._active.values())

    @property
    def batches(self) -> int:
        """The number of mini-batches handed out so far."""
        return self._batches.handed_out

    @property
    def draining(self) -> bool:
        """Whether the server hands out no more jobs, because of a `Drain`."""
        return self._batches.left == 0

    @property
    def step_factor(self) -> float:
        """The product of the factors of all `Changed` events: it multiplies the step of every later arrival."""
        return self._update.factor

    def point(self, job: int) -> Vector:
        """Return the point that a job in flight was assigned (read-only)."""
        return self._update.points[self._find(job)[1]]

    def outcome(self, job: int) -> Outcome:
        """Return how a job ended, or `Outcome.IN_FLIGHT`."""
        if not is_id(job) or not 0 <= job < len(self._outcomes):
            raise refusals.unknown_job(job, len(self._outcomes))
        return Outcome(self._outcomes[int(job)])

    def reseed(self, seed: int) -> None:
        """Draw all later noise from this seed instead of the server's own."""
        integer("seed", seed)
        self._update.reseed(seed)

    # ------------------------------------------------------------------------------------------ the algorithm

    def handle(self, event: Event) -> Reply:
        """Handle one event and return the reply. The caller carries out its commands in order."""
        self._check_whole()
        match event:
            case Arrived():
                return self._arrived(event)
            case Lost():
                return self._lost(event)
            case Joined():
                return self._joined(event)
            case Left():
                return self._left(event)
            case Changed():
                return self._changed(event)
            case Drain():
                return self._drain(event)
        raise refusals.unknown_event(event)

    def _arrived(self, event: Arrived) -> Reply:
        # Line 4: worker j_t sends its gradient, computed at x^(t - tau_t). Every check of the update is here.
        job, slot = self._find(event.job, event.worker)
        self._check_order(job)
        if not event.checked:
            check_update(event.update, self.x, job.worker, job.id)
        if event.examples is not None or event.seconds is not None:
            check_work(event.job, event.examples, event.seconds)
        update, points = self._update, self._update.points
        t, version = self.iteration, update.version
        concurrency, workers = len(self._active), len(self._queues)
        arrival = Arrival(  # by position: keyword arguments would take longer than the rest of this function
            job.worker,
            job.id,
            t,
            t - job.iteration,  # delay
            version - job.version,  # staleness
            version,
            concurrency,
            max(self.max_concurrency, concurrency),
            workers,
            points.current,
            points[slot],
            self._queues.keys(),
            slot,
            job.steps,
            event.examples,
        )
        weight = update.weigh(arrival)
        self.torn = True  # from here to the end of `_finish` a raise leaves a state that is half changed
        commands: list[Command] = []
        ended: list[Ended] = []
        if self.method.dispatch.early:  # the extension: line 6 before line 5, at x^(t)
            self._receive(arrival)
            self._assign_next(commands, ended, point_iteration=t)
            outcome, step = update.apply(arrival, event.update, weight)
        else:
            # Line 5: x^(t+1) = x^(t) - eta_t g. It comes first, so that a part that raises leaves the job records
            # unchanged.
            outcome, step = update.apply(arrival, event.update, weight)
            self._receive(arrival)
        points.give_back(slot)
        self._batches.arrived(job.worker, job.steps, event.seconds)
        self._outcomes[job.id] = outcome
        ended.insert(0, Ended(job, outcome, t, version, step, concurrency, workers, event.examples, event.seconds))
        # Lines 6 and 7: the server selects A_t and sends them x^(t+1); C_{t+1} = C_t \ {j_t} ∪ A_t.
        return self._finish(commands, ended)

    def _receive(self, arrival: Arrival) -> None:
        """Count the gradient and free its worker."""
        self.iteration = arrival.iteration + 1
        self.max_concurrency = arrival.max_concurrency
        self._free(self._active[arrival.job][0])
        self.method.dispatch.ended(self._dispatch, arrival.worker, True)

    def _lost(self, event: Lost) -> Reply:
        known = isinstance(event.outcome, Outcome) or is_id(event.outcome)  # 4.0 would pass for LOST
        if not known or event.outcome not in (Outcome.LOST, Outcome.REJECTED):
            raise errors.BadEvent(f"{event!r} has a wrong outcome; pass Outcome.LOST or Outcome.REJECTED")
        job, _ = self._find(event.job)
        self.torn = True
        ended = [self._end(job, Outcome(event.outcome))]
        self.method.dispatch.ended(self._dispatch, job.worker, False)
        return self._finish([], ended)

    def _joined(self, event: Joined) -> Reply:
        seen = set(self._queues)
        for worker in event.workers:
            if worker in seen:
                raise errors.BadEvent(f"worker {worker} joined twice; report Left({worker}) first, or use another id")
            if not 0 <= worker < 1 << 63:
                raise errors.BadEvent(f"worker id {worker} is out of range; number the workers from 0")
            seen.add(worker)
        self.torn = True
        for worker in event.workers:
            self._queues[worker] = deque()
            self.method.dispatch.joined(self._dispatch, worker)
        return self._finish([], [])

    def _left(self, event: Left) -> Reply:
        if not is_id(event.worker) or event.worker not in self._queues:
            raise refusals.absent(event.worker, self.workers)
        self.torn = True
        ended = [self._end(self._active[job][0], Outcome.LOST) for job in tuple(self._queues[event.worker])]
        del self._queues[event.worker]
        self._batches.gone(event.worker)
        self.method.dispatch.left(self._dispatch, event.worker)
        return self._finish([], ended)

    def _changed(self, event: Changed) -> Reply:
        factor = self._update.factor * event.step_factor
        if not 0 < factor < math.inf:
            raise errors.BadEvent(f"{event!r} makes the factor of all steps {factor:g}; pass a factor nearer to 1")
        self._update.factor = factor
        return Reply((), ())

    def _drain(self, event: Drain) -> Reply:
        self.torn = True
        self._batches.left = event.after
        return self._finish([], [])

    def _finish(self, commands: list[Command], ended: list[Ended]) -> Reply:
        self._assign_next(commands, ended, point_iteration=self.iteration)
        self.torn = False
        return Reply(tuple(commands), tuple(ended))

    def _assign_next(self, commands: list[Command], ended: list[Ended], point_iteration: int) -> None:
        """Append the next assignments and cancellations to ``commands``, and the cancelled jobs to ``ended``."""
        rule, memory, update = self.method.dispatch, self._dispatch, self._update
        unwanted: list[Job] = []
        if rule.over(memory, len(self._active)):
            unwanted = [job for job, _ in self._active.values()]
        elif rule.restart_after is not None:
            for job, _ in self._active.values():  # oldest first, so the stale ones come first
                if self.version - job.version < rule.restart_after:
                    break
                unwanted.append(job)
        for job in unwanted:
            ended.append(self._end(job, Outcome.CANCELLED))
            rule.ended(memory, job.worker, False)
            commands.append(Cancel(job))
        batches = self._batches
        if batches.left == 0:
            return
        for worker in rule.pick(memory, len(self._active)):
            if batches.left == 0:  # the rule picked more workers than there is work for
                rule.ended(memory, worker, False)
                continue
            number = len(self._outcomes)
            seed = output(self._job_seeds, number)
            steps, batch = batches.take(worker)
            job = Job(number, worker, point_iteration, update.version, self.iteration, seed, steps, batch)
            slot = update.points.lend()
            self._active[number] = (job, slot)
            self._queues[worker].append(number)
            self._outcomes.append(IN_FLIGHT)
            commands.append(Assign(job, update.points[slot], slot))

    # ------------------------------------------------------------------------------------------ job records

    def _free(self, job: Job) -> None:
        del self._active[job.id]
        self._queues[job.worker].remove(job.id)

    def _end(self, job: Job, outcome: Outcome) -> Ended:
        """End a job that did not arrive."""
        concurrency, slot = len(self._active), self._active[job.id][1]
        self._free(job)
        self._update.points.give_back(slot)
        self._outcomes[job.id] = outcome
        return Ended(job, outcome, self.iteration, self.version, 0.0, concurrency, len(self._queues))

    def _find(self, job: int, worker: int | None = None) -> tuple[Job, int]:
        found = self._active.get(job) if is_id(job) else None
        if found is None:
            raise refusals.ended_job(job, self.outcome(job))  # or UnknownJob, which `outcome` raises
        if worker is not None and (type(worker) is not int or worker != found[0].worker):
            error = refusals.wrong_worker(worker, job, found[0].worker)
            if error is not None:
                raise error
        return found

    def _check_order(self, job: Job) -> None:
        first = self._queues[job.worker][0]
        if first != job.id:
            raise refusals.out_of_order(job.worker, job.id, first)

    def _check_whole(self) -> None:
        if self.torn:
            raise refusals.torn(self.method.name, self.iteration)

    # ------------------------------------------------------------------------------------------ saving

    def state(self, *, in_flight: bool = True) -> dict[str, Any]:
        """Return the whole state as arrays and numbers (copies); ``in_flight`` False leaves out points of jobs."""
        self._check_whole()
        return {
            "method": list(self.method.parts),
            "seed": self.seed,
            "iteration": self.iteration,
            "max_concurrency": self.max_concurrency,
            "outcomes": self._outcomes.state(),
            "batches": self._batches.state(),
            "active": [
                [j.id, j.worker, j.iteration, j.version, j.entered, j.steps, j.batch, slot]
                for j, slot in self._active.values()
            ],
            "queues": [[worker, *jobs] for worker, jobs in self._queues.items()],
            "dispatch": {k: v.copy() if hasattr(v, "copy") else v for k, v in self._dispatch.items()},
            "update": self._update.state(in_flight=in_flight),
        }

    @classmethod
    def restore(
        cls,
        state: dict[str, Any],
        method: Method,
        allocate: Callable[[int], Vector] | None = None,
        kernels: Kernels | None = None,
    ) -> Server:
        """Return the server that `state` was taken from. Its later results are bit for bit those without a stop.

        Jobs in flight are in flight again. If their workers are gone, report that with ``Left`` or ``Lost``.
        """
        if list(method.parts) != list(state["method"]):
            raise refusals.other_parts(method, state["method"])
        points = state["update"]["points"]
        # Start from zeros, because `load` fills in the points. A diverged model would not pass the check of a
        # starting point, but restoring it is allowed.
        server = cls(np.zeros_like(points["live"][points["current"]]), method, state["seed"], allocate, kernels)
        server._update.check_memory(state["update"])
        server.iteration = state["iteration"]
        server.max_concurrency = state["max_concurrency"]
        server._outcomes = Outcomes.restore(state["outcomes"])
        server._batches = Batches.restore(state["batches"], method.work)
        for number, worker, iteration, version, entered, steps, batch, slot in state["active"]:
            seed = output(server._job_seeds, number)
            job = Job(number, worker, iteration, version, entered, seed, steps, batch)
            server._active[number] = (job, slot)
        server._queues = {worker: deque(jobs) for worker, *jobs in state["queues"]}
        server._dispatch = {
            k: deque(v) if isinstance(server._dispatch[k], deque) else v.copy() if hasattr(v, "copy") else v
            for k, v in state["dispatch"].items()
        }
        server._update.load(state["update"])
        return server
