"""Workers on a Ray cluster: ``asgd.engines.ray(workers=4)``. Ray itself is imported when the workers start.

``cluster`` connects to a cluster or starts one, and ``orphan_cleanup`` leaves nothing of a started one behind. ``pool``
is the server's side of the workers, ``handle`` its data about one of them, ``call_queue`` the unanswered calls, and
``vector_store`` the way that points and updates take. ``worker`` is what runs on the other side.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, nonnegative, positive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Engine, WorkerPool, checked
from asyncsgd.engines.devices import CPU, check_task
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Group:
    """Workers with the same needs: where Ray may place them, and how many threads they compute with.

    Each worker has one device: the first GPU that Ray assigned to it, or the CPU if ``num_gpus`` is 0.

    Args:
        workers: Number of workers in this group.
        num_cpus: Processors per worker, as Ray counts them. Workers with a fraction share a processor.
        num_gpus: GPUs per worker. Workers with a fraction share a GPU. The task needs a method ``use_device(device)``,
            which `asyncsgd.tasks.torch` has.
        resources: Custom resources per worker, by the names that the nodes use: ``{"big": 1}``.
        threads: CPU threads per worker. Default: the whole processors of the worker.

    >>> Group(2, num_cpus=4).threads_each, Group(1, num_gpus=1).device
    (4, 'cuda:0')
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
            raise BadParameter("resources", self.resources, "is not a mapping", 'pass a mapping such as {"big": 1}')
        for name, amount in self.resources.items():
            positive(f"resources[{name!r}]", amount)
            if name in ("CPU", "GPU"):
                fix = f"pass num_{name.lower()}s={amount:g}"
                raise BadParameter("resources", dict(self.resources), f"names {name}, which has its own option", fix)

    @property
    def threads_each(self) -> int:
        """CPU threads per worker: ``threads``, or its number of whole processors."""
        return self.threads or max(1, int(self.num_cpus))

    @property
    def device(self) -> str:
        """The name of each worker's device. Ray shows a worker only its own GPUs, so the first one is ``cuda:0``."""
        return "cuda:0" if self.num_gpus else CPU

    @property
    def needs(self) -> dict[str, float]:
        """The resources that one worker takes from its node, by Ray's names."""
        wanted = {"CPU": self.num_cpus, "GPU": self.num_gpus, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount}


@dataclass(frozen=True)
class Ray(Engine):
    """Workers on a Ray cluster; see `ray`.

    See docs/guides/cluster.md for training on a Ray cluster.
    """

    groups: tuple[Group, ...] = ()
    address: str | None = None
    at_least: int | None = None
    job_timeout: float | None = None
    start_timeout: float = 120.0
    slowdown: tuple[float, ...] = ()
    min_seconds: tuple[float, ...] = ()
    logs: bool = False
    runtime_env: Mapping[str, Any] | None = field(default=None, repr=False)
    keeps_state: ClassVar[bool] = True
    shared_memory: bool = True
    """Whether workers on this machine share memory with the server. Tests and benchmarks set it to False, so that these
    workers use the object store, as workers on other machines do."""

    @property
    def group(self) -> tuple[Group, ...]:
        """The group of every worker."""
        return tuple(group for group in self.groups for _ in range(group.workers))

    @property
    def threads(self) -> int | list[int]:
        """CPU threads: one number if all workers have the same, else one per worker."""
        each = [group.threads_each for group in self.group]
        return each[0] if len(set(each)) == 1 else each

    @property
    def opening(self) -> str:
        if self.address is None:
            return "starting Ray on this machine"
        if self.address == "auto":
            return "looking for the Ray cluster"
        return f"connecting to the Ray cluster at {self.address}"

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        from asyncsgd.engines._ray.pool import RayPool

        for group in self.groups:
            if group.num_gpus:
                check_task(task, "num_gpus", group.num_gpus)
        return RayPool(self, task, work, x)

    @property
    def _working_dir(self) -> str | None:
        """The directory of this machine that Ray copies to the workers; None if there is none."""
        directory = str((self.runtime_env or {}).get("working_dir", ""))
        return os.path.abspath(directory) if directory and "://" not in directory else None

    def describe(self) -> dict[str, Any]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values |= {"groups": [asdict(group) for group in self.groups]}
        del values["runtime_env"]  # it may hold passwords, and users share run.json
        del values["shared_memory"]  # it changes no number
        values["working_dir"] = self._working_dir
        return {"engine": "ray", **{k: v for k, v in values.items() if v is not None}}


def ray(
    workers: int | Group | Sequence[Group],
    *,
    address: str | None = None,
    at_least: int | None = None,
    job_timeout: float | None = None,
    start_timeout: float = 120.0,
    slowdown: Sequence[float] | Mapping[int, float] | None = None,
    min_seconds: Sequence[float] | Mapping[int, float] | None = None,
    logs: bool = False,
    runtime_env: Mapping[str, Any] | None = None,
) -> Ray:
    """Compute jobs in workers on a Ray cluster (extra ``ray``). The process that trains is the server.

    Ray places each worker on a node that has room for it, now or as soon as such a node joins. The engine replaces a
    worker that dies, on another node if necessary. Meanwhile the run continues with the other workers.

    Args:
        workers: Largest number of workers with one processor each; or a `Group` if they need anything else, such as a
            GPU; or a list of groups where their needs differ.
        address: ``"auto"`` for the cluster that this machine belongs to (or ``RAY_ADDRESS``). ``"host:6379"`` if the
            machine belongs to several clusters; it must be a node of this one. None: the cluster that this process is
            connected to, or else a Ray that is started for this run only, on loopback and without a dashboard.
        at_least: Start once this many workers are ready; the others join later. Default: all workers.
        job_timeout: Seconds after which the engine gives up a job and replaces its worker. Default: 20 times the
            longest job so far, and at least 5 minutes; 5 minutes per local step until a first update has arrived.
        start_timeout: Seconds to wait for ``at_least`` workers to be ready, for a worker to load the task, and for any
            worker to come back if all are gone, before the run stops.
        slowdown: Artificial delay for experiments: the factor by which each job takes longer, one number per worker or
            ``{worker: factor}``.
        min_seconds: Artificial delay for experiments: the least number of seconds that a mini-batch takes, one number
            per worker or ``{worker: seconds}``. A job of 50 local steps takes at least 50 times as long.
        logs: Whether Ray shows on this terminal what workers print.
        runtime_env: What Ray prepares for the workers: ``{"working_dir": ".", "pip": [...]}``.

    >>> ray([Group(4), Group(2, num_cpus=2, resources={"big": 1})], address="auto").threads
    [1, 1, 1, 1, 2, 2]

    docs/guides/cluster.md shows how to start a cluster, and how to use GPUs.
    """
    groups = _groups(workers)
    total = sum(group.workers for group in groups)
    if at_least is not None:
        count("at_least", at_least)
        if at_least > total:
            raise BadParameter("at_least", at_least, f"is more than the {total} workers", "ask for fewer")
    return Ray(
        total,
        groups=groups,
        address=address,
        at_least=at_least,
        **checked(total, job_timeout, start_timeout, slowdown, min_seconds),
        logs=logs,
        runtime_env=runtime_env,
    )


def _groups(workers: int | Group | Sequence[Group]) -> tuple[Group, ...]:
    if isinstance(workers, Group | Sequence):
        groups = (workers,) if isinstance(workers, Group) else tuple(workers)
        if not groups or not all(isinstance(group, Group) for group in groups):
            raise BadParameter("workers", workers, "are not groups", "pass a number, or asgd.engines.Group(4), ...")
        return groups
    return (Group(workers),)
