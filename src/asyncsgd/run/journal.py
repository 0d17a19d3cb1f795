"""The events of journal.jsonl: their names, and what each row holds beside ``event``, ``iteration`` and ``seconds``.

A replay needs the journal beside the trace: it holds everything that changed the run and is not a job. Rows are in the
order of time. A reader ignores events that it does not know, so a new event does not need a new format.
"""

from __future__ import annotations

STARTED, RESUMED, ENDED = "started", "resumed", "ended"
JOINED, LEFT, DRAINED = "joined", "left", "drained"
STEP_CHANGED, STATE_RESET = "step_changed", "state_reset"
REJECTED, FAILED, DIED, RETIRED = "rejected", "failed", "died", "retired"
DIVERGED, STOPPED, STOPPED_EARLY, DIAGNOSED = "diverged", "stopped", "stopped_early", "diagnosed"
EVALUATION_FAILED = "evaluation_failed"

FIELDS: dict[str, tuple[str, ...]] = {
    STARTED: ("threads", "jobs"),
    RESUMED: ("threads", "jobs"),
    ENDED: ("workers", "skipped_rows"),
    JOINED: ("worker",),
    LEFT: ("worker",),
    DRAINED: ("reason",),
    STEP_CHANGED: ("factor", "reason"),
    STATE_RESET: ("worker", "reason"),
    REJECTED: ("worker", "job", "reason"),
    FAILED: ("worker", "job", "reason"),
    DIED: ("worker", "reason"),
    RETIRED: ("worker", "reason"),
    DIVERGED: (),
    STOPPED: ("reason",),
    STOPPED_EARLY: ("reason",),
    DIAGNOSED: ("problems", "facts"),
    EVALUATION_FAILED: ("reason",),
}
"""The fields of every event. ``ended``: ``skipped_rows`` is null if the task has no epochs. ``drained``: no job is
handed out from here on. ``step_changed``: steps are multiplied by ``factor`` from this iteration on. ``state_reset``:
the worker lost the state that it keeps between jobs. ``stopped``: an error stopped the run. ``stopped_early``: a
callback stopped it. ``evaluation_failed``: the evaluation of the model of this iteration raised or took too long."""
