"""Callbacks that follow one metric: stop a run that no longer improves, and keep its best model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from asyncsgd._files import writing
from asyncsgd.core.errors import BadParameter, Damage
from asyncsgd.core.validate import count, nearest
from asyncsgd.core.vectors import Vector
from asyncsgd.format import number
from asyncsgd.run.callbacks.base import Callback, Control, LiveView
from asyncsgd.run.checkpoints import BackgroundCall
from asyncsgd.run.checksums import BEST
from asyncsgd.tasks.model_file import SAFETENSORS, check_path, named_arrays, read_facts, write_model

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun

SMALLER = frozenset(
    (
        *("loss", "error", "err", "perplexity", "ppl", "mse", "mae", "rmse", "nll", "entropy"),
        *("distance", "norm", "gap", "regret", "wer", "cer", "bpc", "bpb"),
    )
)
"""Words in the name of a metric that is better when it is smaller."""
LARGER = frozenset(
    (
        *("accuracy", "acc", "top1", "top5", "auc", "auroc", "f1", "precision", "recall"),
        *("iou", "dice", "bleu", "rouge", "r2", "reward"),
    )
)
"""Words in the name of a metric that is better when it is larger."""


def mode_of(metric: str, mode: str | None = None) -> str:
    """Return "min" or "max": the given mode, or the one that the words in the metric's name imply.

    Words are separated by anything but letters and digits. A name with one of the words loss, error, err, perplexity,
    ppl, mse, mae, rmse, nll, entropy, distance, norm, gap, regret, wer, cer, bpc, bpb means "min". A name with one of
    accuracy, acc, top1, top5, auc, auroc, f1, precision, recall, iou, dice, bleu, rouge, r2, reward means "max". Any
    other name, and one with words of both kinds, needs a mode.

    >>> mode_of("val_loss"), mode_of("accuracy"), mode_of("speed", "max")
    ('min', 'max', 'max')
    """
    if not isinstance(metric, str) or not metric.strip():
        raise BadParameter("metric", metric, "is not a name", 'pass the name of a metric of the task, such as "loss"')
    if mode is not None:
        if mode not in ("min", "max"):
            raise BadParameter("mode", mode, "is unknown", 'pass "min" or "max", or leave it out')
        return mode
    words = set(re.split(r"[^a-z0-9]+", metric.lower()))
    smaller, larger = bool(words & SMALLER), bool(words & LARGER)
    if smaller == larger:
        problem = f"does not follow from the name of the metric {metric!r}"
        raise BadParameter("mode", None, problem, 'pass "min" if smaller values are better, else "max"')
    return "min" if smaller else "max"


class Best(Callback):
    """Base of the callbacks that follow one metric: remembers its best value and that value's iteration."""

    def __init__(self, metric: str, mode: str | None) -> None:
        self.mode = mode_of(metric, mode)
        self.metric = metric
        self.best: float | None = None
        """The best value so far; None before the first evaluation."""
        self.iteration: int | None = None
        """The iteration of the best value."""
        self._loaded = False

    def options(self) -> dict[str, Any]:
        """Return the options of the callback, for run.json."""
        return {"metric": self.metric, "mode": self.mode}

    def on_start(self, view: LiveView) -> None:
        """Forget an earlier run, unless this one continues it."""
        if not self._loaded:
            self.best = self.iteration = None
            self._reset()
        self._loaded = False

    def _reset(self) -> None:
        """Forget what a subclass remembers."""

    def require(self, metrics: Mapping[str, Any]) -> None:
        """Raise if the metric is not among these."""
        if self.metric not in metrics:
            names = ", ".join(metrics) or "none"
            fix = f"{nearest(self.metric, list(metrics))} (the metrics are: {names})"
            raise BadParameter("metric", self.metric, "is not among the task's metrics", fix)

    def _has_value(self, metrics: Mapping[str, float]) -> bool:
        """Return whether an evaluation measured the metric. Raise if it did not, and none before did."""
        if self.best is None:
            self.require(metrics)
        return self.metric in metrics

    def _improves(self, view: LiveView, metrics: Mapping[str, float]) -> bool:
        """Return whether an evaluation is the best so far, and remember it."""
        value = float(metrics[self.metric])
        better = self.best is None or (value < self.best if self.mode == "min" else value > self.best)
        if better and math.isfinite(value):
            self.best, self.iteration = value, view.iteration
            return True
        return False

    def state(self) -> dict[str, Any]:
        """Return the metric, its mode, its best value and that value's iteration."""
        return {"metric": self.metric, "mode": self.mode, "best": self.best, "iteration": self.iteration}

    def load(self, state: dict[str, Any]) -> str | None:
        """Continue with the best value of the run; one of another metric is of no use."""
        self.best = self.iteration = None
        self._reset()
        self._loaded = True
        if (state["metric"], state["mode"]) != (self.metric, self.mode):
            then, now = f"{state['metric']} ({state['mode']})", f"{self.metric} ({self.mode})"
            return f"{type(self).__name__} followed {then} before this resume and follows {now} now: it starts afresh"
        self.best, self.iteration = state["best"], state["iteration"]
        return None


