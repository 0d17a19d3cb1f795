"""Early stopping and the best model: what they count, what they write, and what survives a resume."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import Notes, events, sound, train
from safetensors.numpy import load_file

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, Damage
from asyncsgd.core.vectors import Vector
from asyncsgd.run import checkpoints
from asyncsgd.run.callbacks import EarlyStopping, SaveBest
from asyncsgd.run.repair import repair
from asyncsgd.run.verify import verify
from asyncsgd.tasks.model_file import read_facts
from asyncsgd.testing.bench import Bowl


class Scripted(Bowl):
    """Evaluations return these values in turn, then the last one."""

    def __init__(self, *values: float, metric: str = "loss") -> None:
        super().__init__()
        self.values, self.metric, self.place = values, metric, -1

    def evaluate(self, x: Vector) -> dict[str, Any]:
        self.place += 1
        return {self.metric: self.values[min(self.place, len(self.values) - 1)], "other": 1.0}


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("loss", "min"),
        ("val_loss", "min"),
        ("gradient_norm", "min"),
        ("Perplexity", "min"),
        ("accuracy", "max"),
        ("test/acc", "max"),
        ("f1", "max"),
    ],
)
def test_the_name_of_a_metric_says_which_way_is_better(name: str, mode: str) -> None:
    assert (EarlyStopping(name).mode, SaveBest(name).mode) == (mode, mode)
    other = "max" if mode == "min" else "min"
    assert EarlyStopping(name, mode=other).mode == other


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: EarlyStopping("speed"),
            "does not follow from the name of the metric 'speed'; pass \"min\" if",
        ),
        (lambda: SaveBest("accuracy_loss"), "mode = None does not follow"),
        (lambda: EarlyStopping("glossy"), "mode = None does not follow"),
        (lambda: EarlyStopping("loss", mode="down"), "mode = 'down' is unknown"),
        (lambda: EarlyStopping("loss", patience=0), "patience = 0 must be an integer"),
        (lambda: EarlyStopping(3), "metric = 3 is not a name"),  # type: ignore[arg-type]
        (lambda: SaveBest("loss", path="best.pt"), "path = 'best.pt' does not name a format; end it in .safetensors"),
        (lambda: SaveBest("loss", path=7), "path = 7 is not a path"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_work_is_refused(make: Any, words: str) -> None:
    with pytest.raises(BadParameter) as caught:
        make()
    assert words in str(caught.value)


# ---------------------------------------------------------------------------------------------- early stopping


@pytest.mark.parametrize(
    ("values", "patience", "stops"),
    [
        ((5.0, 4.0, 4.0, 4.0, 4.0), 2, 30),  # an equal value is not an improvement
        ((5.0, 4.0, 6.0, 3.0, 7.0, 8.0), 2, 50),  # the count starts again at every improvement
        ((5.0,), 1, 10),
        ((7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0), 1, None),
        ((1.0,), 6, None),  # the last evaluation would stop it, but the run ends there anyway
    ],
)
def test_patience_counts_evaluations(values: tuple[float, ...], patience: int, stops: int | None) -> None:
    run = train(None, task=Scripted(*values), callbacks=[EarlyStopping("loss", patience=patience)])
    assert run.trace.iterations == (60 if stops is None else stops)
    assert (run.stopped_early is None) == (stops is None)


def test_the_reason_is_journalled(tmp_path: Path) -> None:
    stop = EarlyStopping("accuracy", patience=2)
    run = train(tmp_path, task=Scripted(0.5, 0.7, 0.6, 0.65, metric="accuracy"), callbacks=[stop])
    reason = "accuracy has not improved for 2 evaluations; its best value is 0.7 of iteration 10"
    assert (run.stopped_early, stop.best, stop.iteration, stop.waited) == (reason, 0.7, 10, 2)
    assert [row["reason"] for row in events(tmp_path, "stopped_early")] == [reason]


WORKERS = asgd.engines.processes(2)
"""Starting these without a marker fails the test."""


def test_an_unknown_metric_is_an_error_before_a_worker_starts(tmp_path: Path) -> None:
    words = "metric = 'los' is not among the task's metrics; did you mean loss? (the metrics are: loss)"
    for callback in (EarlyStopping("los", mode="min"), SaveBest("los", mode="min")):
        with pytest.raises(BadParameter) as caught:
            train(tmp_path / "run", callbacks=[callback], engine=WORKERS)
        assert str(caught.value) == words
        assert not (tmp_path / "run").exists()  # nothing has happened
    with pytest.raises(BadParameter, match="until = 'accuracy' is not among the task's metrics; pass one of: loss"):
        train(tmp_path / "run", until="accuracy > 1", engine=WORKERS)
    assert not (tmp_path / "run").exists()


def test_a_task_that_cannot_be_evaluated_is_refused_before_a_worker_starts() -> None:
    class Broken(Bowl):
        def evaluate(self, x: Vector) -> dict[str, Any]:
            raise ValueError("no data")

    with pytest.raises(ValueError, match="no data"):
        train(None, task=Broken(), callbacks=[EarlyStopping("loss")], engine=WORKERS)


def test_the_initial_model_is_evaluated_once(tmp_path: Path) -> None:
    """What was computed before the workers started is recorded after the start."""
    task, stop = Scripted(3.0, 2.0, 1.0, metric="accuracy"), EarlyStopping("accuracy", patience=9)
    run = train(tmp_path, iterations=20, task=task, callbacks=[stop], until="accuracy >= 9")
    assert run.metrics["accuracy"].tolist() == [3.0, 2.0, 1.0]
    assert run.metrics["iteration"].tolist() == [0, 10, 20]
    assert run.metrics["time"][0] == 0.0
    assert (stop.best, stop.waited) == (3.0, 2)


def test_an_unknown_metric_is_refused_before_a_resume(tmp_path: Path) -> None:
    train(tmp_path, iterations=20)
    for options in ({"callbacks": [EarlyStopping("accuracy")]}, {"until": "accuracy > 1"}):
        with pytest.raises(BadParameter, match="'accuracy' is not among the task's metrics"):
            train(tmp_path, 40, engine=WORKERS, resume=True, **options)
    assert not events(tmp_path, "resumed")

    class More(Bowl):
        def evaluate(self, x: Vector) -> dict[str, Any]:
            return {**super().evaluate(x), "accuracy": 0.5}

    stop = EarlyStopping("accuracy")
    run = train(tmp_path, 40, task=More(), resume=True, callbacks=[stop])
    assert (run.trace.iterations, stop.best) == (40, 0.5)


def test_early_stopping_continues_to_count_after_a_resume(tmp_path: Path) -> None:
    stop = EarlyStopping("loss", patience=4)
    train(tmp_path, iterations=30, task=Scripted(5.0, 1.0, 2.0, 2.0), callbacks=[stop])
    assert (stop.best, stop.waited) == (1.0, 2)
    again = EarlyStopping("loss", patience=4)
    run = train(tmp_path, iterations=200, resume=True, task=Scripted(2.0), callbacks=[again])
    assert (run.trace.iterations, again.best, again.iteration, again.waited) == (50, 1.0, 10, 4)
    # The same object, as in a notebook: the checkpoint counts, not what the object remembers.
    again.waited = -100
    assert train(tmp_path, iterations=200, resume=True, task=Scripted(2.0), callbacks=[again]).trace.iterations == 60
    more = EarlyStopping("loss", patience=7)
    assert train(tmp_path, iterations=200, resume=True, task=Scripted(2.0), callbacks=[more]).trace.iterations == 80


def test_an_object_that_is_used_twice_starts_afresh() -> None:
    stop = EarlyStopping("loss", patience=2)
    for _ in range(2):
        run = train(None, task=Scripted(3.0, 2.0, 2.5), callbacks=[stop])
        assert (run.trace.iterations, stop.best) == (30, 2.0)


# ---------------------------------------------------------------------------------------------- the state of callbacks


class Counts(asgd.Callback):
    """Counts evaluations over all resumes."""

    def __init__(self) -> None:
        self.seen = 0

    def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
        self.seen += 1

    def state(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def test_a_callback_of_a_user_keeps_its_state(tmp_path: Path) -> None:
    train(tmp_path, iterations=20, callbacks=[Counts(), Counts()])
    newest = checkpoints.read(checkpoints.listed(tmp_path / "checkpoints")[0])
    assert json.loads(newest.state["callbacks"]) == {"Counts": {"seen": 3}, "Counts 2": {"seen": 3}}
    first, second, notes = Counts(), Counts(), Notes()
    run = train(tmp_path, iterations=40, resume=True, callbacks=[notes, first, second])
    assert (first.seen, second.seen, notes.of("noted")) == (5, 5, [])
    sound(run, 40)


def test_other_callbacks_after_a_resume_are_noted(tmp_path: Path) -> None:
    train(tmp_path, iterations=20, callbacks=[EarlyStopping("loss"), SaveBest("loss")])
    notes = Notes()
    train(tmp_path, iterations=40, resume=True, callbacks=[notes, EarlyStopping("loss", mode="max"), Counts()])
    assert notes.of("noted") == [
        "EarlyStopping followed loss (min) before this resume and follows loss (max) now: it starts afresh",
        "callback Counts is new in this run, so it knows nothing of what happened before",
        "the run had a callback SaveBest, which is not passed now: what it knew is dropped",
    ]
    notes = Notes()
    train(tmp_path, iterations=60, resume=True, callbacks=[notes])
    assert len(notes.of("noted")) == 2


@pytest.mark.parametrize("state", [["no dict"], {"x": np.ones(2)}, {"x": float("nan")}, {"x": {1, 2}}], ids=str)
def test_a_state_is_plain_json(tmp_path: Path, state: Any) -> None:
    class Odd(Counts):
        def state(self) -> dict[str, Any]:
            return state  # type: ignore[no-any-return]

    with pytest.raises(BadParameter, match="return a dict of texts, finite numbers"):
        train(tmp_path, callbacks=[Odd()])


def test_a_state_that_cannot_be_loaded_stays_in_the_checkpoint(tmp_path: Path) -> None:
    class Picky(Counts):
        def load(self, state: dict[str, Any]) -> None:
            raise RuntimeError("this is an old state")

    Picky.__name__ = "Counts"
    train(tmp_path, iterations=20, callbacks=[Counts()])
    with pytest.raises(RuntimeError, match="old state") as caught:
        train(tmp_path, iterations=40, resume=True, callbacks=[Picky()])
    assert caught.value.__notes__ == ["raised in load of the callback Counts"]
    fine = Counts()
    train(tmp_path, iterations=40, resume=True, callbacks=[fine])
    assert fine.seen == 5


def test_a_value_in_place_of_a_method_is_refused() -> None:
    class Shadows(asgd.Callback):
        def __init__(self) -> None:
            self.state = {"a": 1}  # type: ignore[assignment,method-assign]

    with pytest.raises(BadParameter, match="has a value state in place of a method; store it under another name"):
        train(None, callbacks=[Shadows()])


# ---------------------------------------------------------------------------------------------- the best model


def test_the_best_model_is_written_with_its_facts(tmp_path: Path) -> None:
    keep = SaveBest("loss")
    run = train(tmp_path, callbacks=[keep])
    assert keep.file == tmp_path / "best.safetensors"
    best = int(np.argmin(run.metrics["loss"]))
    facts = read_facts(keep.file)
    assert (float(facts["value"]), int(facts["iteration"])) == (keep.best, keep.iteration)
    assert keep.best == run.metrics["loss"][best]
    assert keep.iteration == run.metrics["iteration"][best]
    [(name, x)] = load_file(keep.file).items()
    assert (name, Bowl().evaluate(x)["loss"]) == ("x", keep.best)
    assert keep.file.stat().st_mode & 0o777 == 0o600
    assert verify(tmp_path) == []
    sound(run, 60)


@pytest.mark.parametrize(("values", "at"), [((1.0, 2.0), 0), ((3.0, 2.0, 1.0, 2.0), 20), ((3.0, 3.0), 0)])
def test_only_a_better_model_replaces_it(tmp_path: Path, values: tuple[float, ...], at: int) -> None:
    keep = SaveBest("loss")
    seen: dict[int, bytes] = {}

    class Models(asgd.Callback):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            seen[view.iteration] = view.x.tobytes()

    train(tmp_path, task=Scripted(*values), callbacks=[keep, Models()])
    assert keep.iteration == at
    assert load_file(tmp_path / "best.safetensors")["x"].tobytes() == seen[at]


def test_it_survives_a_resume(tmp_path: Path) -> None:
    train(tmp_path, iterations=20, task=Scripted(5.0, 1.0, 2.0), callbacks=[SaveBest("loss")])
    before = (tmp_path / "best.safetensors").read_bytes()
    keep = SaveBest("loss")
    train(tmp_path, iterations=40, resume=True, task=Scripted(3.0), callbacks=[keep])
    assert ((tmp_path / "best.safetensors").read_bytes(), keep.best, keep.iteration) == (before, 1.0, 10)
    train(tmp_path, iterations=60, resume=True, task=Scripted(0.5), callbacks=[keep])
    assert (keep.best, keep.iteration) == (0.5, 50)
    assert verify(tmp_path) == []


class Killed(BaseException):
    """Ends a run as a kill does: nothing is saved any more."""


def killed(at: int, **options: Any) -> None:
    class Kills(asgd.Callback):
        def on_update(self, view: Any, control: Any) -> None:
            if view.iteration == at:
                raise Killed

    callbacks = options.pop("callbacks")
    with pytest.raises(Killed):
        train(callbacks=[*callbacks, Kills()], **options)


def test_a_kill_after_a_better_model_keeps_that_model(tmp_path: Path) -> None:
    """The checkpoint of iteration 20 does not know the model of iteration 30, which the file holds."""
    killed(35, directory=tmp_path, task=Scripted(5.0, 4.0, 3.0, 1.0), callbacks=[SaveBest("loss")])
    assert int(read_facts(tmp_path / "best.safetensors")["iteration"]) == 30
    keep = SaveBest("loss")
    run = train(tmp_path, resume=True, task=Scripted(2.0), callbacks=[keep])
    assert (keep.best, keep.iteration) == (1.0, 30)
    assert verify(tmp_path) == []
    sound(run, 60)


def test_a_kill_before_the_first_checkpoint_leaves_nothing_of_it(tmp_path: Path) -> None:
    class Kills(asgd.Callback):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            raise Killed

    with pytest.raises(Killed):
        train(tmp_path / "run", callbacks=[SaveBest("loss"), Kills()])
    assert not (tmp_path / "run").exists()


def test_a_file_of_another_metric_is_replaced(tmp_path: Path) -> None:
    train(tmp_path, iterations=20, task=Scripted(0.1), callbacks=[SaveBest("other", mode="max")])
    notes, keep = Notes(), SaveBest("loss")
    train(tmp_path, iterations=40, resume=True, task=Scripted(0.1), callbacks=[notes, keep])
    assert "SaveBest followed other (max) before this resume" in notes.of("noted")[0]
    assert read_facts(tmp_path / "best.safetensors")["metric"] == "loss"


@pytest.mark.slow
def test_verify_finds_every_flip_and_repair_sets_it_aside(tmp_path: Path) -> None:
    train(tmp_path, callbacks=[SaveBest("loss")])
    file = tmp_path / "best.safetensors"
    data = file.read_bytes()
    for place in range(0, len(data), 7):
        file.write_bytes(data[:place] + bytes([data[place] ^ 4]) + data[place + 1 :])
        assert [finding.file for finding in verify(tmp_path)] == ["best.safetensors"], place
        with pytest.raises(Damage):
            read_facts(file)
    file.write_bytes(data[:-1])
    assert [finding.file for finding in verify(tmp_path)] == ["best.safetensors"]
    assert repair(tmp_path)[0] == "best.safetensors is damaged; it is now in damaged-1"
    assert verify(tmp_path) == []


def test_a_missing_file_is_reported(tmp_path: Path) -> None:
    train(tmp_path, callbacks=[SaveBest("loss")])
    (tmp_path / "best.safetensors").unlink()
    assert [finding.file for finding in verify(tmp_path)] == ["best.safetensors"]


def test_another_place(tmp_path: Path) -> None:
    places = [tmp_path / "a.safetensors", tmp_path / "folder" / "b.safetensors"]
    keeps = [SaveBest("loss", path=place) for place in places]
    train(None, callbacks=keeps)
    assert load_file(places[0])["x"].tobytes() == load_file(places[1])["x"].tobytes()


@pytest.mark.parametrize(
    ("directory", "callbacks", "words"),
    [
        (False, lambda: [SaveBest("loss")], "path is missing, because the run has no directory"),
        (True, lambda: [SaveBest("loss"), SaveBest("loss", mode="max")], "is written by SaveBest('loss', mode='min')"),
    ],
)
def test_a_best_model_needs_a_place_of_its_own(tmp_path: Path, directory: bool, callbacks: Any, words: str) -> None:
    with pytest.raises(BadParameter) as caught:
        train(tmp_path / "run" if directory else None, engine=NeverStarted(2), callbacks=callbacks())
    assert words in str(caught.value)
    assert not (tmp_path / "run").exists()


class NeverStarted(Inline):
    """An engine that must not be started."""

    def start(self, *given: Any) -> Any:
        raise AssertionError("a worker was started")


def test_layout_gives_names_and_shapes(tmp_path: Path) -> None:
    class Laid(Bowl):
        def layout(self) -> Iterator[tuple[str, int, tuple[int, ...]]]:
            n = len(self.initial())
            return iter([("first", 0, (1, 2)), ("rest", 2, (n - 2,))])

    run = train(tmp_path, task=Laid(), callbacks=[SaveBest("loss")])
    arrays = load_file(tmp_path / "best.safetensors")
    assert {name: array.shape for name, array in arrays.items()} == {"first": (1, 2), "rest": (run.x.size - 2,)}
