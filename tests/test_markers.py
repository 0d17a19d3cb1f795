"""The time budgets of tests: judged on a machine that may be compared, and only printed on any other."""

import pytest
from markers import BUDGETS, MARKERS, YARDSTICK, Markers, kind, share


def measured(slower: float, **seconds: float) -> Markers:
    found = Markers()
    found.seconds.update(seconds)
    found.yardsticks += [slower * YARDSTICK] * 3
    return found


def test_what_exceeds_its_budget_is_named():
    found = measured(1.0, ray=BUDGETS["ray"] + 1, flower=BUDGETS["flower"] - 1)
    assert len(found.exceeded()) == 1
    assert f"ray tests took {BUDGETS['ray'] + 1} s; their budget is {BUDGETS['ray']} s" in found.exceeded()[0]


@pytest.mark.parametrize("slower", [1.5, 5.0])
def test_a_slow_or_busy_machine_is_not_judged(slower):
    assert measured(slower, ray=5 * BUDGETS["ray"]).exceeded() == []


def test_without_a_yardstick_nothing_is_judged():
    found = Markers()
    found.seconds["ray"] = 5.0 * BUDGETS["ray"]
    assert found.exceeded() == []


def test_every_kind_has_a_budget():
    assert {*MARKERS, "quick"} == set(BUDGETS)
    assert [kind({"slow": 1, "processes": 1}), kind({"ray": 1, "slow": 1}), kind({})] == ["processes", "ray", "quick"]


@pytest.mark.parametrize(("profile", "cases"), [("quick", "adg"), ("project", "abcdefg"), ("search", "abcdefg")])
def test_only_the_quick_profile_leaves_cases_out(monkeypatch, profile, cases):
    monkeypatch.setenv("HYPOTHESIS_PROFILE", profile)
    assert share("abcdefg", every=3) == list(cases)


def test_a_test_that_starts_workers_without_saying_so_fails():
    import asyncsgd as asgd

    with pytest.raises(pytest.fail.Exception, match=r"@pytest\.mark\.processes"):
        asgd.engines.processes(1).start(None, None, None)
    with pytest.raises(pytest.fail.Exception, match=r"@pytest\.mark\.ray"):
        asgd.engines.ray(1).start(None, None, None)
