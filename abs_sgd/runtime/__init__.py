"""Live runs: hetsim's algorithms, driven on torch.distributed and the wall clock.

rank      answers a program's commands with true gradients and real collectives
wire      collectives: the vector, and beside it what must arrive exact
samples   who gets which samples, claimed ahead of need
pacing    one machine as the profile's cluster
record    every rank's rows, merged into one Schedule
keeping, keeper, answers    checkpoints without draining, and going on from them
offsets   one clock for ranks on several machines
run       one rank's run from set-up to result
"""
