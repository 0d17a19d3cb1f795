"""The events of journal.jsonl: their names, and what each row holds beside ``event``, ``iteration`` and ``seconds``.

The journal is what a replay needs beside the trace: whatever changed the run and is not a job. Rows are in the order in
which things happened. A reader ignores events that it does not know, so new ones need no new format.
"""

from __future__ import annotations

STARTED, RESUMED, ENDED = "started", "resumed", "ended"
JOINED, LEFT, DRAINED = "joined", "left", "drained"
STEP_CHANGED, STATE_RESET = "step_changed", "state_reset"
REJECTED, FAILED, DIED, RETIRED = "rejected", "failed", "died", "retired"
DIVERGED, STOPPED, DIAGNOSED = "diverged", "stopped", "diagnosed"

FIELDS: dict[str, tuple[str, ...]] = {
    STARTED: ("threads", "transport", "jobs"),
    RESUMED: ("threads", "transport", "jobs"),
    ENDED: ("workers",),
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
    DIAGNOSED: ("problems", "facts"),
}
"""The fields of every event. ``drained``: from here on no job is handed out. ``step_changed``: steps are multiplied by
``factor`` from this iteration on. ``state_reset``: the worker forgot the state that it keeps between jobs."""
