"""Every named error: the right class, a message that names the thing, its value and the fix, and nothing changed."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.checks import fingerprint, refused, through_file

from asyncsgd import methods, optimizers
from asyncsgd.core import errors
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import AlwaysBusy, Batch, FirstOf, Shuffled, Uniform
from asyncsgd.core.errors import BadEvent, BadParameter, BadStep, BiasWarning
from asyncsgd.core.events import Arrived, Changed, Drain, Job, Joined, Left, Lost, Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import AdaDelayCoordinates, Adam, DelayedAverage, Momentum
from asyncsgd.core.server import Server
from asyncsgd.core.steps import (
    AdaDelay,
    Constant,
    Custom,
    DropAbove,
    DropDrifted,
    DropStale,
    Hinge,
    Polynomial,
)
from asyncsgd.core.transforms import Clip, Compensate
from asyncsgd.core.work import LocalSteps

DIM = 3
FINE = np.ones(DIM)
NAN, INF = float("nan"), float("inf")


def says(error: BaseException, *words: str) -> None:
    """The message holds all of these."""
    for word in words:
        assert word in str(error), f"{word!r} is missing in: {error}"


# ------------------------------------------------------------------------------------------ events


@pytest.fixture
def server() -> Server:
    """Jobs: 0 applied, 1 lost, 2 rejected; some of 3.. in flight, at least one worker with two of them."""
    server = Server(np.zeros(DIM), methods.federated_async_sgd(0.1, concurrency=6), seed=3)
    server.handle(Joined([0, 1, 2]))
    server.handle(Arrived(0, FINE))
    server.handle(Lost(1))
    server.handle(Lost(2, Outcome.REJECTED))
    return server


def head_and_second(server: Server) -> tuple[Job, Job]:
    """Two jobs of one worker, in their order."""
    for worker in server.workers:
        queue = [job for job in server.in_flight if job.worker == worker]
        if len(queue) > 1:
            return queue[0], queue[1]
    raise AssertionError("no worker has two jobs: choose another seed")


@pytest.mark.parametrize("factor", [0, -1.0, NAN, INF, "2", None, True, 1 << 2000], ids=repr)
def test_a_change_by_a_wrong_factor(factor: Any) -> None:
    with pytest.raises(errors.BadEvent) as caught:
        Changed(factor)
    says(caught.value, "step_factor = ", "pass a positive finite number")


@pytest.mark.parametrize("factor", [1e300, 1e-300])
def test_a_change_that_makes_all_steps_infinite_or_zero(server: Server, factor: float) -> None:
    server.handle(Changed(factor))
    says(refused(server, Changed(factor), errors.BadEvent), "step_factor=", "pass a factor nearer to 1")
    assert server.step_factor == factor


@pytest.mark.parametrize("after", [-1, 1.0, "2", True, NAN], ids=repr)
def test_a_drain_with_a_wrong_limit(after: Any) -> None:
    with pytest.raises(errors.BadEvent) as caught:
        Drain(after)
    says(caught.value, "after = ", "pass 0 or more, or None")


def test_a_wrong_way_to_count_mini_batches() -> None:
    with pytest.raises(errors.BadParameter) as caught:
        Server(np.zeros(DIM), methods.async_sgd(0.1), batches="workers")
    says(caught.value, "batches = 'workers'", 'pass "all"')


@pytest.mark.parametrize("job", [9, 10_000, -1, -9, 1 << 70, "0", None, 0.5, NAN, [0], np.int64(-1)], ids=repr)
def test_unknown_job(server: Server, job: Any) -> None:
    for event in (Arrived(job, FINE), Lost(job)):
        says(refused(server, event, errors.UnknownJob), repr(job), "never assigned", "assigned job")
    with pytest.raises(errors.UnknownJob, match="never assigned"):
        server.outcome(job)


def test_numpy_numbers_are_job_ids(server: Server) -> None:
    head, _ = head_and_second(server)
    server.handle(Arrived(np.int64(head.id), FINE, np.int64(head.worker)))  # type: ignore[arg-type]
    assert server.outcome(np.int64(head.id)) is Outcome.APPLIED  # type: ignore[arg-type]


def test_repeated_job(server: Server) -> None:
    for event in (Arrived(0, FINE), Arrived(0, FINE, 99), Lost(0)):
        says(refused(server, event, errors.RepeatedJob), "job 0", "applied", "report every job once")


def test_dropped_job_is_repeated_too() -> None:
    server = Server(np.zeros(DIM), methods.async_sgd(0.1).using(step=Custom(0.1, lambda arrival: 0.0)))
    server.handle(Joined(0))
    server.handle(Arrived(0, FINE))
    assert server.outcome(0) is Outcome.DROPPED
    says(refused(server, Arrived(0, FINE), errors.RepeatedJob), "job 0", "dropped")


def test_update_after_the_job_was_lost_or_rejected(server: Server) -> None:
    for event in (Arrived(1, FINE), Lost(1)):
        says(refused(server, event, errors.EndedJob), "job 1", "lost", "drop this update")
    says(refused(server, Arrived(2, FINE), errors.EndedJob), "job 2", "rejected")


def test_update_after_the_worker_left(server: Server) -> None:
    head, second = head_and_second(server)
    server.handle(Left(head.worker))
    for job in (head, second):
        says(refused(server, Arrived(job.id, FINE), errors.EndedJob), f"job {job.id}", "lost")


def test_cancelled_job() -> None:
    server = Server(np.zeros(DIM), methods.fedavg(0.1, clients=1, ask=3))
    server.handle(Joined(range(3)))
    server.handle(Arrived(1, FINE))
    for late in (0, 2):
        for event in (Arrived(late, FINE), Lost(late)):
            says(refused(server, event, errors.CancelledJob), f"job {late}", "cancelled", "drop it")


def test_wrong_worker(server: Server) -> None:
    head, _ = head_and_second(server)
    for other in (head.worker + 1, 77):
        error = refused(server, Arrived(head.id, FINE, other), errors.WrongWorker)
        says(error, f"worker {other}", f"job {head.id}", f"worker {head.worker}", "assigned to you")


def test_out_of_order(server: Server) -> None:
    head, second = head_and_second(server)
    error = refused(server, Arrived(second.id, FINE), errors.OutOfOrder)
    says(error, f"worker {head.worker}", f"job {second.id}", f"report job {head.id} first")
    server.handle(Lost(head.id))
    server.handle(Arrived(second.id, FINE))
    assert server.outcome(second.id) is Outcome.APPLIED


UPDATES: dict[str, tuple[Any, type[Exception], str, str]] = {
    "short": (np.ones(DIM - 1), errors.WrongLength, "length 2", "send one like it"),
    "long": (np.ones(DIM + 1), errors.WrongLength, "length 4", "send one like it"),
    "empty": (np.ones(0), errors.WrongLength, "length 0", "send one like it"),
    "float32": (np.ones(DIM, np.float32), errors.WrongDtype, "float32", "convert it"),
    "ints": (np.ones(DIM, int), errors.WrongDtype, "int64", "convert it"),
    "complex": (np.ones(DIM, complex), errors.WrongDtype, "complex128", "convert it"),
    "bools": (np.ones(DIM, bool), errors.WrongDtype, "bool", "convert it"),
    "objects": (np.array([None] * DIM), errors.WrongDtype, "object", "convert it"),
    "strings": (np.array(["a"] * DIM), errors.WrongDtype, "<U1", "convert it"),
    "other byte order": (np.ones(DIM, ">f8"), errors.WrongDtype, ">f8", "convert it"),
    "matrix": (np.ones((1, DIM)), errors.WrongType, "(1, 3)", "one-dimensional"),
    "scalar array": (np.array(1.0), errors.WrongType, "()", "one-dimensional"),
    "list": ([1.0] * DIM, errors.WrongType, "list", "one-dimensional"),
    "number": (1.0, errors.WrongType, "float", "one-dimensional"),
    "nothing": (None, errors.WrongType, "NoneType", "one-dimensional"),
    "nan": (np.array([0, NAN, INF]), errors.NotFinite, "nan at position 1", "end the job with Lost("),
    "inf": (np.array([0, 0, INF]), errors.NotFinite, "inf at position 2", "end the job with Lost("),
    "minus inf": (np.array([-INF, 0, 0]), errors.NotFinite, "-inf at position 0", "end the job with Lost("),
    "inf minus inf": (np.array([INF, -INF, 0]), errors.NotFinite, "inf at position 0", "end the job with Lost("),
}


@pytest.mark.parametrize("name", UPDATES)
def test_bad_update(server: Server, name: str) -> None:
    update, kind, value, fix = UPDATES[name]
    head, _ = head_and_second(server)
    error = refused(server, Arrived(head.id, update), kind)
    assert isinstance(error, errors.BadUpdate)
    says(error, f"worker {head.worker}, job {head.id}", value, fix)
    server.handle(Lost(head.id, Outcome.REJECTED))  # what the message asks for
    assert server.outcome(head.id) is Outcome.REJECTED
    assert server.iteration == 1, "a rejected update is no arrival"


def test_float64_is_refused_by_a_float32_model() -> None:
    server = Server(np.zeros(DIM, np.float32), methods.async_sgd(0.1))
    server.handle(Joined(4))
    says(refused(server, Arrived(0, FINE), errors.WrongDtype), "worker 4, job 0", "float64", "model is float32")
    server.handle(Arrived(0, FINE.astype(np.float32)))
    assert server.x.dtype == np.float32


HUGE: dict[str, Method] = {
    "plain": methods.async_sgd(0.1),
    "large step": methods.async_sgd(1e10),
    "clipped": methods.async_sgd(0.1).clipped(1.0),
    "buffer": methods.fedbuff(0.1, concurrency=2, buffer=2),
    "memory": methods.mifa(0.1),
    "momentum": methods.async_sgd(0.1).using(optimizer=optimizers.momentum(0.9, nesterov=True)),
    "adam": methods.async_sgd(0.1).using(optimizer=optimizers.adamw()),
    "dc_asgd": methods.dc_asgd(0.1),
    "dc_asgd adaptive": methods.dc_asgd(0.1, adaptive=True),
    "adadelay": methods.adadelay(smoothness=1.0),
    "adadelay coordinates": methods.adadelay(smoothness=1.0, coordinates=True),
    "delayed average": methods.delayed_average(0.1, weights="linear"),
    "fedasync": methods.fedasync(concurrency=2).local(1, 0.1),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", HUGE)
def test_huge_but_finite_updates_are_taken(name: str, dtype: type) -> None:
    """Their squares overflow, which is no fault; and since it is too late to refuse, overflow must never raise."""
    huge = np.full(DIM, np.finfo(dtype).max / 2, dtype)
    huge[1] *= -1
    server = Server(np.zeros(DIM, dtype), HUGE[name])
    server.handle(Joined([0, 1]))
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(4):
            job = server.in_flight[0]
            server.handle(Arrived(job.id, huge))
            assert server.outcome(job.id) is Outcome.APPLIED
    assert server.iteration == 4


def test_a_model_that_diverged_can_be_saved(tmp_path: Path) -> None:
    server = Server(np.zeros(DIM), methods.async_sgd(1e10))
    server.handle(Joined(0))
    server.handle(Arrived(0, np.full(DIM, 1e300)))
    assert np.isinf(server.x).all()
    assert fingerprint(through_file(server, tmp_path)) == fingerprint(server)


@pytest.mark.parametrize("given", [NAN, INF, -INF, -0.5, None, "a lot", 1j, [1.0, 2.0]], ids=repr)
def test_step_rule_that_returns_no_step(given: Any) -> None:
    answers: list[Any] = [given, 0.5]
    server = Server(np.zeros(DIM), methods.async_sgd(1.0).using(step=Custom(1.0, lambda arrival: answers.pop(0))))
    server.handle(Joined(8))
    says(refused(server, Arrived(0, FINE), BadStep), "Custom", repr(given), "job 0", "finite number >= 0")
    server.handle(Arrived(0, FINE))  # the job is still in flight
    assert server.x.tolist() == [-0.5] * DIM


def test_step_rule_that_raises() -> None:
    server = Server(np.zeros(DIM), methods.async_sgd(1.0).using(step=Custom(1.0, lambda arrival: 1 / arrival.delay)))
    server.handle(Joined(8))
    refused(server, Arrived(0, FINE), ZeroDivisionError)
    assert server.outcome(0) is Outcome.IN_FLIGHT


def test_joined_twice(server: Server) -> None:
    for event in (Joined(1), Joined([7, 1]), Joined([7, 8, 7])):
        worker = event.workers[-1]
        says(refused(server, event, BadEvent), f"worker {worker}", "joined twice", "use another id")
    assert 7 not in server.workers


@pytest.mark.parametrize("worker", [-1, 1 << 63])
def test_worker_id_out_of_range(server: Server, worker: int) -> None:
    says(refused(server, Joined([7, worker]), BadEvent), str(worker), "out of range", "from 0")


@pytest.mark.parametrize("workers", [1.5, [1.5], "ab", [None], None, ["1"]], ids=repr)
def test_worker_ids_that_are_no_numbers(workers: Any) -> None:
    with pytest.raises(BadEvent) as caught:
        Joined(workers)
    says(caught.value, repr(workers), "whole number")


@pytest.mark.parametrize("worker", [3, -1, None, "0", [0], 0.5], ids=repr)
def test_leaving_without_being_there(server: Server, worker: Any) -> None:
    says(refused(server, Left(worker), BadEvent), f"worker {worker!r}", "not present", "workers that joined", "0, 1, 2")


def test_leaving_twice_and_from_nowhere() -> None:
    server = Server(np.zeros(DIM), methods.async_sgd(0.1))
    says(refused(server, Left(0), BadEvent), "none")
    server.handle(Joined(range(20)))
    server.handle(Left(0))
    says(refused(server, Left(0), BadEvent), "worker 0", "19 in all")


@pytest.mark.parametrize("outcome", [Outcome.IN_FLIGHT, Outcome.APPLIED, Outcome.DROPPED, Outcome.CANCELLED, 99, "x"])
def test_lost_with_another_outcome(server: Server, outcome: Any) -> None:
    head, _ = head_and_second(server)
    says(refused(server, Lost(head.id, outcome), BadEvent), f"job={head.id}", "Outcome.LOST or Outcome.REJECTED")


def test_lost_with_a_plain_number(server: Server) -> None:
    head, _ = head_and_second(server)
    reply = server.handle(Lost(head.id, int(Outcome.REJECTED)))  # type: ignore[arg-type]
    assert reply.ended[0].outcome is Outcome.REJECTED


@pytest.mark.parametrize("event", [None, 0, "Joined(0)", Joined, (0, FINE), {}], ids=str)
def test_not_an_event(server: Server, event: Any) -> None:
    says(refused(server, event, BadEvent), repr(event), "pass Arrived, Lost, Joined, Left, Changed or Drain")


def test_whose_fault_it_is() -> None:
    """UsageError for the caller, WorkerError for the worker, nothing else; and the caller's are ValueErrors."""
    for kind in (BadParameter, BadEvent, BadStep):
        assert issubclass(kind, errors.UsageError)
        assert issubclass(kind, ValueError)
    for kind in (errors.UnknownJob, errors.WrongWorker, errors.OutOfOrder, errors.EndedJob, errors.BadUpdate):
        assert issubclass(kind, errors.WorkerError)
        assert not issubclass(kind, errors.UsageError)
    for kind in (errors.WrongType, errors.WrongLength, errors.WrongDtype, errors.NotFinite):
        assert issubclass(kind, errors.BadUpdate)
    assert issubclass(errors.RepeatedJob, errors.EndedJob)
    assert issubclass(errors.CancelledJob, errors.EndedJob)


