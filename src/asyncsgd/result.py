"""The result of every run, simulated or real, and a note about updates that were not used at its end."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.aggregation import Memory
from asyncsgd.core.dispatch import Batch
from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.events import Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.vectors import Vector
from asyncsgd.format import latest
from asyncsgd.tasks import model_file
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a run: the model, the trace of all jobs, and the metrics over iterations and time.

    >>> import asyncsgd as asgd
    >>> task, speeds = asgd.tasks.quadratic(workers=2), asgd.durations.fixed([1.0, 3.0])
    >>> run = asgd.simulate(task, asgd.async_sgd(0.1), speeds, iterations=50)
    >>> run.trace.iterations, len(run.to_pandas()) == len(run.metrics["loss"])
    (50, True)

    See docs/users/researcher.md for what to do with a run.
    """

    x: Vector
    """The final model; if the run diverged, the last evaluated model with finite metrics."""
    trace: Trace
    metrics: dict[str, NDArray[Any]]
    """The task's metrics, with the "iteration" and the "time" of each evaluation. NaN: not measured this time."""
    method: Method
    diverged: int | None = None
    """The iteration at which the run was found to diverge (by an evaluation, or by an update that was not finite), or
    None. The run ends there; trace and metrics hold everything before."""
    compiled: bool = False
    """Whether the numbers were computed by the compiled replay, which gives the same bits as the core."""
    x_iteration: int | None = None
    """The iteration of ``x`` if the run diverged; None: the last one."""
    slow_because: str = ""
    """Why a simulation did not run in compiled code, such as "optimizer Adam has no compiled form"; empty if it did."""
    task: Task | None = None
    """The task of the run: `module` and `write_model` ask it for the names and shapes of the model."""

    def __repr__(self) -> str:
        end = ", ".join(f"{name} {latest(values):.4g}" for name, values in self.metrics.items() if len(values))
        fate = "" if self.diverged is None else f", diverged at {self.diverged}"
        rest = leftover(self.method, self.trace)
        return f"<{type(self).__name__} of {self.method.name}: {end}{fate}{'' if rest is None else f'; {rest}'}>"

    @property
    def unused(self) -> int:
        """Number of updates at the end that no step has used, for instance those of a buffer that was not full."""
        return unused(self.method, self.trace)

    @property
    def bytes_up(self) -> int:
        """Bytes of all updates that arrived at the server, as the method encodes them."""
        return traffic(self.trace, self.method.message_bytes(len(self.x), self.x.dtype))[0]

    @property
    def bytes_down(self) -> int:
        """Bytes of all models that the server sent with jobs, as the method encodes them.

        >>> import asyncsgd as asgd
        >>> task, speeds = asgd.tasks.quadratic(workers=2, dim=10), asgd.durations.fixed([1.0, 2.0])
        >>> method = asgd.async_sgd(0.1).compressed("int8", down="bfloat16")
        >>> run = asgd.simulate(task, method, speeds, iterations=5)
        >>> run.bytes_up, run.bytes_down  # 5 updates of 10 + 4 bytes, 7 jobs of 20 bytes
        (70, 140)
        """
        return traffic(self.trace, self.method.message_bytes(len(self.x), self.x.dtype))[1]

    def module(self) -> Any:
        """Return the trained module: the task's PyTorch model with the parameters ``x``, in eval mode on the CPU.

        >>> from torch import nn
        >>> import asyncsgd as asgd
        >>> data = np.ones((8, 3)), np.zeros(8, np.int64)
        >>> task = asgd.tasks.torch(nn.Linear(3, 2), nn.CrossEntropyLoss(), data)
        >>> run = asgd.simulate(task, asgd.async_sgd(0.1), asgd.durations.fixed([1.0, 2.0]), iterations=5)
        >>> run.module()
        Linear(in_features=3, out_features=2, bias=True)
        """
        make = getattr(self.task, "module", None)
        if not callable(make):
            kind = type(self.task).__name__
            fix = "use run.x, the model as one vector, or train a task of asgd.tasks.torch"
            raise BadParameter("task", kind, "does not have a PyTorch module", fix)
        return make(self.x)

    def write_model(self, path: str | Path) -> Path:
        """Write the model ``x`` to a file, whole or not at all, and return its path.

        Args:
            path: A name that ends in ``.safetensors``, or in ``.pt`` or ``.pth`` for a state_dict of PyTorch.

        The model of a PyTorch task has the names of its module's state_dict, buffers included. Load it with
        ``safetensors.torch.load_model(module, path)``, or with ``module.load_state_dict(torch.load(path))``. Tied
        weights are written once to a safetensors file, because that format does not allow tensors that share memory;
        ``load_model`` fills in the others. The model of a Flower run has the arrays of ``initial_arrays``, those that
        are not trained included. A task with ``layout()`` gives names and shapes; the model of any other task is one
        vector, ``x``.

        >>> import tempfile
        >>> from safetensors.numpy import load_file
        >>> import asyncsgd as asgd
        >>> speeds = asgd.durations.fixed([1.0, 2.0])
        >>> run = asgd.simulate(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), speeds, iterations=5)
        >>> path = run.write_model(Path(tempfile.mkdtemp()) / "model.safetensors")
        >>> (load_file(path)["x"] == run.x).all()
        np.True_
        """
        iteration = self.trace.iterations if self.x_iteration is None else self.x_iteration
        facts = {"iteration": str(iteration), "method": self.method.name}
        return model_file.write_model(path, self.task, self.x, facts)

    def to_pandas(self, what: str = "metrics") -> Any:
        """Return a pandas DataFrame. Needs pandas.

        Args:
            what: ``"metrics"`` for one row per evaluation, ``"trace"`` for one row per job.

        >>> import asyncsgd as asgd
        >>> speeds = asgd.durations.fixed([1.0, 2.0])
        >>> run = asgd.simulate(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), speeds, iterations=5)
        >>> list(run.to_pandas())[:3], len(run.to_pandas("trace"))
        (['iteration', 'time', 'loss'], 7)
        """
        if what not in ("metrics", "trace"):
            raise BadParameter("what", what, "is unknown", 'pass "metrics" or "trace"')
        try:
            import pandas
        except ModuleNotFoundError as error:
            raise MissingLibrary("run.to_pandas", "pandas", "pandas") from error
        return pandas.DataFrame(self.metrics) if what == "metrics" else self.trace.to_pandas()

    def plot(self, metric: str | None = None) -> Any:
        """Draw the run into a figure of matplotlib, and return it. Needs the extra ``report``.

        The figure shows a metric over time, the distribution of the delays, and the timeline of the workers;
        ``asgd.plot`` draws each of them alone.

        Args:
            metric: The metric to show; by default the loss, or else the first one.

        >>> import asyncsgd as asgd
        >>> speeds = asgd.durations.fixed([1.0, 2.0])
        >>> run = asgd.simulate(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), speeds, iterations=5)
        >>> len(run.plot().axes)  # with the colour bar of the timeline
        4
        """
        return import_module("asyncsgd.plot").overview(self, metric)

    def write_report(self, path: str | Path | None = None, *, title: str = "", task: Task | None = None) -> Path:
        """Write one self-contained HTML page about the run, and return its path.

        Args:
            path: File to write; by default ``report.html``, in the run's directory if it has one.
            title: Title of the page.
            task: The task of the run. With the task's constants, the page also shows the theorems' bounds.
        """
        if path is None:
            path = Path(getattr(self, "directory", None) or "") / "report.html"
        return write_report(self, path, title, task)


