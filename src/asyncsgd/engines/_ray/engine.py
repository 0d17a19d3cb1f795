"""What a user asks for: ``asgd.engines.ray(workers=4)``. Ray itself is imported when the workers start."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, nonnegative, positive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Engine, WorkerPool, per_worker
from asyncsgd.engines.compression import check_transport
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Group:
    """Workers with the same needs: where Ray may place them, and how many threads they compute with.

    Args:
        workers: How many.
        num_cpus: Processors of each, as Ray counts them; a fraction shares one.
        num_gpus: Graphics processors of each; a fraction shares one.
        resources: Custom resources of each, named as the nodes name them: ``{"big": 1}``.
        threads: Threads that each computes with; by default its whole processors.

    >>> Group(2, num_cpus=4).threads_each
    4
    """

    workers: int
    num_cpus: float = 1.0
    num_gpus: float = 0.0
    resources: Mapping[str, float] = field(default_factory=dict)
    threads: int | None = None

    def __post_init__(self) -> None:
        count("workers", self.workers)
        nonnegative("num_cpus", self.num_cpus)
        nonnegative("num_gpus", self.num_gpus)
        if self.threads is not None:
            count("threads", self.threads)
        if not isinstance(self.resources, Mapping):
            raise BadParameter("resources", self.resources, "names nothing", 'pass a mapping such as {"big": 1}')
        for name, amount in self.resources.items():
            positive(f"resources[{name!r}]", amount)
            if name in ("CPU", "GPU"):
                fix = f"pass num_{name.lower()}s={amount:g}"
                raise BadParameter("resources", dict(self.resources), f"names {name}, which Ray counts apart", fix)

    @property
    def threads_each(self) -> int:
        """As many as it has whole processors, if nothing else was said."""
        return self.threads or max(1, int(self.num_cpus))

    @property
    def needs(self) -> dict[str, float]:
        """What one worker takes from its node, as Ray writes it."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount}


@dataclass(frozen=True)
class Ray(Engine):
    """Workers on a Ray cluster; see `ray`."""

    groups: tuple[Group, ...] = ()
    address: str | None = None
    at_least: int | None = None
    transport: str | None = None
    slowdown: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    job_timeout: float | None = None
    start_timeout: float = 120.0
    shared_memory: bool = True
    logs: bool = False
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)

    @property
    def group(self) -> tuple[Group, ...]:
        """The group of every worker."""
        return tuple(group for group in self.groups for _ in range(group.workers))

    @property
    def threads(self) -> int | list[int]:
        """One number if it is the same for all, else one per worker."""
        each = [group.threads_each for group in self.group]
        return each[0] if len(set(each)) == 1 else each

    @property
    def opening(self) -> str:
        if self.address is None:
            return "starting Ray on this machine"
        return "looking for the Ray cluster" if self.address == "auto" else f"calling the Ray cluster at {self.address}"

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        from asyncsgd.engines._ray.pool import RayPool

        return RayPool(self, task, work, x)

    def encoding(self, code: str) -> Ray:
        check_transport(code)
        return replace(self, transport=code)

    @property
    def _working_dir(self) -> str | None:
        """The directory of this machine that is sent along."""
        directory = str((self.runtime_env or {}).get("working_dir", ""))
        return os.path.abspath(directory) if directory and "://" not in directory else None

    def describe(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"groups": [asdict(group) for group in self.groups]}
        del values["runtime_env"]  # it may hold passwords, and run.json is for everybody to read
        values["working_dir"] = self._working_dir
        return {"engine": "ray", **{k: v for k, v in values.items() if v is not None}}


def ray(
    workers: int | Group | Sequence[Group],
    *,
    address: str | None = None,
    num_cpus: float | None = None,
    num_gpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    threads: int | None = None,
    at_least: int | None = None,
    slowdown: Sequence[float] | Mapping[int, float] | None = None,
    seconds: Sequence[float] | Mapping[int, float] | None = None,
    job_timeout: float | None = None,
    start_timeout: float = 120.0,
    shared_memory: bool = True,
    logs: bool = False,
    runtime_env: Mapping[str, Any] | None = None,
) -> Ray:
    """Workers on a Ray cluster (extra ``ray``); the process that trains is the server.

    Ray places each worker where there is room for it, now or as soon as a node joins. Who dies is replaced, on another
    node if need be; the run goes on with those that are there.

    Args:
        workers: How many at most, or one or more `Group` of them where their needs differ.
        address: ``"auto"`` for the cluster that this machine belongs to (or ``RAY_ADDRESS``), ``"host:6379"`` where
            it belongs to several: this machine must be a node of it. None: the cluster that this process is connected
            to, or else Ray is started here, for this run alone, on loopback and without a dashboard.
        num_cpus: Processors of each worker, as Ray counts them; by default 1.
        num_gpus: Graphics processors of each worker; a fraction shares one.
        resources: Custom resources of each worker, named as the nodes name them: ``{"big": 1}``.
        threads: Threads that each worker computes with; by default its whole processors.
        at_least: Begin as soon as so many are there, and let the others join later; by default all.
        slowdown: Pretend: factor by which a worker is slower than it is, one per worker or ``{worker: factor}``.
        seconds: Pretend: a job takes at least this long, one number per worker or ``{worker: seconds}``.
        job_timeout: Seconds after which a job is given up and its worker replaced; by default 20 times the longest
            job so far, but at least 5 minutes.
        start_timeout: Seconds to wait for ``at_least`` workers, for one to load the task, and for one to be there
            at all, before the run stops.
        shared_memory: Whether workers on this machine share memory with the server in place of Ray's object store.
        logs: Whether Ray repeats here what workers print.
        runtime_env: What Ray is to prepare for the workers: ``{"working_dir": ".", "pip": [...]}``.

    >>> ray([Group(4), Group(2, num_cpus=2, resources={"big": 1})], address="auto").threads
    [1, 1, 1, 1, 2, 2]
    """
    alike = {"num_cpus": num_cpus, "num_gpus": num_gpus, "resources": resources, "threads": threads}
    given = {name: value for name, value in alike.items() if value is not None}
    groups = _groups(workers, given)
    total = sum(group.workers for group in groups)
    if at_least is not None:
        count("at_least", at_least)
        if at_least > total:
            raise BadParameter("at_least", at_least, f"is more than the {total} workers", "ask for fewer")
    if job_timeout is not None:
        positive("job_timeout", job_timeout)
    positive("start_timeout", start_timeout)
    return Ray(
        total,
        groups=groups,
        address=address,
        at_least=at_least,
        slowdown=per_worker("slowdown", slowdown, total, nothing=1.0),
        seconds=per_worker("seconds", seconds, total, nothing=0.0),
        job_timeout=job_timeout,
        start_timeout=start_timeout,
        shared_memory=shared_memory,
        logs=logs,
        runtime_env=runtime_env,
    )


def _groups(workers: int | Group | Sequence[Group], given: dict[str, Any]) -> tuple[Group, ...]:
    if isinstance(workers, Group | Sequence):
        groups = (workers,) if isinstance(workers, Group) else tuple(workers)
        if not groups or not all(isinstance(group, Group) for group in groups):
            raise BadParameter("workers", workers, "are no groups", "pass a number, or asgd.engines.Group(4), ...")
        if given:
            name, value = next(iter(given.items()))
            raise BadParameter(name, value, "is for workers that are all alike", "say it in each Group")
        return groups
    return (Group(workers, **given),)
