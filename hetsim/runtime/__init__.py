"""Drives algorithm programs on a virtual clock (simpy) and records the Schedule.

driver       the loop that answers commands; everything but compute, waiting and completion is answered without the event queue
computing    passes whose speed changes while they run: slow-downs by event, compute slowed by a collective in flight
collectives  joining, starting and completing all-reduces, streamed ones too
partial      all-reduces that start without those who still compute
exchanges    averaging of two replicas while both may compute
groups       partial all-reduces of random groups
server       the parameter server: pushes, pulls, the inbox
data         who gets which samples
"""

from __future__ import annotations

from hetsim.runtime.driver import Simulation

__all__ = ["Simulation"]
