"""Every error asyncsgd raises on purpose, split by whose fault it is.

::

    AsyncSGDError
    ├── UsageError (also ValueError)      the caller's fault: mend the call
    │   ├── BadParameter                  an impossible hyper-parameter
    │   ├── BadEvent                      an event that cannot happen now (a worker that joins twice, ...)
    │   ├── BadStep                       a step rule returned something that is not a step, or raised a WorkerError
    │   └── MissingLibrary                a library is not installed (also ModuleNotFoundError)
    ├── WorkerError                       a worker's fault: report its job as ``Lost(job, REJECTED)`` and go on
    │   ├── UnknownJob                    no such job was ever handed out
    │   ├── WrongWorker                   the job belongs to somebody else
    │   ├── OutOfOrder                    a later job of the same worker came before an earlier one
    │   ├── EndedJob                      the job has ended already
    │   │   ├── RepeatedJob               ... because its update has arrived once
    │   │   └── CancelledJob              ... because the server cancelled it; harmless, drop the update
    │   └── BadUpdate                     the vector itself cannot be used
    │       ├── WrongType                 not a NumPy vector
    │       ├── WrongLength
    │       ├── WrongDtype
    │       └── NotFinite                 NaN or infinity
    ├── TornServer                        a part of the method raised half-way: what the server remembers is not whole
    └── TraceError                        a record that contradicts itself
        ├── IdentityViolation             the delays do not add up to the concurrency
        └── BadTraceFile                  a file that is not a trace, or a damaged one

    BiasWarning (UserWarning)             the method favours fast workers, and the data are heterogeneous

A raise leaves the object that raised as it was, but for a part of the method that raises half-way: the server then
refuses everything with `TornServer`. Every message names the thing, its value and the fix.
"""

from __future__ import annotations

from typing import Any


class AsyncSGDError(Exception):
    """Base of every error that asyncsgd raises on purpose."""


class UsageError(AsyncSGDError, ValueError):
    """The caller's fault."""


class BadParameter(UsageError):
    """A hyper-parameter that cannot work.

    >>> raise BadParameter("stepsize", -1.0, "must be a positive number", "pass a small one such as 0.1")
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadParameter: stepsize = -1.0 must be a positive number; pass a small one such as 0.1
    """

    def __init__(self, name: str, value: Any, problem: str, fix: str) -> None:
        self.name, self.value, self.problem, self.fix = name, value, problem, fix
        given = "" if value is None and problem.startswith("is missing") else f" = {value!r}"
        super().__init__(f"{name}{given} {problem}; {fix}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.name, self.value, self.problem, self.fix)


class BadEvent(UsageError):
    """An event that cannot happen in the server's present state."""


class BadStep(UsageError):
    """A step rule returned a negative number, NaN or infinity, or raised an error that is about workers."""


class MissingLibrary(UsageError, ModuleNotFoundError):
    """A library that is not installed; most come with an extra of ours.

    >>> raise MissingLibrary("asgd.tasks.torch", "PyTorch", "asyncsgd[torch]")
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.MissingLibrary: asgd.tasks.torch needs PyTorch; install it with: pip install 'asyncsgd[torch]'
    """

    def __init__(self, what: str, library: str, package: str) -> None:
        self.what, self.library, self.package = what, library, package
        shown = f"'{package}'" if "[" in package else package  # a shell would read the brackets
        super().__init__(f"{what} needs {library}; install it with: pip install {shown}")

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.what, self.library, self.package)


class WorkerError(AsyncSGDError):
    """A worker's fault: the server is unchanged, the job (if there is one) still in flight."""


class UnknownJob(WorkerError):
    """An update or a loss was reported for a job that was never handed out."""


class WrongWorker(WorkerError):
    """A worker answered somebody else's job."""


class OutOfOrder(WorkerError):
    """A worker answered a later job before an earlier one."""


class EndedJob(WorkerError):
    """The job has ended already."""


class RepeatedJob(EndedJob):
    """The job's update has arrived before."""


class CancelledJob(EndedJob):
    """The server had cancelled the job; its update comes too late and is dropped."""


class BadUpdate(WorkerError):
    """The update cannot be applied."""


class WrongType(BadUpdate):
    """The update is not a one-dimensional NumPy array."""


class WrongLength(BadUpdate):
    """The update is longer or shorter than the model."""


class WrongDtype(BadUpdate):
    """The update's dtype is not the model's."""


class NotFinite(BadUpdate):
    """The update holds NaN or infinity."""


class TornServer(AsyncSGDError):
    """A part of the method has raised half-way, so that the server's state is neither the old one nor the new one."""


class TraceError(AsyncSGDError):
    """A trace contradicts itself or cannot be read."""


class IdentityViolation(TraceError):
    """The delays do not add up to the concurrency: somebody miscounted."""


class BadTraceFile(TraceError):
    """The file is not a trace, or it is damaged."""


class BiasWarning(UserWarning):
    """The method favours fast workers although the data differ from worker to worker."""
