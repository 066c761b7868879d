"""Executing a Schedule as training.

plan        from the log to passes, steps, averages and predicted points
inprocess   all of them in one process, on the Schedule's clock
operations  what a rank does, one after the other
orders      from the log to the operations of every rank
verify      that no rank would wait for another for ever
cuts        rows of the log at which a checkpoint is written
exchange    a rank's transfers on torch.distributed
rank        one rank: executes its operations
job         what the ranks are told, as files
process     a rank's process
ranks       the processes: started, watched, ended
results     what they found
distributed a Schedule on as many processes as it has workers
comparison  how far that is from one process
"""
