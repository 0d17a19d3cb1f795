"""One deliberate bug per claim: the experiment, made small, must refute the claim with the bug and not without it."""

from dataclasses import replace

import numpy as np
import pytest

from asyncsgd import methods
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import AlwaysBusy, Batch, Uniform
from asyncsgd.core.method import Method
from asyncsgd.core.steps import Custom
from asyncsgd.experiments import (
    bias,
    claim01_figures,
    claim02_average_delay,
    claim03_speed_up,
    claim04_theorems,
    claim05_straggler,
    claim06_minibatch,
    claim07_adaptive,
    claim08_heterogeneity,
    claim09_clipping,
    claim10_extensions,
    theorem_bounds,
)
from asyncsgd.experiments.bias import ADAPTIVE, FAIR, OVER, SAME
from asyncsgd.experiments.common import Verdict
from asyncsgd.experiments.late_workers import Placement
from asyncsgd.simulation import durations
from asyncsgd.tasks import paper_quadratic
from asyncsgd.trace import Trace


@pytest.fixture(params=["as it is", "with the bug"])
def planted(request, monkeypatch):
    """``planted(owner, name, bug)`` puts the bug in its place, in one of the two runs of the test; whether it did."""

    def plant(owner, name, bug):
        if request.param == "as it is":
            return False
        if isinstance(owner, dict):
            monkeypatch.setitem(owner, name, bug)
        else:
            monkeypatch.setattr(owner, name, bug)
        return True

    return plant


def refuted(verdict):
    return verdict == Verdict.FAILS


ASYNC, THEOREM2 = methods.async_sgd, theorem_bounds.theorem2


def heavier(stepsize):
    """A step rule with its fraction upside down: a gradient that is τ late gets τ times the step."""
    return ASYNC(1.0).using(step=Custom(stepsize, lambda arrival: float(max(1, arrival.delay))))


def test_claim_1_late_gradients_are_dropped(planted):
    """T then does not grow with τ_max at all."""
    bug = planted(methods, "async_sgd", lambda step: methods.delay_adaptive(step, rule="drop"))
    task, ends = paper_quadratic(), (1e-2, 1.0)
    short = [claim01_figures.measure(task, slow, "literal", 41, ends) for slow in claim01_figures.SHORT]
    tail = [replace(short[-1], slow=slow, iterations=100 * slow**0.5) for slow in claim01_figures.LONG]
    curve = claim01_figures.Curve((*short, *tail))
    verdict, why = claim01_figures.judge(
        {("quadratic", "literal"): curve}, {"quadratic": claim01_figures.power([curve])}
    )
    assert refuted(verdict) == bug
    assert ("exponent not within 0.5 ± 0.12: {'quadratic'" in why) == bug


def test_claim_1_the_slow_worker_is_slower_than_counted(planted):
    """One that is x^1.5 times slower gives T ∝ x^0.75, which is still a straight line to the eye."""
    fixed = claim01_figures.durations.fixed
    bug = planted(claim01_figures.durations, "fixed", lambda times: fixed([times[0], times[1] ** 1.5]))
    task, ends = paper_quadratic(), (1e-3, 1.0)
    points = [claim01_figures.measure(task, slow, "literal", 61, ends) for slow in (2, 4, 8, 16)]
    power = claim01_figures.exponent([p.slow for p in points], [p.iterations for p in points])
    assert (abs(power - 0.5) > claim01_figures.CLOSE) == bug


def test_claim_2_delays_are_counted_one_too_high(planted):
    counted = Trace.delay.fget if isinstance(Trace.delay, property) else Trace.delay.func
    bug = planted(Trace, "delay", property(lambda trace: counted(trace) + 1))
    claim = claim02_average_delay.check(lambda share: None, sizes=(3,), lengths=(40,), seeds=(0,))
    assert refuted(claim.verdict) == bug


def test_claim_3_one_job_too_many_is_in_flight(planted):
    bug = planted(claim03_speed_up, "Uniform", lambda concurrency: Uniform(concurrency + 1))
    claim = claim03_speed_up.check(lambda share: None, concurrencies=(3, 10, 300), arrivals=300_000, many=10_000)
    assert refuted(claim.verdict) == bug


def test_claim_3_idle_workers_wait_for_the_slowest(planted):
    bug = planted(
        claim03_speed_up, "AlwaysBusy", lambda concurrency: claim03_speed_up.FirstOf(concurrency, concurrency)
    )
    claim = claim03_speed_up.check(lambda share: None, concurrencies=(10,), arrivals=200_000, many=10_000)
    assert refuted(claim.verdict) == bug


PROMISED = {name: (0.0, power, 0.0) for name, power in claim04_theorems.EXPECTED.items()} | {
    ("τ_max", "drop"): (0.0, 0.0, 0.0)
}


def test_claim_4_the_concurrency_is_counted_as_one(planted, monkeypatch):
    """With delays that are not looked at Theorem 2 then allows the step 1/(4L)."""

    def blind(concurrency, weights, **known):
        return THEOREM2(1, weights=weights, delays=[0] * len(weights), **known)

    bug = planted(theorem_bounds, "theorem2", blind)
    monkeypatch.setattr(theorem_bounds, "NOISES", (0.0,))
    monkeypatch.setattr(theorem_bounds, "HETEROGENEITIES", (0.0,))
    cells = list(theorem_bounds.quadratics(300, [0]))
    verdict, why = claim04_theorems.judge(cells, PROMISED, 0.5)
    assert refuted(verdict) == bug
    assert ("means exceed their bound" in why) == bug


