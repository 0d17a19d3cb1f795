"""`check_engine`, the conformance suite that every engine must pass."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from asyncsgd.core.errors import BadEngine, BadParameter
from asyncsgd.core.validate import positive
from asyncsgd.engines.base import Engine
from asyncsgd.testing import pool_scenarios as pool
from asyncsgd.testing import train_scenarios as training
from asyncsgd.testing.bench import Abilities, Setting

__all__ = ["SCENARIOS", "Abilities", "BadEngine", "check_engine"]


@dataclass(frozen=True)
class _Scenario:
    play: Callable[[Setting], None]
    needs: tuple[str, ...] = ()
    keeps_state: bool = False
    """Whether the scenario is only for engines with ``keeps_state = True``."""


_SCENARIOS = {
    "joining": _Scenario(pool.joining),
    "order": _Scenario(pool.order),
    "updates stay": _Scenario(pool.updates_stay),
    "exceptions": _Scenario(pool.exceptions),
    "rejection": _Scenario(pool.rejection),
    "cancelling": _Scenario(pool.cancelling, ("other_processes",)),
    "killed": _Scenario(pool.killed, ("replaces",)),
    "hung": _Scenario(pool.hung, ("times_out",)),
    "retiring": _Scenario(pool.retiring),
    "closing": _Scenario(pool.closing, ("cleans_up", "other_processes")),
    **{name: _Scenario(play) for name, play in (training.WITH_METHODS | training.WITH_RUBBISH).items()},
    **{name: _Scenario(play, ("replaces",)) for name, play in training.WITH_KILLS.items()},
    **{name: _Scenario(play, ("times_out",)) for name, play in training.WITH_HANGS.items()},
    **{name: _Scenario(play, ("batches",)) for name, play in training.FOR_EPOCHS.items()},
    "kept state": _Scenario(pool.kept_state, keeps_state=True),
    **{name: _Scenario(play, keeps_state=True) for name, play in training.WITH_KEPT_STATE.items()},
    **{name: _Scenario(play, ("replaces",), True) for name, play in training.WITH_KEPT_STATE_AND_KILLS.items()},
}

SCENARIOS = tuple(_SCENARIOS)
"""The names of all scenarios. Run one of them with ``check_engine(make_engine, only=name)``."""


def check_engine(
    make_engine: Callable[..., Engine],
    *,
    abilities: Abilities | None = None,
    only: str | Iterable[str] | None = None,
    patience: float = 60.0,
) -> None:
    """Raise `BadEngine`, which names the scenario and the error, unless the engine keeps its contract.

    Some scenarios use the pool directly (order, cancelling, faults). The others train with every family of methods and
    replay the run bit for bit. All of them check every report against the commands that the pool received. An engine
    with ``keeps_state = True`` also has to pass the scenarios in which workers keep state from job to job.

    Args:
        make_engine: A function that returns an `Engine`, given the number of workers (and ``job_timeout``, see
            `Abilities`).
        abilities: What the engine can do within the time of a test. Default: everything.
        only: Name or names of the scenarios to run. Default: all that the abilities allow.
        patience: Seconds to wait for any expected event before it counts as missing.

    >>> import asyncsgd as asgd
    >>> check_engine(asgd.engines.processes, only="order")

    See docs/howto/engine.md for an engine that passes.
    """
    able = Abilities() if abilities is None else abilities
    positive("patience", patience)
    chosen = SCENARIOS if only is None else (only,) if isinstance(only, str) else tuple(only)
    for name in chosen:
        if name not in _SCENARIOS:
            raise BadParameter("only", name, "is not a scenario", f"pass one of {', '.join(SCENARIOS)}")
        scenario = _SCENARIOS[name]
        if scenario.keeps_state and not make_engine(1).keeps_state:
            continue
        if all(getattr(able, need) for need in scenario.needs):
            _play(name, scenario, make_engine, able, patience)


def _play(name: str, scenario: _Scenario, make_engine: Callable[..., Engine], able: Abilities, patience: float) -> None:
    with tempfile.TemporaryDirectory(prefix="asyncsgd-") as folder:
        try:
            scenario.play(Setting(make_engine, able, patience, Path(folder)))
        except BadEngine as error:
            raise BadEngine(f"{name}: {error}") from error
        except Exception as error:
            raise BadEngine(f"{name}: {type(error).__name__}: {error}") from error
