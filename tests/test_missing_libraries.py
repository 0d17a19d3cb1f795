"""What an installation without extras says: one sentence, with the line that installs what is missing."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.cli import simulate
from asyncsgd.core.errors import MissingLibrary, UsageError


def hidden(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Import as if these were not installed."""
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        monkeypatch.setitem(sys.modules, name, None)
    for name in names:
        monkeypatch.setitem(sys.modules, name, None)


def digits_from_a_file() -> Any:
    return simulate.parse(
        {
            "task": {"kind": "digits", "workers": 2},
            "durations": {"kind": "fixed", "seconds": [1.0, 2.0]},
            "method": {"kind": "mifa", "stepsize": 0.1},
            "run": {"iterations": 5},
        }
    )


@pytest.mark.parametrize(
    ("library", "call", "says"),
    [
        ("torch", lambda: asgd.tasks.torch(None, None, None), "pip install 'asyncsgd[torch]'"),
        ("torch", lambda: asgd.optimizers.torch("AdamW"), "pip install 'asyncsgd[torch]'"),
        ("sklearn", digits_from_a_file, "asgd.tasks.digits needs scikit-learn; install it with: pip install scikit"),
        ("flwr", lambda: asgd.flower.AsyncStrategy(asgd.async_sgd(0.1)), "pip install 'asyncsgd[flower]'"),
        ("matplotlib", lambda: asgd.plot.delays(run()), "pip install 'asyncsgd[report]'"),
        ("tensorboard", lambda: asgd.callbacks.tensorboard(Path("nowhere")), "pip install 'asyncsgd[tensorboard]'"),
    ],
)  # fmt: skip
def test_the_line_that_installs_it_is_named(
    library: str, call: Any, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden(monkeypatch, library)
    with pytest.raises(MissingLibrary) as caught:
        call()
    assert says in str(caught.value)
    assert isinstance(caught.value, UsageError)
    assert isinstance(caught.value, ModuleNotFoundError)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def run() -> Any:
    task, speeds = asgd.tasks.quadratic(workers=2), asgd.durations.fixed(np.array([1.0, 2.0]))
    return asgd.simulate(task, asgd.async_sgd(0.1), speeds, iterations=5)
