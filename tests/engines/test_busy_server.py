"""A server that is busy for longer than a job may take does not kill workers that answered meanwhile."""

from __future__ import annotations

import select
import time
from pathlib import Path
from typing import Any

import pytest
from engines.subject import GUARD

from asyncsgd.engines import Died, processes
from asyncsgd.engines._processes import pool as module
from asyncsgd.engines._processes.pool import ProcessPool
from asyncsgd.testing import Abilities
from asyncsgd.testing.bench import Setting

pytestmark = pytest.mark.processes


class LaterClock:
    """The time module, as it looks an hour after."""

    def __getattr__(self, name: str) -> Any:
        return getattr(time, name)

    def monotonic(self) -> float:
        return time.monotonic() + 3600


def test_answers_count_before_the_clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setting = Setting(processes, Abilities(), GUARD, tmp_path)
    with setting.bench(1, {}, job_timeout=600.0) as bench:
        bench.until_all_there()
        [job] = bench.give(0, 1)
        inner = bench.pool._pool
        assert isinstance(inner, ProcessPool)
        assert select.select([inner._outbox], [], [], GUARD)[0]  # reported, and not read yet
        monkeypatch.setattr(module, "time", LaterClock())
        bench.until_ended([job])
        bench.expect(job, "arrived")
        assert not any(isinstance(report, Died) for report in bench.reports)
