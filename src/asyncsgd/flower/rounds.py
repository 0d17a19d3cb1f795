"""Rounds: what is sent, averaged and printed once per round, although updates arrive one by one.

A round is a fixed number of arrivals: as many as clients were connected when the run started. The number is written to
run.json, so a resume counts the same rounds. Only the polling thread uses `RoundLog` and `Gathered`.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from asyncsgd._files import write_text
from asyncsgd.core.errors import BadParameter
from asyncsgd.engines.base import Note
from asyncsgd.flower.messages import Means, ReportedMetrics, Told
from asyncsgd.flower.round_rules import Aggregate, ClientName, RoundRules
from asyncsgd.format import number
from asyncsgd.run.callbacks.base import LiveView
from asyncsgd.trace.labels import CLIENT

KEPT = 10_000
"""Number of replies whose metrics a run keeps in memory: the last ones. A directory keeps all of them."""
FILE = "client_metrics.jsonl"
PAUSE = 1.0
"""Least number of seconds between two lines on the terminal about the metrics of training."""


class Gathered:
    """The metrics of several replies, and their aggregate."""

    def __init__(self, function: Aggregate | None, weighted_by: str, name: str) -> None:
        self._function, self._weighted_by, self._name = function, weighted_by, name
        self._records: list[Any] = []
        self._lists: set[str] = set()
        self._means = Means()

    @property
    def any(self) -> bool:
        """Whether a reply has metrics."""
        return bool(self._means.replies or self._records)

    def add(self, worker: int, told: Told) -> None:
        """Add one reply."""
        if told.metrics is not None:
            self._means.add(worker, told.metrics)
            self._lists.update(told.lists)
        if self._function is not None and told.records is not None:
            from flwr.app import RecordDict

            self._records.append(RecordDict(dict(told.records)))

    def row(self) -> dict[str, Any]:
        """Return the aggregate as a row for the journal. It contains numbers only: lists are spread out."""
        row, lists = self._means.row(), self._lists
        if self._function is not None and self._records:
            try:
                found = self._function(self._records, self._weighted_by)
            except Exception as error:
                error.add_note(f"Raised in {self._name}, called with {len(self._records)} replies.")
                raise
            if not isinstance(found, Mapping):
                fix = "return a flwr.app.MetricRecord"
                raise BadParameter(self._name, found, f"returned a {type(found).__name__}", fix)
            row["metrics"] = spread(found)
            lists = {name for name, value in found.items() if isinstance(value, list)}
        return {**row, "lists": sorted(lists)} if lists else row


def spread(record: Mapping[str, Any]) -> dict[str, float]:
    """Return metrics as plain numbers.

    >>> spread({"loss": 1, "per class": [0.5, 1.0]})
    {'loss': 1.0, 'per class.0': 0.5, 'per class.1': 1.0}
    """
    values: dict[str, float] = {}
    for name, value in record.items():
        if isinstance(value, list):
            values |= {f"{name}.{place}": float(each) for place, each in enumerate(value)}
        else:
            values[name] = float(value)
    return values


def joined(values: Mapping[str, float], lists: Sequence[str] = ()) -> dict[str, Any]:
    """Return what `spread` was given: the inverse, if ``lists`` names the metrics that were lists.

    >>> joined({"loss": 1.0, "per class.0": 0.5, "per class.1": 1.0}, ["per class"])
    {'loss': 1.0, 'per class': [0.5, 1.0]}
    """
    found: dict[str, Any] = {}
    for name, value in values.items():
        whole, _, place = name.rpartition(".")
        if whole in lists and place.isdigit():
            found.setdefault(whole, []).append(value)
        else:
            found[name] = value
    return found


class RoundLog:
    """The metrics of every reply, and of every round."""

    def __init__(self, rules: RoundRules, weighted_by: str, folder: Path | None, *, resume: bool) -> None:
        self._rules, self._weighted_by = rules, weighted_by
        self.rows: deque[dict[str, Any]] = deque(maxlen=KEPT)
        self.history: list[dict[str, Any]] = []
        """The metrics of rounds, in order."""
        self.introduced: list[dict[str, Any]] = []
        """What the journal says about the names of clients, for a run without a directory."""
        self._iteration = 0
        self._path = None if folder is None else folder / FILE
        self._file: TextIO | None = None
        self._resumes = resume
        self._round = self.gathered("train")
        self._next_line = 0.0

    def gathered(self, kind: str) -> Gathered:
        """Return a collection for the replies of one round."""
        rules, weighted_by = self._rules, self._weighted_by
        if kind == "train":
            return Gathered(rules.train_metrics, weighted_by, "train_metrics_aggr_fn")
        return Gathered(rules.evaluate_metrics, weighted_by, "evaluate_metrics_aggr_fn")

    def keep(self, notes: Sequence[Note]) -> None:
        """Keep what a run without a directory needs after its end."""
        self.history += [dict(note.details) for note in notes if note.event == "client_metrics"]
        self.introduced += [{"event": CLIENT, **note.details} for note in notes if note.event == CLIENT]

    def hand_out(self, iteration: int) -> None:
        """Record that a job was handed out after this many arrivals. The first one tells where a resumed run is."""
        if self._resumes:
            self._resumes = False
            self._resume(iteration)
        self._iteration = max(self._iteration, iteration)

    def arrived(self, who: ClientName, told: Told, seconds: float, now: float) -> list[Note]:
        """Record the reply of an update that arrived. Return a note if it was the last one of its round."""
        self._iteration += 1
        self._add(reply_row("train", self._rules.of_model(self._iteration), self._iteration, now, who, told, seconds))
        self._round.add(who.number, told)
        return [] if self._iteration % self._rules.size else self.close(now)

    def evaluated(self, iteration: int, who: ClientName, told: Told, seconds: float, now: float) -> None:
        """Record the reply of a client that evaluated the model of this iteration."""
        self._add(reply_row("evaluate", self._rules.of_model(iteration), iteration, now, who, told, seconds))

    def close(self, now: float) -> list[Note]:
        """End the round. Return a note if it has metrics."""
        done, self._round = self._round, self.gathered("train")
        if not done.any:
            return []
        row = {"kind": "train", "round": self._rules.of_model(self._iteration), "at": self._iteration, **done.row()}
        text = None
        if now >= self._next_line:  # rounds may be short
            self._next_line = now + PAUSE
            text = f"round {row['round']}, clients in training: {describe(row)}"
        return [Note("client_metrics", row, text)]

    def _add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        if self._path is not None:
            if self._file is None:
                self._file = self._path.open("a", encoding="utf-8")
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()

    def _resume(self, iteration: int) -> None:
        """Drop the rows after the checkpoint, and gather those of the round that it belongs to."""
        if self._path is None or not self._path.exists():
            return
        rows = [row for row in read_rows(self._path.parent, most=None) if row["iteration"] <= iteration]
        write_text(self._path, "".join(json.dumps(row) + "\n" for row in rows))
        self.rows.extend(rows)
        begun = iteration - iteration % self._rules.size
        for row in rows:
            if row["kind"] == "train" and row["iteration"] > begun:
                self._round.add(row["client"], told_again(row, self._weighted_by))

    def shut(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


def reply_row(
    kind: str, round_: int, iteration: int, now: float, who: ClientName, told: Told, seconds: float
) -> dict[str, Any]:
    """Return the row of one reply."""
    reported = told.metrics
    names = {"client": who.number, "node": who.node, "name": who.name}
    return {
        **{"kind": kind, "round": round_, "iteration": iteration, "time": now, **names, "seconds": seconds},
        "examples": None if reported is None else reported.weight,
        "metrics": {} if reported is None else dict(reported.values),
        **({"lists": list(told.lists)} if told.lists else {}),
    }


def told_again(row: Mapping[str, Any], weighted_by: str) -> Told:
    """Return what a client told, from the row of its reply."""
    if row["examples"] is None:
        return Told(None)
    from flwr.app import MetricRecord

    lists = tuple(row.get("lists", ()))
    metrics = {**joined(row["metrics"], lists), weighted_by: row["examples"]}
    records = {"metrics": MetricRecord(metrics)}
    return Told(ReportedMetrics(row["examples"], row["metrics"]), records, lists)


def read_rows(folder: Path, *, most: int | None = KEPT) -> list[dict[str, Any]]:
    """Return the rows of the last replies in a run's directory. A kill may have cut the last line."""
    if not (folder / FILE).exists():
        return []
    found = []
    with (folder / FILE).open(encoding="utf-8") as file:
        for line in file if most is None else deque(file, maxlen=most):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found