def test_claim_4_the_server_holds_back_more_gradients_than_it_counts(planted, monkeypatch):
    """With n workers it waits for n² gradients, so even the best step needs n² iterations and not n."""
    monkeypatch.setattr(theorem_bounds, "EPSILON", 0.05)
    needs = []
    for n in (2, 4, 8):
        bug = planted(theorem_bounds.RULES, "constant", lambda step, n=n: ASYNC(step).using(aggregation=Buffer(n * n)))
        needs.append(theorem_bounds.need("constant", durations.fixed(1.0, workers=n), "τ_C", 4000, 1000, points=25))
    slopes = PROMISED | {("τ_C", "constant"): theorem_bounds.exponents(needs)["constant"]}
    verdict, why = claim04_theorems.judge([], slopes, 0.5)
    assert refuted(verdict) == bug
    assert ("constant in τ_C" in why) == bug


def test_claim_5_late_gradients_get_a_larger_step(planted):
    bug = planted(methods, "async_sgd", heavier)
    rows = [claim05_straggler.measure(iterations, rule) for iterations in (50, 500) for rule in claim05_straggler.RULES]
    assert refuted(claim05_straggler.judge(rows)[0]) == bug


def test_claim_6_the_server_waits_for_all_workers(planted):
    """Then nothing is gained, and the gradients per second that are lost excuse nothing."""
    bug = planted(methods, "delay_adaptive", lambda step: methods.async_sgd(step).using(dispatch=Batch()))
    patterns = claim06_minibatch.patterns(4)
    cells = [
        claim06_minibatch.measure(name, patterns[name], "no noise", seeds=[0], steps=13)
        for name in ("all equal", "half 4× slower")
    ]
    assert refuted(claim06_minibatch.judge(cells)[0]) == bug


def test_claim_7_our_rule_divides_by_the_delay(planted):
    """The paper's rule is refuted as it is; with this bug our correction is, too."""
    rule = lambda step, n: methods.delay_adaptive(step, rule="divide")  # noqa: E731
    bug = planted(claim07_adaptive.RULES, claim07_adaptive.SAFE, rule)
    verdict, why = claim07_adaptive.judge(claim07_adaptive.measure(5, 0.1, n=40, iterations=8_000, seeds=[0]))
    assert refuted(verdict)
    assert ("our default" in why) != bug
    assert ("does not work here either" in why) == bug


def test_claim_7_nothing_is_late(planted):
    """The verdict is not written down: where all workers are equally fast, the sketch is right."""
    equal = lambda faster, n: claim07_adaptive.durations.fixed(1.0, workers=n)  # noqa: E731
    changed = planted(claim07_adaptive, "one_faster", equal)
    verdict, _ = claim07_adaptive.judge(claim07_adaptive.measure(5, 0.1, n=40, iterations=8_000, seeds=[0]))
    assert refuted(verdict) != changed


def test_claim_8_fast_workers_get_more_jobs(planted):
    """Algorithm 2 must draw its workers, not give the next job to the one that has finished."""
    bug = planted(bias.METHODS, FAIR, methods.async_sgd)
    biases = [
        bias.measure(pattern, method, steps=[1e-2, 1e-3], seeds=range(4))
        for pattern in ("1 to 8 s, fixed", SAME)
        for method in (FAIR, ADAPTIVE, OVER)
    ]
    late = Placement("slow", True, 11.0, 300, 1.0, 0.60, 0.01, 0.1, 0.5)
    verdict, why = claim08_heterogeneity.judge([late, replace(late, on_late=False, delay=5.0, error=0.37)], biases)
    assert refuted(verdict) == bug
    assert ("Algorithm 2 biased" in why) == bug


def test_claim_9_nothing_is_clipped(planted):
    bug = planted(Method, "clipped", lambda method, norm: method)
    rows = [claim09_clipping.measure(0.03, level, (2, 128, 2048, 8192), steps=48) for level in (None, 3.0, 1.0)]
    assert refuted(claim09_clipping.judge(rows)[0]) == bug


def test_claim_10_an_extension_forgets_to_draw_its_workers(planted):
    """Re-sampled early, the worker that has finished gets the next job: the echo of late gradients changes."""
    dispatch = claim10_extensions.Setting.dispatch

    def wrong(setting, early=False):
        return AlwaysBusy(setting.concurrency, sample_early=True) if early else dispatch(setting)

    bug = planted(claim10_extensions.Setting, "dispatch", wrong)
    setting = replace(claim10_extensions.SETTINGS[2], slower=(2, 8, 32), seeds=8)
    rows = [
        claim10_extensions.measure(setting, variant, steps=24)
        for variant in ("one gradient, one by one", claim10_extensions.EARLY)
    ]
    assert np.all(np.isfinite(rows[0].added))
    assert refuted(claim10_extensions.judge(rows)[0]) == bug
