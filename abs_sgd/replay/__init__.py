"""Executing a Schedule as training.

plan        from the log to passes, steps, averages and predicted points
inprocess   all of them in one process, on the Schedule's clock
"""