def test_errors_survive_pickling() -> None:
    """They cross process borders."""
    for error in (BadParameter("stepsize", -1.0, "is bad", "mend it"), errors.UnknownJob("job 3 ...")):
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy)) == (type(error), str(error))


# ------------------------------------------------------------------------------------------ the model


@pytest.mark.parametrize(
    ("x", "value"),
    [
        (np.zeros(0), "(0,)"),
        (np.zeros(3, int), "int64"),
        (np.zeros(3, np.float16), "float16"),
        (np.zeros(3, complex), "complex128"),
        (np.zeros((2, 2)), "(2, 2)"),
        (np.array(1.0), "()"),
        (np.zeros(3, ">f8"), ">f8"),
        ([0.0, 1.0], "list"),
        (None, "NoneType"),
        (np.array([0, NAN]), "NaN"),
        (np.array([0, INF]), "infinity"),
    ],
    ids=str,
)
def test_bad_model(x: Any, value: str) -> None:
    with pytest.raises(BadParameter, match=r"^x = ") as caught:
        Server(x, methods.async_sgd(0.1))
    says(caught.value, value)
    assert caught.value.fix in str(caught.value)


def test_the_model_is_copied() -> None:
    x = np.zeros(DIM)
    server = Server(x, methods.async_sgd(1.0))
    server.handle(Joined(0))
    server.handle(Arrived(0, FINE))
    assert x.tolist() == [0.0] * DIM
    x[:] = 5
    assert server.x.tolist() == [-1.0] * DIM


