"""Runs to make pages of, and a reader of pages that knows nothing of how they are written."""

import base64
import json
import re
from html.parser import HTMLParser
from random import Random

import numpy as np

from asyncsgd.core.events import Assign, Ended, Job, Outcome
from asyncsgd.trace import Recorder, Trace

POINT = np.zeros(1)
ENDS = (Outcome.APPLIED,) * 14 + (Outcome.DROPPED, Outcome.REJECTED, Outcome.LOST, Outcome.CANCELLED)


def stormy(jobs: int, workers: int = 5, concurrency: int = 9, seed: int = 0, names=lambda worker: worker) -> Trace:
    """A trace with queues, every outcome, and jobs still in flight: workers are drawn, and do theirs in order."""
    random, recorder = Random(seed), Recorder(metadata={"method": "stormy"})
    queues: dict[int, list[Job]] = {names(worker): [] for worker in range(workers)}
    speed = {worker: 1 + place for place, worker in enumerate(queues)}
    ready: dict[int, float] = {}
    iteration = version = given = 0
    now = 0.0

    def hand_out():
        nonlocal given
        commands = []
        while given < jobs and sum(map(len, queues.values())) < concurrency:
            worker = random.choice(list(queues))
            queues[worker].append(Job(given, worker, iteration, version, iteration, seed=given))
            commands.append(Assign(queues[worker][-1], POINT, 0))
            if len(queues[worker]) == 1:
                ready[worker] = now + speed[worker] * (0.5 + random.random())
            given += 1
        return commands

    recorder.record(now, hand_out(), [])
    while given < jobs:
        worker = min(ready, key=ready.__getitem__)
        now = ready.pop(worker)
        active = sum(map(len, queues.values()))
        job, outcome = queues[worker].pop(0), random.choice(ENDS)
        step = random.choice([0.1, 0.05, 0.025]) if outcome is Outcome.APPLIED else 0.0
        ended = Ended(job, outcome, iteration, version, step, active, workers)
        iteration += outcome.arrived
        version += outcome is Outcome.APPLIED
        if queues[worker]:
            ready[worker] = now + speed[worker] * (0.5 + random.random())
        recorder.record(now, hand_out(), [ended])
    return recorder.trace(final_concurrency=sum(map(len, queues.values())))


def begins(trace: Trace) -> list[float]:
    """When each job was begun, by walking through the record: a worker does what it was given in order."""
    free: dict[int, float] = {}
    found = [0.0] * len(trace)
    horizon = max(float(np.nanmax(trace.jobs.ended_time)), float(trace.jobs.assigned_time.max()))
    for k in range(len(trace)):
        worker = int(trace.jobs.worker[k])
        end = float(trace.jobs.ended_time[k])
        end = horizon if np.isnan(end) else end
        found[k] = min(max(float(trace.jobs.assigned_time[k]), free.get(worker, 0.0)), end)
        free[worker] = max(end, free.get(worker, 0.0))
    return found


# ---------------------------------------------------------------------------------------------- reading a page


class Outline(HTMLParser):
    """Tags that fit into each other, the words, and the JSON of a page."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.scripts, self.problems = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "br", "path", "rect", "line"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.problems.append(f"</{tag}> in {self.open}")

    def handle_data(self, data):
        (self.scripts if self.open and self.open[-1] in ("script", "style") else self.words).append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def data_of(text):
    """What the scripts of a page are given."""
    return json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', text, re.DOTALL)[1])


def column(packed, count):
    """A column as the page's script reads it."""
    if "same" in packed:
        values = np.full(count, np.nan if packed["same"] is None else packed["same"], float)
        if "rises" in packed:
            values[0] = 0
    else:
        values = np.frombuffer(base64.b64decode(packed["data"]), f"<{packed['type']}").astype(float)
    if "of" in packed:
        listed = np.array([np.nan if value is None else value for value in packed["of"]])
        values = listed[values.astype(int)]
    return packed["rises"] + np.cumsum(values) if "rises" in packed else values


def columns(packed):
    """All columns of one run's jobs, in seconds where they are times."""
    count, tick, start = packed["count"], packed["tick"], packed["start"]
    raw = {k: v if isinstance(v, str) else column(v, count) for k, v in packed["columns"].items()}
    if isinstance(raw["staleness"], str):
        raw["staleness"] = raw[raw["staleness"]]
    raw["begin"] = start + (raw["assigned"] + raw["waited"]) * tick
    raw["end"] = start + (raw["assigned"] + raw["waited"] + raw["computed"]) * tick
    raw["assigned"] = start + raw["assigned"] * tick
    return raw
