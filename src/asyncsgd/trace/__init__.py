"""The record of a run: which worker computed which job at which point, when it arrived, and how it ended.

::

    Recorder ──▶ Trace ──▶ .delays (τ_avg, τ_max, τ_C, τ̄_C, τ^i_avg), .check() (the integer identity)
       │           ▲
       └▶ TraceLog ┴ Parquet      on disk: appended during the run, or written whole at its end
"""

from asyncsgd.trace.check import Identity
from asyncsgd.trace.columns import Delays, Jobs, Remark5
from asyncsgd.trace.log import TraceLog
from asyncsgd.trace.recorder import Recorder
from asyncsgd.trace.trace import Trace

__all__ = ["Delays", "Identity", "Jobs", "Recorder", "Remark5", "Trace", "TraceLog"]