class EarlyStopping(Best):
    """Stop a run whose metric has not improved for several evaluations.

    Args:
        metric: The name of a metric that the task's ``evaluate`` returns, such as ``"loss"``.
        patience: The number of evaluations in a row without a new best value after which the run stops. How often the
            task is evaluated is ``every`` of `asyncsgd.train`.
        mode: ``"min"`` if smaller values are better, ``"max"`` if larger ones are. By default the words in the name
            decide: loss, error, perplexity, mse, distance, norm and the like mean "min"; accuracy, acc, auc, f1,
            precision, recall, bleu and the like mean "max". Any other name needs a mode.

    An evaluation that did not measure the metric does not count; the first one must. A resumed run continues to count
    where its checkpoint stood. To continue a run that was stopped, resume it with
    more patience. ``best`` and ``iteration`` are the best value so far and its iteration, ``waited`` the number of
    evaluations since. See also docs/howto/callback.md.

    >>> import asyncsgd as asgd
    >>> task, engine = asgd.tasks.quadratic(workers=2, noise=1.0), asgd.engines.processes(2)
    >>> stop = asgd.callbacks.EarlyStopping("loss", patience=3)
    >>> run = asgd.train(task, asgd.async_sgd(0.1), engine, iterations=9000, callbacks=[stop], progress=False)
    >>> run.trace.iterations < 9000
    True
    >>> run.stopped_early
    'loss has not improved for 3 evaluations; its best value is ... of iteration ...'
    """

    def __init__(self, metric: str, *, patience: int = 5, mode: str | None = None) -> None:
        count("patience", patience)
        super().__init__(metric, mode)
        self.patience = int(patience)
        self.waited = 0
        """The number of evaluations since the best value."""

    def __repr__(self) -> str:
        return f"EarlyStopping({self.metric!r}, patience={self.patience}, mode={self.mode!r})"

    def options(self) -> dict[str, Any]:
        """Return the options of the callback, for run.json."""
        return {**super().options(), "patience": self.patience}

    def _reset(self) -> None:
        self.waited = 0

    def on_evaluation(self, view: LiveView, metrics: Mapping[str, float], control: Control) -> None:
        """Count evaluations without improvement; stop the run after ``patience`` of them."""
        if not self._has_value(metrics):
            return
        self.waited = 0 if self._improves(view, metrics) else self.waited + 1
        if self.waited >= self.patience and view.iteration < view.wanted:  # else the run ends anyway
            often = "1 evaluation" if self.waited == 1 else f"{self.waited} evaluations"
            best = "" if self.best is None else f"its best value is {number(self.best)} of iteration {self.iteration}"
            control.stop(f"{self.metric} has not improved for {often}; {best}")

    def state(self) -> dict[str, Any]:
        """Return what `Best` remembers, and the evaluations since the best value."""
        return {**super().state(), "waited": self.waited}

    def load(self, state: dict[str, Any]) -> str | None:
        """Continue to count."""
        note = super().load(state)
        if note is None:
            self.waited = state["waited"]
        return note


