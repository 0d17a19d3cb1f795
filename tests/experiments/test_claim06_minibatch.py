from dataclasses import replace

import numpy as np
import pytest

from asyncsgd.experiments import claim06_minibatch as claim06
from asyncsgd.experiments.common import Verdict

CELL = claim06.Cell("half slower", "no noise", 3.0, 2.5, 3.5, 2.9, 2.5, 2.5, 1.2, (300.0, 100.0))


def test_equal_workers_lose_and_a_straggler_wins():
    patterns = claim06.patterns(8)
    equal = claim06.measure("all equal", patterns["all equal"], "no noise", seeds=[0], steps=25)
    straggler = claim06.measure("one 10× slower", patterns["one 10× slower"], "no noise", seeds=[0], steps=25)
    assert 0.5 < equal.speedup < 1
    assert equal.throughput == pytest.approx(1.0, rel=0.05)
    assert straggler.speedup > 3
    assert straggler.speedup == pytest.approx(straggler.throughput * straggler.gradients)
    assert claim06.judge([equal, straggler])[0] == Verdict.CORRECTED


def test_seeds_give_a_range():
    cell = claim06.measure("exponential", claim06.patterns(4)["exponential"], "strong noise", seeds=range(3), steps=13)
    assert cell.low < cell.high
    assert cell.speedup > 1


def test_every_pattern_is_for_as_many_workers_as_asked():
    assert {speeds.workers for speeds in claim06.patterns(6).values()} == {6}


def test_the_verdict_follows_the_numbers():
    assert claim06.judge([CELL, replace(CELL, speedup=1.01)]) == (Verdict.HOLDS, "")
    nobody_waits = replace(CELL, pattern="all equal", speedup=0.8, possible=1.0)
    verdict, why = claim06.judge([CELL, nobody_waits])
    assert verdict == Verdict.CORRECTED
    assert "all equal with no noise (0.80×)" in why
    assert claim06.judge([CELL, replace(CELL, speedup=np.nan)])[0] == Verdict.FAILS, "nobody got there"
    assert claim06.judge([replace(nobody_waits, speedup=0.4)])[0] == Verdict.FAILS
    assert claim06.judge([replace(CELL, speedup=0.9)])[0] == Verdict.FAILS, "slower although others wait"
    assert claim06.judge([replace(CELL, speedup=1.0)])[0] == Verdict.FAILS, "not faster although others wait"
    lost = replace(CELL, speedup=0.9, throughput=0.9)
    assert claim06.judge([lost])[0] == Verdict.FAILS, "that it delivers no more gradients is no excuse"


def test_the_table_does_not_contradict_itself():
    """42.3 s over 2.7 s are 15.7, which "42" and "3" deny; and 1.00× is judged as it is shown."""
    row = dict(zip(claim06.HEADINGS, claim06._cells(replace(CELL, speedup=15.72, seconds=(42.34, 2.693))), strict=True))
    ratio = float(row["mini-batch (s)"]) / float(row["asynchronous (s)"])
    assert ratio == pytest.approx(float(row["speed-up"]), rel=0.01)
    assert claim06._cells(replace(CELL, seconds=(1234.5, 0.5)))[-2:] == ("1230", "0.5")
    equal = replace(CELL, possible=1.0)
    assert claim06.judge([replace(equal, speedup=0.997)]) == claim06.judge([replace(equal, speedup=1.003)])


def test_the_figure_shows_every_pattern():
    pytest.importorskip("matplotlib")
    from asyncsgd.pages import figures

    # The ratio of means may lie outside the ratios of single seeds.
    cells = [CELL, replace(CELL, noise="strong noise", speedup=4.0)]
    with figures.figure(columns=2) as (fig, axes):
        claim06.draw(fig, axes, cells)
        assert [label.get_text() for label in axes[0].get_yticklabels()] == ["half slower"]
        assert np.all(np.array(axes[1].get_xlim()) > 0)
        figures.svg(fig, "claim06")
