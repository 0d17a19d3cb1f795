"""Shared memory in slots: what one process writes the other reads, with few descriptors and nothing left over."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.engines._processes.shared_memory import Slots
from asyncsgd.testing.bench import Bowl


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_both_ends_see_the_same_numbers() -> None:
    ours = Slots.new("test", 3, np.float32)
    for slot in (5, 0, 2, 1, 63, 4):
        ours[slot][:] = slot
    theirs = Slots(os.dup(ours.descriptor), 3, np.float32, owner=False)
    for slot in (63, 4, 0, 1, 5, 2):
        assert theirs[slot].tolist() == [slot] * 3
        theirs[slot][1] = -1.0
        assert ours[slot].tolist() == [slot, -1.0, slot]
    theirs.close()
    ours.close()


def test_a_thousand_slots_need_few_descriptors() -> None:
    before = descriptors()
    slots = Slots.new("test", 5, np.float64)
    for slot in range(1000):
        slots[slot][:] = slot
    assert descriptors() - before <= 12
    assert [slots[slot][4] for slot in (0, 1, 499, 999)] == [0, 1, 499, 999]
    slots.close()
    assert descriptors() == before


def test_untouched_memory_costs_nothing() -> None:
    slots = Slots.new("test", 1 << 20, np.float64)
    slots[0][:] = 1.0
    slots[40][:] = 1.0
    used = 512 * os.fstat(slots.descriptor).st_blocks
    assert used <= 2 * 8 * (1 << 20) + (1 << 16)
    slots.close()


@pytest.mark.processes
def test_more_versions_in_flight_than_descriptors_are_usual() -> None:
    """Half as many descriptors as versions must do."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = descriptors() + 150
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
    try:
        method = asgd.federated_async_sgd(1e-4, concurrency=300)
        run = asgd.train(Bowl(5), method, engine=asgd.engines.processes(2), iterations=900, progress=False)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert run.trace.iterations == 900
