"""Executing a Schedule as training.

plan        from the log to passes, steps, averages and predicted points
inprocess   all of them in one process, on the Schedule's clock
orders      from the log to what every rank does, checked for deadlock
exchange    a rank's transfers on torch.distributed
rank        one rank, a process of its own
ranks       the processes: started, watched, ended
distributed a Schedule on as many processes as it has workers
"""
