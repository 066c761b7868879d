"""Schedules: record, check, read.

kinds     what a row is: GRAD, JOIN, REDUCE, STEP, MIX, COPY, PREDICT, DISCARD, WAIT
log       the recorder
table     Schedule, the columns, and its Header
updates   the logical updates of a Schedule: samples, staleness, contributions
check     the invariants every Schedule keeps
store     Parquet
"""

from __future__ import annotations

from hetsim.schedule.kinds import DiscardReason, JoinRule, Kind, MixRule, Payload, PointRule, StepRule, WaitCause
from hetsim.schedule.table import Header, Schedule
from hetsim.schedule.updates import Updates

__all__ = [
    "DiscardReason",
    "Header",
    "JoinRule",
    "Kind",
    "MixRule",
    "Payload",
    "PointRule",
    "Schedule",
    "StepRule",
    "Updates",
    "WaitCause",
]
