"""How long samples take on a worker.

pass_model   floor and line, measured table or recorded trace behind one protocol
passes       a batch in the fewest equal parts that fit in memory
WorkTimer    what a worker's next samples take in a run, with its jitter and stragglers
SpeedProfile slow-downs by event, integrated exactly
fit          a floor and a line from measured step times
"""

from hetsim.compute.fit import LineFit, fit_line
from hetsim.compute.model import PassModel, pass_model
from hetsim.compute.passes import passes
from hetsim.compute.progress import SpeedProfile
from hetsim.compute.timer import WorkTimer

__all__ = ["LineFit", "PassModel", "SpeedProfile", "WorkTimer", "fit_line", "pass_model", "passes"]
