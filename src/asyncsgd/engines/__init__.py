"""Where jobs are computed for real: worker processes on this machine."""

from asyncsgd.engines.base import Crew, Engine, EngineError, Failed, Report
from asyncsgd.engines.processes import Processes, processes

__all__ = ["Crew", "Engine", "EngineError", "Failed", "Processes", "Report", "processes"]
