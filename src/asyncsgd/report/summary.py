"""The numbers of a run, for the top of its page and for programs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from asyncsgd.core.events import Outcome
from asyncsgd.report.subject import AXES, Subject


def row(subject: Subject) -> dict[str, Any]:
    """What JSON knows; None where there is no such number."""
    trace, delays = subject.trace, subject.trace.delays
    seconds = subject.elapsed
    diagnosis = subject.diagnosis
    return {
        "name": subject.name,
        "method": subject.method,
        "task": subject.task,
        "state": subject.state.words,
        "iterations": trace.iterations,
        "seconds": _plain(seconds),
        "updates_per_second": _plain(trace.iterations / seconds) if seconds > 0 else None,
        "metrics": last_metrics(subject),
        "average_delay": _plain(delays.average),
        "maximum_delay": delays.maximum,
        "concurrency": delays.concurrency,
        "mean_concurrency": delays.mean_concurrency,
        "workers": len(set(trace.jobs.worker.tolist())),
        "jobs": {word(outcome): number for outcome, number in trace.counts.items()},
        "facts": list(diagnosis.facts) if diagnosis else [],
        "problems": list(diagnosis.problems) if diagnosis else [],
    }


def last_metrics(subject: Subject) -> dict[str, float | None]:
    """Every metric when it was last measured."""
    return {
        name: _plain(float(values[-1])) for name, values in subject.metrics.items() if name not in AXES and len(values)
    }


def word(outcome: Outcome) -> str:
    """As it is spoken of: ``in flight``."""
    return outcome.name.lower().replace("_", " ")


def wasted(subject: Subject) -> dict[str, int]:
    """The jobs that came to nothing, by what became of them."""
    counts = subject.trace.counts
    return {word(kind): counts[kind] for kind in Outcome if kind > Outcome.APPLIED and counts[kind]}


def figure(value: float | None, digits: int = 4) -> str:
    """A number as the page shows it: four digits, thousands set apart, whole ones in full.

    >>> figure(2000.0), figure(0.11884), figure(12345.678), figure(1.5e-7), figure(None)
    ('2,000', '0.1188', '12,346', '1.5e-07', '–')
    """
    if value is None or not math.isfinite(value):
        return "–" if value is None or math.isnan(value) else "∞"
    if value == int(value) and abs(value) < 1e9:
        return f"{int(value):,}"
    if abs(value) >= 1000:
        return f"{value:,.0f}" if abs(value) < 1e9 else f"{value:.3g}"
    return f"{value:.{digits}g}"


def span(seconds: float | None) -> str:
    """Seconds in a unit that suits them.

    >>> span(0.0123), span(8.94), span(5400.0), span(None)
    ('12.3 ms', '8.94 s', '1.5 h', '–')
    """
    if seconds is None or not math.isfinite(seconds):
        return "–"
    for unit, name in ((3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= unit * (1 if unit <= 1 else 1.5) or unit == 1e-6:
            return f"{seconds / unit:.3g} {name}"
    raise AssertionError(seconds)


def lead(subjects: Sequence[Subject]) -> str:
    """One sentence under the title."""
    if len(subjects) > 1:
        return "The same axes, colours and clock for all; every number comes from the runs’ own records."
    numbers = row(subjects[0])
    team = f"{numbers['workers']:,} worker{'s' if numbers['workers'] != 1 else ''}"
    during = f" in {span(numbers['seconds'])}" if numbers["seconds"] is not None else ""
    return f"{numbers['iterations']:,} updates by {team}{during}."


def title(subjects: Sequence[Subject]) -> str:
    """What the page is called if nobody says."""
    if len(subjects) > 1:
        return f"{len(subjects)} runs side by side"
    subject = subjects[0]
    name = subject.method or subject.name
    return f"{name} on {subject.task}" if subject.task else name


def _plain(value: float) -> float | None:
    return value if math.isfinite(value) else None
