"""The forecast against training: a noisy quadratic on the workers of the example, every method at its best step."""

from pathlib import Path

import pytest

import asyncsgd as asgd

EXAMPLE = Path(__file__).parents[2] / "examples" / "durations.csv"


def test_relative_times_to_accuracy_are_those_of_training():
    plan = asgd.plan(EXAMPLE)
    task = asgd.tasks.quadratic(dim=10, workers=12, noise=1.0)
    durations = asgd.durations.from_csv(EXAMPLE)
    grid = asgd.grid(5e-3, 0.1, 14)
    trained = {}
    for row in plan.best():
        if row.candidate.workers == row.candidate.total:
            found = asgd.sweep(
                task,
                row.candidate.build,
                durations,
                stepsizes=grid,
                iterations=3000,
                target=0.15,
                seeds=range(6),
                metric="gradient_norm",
            )
            assert not found.on_edge
            trained[row.candidate.method] = found.best_time
    base = plan.baseline
    for row in plan.best():
        if row.candidate.method in trained and row.candidate.workers == row.candidate.total:
            forecast = row.seconds_to_target / base.seconds_to_target
            measured = trained[row.candidate.method] / trained[base.candidate.method]
            assert forecast == pytest.approx(measured, rel=0.3), row.label
    fastest = min(trained, key=trained.get)
    assert trained[plan.recommended.candidate.method] <= 1.1 * trained[fastest]
