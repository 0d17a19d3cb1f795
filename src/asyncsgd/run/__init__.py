"""Training for real: the one loop over any engine, the run directory, resuming, replaying.

``training`` the call, ``loop`` the loop · ``directory``, ``checkpoint`` what is on disk · ``replay`` the run again ·
``finished`` a run that has ended · ``pace`` how fast it is · ``diagnosis`` why it does not learn · ``listeners`` who is
told · ``named`` what a command line names.
"""

from asyncsgd.core.errors import BadCheckpoint, BadRunDirectory, ReplayDiffers, WorkersFailed
from asyncsgd.run.listeners import Listener
from asyncsgd.run.replay import Replay, replay
from asyncsgd.run.results import TrainingRun
from asyncsgd.run.training import train

__all__ = [
    "BadCheckpoint",
    "BadRunDirectory",
    "Listener",
    "Replay",
    "ReplayDiffers",
    "TrainingRun",
    "WorkersFailed",
    "replay",
    "train",
]