# ------------------------------------------------------------------------------------------ hyper-parameters

NO_STEP = [-0.1, 0, 0.0, NAN, INF, -INF, "0.1", None, True, 1j, 10**400]
NO_COUNT = [0, -1, 1.5, 2.0, NAN, INF, "2", True, None]
NOT_NONNEGATIVE = [-1e-9, NAN, INF, "0", False, None]
NO_FRACTION = [1, 1.0, 1.5, -0.1, NAN, "0.5", True, None]

STEPSIZE: dict[str, Callable[[Any], Any]] = {
    "async_sgd": methods.async_sgd,
    "minibatch_sgd": methods.minibatch_sgd,
    "delay_adaptive": methods.delay_adaptive,
    "delay_adaptive drop": lambda value: methods.delay_adaptive(value, rule="drop"),
    "delay_adaptive divide": lambda value: methods.delay_adaptive(value, rule="divide"),
    "federated_async_sgd": lambda value: methods.federated_async_sgd(value, concurrency=2),
    "federated_async_sgd shuffled": lambda value: methods.federated_async_sgd(value, concurrency=2, order="shuffled"),
    "async_sgd local": lambda value: methods.async_sgd(value).local(2, 0.1),
    "fedbuff": lambda value: methods.fedbuff(value, concurrency=2),
    "fedavg": lambda value: methods.fedavg(value, clients=2, ask=3),
    "picky_sgd": lambda value: methods.picky_sgd(value, threshold=1.0),
    "adadelay": lambda value: methods.adadelay(value, smoothness=1.0),
    "adadelay coordinates": lambda value: methods.adadelay(value, smoothness=1.0, coordinates=True),
    "staleness_aware": methods.staleness_aware,
    "dc_asgd": methods.dc_asgd,
    "delayed_average": methods.delayed_average,
    "mifa": methods.mifa,
    "delay_adaptive workers": lambda value: methods.delay_adaptive(value, rule="workers"),
    "fedasync": lambda value: methods.fedasync(value, concurrency=2).local(1, 0.1),
    "rennala": lambda value: methods.rennala(value, batch=2),
    "ringmaster": lambda value: methods.ringmaster(value, limit=2),
    "diloco": methods.diloco,
    "async_diloco": methods.async_diloco,
    "decoupled_diloco": methods.decoupled_diloco,
}


