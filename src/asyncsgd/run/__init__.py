"""Training with real workers: the one loop over any engine, the run directory, resuming, replaying.

``training`` the call, ``options`` its values, ``loop`` the loop, ``recording`` what it writes down, ``evaluator`` its
metrics · ``directory``, ``checkpoint`` what is on disk · ``replay`` the run again · ``finished`` a run that has ended ·
``view``, ``ending`` one run as everything shows it · ``diagnosis`` why it does not learn · ``callbacks`` who hears of
it · ``named`` what a command line names.
"""

from asyncsgd.core.errors import BadCheckpoint, BadRunDirectory, ReplayDiffers, WorkersFailed
from asyncsgd.run import callbacks
from asyncsgd.run.callbacks.base import Callback, Control, LiveView
from asyncsgd.run.options import Checkpoints, Limits
from asyncsgd.run.replay import Replay, replay
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
    "replay",
    "train",
]