def write_report(runs: Any, path: str | Path, title: str, task: Task | None) -> Path:
    """Write the page of runs. `asyncsgd.pages` is imported by name, because it is a layer above this module."""
    written: Path = import_module("asyncsgd.pages").report(runs, path, title=title, task=task)
    return written


def traffic(trace: Trace, message_bytes: tuple[int, int]) -> tuple[int, int]:
    """Return the bytes of all updates that arrived, and of all models that were handed out with jobs.

    ``message_bytes`` are those of one update and of one model. What a transport adds, and updates that were lost or
    cancelled on their way, are not counted.
    """
    up, down = message_bytes
    return trace.iterations * up, len(trace) * down


def unused(method: Method, trace: Trace) -> int:
    """Return the number of updates at the end that no step has used, for instance those of a buffer that was not full.

    >>> from asyncsgd import methods, simulate, tasks, durations
    >>> method = methods.fedbuff(0.1, concurrency=2, buffer=4)
    >>> run = simulate(tasks.quadratic(workers=2), method, durations.fixed([1, 2]), iterations=11)
    >>> unused(method, run.trace)
    3
    """
    applied = trace.counts[Outcome.APPLIED]
    size = getattr(method.aggregation, "size", None)
    if size is not None:
        return applied % int(size)
    if isinstance(method.aggregation, Memory) and not trace.step.any():  # no update of some worker has arrived
        return applied
    return 0


def leftover(method: Method, trace: Trace) -> str | None:
    """Return a sentence about updates or a batch that the end left unused; None if there are none."""
    waiting = unused(method, trace)
    if waiting:
        who = "the last update was" if waiting == 1 else f"the last {waiting} updates were"
        why = "not every worker was heard"
        if (size := getattr(method.aggregation, "size", None)) is not None:
            why = f"the model moves after every {size}"
        return f"{who} not used, as {why}; more iterations use {'it' if waiting == 1 else 'them'}"
    flying = trace.jobs.in_flight
    if isinstance(method.dispatch, Batch) and flying.any():
        began = int(trace.jobs.assigned_iteration[flying].min())
        arrived = trace.iterations - began
        if arrived:
            of = arrived + int(np.count_nonzero(flying))
            return (
                f"the last batch is not complete: {arrived} of its {of} updates arrived, and the model has used these"
            )
    return None
