"""Training with real workers: the one loop over any engine, the run directory, resuming, replaying.

``training`` has the call and ``options`` its arguments. ``loop`` is the loop, ``recording`` writes what happens;
beside it ``evaluator`` makes the metrics and ``checkpointer`` saves the state, each with a thread. ``directory``,
``checkpoints``, ``checksums``, ``journal`` and ``stored`` define the files of a run; ``read`` reads them, ``verify``
and ``repair`` check them. ``replaying`` computes a run again. ``view`` and ``ending`` describe one run for every
output; ``live`` follows a run that is still training. ``diagnosis`` explains why a run does not learn.
"""

from asyncsgd.core.errors import BadCheckpoint, BadRunDirectory, ReplayDiffers, WorkersFailed
from asyncsgd.run import callbacks, live, repair, verify
from asyncsgd.run.callbacks.base import Callback, Control, LiveView
from asyncsgd.run.options import Checkpoints, Limits
from asyncsgd.run.replaying import Replay, replay
from asyncsgd.run.results import TrainingRun
from asyncsgd.run.training import train

__all__ = [
    "BadCheckpoint",
    "BadRunDirectory",
    "Callback",
    "Checkpoints",
    "Control",
    "Limits",
    "LiveView",
    "Replay",
    "ReplayDiffers",
    "TrainingRun",
    "WorkersFailed",
    "callbacks",
    "live",
    "repair",
    "replay",
    "train",
    "verify",
]
