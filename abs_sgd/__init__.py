"""abs_sgd trains: it executes Schedules, and runs hetsim's algorithms, with real models and real gradients.

It depends on `hetsim`, never the reverse, and needs the extra `train` (torch).
"""
