"""Measure, judge and draw every claim of the paper, in parallel worker processes."""

from __future__ import annotations

import json
import multiprocessing
import pkgutil
import re
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.experiments.common import Claim, Drawing, Figure, Verdict
from asyncsgd.format import jsonable
from asyncsgd.pages import figures

Progress = Callable[[int, float], None]
"""Called with a claim's number and the share of it that is done."""


@dataclass(frozen=True)
class Experiment:
    """A file that checks one claim: ``claim03_speed_up.py`` is number 3."""

    number: int
    name: str
    module: str


def experiments(only: Sequence[int] | None = None) -> tuple[Experiment, ...]:
    """Return the files of this package that check a claim, by number: all, or those with the given numbers."""
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
) -> list[Claim]:
    """Check the claims, ``processes`` at a time, and return them by number; their figures go to ``output``.

    A claim that raises an error is reported as such and does not keep the others from being judged.
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


def judge(experiment: Experiment, folder: Path, progress: Callable[[float], None]) -> Claim:
    """Check one claim and draw its figures. An error in it becomes part of the report."""
    begin = time.perf_counter()
    try:
        claim: Claim = import_module(experiment.module).check(progress)
        drawings = tuple(_draw(figure, folder) for figure in claim.figures)
        values = json.loads(json.dumps(jsonable(claim.values), allow_nan=False))  # fails here if it is not JSON
    except Exception:
        return _unjudged(experiment, traceback.format_exc(), time.perf_counter() - begin)
    progress(1.0)
    return replace(claim, figures=(), drawings=drawings, values=values, seconds=time.perf_counter() - begin)


def _unjudged(experiment: Experiment, error: str, seconds: float = 0.0) -> Claim:
    last = error.strip().splitlines()[-1]
    measured = f"Nothing: the experiment stopped with {last}"
    return Claim(experiment.number, experiment.name, Verdict.UNJUDGED, measured=measured, error=error, seconds=seconds)


def _draw(figure: Figure, folder: Path) -> Drawing:
    with figures.figure(figure.columns, figure.rows, figure.width, figure.height) as (fig, axes):
        figure.draw(fig, axes)
        figures.save(fig, folder / figure.name)
        return Drawing(figure.name, figure.caption, figures.svg(fig, figure.name))


# ---------------------------------------------------------------------------------------------- in worker processes


def _side_by_side(chosen: Sequence[Experiment], folder: Path, processes: int, progress: Progress) -> list[Claim]:
    context = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    news = context.SimpleQueue()
    listener = Thread(target=_listen, args=(news, progress), daemon=True)
    listener.start()
    try:
        done, lost = _in_pool(chosen, folder, processes, context, news)
        for experiment in lost:  # a process that dies ends the whole pool, so run each of its claims alone
            alone, again = _in_pool([experiment], folder, 1, context, news)
            died = "the process that ran it died; it may have needed more memory than there is"
            done += alone + [_unjudged(one, died) for one in again]
    finally:
        news.put(None)
        listener.join()
    return done


def _in_pool(
    chosen: Sequence[Experiment], folder: Path, processes: int, context: Any, news: Any
) -> tuple[list[Claim], list[Experiment]]:
    """Return the judged claims, and the experiments that were not judged because a process died."""
    done: list[Claim] = []
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
        except BaseException:  # Ctrl-C: do not start the waiting claims
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done, sorted(lost, key=lambda experiment: experiment.number)


def _listen(news: Any, progress: Progress) -> None:
    while (message := news.get()) is not None:
        progress(*message)


_news: Any = None


def _start(news: Any) -> None:
    """Set up a worker process: it reports its progress to ``news``, and Ctrl-C ends it without a message."""
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _judge_there(experiment: Experiment, folder: Path) -> Claim:
    return judge(experiment, folder, lambda share: _news.put((experiment.number, share)))


def _compile(width: int) -> None:
    """Compile the simulator, or load it from the cache, for one lane or for many."""
    from asyncsgd import methods, tasks
    from asyncsgd.simulation import durations, simulate, sweep

    task, speeds = tasks.quadratic(workers=2), durations.fixed([1.0, 2.0])
    if width == 1:
        simulate(task, methods.async_sgd(0.1), speeds, iterations=2)
    else:
        sweep(task, methods.async_sgd, speeds, stepsizes=np.linspace(0.01, 1.0, width), iterations=2)