Model = tuple[Vector, dict[str, NDArray[Any]] | None]
"""A flat model, and the arrays that its task names itself, if it does."""


class SaveBest(Best):
    """Write the model of the best evaluation to a safetensors file, whenever there is a better one.

    Args:
        metric: The name of a metric that the task's ``evaluate`` returns, such as ``"accuracy"``.
        mode: ``"min"`` if smaller values are better, ``"max"`` if larger ones are; by default the name decides, as for
            `EarlyStopping`.
        path: The file, a name that ends in .safetensors; by default ``best.safetensors`` in the directory of the run,
            which `asyncsgd verify` then checks too.

    The file has all arrays of the evaluated model, in their own dtypes and shapes, under the names of the module's
    state_dict or of Flower's ``initial_arrays``, BatchNorm's statistics included. Other tasks give the names of their
    ``layout()``, or one vector, ``x``. Tied weights are there once. Load the file with
    ``safetensors.torch.load_model(model, path)``, or let ``asyncsgd export DIR model.pt --best`` write a state_dict.
    Metadata of the file: ``metric``, ``value``, ``iteration``.

    The loop only copies the model. Another thread writes it while updates arrive, and replaces the file as a whole. A
    better model that comes meanwhile is written next; of several, only the best one. A checkpoint waits for the file,
    so that after a kill it never knows of a better model than the file holds; so does the end of the run. Before a run
    starts, `asyncsgd.train` counts four copies of the model for this.

    ``best`` and ``iteration`` are the best value so far and its iteration, ``file`` is the path. A resumed run replaces
    the file only by a better model. If the run was killed, the file may hold a model that came after the last
    checkpoint; it is kept until there is a better one.

    >>> import tempfile
    >>> import asyncsgd as asgd
    >>> task, engine = asgd.tasks.quadratic(workers=2), asgd.engines.processes(2)
    >>> keep = asgd.callbacks.SaveBest("loss")
    >>> options = {"iterations": 100, "directory": tempfile.mkdtemp(), "progress": False}
    >>> run = asgd.train(task, asgd.async_sgd(0.1), engine, callbacks=[keep], **options)
    >>> keep.file.name, keep.best == float(run.metrics["loss"].min())
    ('best.safetensors', True)
    """

    def __init__(self, metric: str, *, mode: str | None = None, path: str | PathLike[str] | None = None) -> None:
        super().__init__(metric, mode)
        self.path = None if path is None else check_path(path, formats=(SAFETENSORS,))
        self.file: Path | None = self.path
        """The file that is written; known once a run has started."""
        self._waiting: tuple[LiveView, Model] | None = None  # the initial model, before the first checkpoint
        # The thread of `_writer` owns the model that it writes. Everything else belongs to the loop's thread.
        self._writer: BackgroundCall[Path] = BackgroundCall("asyncsgd-best-model")
        self._next: Callable[[], Path] | None = None  # writes the model that comes after the one that is being written

    def __repr__(self) -> str:
        path = "" if self.path is None else f", path={str(self.path)!r}"
        return f"SaveBest({self.metric!r}, mode={self.mode!r}{path})"

    def options(self) -> dict[str, Any]:
        """Return the options of the callback, for run.json."""
        return {**super().options(), "path": None if self.path is None else str(self.path)}

    def target(self, directory: Path | None) -> Path | None:
        """Return the file of a run in this directory; None if there is no place for it."""
        return self.path if self.path is not None else None if directory is None else directory / BEST

    def on_start(self, view: LiveView) -> None:
        """Find the file; in a resumed run, take the value to beat from it."""
        super().on_start(view)
        self.file, self._waiting, self._next = self.target(view.directory), None, None
        if view.resumed_at is not None:
            self._compare_file()

    def _compare_file(self) -> None:
        """Trust the file rather than the checkpoint: a kill may have come between the two, and a user may move it."""
        assert self.file is not None
        try:
            facts = read_facts(self.file)
            same = (facts.get("metric"), facts.get("mode")) == (self.metric, self.mode)
            self.best, self.iteration = (float(facts["value"]), int(facts["iteration"])) if same else (None, None)
        except (Damage, KeyError, ValueError):  # the next evaluation writes it again
            self.best = self.iteration = None

    def on_evaluation(self, view: LiveView, metrics: Mapping[str, float], control: Control) -> None:
        """Write the evaluated model if it is the best one."""
        if not self._has_value(metrics) or not self._improves(view, metrics):
            return
        x = view.x
        model = x, named_arrays(view.task, x)  # now: what is not in x may change before another thread writes it
        self._waiting = None
        if view.iteration == 0 and view.resumed_at is None and self.path is None:
            self._waiting = view, model  # the directory has no run yet, and a refused start must leave nothing there
        else:
            self._write(view, model)

    def on_checkpoint(self, view: LiveView, path: Path) -> None:
        """Write the initial model, if no better one has come."""
        if self._waiting is not None:
            first, model = self._waiting
            self._waiting = None
            self._write(first, model)

    def _write(self, view: LiveView, model: Model) -> None:
        assert self.file is not None
        facts = {
            "metric": self.metric,
            "mode": self.mode,
            "value": repr(self.best),
            "iteration": str(self.iteration),
            "method": str(view.config.get("method_name", "")),
            "task": str(view.config.get("task", "")),
        }
        file, task, private, (x, arrays) = self.file, view.task, self.path is None, model

        def write() -> Path:
            with writing(file.parent):
                return write_model(file, task, x, facts, private=private, arrays=arrays)

        self._next = write
        self._advance()

    def _advance(self, *, wait: bool = False) -> None:
        """Start to write the next model unless one is being written; raise the error of one that was not written."""
        self._writer.result(wait=wait)
        if self._next is not None and not self._writer.busy:
            write, self._next = self._next, None
            self._writer.start(write)
            self._writer.result(wait=wait)

    @property
    def _writing(self) -> bool:
        return self._next is not None or self._writer.busy

    def state(self) -> dict[str, Any]:
        """Return what `Best` remembers, once the file holds that model: a checkpoint must not know of a better one."""
        self._advance(wait=True)
        return super().state()

    def on_progress(self, view: LiveView) -> None:
        """Continue with a model that has waited, and report an error such as a full disk."""
        self._advance()

    def on_end(self, run: TrainingRun) -> None:
        """Wait for the file, so that a later callback can read it."""
        self._advance(wait=True)

    def close(self) -> None:
        """Wait for the file, also if the run has failed."""
        self._advance(wait=True)


