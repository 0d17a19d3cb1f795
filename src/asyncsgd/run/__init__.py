"""Training with real workers: the one loop over any engine, the run directory, resuming, replaying.

``training`` the call, ``options`` its values, ``loop`` the loop, ``recording`` what it writes, ``evaluator`` its
metrics. ``directory``, ``checkpoints``, ``checksums``, ``journal``, ``stored`` what is on disk; ``read`` reads it,
``verify`` and ``repair`` check it. ``replaying`` computes a run again. ``view`` and ``ending`` are one run as every
output shows it; ``live`` follows a run that is still training. ``diagnosis`` says why a run does not learn.
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
