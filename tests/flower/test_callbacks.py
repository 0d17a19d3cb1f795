"""Every callback of `a run is closed, however the run ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, failing
from flower.serving import ARRAYS, QUIET, clients, quiet, serve

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, EngineError
from asyncsgd.run import Callback
from asyncsgd.run.verify import verify


class Holder(Callback):
    """Counts how often it was closed."""

    def __init__(self, stubborn: bool = False) -> None:
        self.stopped, self.stubborn = 0, stubborn

    def close(self) -> None:
        self.stopped += 1
        if self.stubborn:
            raise OSError("cannot be closed")


def test_every_callback_is_stopped_at_the_end() -> None:
    first, last = Holder(), Holder()
    serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=4, callbacks=[first, last], **QUIET)
    assert (first.stopped, last.stopped) == (1, 1)


def test_every_callback_is_stopped_where_the_run_fails() -> None:
    callbacks = [Holder(), Holder(stubborn=True), Holder()]
    with pytest.raises(OSError, match="cannot be closed") as caught:
        serve(
            FakeGrid([failing] * 2),
            ARRAYS,
            asgd.async_sgd(0.1),
            iterations=4,
            callbacks=callbacks,
            **quiet(max_failures=1),
        )
    assert isinstance(caught.value.__context__, EngineError)
    assert [callback.stopped for callback in callbacks] == [1, 1, 1]


@pytest.mark.parametrize("refused", [{"iterations": 0}, {"resume": False}])
def test_every_callback_is_stopped_where_a_run_is_refused(tmp_path: Path, refused: dict[str, Any]) -> None:
    def again(**options: Any) -> None:
        given = {"iterations": 4, "directory": tmp_path / "run", **QUIET, **options}
        serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), **given)

    again()
    callbacks = [Holder(), Holder()]
    with pytest.raises(BadParameter):
        again(callbacks=callbacks, **refused)
    assert [callback.stopped for callback in callbacks] == [1, 1]


@pytest.fixture
def flowers_handler() -> Iterator[list[int]]:
    """A handler of SIGINT as Flower has one: what the callbacks had received when it was called."""
    seen: list[int] = []
    before = signal.getsignal(signal.SIGINT)

    def handler(number: int, frame: Any) -> None:
        seen.append(Holder.watched.stopped)  # type: ignore[attr-defined]

    handler.__module__ = "flwr.supercore.exit"
    signal.signal(signal.SIGINT, handler)
    yield seen
    signal.signal(signal.SIGINT, before)


def test_callbacks_are_stopped_before_flower_ends_the_process(
    flowers_handler: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Enough(Holder):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            if view.iteration == 4:
                os.kill(os.getpid(), signal.SIGINT)

    enough = Enough()
    monkeypatch.setattr(Holder, "watched", enough, raising=False)
    evaluate = {"every": 4, "evaluate": lambda iteration, arrays: {"loss": 1.0}}
    options = {"iterations": 10**6, "callbacks": [enough], **evaluate, **QUIET}
    with pytest.raises(KeyboardInterrupt):
        serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), **options)
    assert flowers_handler == [1]


def test_early_stopping_and_the_best_model(tmp_path: Path) -> None:
    """Both follow the metrics of ``evaluate``, and continue after a resume."""
    given = {"every": 4, "evaluate": lambda iteration, arrays: {"loss": float(max(1, 9 - iteration))}, **QUIET}
    stop, keep = asgd.callbacks.EarlyStopping("loss", patience=3), asgd.callbacks.SaveBest("loss")
    given |= {"directory": tmp_path, "callbacks": [stop, keep]}
    run = serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=16, **given)
    assert (run.stopped_early, keep.best, keep.iteration, stop.waited) == (None, 1.0, 8, 2)
    run = serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=400, resume=True, **given)
    assert run.stopped_early is not None
    assert run.stopped_early.startswith("loss has not improved for 3 evaluations; its best value is 1 of iteration 8")
    assert (keep.best, keep.iteration) == (1.0, 8)
    assert verify(tmp_path) == []


def test_notes_are_printed_once(capsys: pytest.CaptureFixture[str]) -> None:
    serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=4, clients=QUIET["clients"])
    assert capsys.readouterr().err.count("not trained, but set to medians") == 1