def test_every_recipe_is_listed() -> None:
    assert {name.split()[0] for name in STEPSIZE} == set(methods.__all__) - {"table"}


@pytest.mark.parametrize("name", STEPSIZE)
def test_impossible_stepsize(name: str) -> None:
    STEPSIZE[name](0.1)  # a good one works
    STEPSIZE[name](np.float64(0.1))
    for value in NO_STEP:
        with pytest.raises(BadParameter, match=r"^stepsize = .* must be a positive finite number; pass stepsize > 0$"):
            STEPSIZE[name](value)


# name of the parameter, good value, bad values, how it is passed
PARAMETERS: list[tuple[str, Any, list[Any], Callable[[Any], Any]]] = [
    # dispatch
    ("concurrency", 1, NO_COUNT[:-1], AlwaysBusy),
    ("restart", 1, NO_COUNT[:-1], lambda value: AlwaysBusy(restart=value)),
    ("concurrency", 1, NO_COUNT, Uniform),
    ("concurrency", 1, NO_COUNT, Shuffled),
    ("clients", 1, NO_COUNT, FirstOf),
    ("ask", 3, [*NO_COUNT[:-1], 1, 2], lambda value: FirstOf(3, value)),
    # steps
    ("threshold", 0, NOT_NONNEGATIVE[:-1], lambda value: DropAbove(0.1, value)),
    ("power", 0, NOT_NONNEGATIVE, lambda value: Polynomial(0.1, value)),
    ("a", 0, NOT_NONNEGATIVE, lambda value: Hinge(0.1, a=value)),
    ("b", 0, NOT_NONNEGATIVE, lambda value: Hinge(0.1, b=value)),
    ("limit", 1, NO_COUNT, lambda value: DropStale(0.1, value)),
    ("threshold", 0.1, NO_STEP, lambda value: DropDrifted(0.1, value)),
    ("smoothness", 0.1, NO_STEP, lambda value: AdaDelay(0.1, value)),
    ("c", 0, NOT_NONNEGATIVE, lambda value: AdaDelay(0.1, 1.0, value)),
    ("stepsize", 0.1, NO_STEP, Custom),
    # transforms, aggregation, optimizers, work
    ("norm", 0.1, NO_STEP, Clip),
    ("strength", 0, NOT_NONNEGATIVE, Compensate),
    ("decay", 0.9, NO_FRACTION, lambda value: Compensate(decay=value)),
    ("buffer", 1, NO_COUNT, Buffer),
    ("noise", 0, NOT_NONNEGATIVE, lambda value: Buffer(2, value)),
    ("beta", 0, NO_FRACTION, Momentum),
    ("beta1", 0, NO_FRACTION, Adam),
    ("beta2", 0, NO_FRACTION, lambda value: Adam(beta2=value)),
    ("epsilon", 1e-8, NO_STEP, lambda value: Adam(epsilon=value)),
    ("smoothness", 1, NO_STEP, AdaDelayCoordinates),
    ("weights", "linear", ["square", "", None], DelayedAverage),
    ("steps", 1, NO_COUNT, lambda value: LocalSteps(value, 0.1)),
    ("stepsize", 0.1, NO_STEP, lambda value: LocalSteps(1, value)),
    ("proximal", 0, NOT_NONNEGATIVE, lambda value: LocalSteps(1, 0.1, proximal=value)),
    # recipes
    ("concurrency", 1, NO_COUNT[:-1], lambda value: methods.async_sgd(0.1, concurrency=value)),
    ("concurrency", 1, NO_COUNT, lambda value: methods.federated_async_sgd(0.1, concurrency=value)),
    ("concurrency", 1, NO_COUNT, lambda value: methods.fedbuff(0.1, concurrency=value)),
    ("buffer", 1, NO_COUNT, lambda value: methods.fedbuff(0.1, concurrency=2, buffer=value)),
    ("steps", 1, NO_COUNT, lambda value: methods.fedbuff(0.1, concurrency=2).local(value, 0.1)),
    ("stepsize", 0.1, NO_STEP, lambda value: methods.fedbuff(0.1, concurrency=2).local(1, value)),
    ("up", "float16", ["int9", "", None], lambda value: methods.async_sgd(0.1).compressed(value)),
    ("order", "shuffled", ["sorted", None], lambda value: methods.federated_async_sgd(0.1, concurrency=2, order=value)),
    ("buffer", 2, NO_COUNT, lambda value: methods.federated_async_sgd(0.1, concurrency=2, buffer=value)),
    ("noise", 0, [*NOT_NONNEGATIVE[:-2]], lambda value: methods.fedbuff(0.1, concurrency=2).clipped(1.0, noise=value)),
    ("norm", 1.0, [None], lambda value: methods.fedbuff(0.1, concurrency=2).clipped(value, noise=1.0)),
    ("norm", 1.0, [None, *NO_STEP], lambda value: methods.async_sgd(0.1).clipped(value)),
    ("norm", 1.0, [None, *NO_STEP], lambda value: methods.async_sgd(0.1).clipped(value, noise=1.0)),
    ("noise", 1.0, NOT_NONNEGATIVE, lambda value: methods.async_sgd(0.1).clipped(1.0, noise=value)),
    ("noise", 0.0, [1.0], lambda value: methods.mifa(0.1).clipped(1.0, noise=value)),
    ("noise", 0.0, [1.0], lambda value: methods.adadelay(smoothness=1.0).clipped(1.0, noise=value)),
    ("noise", 0.0, [1.0], lambda value: Method("bare", Constant(0.1), aggregation=Buffer(2, value))),
    ("rule", "scale", ["skip", "", "Drop"], lambda value: methods.delay_adaptive(0.1, rule=value)),
    ("threshold", None, [3, 0.0], lambda value: methods.delay_adaptive(0.1, threshold=value)),
    ("threshold", None, [3], lambda value: methods.delay_adaptive(0.1, rule="divide", threshold=value)),
    ("threshold", 3, [-1, NAN], lambda value: methods.delay_adaptive(0.1, rule="drop", threshold=value)),
    ("clients", 1, NO_COUNT, lambda value: methods.fedavg(0.1, clients=value)),
    ("ask", 4, [3, 0, 4.5], lambda value: methods.fedavg(0.1, clients=4, ask=value)),
    ("smoothness", 1.0, NO_STEP, lambda value: methods.adadelay(smoothness=value)),
    ("smoothness", 1.0, NO_STEP, lambda value: methods.adadelay(smoothness=value, coordinates=True)),
    ("splits", 4, [5, *NO_COUNT[:-1]], lambda value: methods.staleness_aware(0.1, splits=value).bind(4, 10)),
    ("weights", "uniform", ["log"], lambda value: methods.delayed_average(0.1, weights=value)),
    (
        "stepsize", 1.0, [1.0001, 2],
        lambda value: methods.fedasync(value, concurrency=2).local(1, 0.1),
    ),
    (
        "weighting", "hinge", ["steep", ""],
        lambda value: methods.fedasync(concurrency=2, weighting=value).local(1, 0.1),
    ),
    ("buffer", 1, NO_COUNT, lambda value: methods.rennala(0.1, batch=value)),
    ("limit", 1, NO_COUNT, lambda value: methods.ringmaster(0.1, limit=value)),
    ("beta", 0.5, NO_FRACTION, optimizers.momentum),
    ("beta1", 0.5, NO_FRACTION, optimizers.adamw),
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(PARAMETERS)), ids=lambda k: f"{k}-{PARAMETERS[k][0]}")
def test_impossible_hyper_parameter(place: int) -> None:
    name, good, bad, make = PARAMETERS[place]
    make(good)
    for value in bad:
        with pytest.raises(BadParameter) as caught:
            make(value)
        error = caught.value
        assert error.name == name, f"{value!r} was blamed on {error.name}"
        missing = value is None and error.problem.startswith("is missing")
        assert str(error).startswith(f"{name} is missing" if missing else f"{name} = {error.value!r} ")
        assert error.fix, "no fix"
        assert str(error).endswith(f"; {error.fix}")


