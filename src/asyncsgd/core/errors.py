"""Every error and warning of asyncsgd, grouped by who caused it.

::

    AsyncSGDError
    ├── UsageError (also ValueError)      caused by the caller: fix the call
    │   ├── BadParameter                  an impossible value of an argument
    │   ├── BadEvent                      an event that cannot happen now (a worker that joins twice, ...)
    │   ├── BadStep                       a step rule returned something that is not a step, or raised a WorkerError
    │   ├── BadTask                       a task that breaks the contract of `Task`
    │   ├── BadConfig                     a configuration file with an unknown, missing or wrong key
    │   ├── TargetNotReached              no step size of a sweep reached the target
    │   ├── MissingLibrary                a library is not installed (also ModuleNotFoundError)
    │   ├── NoRun                         no run is in the directory (also BadRunDirectory)
    │   └── NotTrusted                    the directory of another user holds a pickle (also BadRunDirectory)
    ├── WorkerError                       caused by a worker: report its job as ``Lost(job, REJECTED)`` and continue
    │   ├── UnknownJob                    no such job was ever assigned
    │   ├── WrongWorker                   the job belongs to another worker
    │   ├── OutOfOrder                    a later job of the same worker came before an earlier one
    │   ├── EndedJob                      the job has ended already
    │   │   ├── RepeatedJob               ... because its update has arrived once
    │   │   └── CancelledJob              ... because the server cancelled it; harmless, drop the update
    │   └── BadUpdate                     the vector itself cannot be used
    │       ├── WrongType                 not a NumPy vector
    │       ├── WrongLength
    │       ├── WrongDtype
    │       ├── NotFinite                 NaN or infinity
    │       ├── BadMessage                bytes that are not an encoded update
    │       └── BadReply                  a Flower client's reply that does not hold an update
    ├── EngineError                       no worker can be started, or the cluster is gone
    ├── WorkersFailed                     the task fails again and again, or no worker is left
    ├── TornServer                        a part of the method raised half-way: the server's state is not consistent
    ├── BadRunDirectory                   not a run, a damaged one, or one that another process writes to
    │   ├── NoRun, NotTrusted             see above
    │   └── CannotWrite                   the disk is full or gone (also OSError)
    ├── BadCheckpoint                     a file that is not a checkpoint, or a damaged one
    ├── ReplayDiffers                     a replay that does not repeat its run
    ├── TraceError                        a record that contradicts itself
    │   ├── IdentityViolation             the delays do not add up to the concurrency
    │   └── BadTraceFile                  a file that is not a trace, or a damaged one
    └── BadEngine                         an engine that breaks the contract of `asyncsgd.engines.WorkerPool`

    UserWarning
    ├── BiasWarning                       the method favours fast workers, and the data are heterogeneous
    ├── DivergenceWarning                 a run diverged and was ended
    ├── EdgeWarning                       the best step size lies at the edge of the grid
    ├── LocalWorkWarning                  local work that is known to train badly
    └── LoggerWarning                     a logger failed; the run continues without it

    never seen by a caller
    ├── Stopped (BaseException)           leaves a job that the server no longer wants
    ├── Damage (Exception)                bytes of a file that are not what was written
    ├── Torn (Exception)                  a file that changed while it was read
    └── NotKept (Exception)               an update that the disk did not take

The exit code of a command follows this tree: 2 for a `UsageError`, 1 for every other error.

An object that raises one of these errors is unchanged. There is one exception: if a part of the method raises
half-way, the server refuses every later event with `TornServer`. Every message names the thing, its value and the fix.
"""

from __future__ import annotations

from typing import Any


class AsyncSGDError(Exception):
    """Base of every error that asyncsgd raises on purpose."""


class UsageError(AsyncSGDError, ValueError):
    """An error that the caller caused and can fix in the call."""


class BadParameter(UsageError):
    """An argument with a value that cannot work.

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


class BadTask(UsageError):
    """A task that breaks the contract of `asyncsgd.tasks.Task`."""


class BadConfig(UsageError):
    """A configuration file with an unknown, missing or wrong key."""


class TargetNotReached(UsageError):
    """No step size of the grid reached the target; ``.sweep`` is the `asyncsgd.simulation.Sweep` that was measured."""

    def __init__(self, message: str, sweep: Any) -> None:
        super().__init__(message)
        self.sweep = sweep

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.sweep)


class MissingLibrary(UsageError, ModuleNotFoundError):
    """A library that is not installed; most come with an extra of asyncsgd.

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
    """An error that a worker caused. The server is unchanged, and the job (if there is one) is still in flight."""