def describe(row: Mapping[str, Any], why: str = "") -> str:
    """Return a line about the metrics of clients.

    >>> means = Means()
    >>> means.add(0, ReportedMetrics(10.0, {"accuracy": 0.5}))
    >>> describe({**means.row(), "failed": 1}, "no data")
    'accuracy 0.5 (1 client, 10 examples; 1 failed: no data)'
    """
    shown = ", ".join(f"{name} {value:.4g}" for name, value in list(row["metrics"].items())[:6]) or "no numbers"
    who = f"{row['clients']} client{'s' * (row['clients'] != 1)}, {row['examples']:.0f} examples"
    reason = why.splitlines()[-1] if why else "no error message"
    failed = f"; {row['failed']} failed: {reason}" if row.get("failed") else ""
    return f"{shown} ({who}{failed})"


def evaluated_line(view: LiveView, metrics: Mapping[str, float]) -> str:
    """Return the terminal's line about an evaluation on the server. The metric of ``until`` comes first."""
    size = int(view.config["engine"]["round"])
    rules, until = RoundRules(size), str(view.config.get("until") or "").partition(" ")[0]
    names = sorted(metrics, key=lambda name: name != until)[:6]
    shown = ", ".join(f"{name} {number(metrics[name])}" for name in names)
    return f"round {rules.of_model(view.iteration)} of {rules.of_model(view.wanted)}: {shown}"