# ------------------------------------------------------------------------------------------ a method and its task


@pytest.mark.parametrize(
    ("method", "workers", "iterations", "name"),
    [
        (methods.fedavg(0.1, clients=5, ask=7), 4, None, "clients"),
        (methods.async_sgd(0.1), 0, None, "workers"),
        (methods.fedbuff(0.1, concurrency=2, buffer=11), 4, 10, "buffer"),
        (methods.rennala(0.1, batch=11), 4, 10, "buffer"),
    ],
)
def test_what_can_never_work(method: Method, workers: int, iterations: int | None, name: str) -> None:
    with pytest.raises(BadParameter, match=f"^{name} = "):
        method.check(workers=workers, iterations=iterations)
    method.check(workers=max(5, workers), iterations=11)  # with these it can


FED = {"concurrency": 2}
BIASED: dict[str, tuple[Method, str]] = {
    "always busy": (methods.async_sgd(0.1), "twice as many jobs"),
    "async_diloco": (methods.async_diloco(), "twice as many jobs"),
    "always busy, few": (methods.async_sgd(0.1, concurrency=2), "twice as many jobs"),
    "delay-adaptive": (methods.delay_adaptive(0.1).using(dispatch=Uniform(2)), "smaller step"),
    "dropping": (methods.delay_adaptive(0.1, rule="drop").using(dispatch=Uniform(2)), "dropped"),
    "dividing": (methods.delay_adaptive(0.1, rule="divide").using(dispatch=Uniform(2)), "much smaller step"),
    "over-selection": (methods.fedavg(0.1, clients=2, ask=3), "discards"),
    "fedbuff": (methods.fedbuff(0.1, **FED), "stale updates get a smaller step"),
    "fedasync": (methods.fedasync(**FED).local(1, 0.1), "stale updates"),
    "fedasync hinge": (methods.fedasync(weighting="hinge", **FED).local(1, 0.1), "stale updates"),
    "picky": (methods.picky_sgd(0.1, threshold=1.0).using(dispatch=Uniform(2)), "far from the present model"),
    "adadelay": (methods.adadelay(smoothness=1.0).using(dispatch=Uniform(2)), "long delay"),
    "staleness-aware": (methods.staleness_aware(0.1).using(dispatch=Uniform(2)), "stale updates"),
    "mishchenko": (methods.delay_adaptive(0.1, rule="workers").using(dispatch=Uniform(2)), "long delay"),
    "rennala": (methods.rennala(0.1, batch=2).using(dispatch=Uniform(2)), "stale updates are dropped"),
    "ringmaster": (methods.ringmaster(0.1, limit=2).using(dispatch=Uniform(2)), "stale updates are dropped"),
    "mifa that drops": (methods.mifa(0.1).using(step=DropAbove(0.1)), "dropped"),
}
FAIR: dict[str, Method] = {
    "federated_async_sgd": methods.federated_async_sgd(0.1, concurrency=2),
    "early": methods.federated_async_sgd(0.1, concurrency=2, early=True),
    "shuffled": methods.federated_async_sgd(0.1, concurrency=2, order="shuffled"),
    "minibatch": methods.minibatch_sgd(0.1),
    "mifa": methods.mifa(0.1),
    "calibrated": methods.fedbuff(0.1, calibrated=True, **FED),
    "calibrated, busy": methods.fedbuff(0.1, calibrated=True, **FED).using(dispatch=AlwaysBusy()),
    "buffer": methods.federated_async_sgd(0.1, buffer=3, **FED),
    "rounds": methods.fedavg(0.1, clients=2),
    "diloco": methods.diloco(),
    "fedasync constant": methods.fedasync(weighting="constant", **FED).local(1, 0.1),
    "buffer of equals": Method("mine", Constant(0.1), Batch(), aggregation=Buffer(2)),
    "clipped": methods.federated_async_sgd(0.1, concurrency=2).clipped(1.0),
}


