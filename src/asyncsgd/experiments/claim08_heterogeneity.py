"""Claim 8: the cost of single workers' delays if data differ, and the methods that converge to the wrong point.

The measurements are in `asyncsgd.experiments.late_workers` and `asyncsgd.experiments.bias`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial

import numpy as np

from asyncsgd.experiments import bias, late_workers
from asyncsgd.experiments.bias import ADAPTIVE, BUSY, DROP, FAIR, OVER, SAME, STEPS, Bias
from asyncsgd.experiments.common import Claim, Figure, Table, Verdict
from asyncsgd.experiments.late_workers import Placement, pairs

CHANCE, FINITE = 2.0, 0.002
"""A distance differs from 0 if it exceeds 2 times its noise (in many dimensions chance alone gives about 1), plus this
much for a step that is not 0. Two distances differ along one dimension if they differ by 2 times their noise over
√dim."""


def judge(placements: Sequence[Placement], biases: Sequence[Bias]) -> tuple[Verdict, str]:
    """Return "holds" if the error follows Theorem 3 and delay-adaptive steps bias less than over-selection."""
    # “not <=” and not “>”: NaN is a failure too.
    end = {(row.pattern, row.method): row.distances[-1] for row in biases}
    noise = {(row.pattern, row.method): CHANCE * row.noise + FINITE for row in biases}
    others = [row.error for row in placements if not row.on_late]
    failures = {
        "above Theorem 3's bound": [row.pattern for row in placements if not row.mean <= row.bound],
        "τ_max matters for those who are not late": [] if max(others) <= 1.15 * min(others) else ["yes"],
        "not at the predicted limit": [
            f"{row.pattern}, {row.method}"
            for row in biases
            if not abs(row.distances[-1] - row.predicted) <= noise[row.pattern, row.method]
        ],
        "Algorithm 2 biased at a constant step": [p for (p, m), d in end.items() if m == FAIR and not d <= noise[p, m]],
        "which does not shrink with the step": [
            r.pattern
            for r in biases
            if r.method == FAIR and len(r.steps) > 1 and not r.distances[-1] <= r.distances[0] / 2
        ],
        "delay-adaptive steps biased though no worker is slower": [
            p for (p, m), d in end.items() if m == ADAPTIVE and p == SAME and not d <= noise[p, m]
        ],
        "delay-adaptive steps not biased": [
            p for (p, m), d in end.items() if m == ADAPTIVE and p != SAME and not d > noise[p, m]
        ],
    }
    if any(failures.values()):
        return Verdict.FAILS, "; ".join(f"{what}: {', '.join(cases)}" for what, cases in failures.items() if cases)
    why = []
    strays = []
    for name, (late, other) in pairs(placements).items():
        error, term = late.error / other.error, (late.delay + 1) / (other.delay + 1)
        if abs(np.log(term)) > 0.4 and np.log(error) / np.log(term) < 0.1:
            strays.append(f"{name}: τ^i_avg + 1 is {term:.1f} times as large, the error {error:.2f} times")
    if strays:
        why.append(
            f"Theorem 3's bound holds, but the error does not follow its τ^i_avg ({'; '.join(strays)}). On a quadratic "
            "it matters whether a worker's gradients come in bursts: one that was away delivers a pile of jobs at "
            "once and pulls the model to its own data; one that is slow at a steady pace does not. The variance of a "
            f"worker's arrivals within 1/(ηλ) iterations predicts the error to within {_miss(placements):.0%}."
        )
    apart = {(row.pattern, row.method): CHANCE * row.noise / np.sqrt(bias.DIM) for row in biases}
    more = [
        p
        for p, m in end
        if m == ADAPTIVE and p != SAME and not end[p, m] + np.hypot(apart[p, m], apart[p, OVER]) < end[p, OVER]
    ]
    if more:
        listed = "; ".join(f"{p}: {end[p, ADAPTIVE]:.3f} against {end[p, OVER]:.3f}" for p in more)
        why.append(f"Delay-adaptive steps are not found to bias less than over-selection everywhere ({listed}).")
    return (Verdict.CORRECTED, " ".join(why)) if why else (Verdict.HOLDS, "")


def check(progress: Callable[[float], None]) -> Claim:
    """Measure both parts."""
    late = list(late_workers.patterns([]))
    wanted = [(late[0], False), *((pattern, on_late) for pattern in late[1:] for on_late in (True, False))]
    cases = [(pattern, method) for pattern in bias.patterns() for method in bias.METHODS]
    main = cases[0][0]
    placements: list[Placement] = []
    biases: list[Bias] = []
    for pattern, on_late in wanted:
        placements.append(late_workers.measure(pattern, on_late))
        progress(len(placements) / (len(wanted) + len(cases)))
    for pattern, method in cases:
        biases.append(bias.measure(pattern, method, STEPS if pattern == main else STEPS[-1:]))
        progress((len(placements) + len(biases)) / (len(wanted) + len(cases)))
    verdict, why = judge(placements, biases)
    return Claim(
        number=8,
        title="Heterogeneous data: delays of single workers, and bias",
        paper="The heterogeneity term grows with the average delay of each worker (Σζ_i²τ^i_avg), not with τ_max. "
        "Delay-adaptive steps bias towards fast workers; over-selection does too, and is expected to do so more. "
        "Algorithm 2 with a constant step does not, and if delays do not depend on the worker, delay-adaptive steps "
        "are harmless.",
        measured=_measured(placements, biases),
        verdict=verdict,
        summary=_summary(placements, biases),
        refuted_by=f"With {bias.ASKED} jobs on {bias.WORKERS} workers: Algorithm 2 with a constant step farther from "
        f"x* than {CHANCE:g} times the noise of the distance (+ {FINITE:g}), or not closer with smaller steps; "
        "delay-adaptive steps that end at x* where workers differ in speed, or do not where they are alike; a method "
        "that does not end where its trace predicts. With the delays of single workers: a mean above Theorem 3's "
        "bound, or an error for workers that are not late that changes by more than 15 % with the delays of the "
        "others.",
        why=why,
        values={"placements": [asdict(row) for row in placements], "biases": [asdict(row) for row in biases]},
        tables=(
            Table(
                f"Algorithm 2, {late_workers.WORKERS} workers of which {late_workers.LATE} are late, all of ζ² = 1 on "
                f"{late_workers.LATE} workers: E‖∇f‖²/(ηζ²) in the long run, and the mean of ‖∇f‖² over the whole run "
                "beside Theorem 3's bound. Burstiness: variance over mean of a worker's arrivals in 1/(ηλ) "
                "iterations.",
                ("the late are", "ζ² on", "τ^i_avg there", "τ_max", "burstiness", "E‖∇f‖²/(ηζ²)", "mean", "bound"),
                tuple(_cells(row) for row in placements),
            ),
            Table(
                f"Distance from x* at step {STEPS[-1]:g}, predicted from the trace, and imbalance of the workers' "
                f"weights; {bias.ASKED} jobs in flight on {bias.WORKERS} workers, over-selection waits for "
                f"{bias.GOAL} of {bias.ASKED}. Noise: how far chance moves the distance.",
                ("durations", "method", "distance", "noise", "predicted", "imbalance"),
                tuple(
                    (
                        row.pattern,
                        row.method,
                        *(f"{v:.4f}" for v in (row.distances[-1], row.noise, row.predicted, row.imbalance)),
                    )
                    for row in biases
                ),
            ),
        ),
        figures=(
            Figure(
                "claim08-bias",
                f"Where methods end. Left: against the step, for workers that take {main}; dotted: predicted from the "
                f"trace. Right: at step {STEPS[-1]:g} for all durations; strokes: predicted. Mini-batch ends at x* "
                "(not shown).",
                partial(bias.draw, biases=biases, main=main),
                columns=2,
                height=4.2,
            ),
            Figure(
                "claim08-delays",
                "All ζ² on late workers over the same on others: long-run E‖∇f‖² as measured (with standard errors), "
                "Theorem 3's factor, and the burstiness of arrivals.",
                partial(late_workers.draw, placements=placements),
                height=2.6,
            ),
        ),
    )


def _miss(placements: Sequence[Placement]) -> float:
    """Return the largest factor by which the burstiness of arrivals misses the ratio of errors."""
    both = pairs(placements).values()
    return max(abs(a.burstiness / b.burstiness * b.error / a.error - 1) for a, b in both)


def _cells(row: Placement) -> tuple[str, ...]:
    where, error = "late workers" if row.on_late else "others", f"{row.error:.3f} ± {row.deviation:.3f}"
    cells = (where, f"{row.delay:.1f}", str(row.longest), f"{row.burstiness:.2f}", error)
    return (row.pattern, *cells, f"{row.mean:.2g}", f"{row.bound:.2g}")


def _span(biases: Sequence[Bias], method: str, same: bool = False) -> str:
    ends = [row.distances[-1] for row in biases if row.method == method and (row.pattern == SAME) == same]
    return f"{min(ends):.3f} to {max(ends):.3f}" if len(ends) > 1 else f"{ends[0]:.3f}"


def _summary(placements: Sequence[Placement], biases: Sequence[Bias]) -> str:
    names = {FAIR: "Algorithm 2", ADAPTIVE: "delay-adaptive", OVER: "over-selection", BUSY: "Algorithm 1"}
    errors = [late.error / other.error for late, other in pairs(placements).values()]
    terms = [(late.delay + 1) / (other.delay + 1) for late, other in pairs(placements).values()]
    return (
        f"Distance from x* with {bias.ASKED} jobs on {bias.WORKERS} workers: "
        + ", ".join(f"{name} {_span(biases, method)}" for method, name in names.items())
        + f". The same ζ² on late workers costs {min(errors):.2f} to {max(errors):.2f} times as much, where τ^i_avg + "
        f"1 is {min(terms):.1f} to {max(terms):.1f} times as large; it follows bursts of a worker's arrivals to within "
        f"{_miss(placements):.0%}"
    )


def _measured(placements: Sequence[Placement], biases: Sequence[Bias]) -> str:
    span = partial(_span, biases)
    worst, other = max(pairs(placements).values(), key=lambda both: both[0].error / both[1].error)
    fair = next(row for row in biases if row.method == FAIR)
    alone = [row for row in placements if not row.on_late]
    return (
        f"The same ζ² costs up to {worst.error / other.error:.1f} times as much on late workers ({worst.pattern}); on "
        f"others {min(r.error for r in alone):.3f} to {max(r.error for r in alone):.3f} (times ηζ²) for τ_max = "
        f"{min(r.longest for r in alone)} to {max(r.longest for r in alone)}. Distance from x* at step {STEPS[-1]:g} "
        f"where workers differ in speed: Algorithm 2 {span(FAIR)} (and {fair.distances[0]:.3f} at step "
        f"{fair.steps[0]:g}), delay-adaptive {span(ADAPTIVE)}, dropping above 2τ_C {span(DROP)}, over-selection "
        f"{span(OVER)}, Algorithm 1 {span(BUSY)}; delay-adaptive where they do not differ {span(ADAPTIVE, same=True)}."
    )