def check_files(callbacks: Sequence[Callback], directory: Path | None) -> None:
    """Refuse best models that have no place, or the same one. Called before a worker starts."""
    taken: dict[Path, SaveBest] = {}
    for callback in callbacks:
        if not isinstance(callback, SaveBest):
            continue
        file = callback.target(directory)
        if file is None:
            fix = 'pass SaveBest(..., path="best.safetensors"), or the directory of the run'
            raise BadParameter("path", None, "is missing, because the run has no directory", fix)
        other = taken.setdefault(file.resolve(), callback)
        if other is not callback:
            raise BadParameter("path", str(file), f"is written by {other!r} too", "give each its own path")


def described(callbacks: Sequence[Callback]) -> dict[str, Any]:
    """Return the entry of run.json about callbacks that `remade` can make again; empty if there are none."""
    rows = [{"kind": type(one).__name__, **one.options()} for one in callbacks if isinstance(one, Best)]
    return {"callbacks": rows} if rows else {}


def remade(config: Mapping[str, Any]) -> list[Callback]:
    """Return the callbacks that `described` was given, from run.json.

    >>> remade(described([EarlyStopping("loss", patience=2)]))
    [EarlyStopping('loss', patience=2, mode='min')]
    """
    kinds: dict[str, Any] = {"EarlyStopping": EarlyStopping, "SaveBest": SaveBest}
    return [
        kinds[row["kind"]](**{name: value for name, value in row.items() if name != "kind"})
        for row in config.get("callbacks", ())
        if row["kind"] in kinds
    ]