@pytest.mark.parametrize("name", BIASED)
def test_bias_is_warned_of(name: str) -> None:
    method, reason = BIASED[name]
    with pytest.warns(BiasWarning, match=reason) as caught:
        method.check(workers=4, heterogeneous=True)
    assert len(caught) == 1
    assert method.name in str(caught[0].message)
    assert "federated_async_sgd" in str(caught[0].message)
    method.check(workers=4)  # warnings are errors here: silent where the data are alike


@pytest.mark.parametrize("name", FAIR)
def test_no_bias_no_warning(name: str) -> None:
    FAIR[name].check(workers=4, heterogeneous=True)


# ------------------------------------------------------------------------------------------ restoring

OTHERS: dict[str, tuple[Method, Method]] = {
    "step": (methods.async_sgd(0.1), methods.delay_adaptive(0.1)),
    "dispatch": (methods.async_sgd(0.1), methods.minibatch_sgd(0.1)),
    "aggregation": (methods.async_sgd(0.1), methods.mifa(0.1)),
    "transforms": (methods.async_sgd(0.1), methods.async_sgd(0.1).clipped(1.0)),
    "optimizer": (methods.async_sgd(0.1), methods.async_sgd(0.1).using(optimizer=Momentum())),
    "average": (methods.async_sgd(0.1), methods.async_sgd(0.1).using(average=True)),
    "work": (methods.async_sgd(0.1), methods.async_sgd(0.1).local(1, 0.1)),
    "amsgrad": tuple(methods.async_sgd(0.1).using(optimizer=Adam(amsgrad=flag)) for flag in (False, True)),  # type: ignore[dict-item]
    "adaptive": (methods.dc_asgd(0.1), methods.dc_asgd(0.1, adaptive=True)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_restoring_with_another_method(name: str, tmp_path: Path) -> None:
    for one, other in (OTHERS[name], OTHERS[name][::-1]):
        server = Server(np.zeros(DIM), one)
        server.handle(Joined([0, 1]))
        with pytest.raises(BadParameter, match="restore with the") as caught:
            through_file(server, tmp_path, other)
        assert (caught.value.name, caught.value.value) == ("method", other.name)
        assert fingerprint(through_file(server, tmp_path, one)) == fingerprint(server)


def test_restoring_with_another_stepsize(tmp_path: Path) -> None:
    """Hyper-parameters may differ: that is how a step is lowered half-way."""
    server = Server(np.zeros(DIM), methods.async_sgd(1.0))
    server.handle(Joined([0, 1]))
    server.handle(Arrived(0, FINE))
    slower = through_file(server, tmp_path, methods.async_sgd(0.5))
    slower.handle(Arrived(1, FINE))
    assert slower.x.tolist() == [-1.5] * DIM
