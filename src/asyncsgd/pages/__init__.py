"""Self-contained HTML pages about runs, plans and experiments, and figures for papers.

``report`` writes the page of runs · ``sources`` gathers the runs · ``run_page``, ``sections`` and ``js``
compose the page · ``page_data``, ``theory_comparison`` compute its numbers · ``page`` is any page · ``figures`` draws
with matplotlib.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = ["report"]


def report(runs: Any, path: str | Path = "report.html", *, title: str = "", task: Any = None) -> Path:
    """Write one self-contained HTML page about runs, and return its path.

    Args:
        runs: A run (simulated or trained), a comparison, a trace, the directory of a run or a folder of such; or
            several of these in a list, or in a dict that names them.
        path: The path of the page.
        title: The heading of the page; by default made from the runs.
        task: The task of simulated runs. With its constants the page compares the runs with the theorems' bounds.

    >>> import asyncsgd as asgd, tempfile
    >>> task, speeds = asgd.tasks.quadratic(workers=2), asgd.durations.fixed([1, 16])
    >>> run = asgd.simulate(task, asgd.async_sgd(0.1), speeds, iterations=100)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     asgd.report({"mine": run}, f"{folder}/report.html", task=task).name
    'report.html'

    See docs/tutorial.md for what the page of a run shows.
    """
    from asyncsgd.pages.run_page import write as write_page
    from asyncsgd.pages.sources import gather

    return write_page(gather(runs, task), Path(path), title)
