"""Every claim of the paper, measured in worker processes side by side, judged, and drawn."""

from __future__ import annotations

import math
import multiprocessing
import pkgutil
import re
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.experiments.common import Claim, Figure, Table
from asyncsgd.pages import figures

Progress = Callable[[int, float], None]
"""Called with a claim's number and the share of it that is done."""

UNJUDGED = "could not be judged"


@dataclass(frozen=True)
class Experiment:
    """A file that checks one claim: ``claim03_speed_up.py`` is number 3."""

    number: int
    name: str
    module: str


@dataclass(frozen=True)
class Drawing:
    """A figure that has been drawn, as SVG text: this can travel between processes."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Judged:
    """A claim with its figures drawn, or the error that kept it from being judged."""

    number: int
    title: str
    verdict: str
    paper: str = ""
    measured: str = ""
    summary: str = ""
    refuted_by: str = ""
    why: str = ""
    values: dict[str, Any] = field(default_factory=dict)
    tables: tuple[Table, ...] = ()
    drawings: tuple[Drawing, ...] = ()
    error: str = ""
    """The traceback of a claim that could not be judged."""
    seconds: float = 0.0
    """How long it took."""


def experiments(only: Sequence[int] | None = None) -> tuple[Experiment, ...]:
    """The files of this package that check a claim, by number; only those with the numbers given, if any are."""
    package = import_module("asyncsgd.experiments")
    names = sorted(module.name for module in pkgutil.iter_modules(package.__path__))
    found = [
        Experiment(int(m[1]), m[2].replace("_", " "), f"{package.__name__}.{m[0]}") for m in map(_split, names) if m
    ]
    if only is None:
        return tuple(found)
    known = [experiment.number for experiment in found]
    for number in only:
        if number not in known:
            raise BadParameter("only", number, "is not a claim", f"pass some of {', '.join(map(str, known))}")
    return tuple(experiment for experiment in found if experiment.number in only)


def _split(name: str) -> re.Match[str] | None:
    return re.fullmatch(r"claim(\d+)_(\w+)", name)


def run(
    chosen: Sequence[Experiment], output: str | Path, *, processes: int = 2, progress: Progress = lambda *_: None
) -> list[Judged]:
    """Check the claims, ``processes`` at a time; their figures go to ``output`` as PNG and SVG. In order of number.

    A claim that raises is reported as such and does not keep the others from being judged.
    """
    with figures.figure():  # without matplotlib this fails now, not after minutes
        pass
    folder = Path(output)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"output = {str(folder)!r} can't be a folder ({error}); pass another one") from error
    if processes == 1 or len(chosen) == 1:
        done = [judge(one, folder, partial(progress, one.number)) for one in chosen]
    else:
        done = _side_by_side(chosen, folder, processes, progress)
    return sorted(done, key=lambda judged: judged.number)


def judge(experiment: Experiment, folder: Path, progress: Callable[[float], None]) -> Judged:
    """Check one claim and draw its figures; whatever goes wrong in it becomes part of the report."""
    begin = time.perf_counter()
    try:
        claim: Claim = import_module(experiment.module).check(progress)
        drawings = tuple(_draw(figure, folder) for figure in claim.figures)
        values = plain(claim.values)
    except Exception:
        return _unjudged(experiment, traceback.format_exc(), time.perf_counter() - begin)
    progress(1.0)
    return Judged(
        number=claim.number,
        title=claim.title,
        verdict=str(claim.verdict),
        paper=claim.paper,
        measured=claim.measured,
        summary=claim.summary,
        refuted_by=claim.refuted_by,
        why=claim.why,
        values=values,
        tables=claim.tables,
        drawings=drawings,
        seconds=time.perf_counter() - begin,
    )


def _unjudged(experiment: Experiment, error: str, seconds: float = 0.0) -> Judged:
    last = error.strip().splitlines()[-1]
    measured = f"Nothing: the experiment stopped with {last}"
    return Judged(experiment.number, experiment.name, UNJUDGED, measured=measured, error=error, seconds=seconds)


def _draw(figure: Figure, folder: Path) -> Drawing:
    with figures.figure(figure.columns, figure.rows, figure.width, figure.height) as (fig, axes):
        figure.draw(fig, axes)
        figures.save(fig, folder / figure.name)
        return Drawing(figure.name, figure.caption, figures.svg(fig, figure.name))


def plain(value: Any) -> Any:
    """The same numbers as JSON knows them: no NumPy, and None for what is not finite.

    >>> plain({"slope": np.float64(0.5), "never": math.inf, "steps": np.arange(2)})
    {'slope': 0.5, 'never': None, 'steps': [0, 1]}
    """
    if isinstance(value, dict):
        return {str(key): plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if value is None or isinstance(value, bool | int | str):
        return value
    raise TypeError(f"values hold {value!r}, which JSON does not know; use numbers, strings, lists and dicts")


# ---------------------------------------------------------------------------------------------- in worker processes


def _side_by_side(chosen: Sequence[Experiment], folder: Path, processes: int, progress: Progress) -> list[Judged]:
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    news = context.SimpleQueue()
    listener = Thread(target=_listen, args=(news, progress), daemon=True)
    listener.start()
    try:
        done, lost = _in_pool(chosen, folder, processes, context, news)
        for experiment in lost:  # one of those that ran together took the others with it
            alone, again = _in_pool([experiment], folder, 1, context, news)
            died = "the process that ran it died; it may have needed more memory than there is"
            done += alone + [_unjudged(one, died) for one in again]
    finally:
        news.put(None)
        listener.join()
    return done


def _in_pool(
    chosen: Sequence[Experiment], folder: Path, processes: int, context: Any, news: Any
) -> tuple[list[Judged], list[Experiment]]:
    """What was judged, and what was not since a process died."""
    done: list[Judged] = []
    lost: list[Experiment] = []
    with ProcessPoolExecutor(processes, mp_context=context, initializer=_start, initargs=(news,)) as pool:
        try:
            # Two processes compile different halves of the simulator, which the cache then gives to both.
            wait([pool.submit(_compile, width) for width in (1, 16)[:processes]])
            jobs = {pool.submit(_judge_there, experiment, folder): experiment for experiment in chosen}
            for job in as_completed(jobs):
                try:
                    done.append(job.result())
                except BrokenProcessPool:
                    lost.append(jobs[job])
        except BaseException:  # Ctrl-C: what has not begun is not worth beginning
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done, sorted(lost, key=lambda experiment: experiment.number)


def _listen(news: Any, progress: Progress) -> None:
    while (message := news.get()) is not None:
        progress(*message)


_news: Any = None


def _start(news: Any) -> None:
    """Set up a worker process: where it reports its progress, and that Ctrl-C ends it at once without a message."""
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _judge_there(experiment: Experiment, folder: Path) -> Judged:
    return judge(experiment, folder, lambda share: _news.put((experiment.number, share)))


def _compile(width: int) -> None:
    """Have the simulator compiled, or loaded from the cache, for one lane or for many."""
    from asyncsgd import methods, tasks
    from asyncsgd.simulation import durations, simulate, sweep

    task, speeds = tasks.quadratic(workers=2), durations.fixed([1.0, 2.0])
    if width == 1:
        simulate(task, methods.async_sgd(0.1), speeds, iterations=2)
    else:
        sweep(task, methods.async_sgd, speeds, stepsizes=np.linspace(0.01, 1.0, width), iterations=2)