class UnknownJob(WorkerError):
    """An update or a loss was reported for a job that was never assigned."""


class WrongWorker(WorkerError):
    """A worker answered a job of another worker."""


class OutOfOrder(WorkerError):
    """A worker answered a later job before an earlier one."""


class EndedJob(WorkerError):
    """The job has ended already."""


class RepeatedJob(EndedJob):
    """The job's update has arrived before."""


class CancelledJob(EndedJob):
    """The server had cancelled the job and drops its update."""


class BadUpdate(WorkerError):
    """The server cannot apply the update."""


class WrongType(BadUpdate):
    """The update is not a one-dimensional NumPy array."""


class WrongLength(BadUpdate):
    """The update is longer or shorter than the model."""


class WrongDtype(BadUpdate):
    """The update's dtype is not the model's."""


class NotFinite(BadUpdate):
    """The update holds NaN or infinity."""


class BadMessage(BadUpdate):
    """Bytes that are not an encoded update."""


class BadReply(BadUpdate):
    """A Flower client's reply that cannot be used; the message says what is wrong with it."""


class EngineError(AsyncSGDError):
    """The engine itself cannot continue: no worker can be started, or the cluster is gone."""


class WorkersFailed(AsyncSGDError):
    """The user's code fails again and again, or no worker is left."""


class TornServer(AsyncSGDError):
    """A part of the method has raised half-way, so that the server's state is neither the old one nor the new one."""


class BadRunDirectory(AsyncSGDError):
    """A directory that is not a run, or a damaged one, or one that another process writes to."""


class NoRun(BadRunDirectory, UsageError):
    """A directory that does not exist or does not hold a run: the caller meant another one."""


class NotTrusted(BadRunDirectory, UsageError):
    """A directory that belongs to another user and contains a pickle, which can run any code."""


class CannotWrite(BadRunDirectory, OSError):
    """The disk is full or gone, or a file has reached its size limit."""


class BadCheckpoint(AsyncSGDError):
    """A file that is not a checkpoint, or a damaged one."""


class ReplayDiffers(AsyncSGDError):
    """The replay differs from the run; ``job`` and ``iteration`` say where, if an update was the first to differ."""

    def __init__(self, message: str, job: int | None = None, iteration: int | None = None) -> None:
        self.job, self.iteration = job, iteration
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.job, self.iteration)


class TraceError(AsyncSGDError):
    """A trace contradicts itself or cannot be read."""


class IdentityViolation(TraceError):
    """The delays do not add up to the concurrency, so some counter is wrong."""


class BadTraceFile(TraceError):
    """The file is not a trace, or it is damaged."""


class BadEngine(AsyncSGDError):
    """The engine breaks the contract of `asyncsgd.engines.WorkerPool`; the message begins with the scenario."""


# ---------------------------------------------------------------------------------------------- warnings


class BiasWarning(UserWarning):
    """The method favours fast workers although the data differ from worker to worker."""


class DivergenceWarning(UserWarning):
    """A run diverged and ended there; no numbers after that point are reported."""


class LocalWorkWarning(UserWarning):
    """Local work that is known to train badly, such as a few steps of an Adam that starts afresh in every job."""


class EdgeWarning(UserWarning):
    """The best step size is the smallest or the largest of the grid: a better one may lie outside."""


class LoggerWarning(UserWarning):
    """A logger has failed and writes nothing more; the run continues."""


# ---------------------------------------------------------------------------------------------- never seen by a caller


class Stopped(BaseException):
    """The server no longer wants the job. Not an ordinary exception, so that ``except Exception`` lets it through."""


class Damage(Exception):
    """Bytes of a file that differ from what was written. The text says where; the reader adds the file's name."""


class Torn(Exception):
    """The bytes read are inconsistent: the file changed during the read, or it is damaged."""


class NotKept(Exception):
    """The disk could not store an update. The client that sent the update did nothing wrong."""
