"""Prague: random groups of workers average their parameters, and only who is in a group waits for it."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Port
from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule


class PragueOptions(Options):
    """The groups, and how often a worker is in one."""

    group_size: int = Field(3, ge=1, le=100_000, description="most workers in a group")
    local_steps: int = Field(1, ge=1, le=100_000, description="steps of each worker between two averages")
    slack: int = Field(
        4, ge=1, le=1_000_000, description="who has had so many groups less is not drawn by who is that far ahead"
    )


class Prague(Algorithm, name="prague"):
    """Local steps, each followed by a partial all-reduce: the parameters of a random group are averaged, the others go on.

        a  |step|··|avg ac|step|····       groups {a, c}, {b, d} were drawn when a asked first
        b  |step---|·|avg bd|step---       d finds its group when it asks
        c  |step---|avg ac|step---|

    x_i := mean over the group of x_j. Who asks and is in no group has all who are in none divided at random into groups (the paper's global
    division); the others find theirs when they ask. Who has asked `slack` times less is left out, so that a straggler holds up few.
    Momentum stays local. With one group of all this is Local SGD of as many steps, which without momentum and with one step is S-SGD.
    With one worker it is SGD. What is read is the mean of all replicas, as for `ad-psgd`.

    From the paper: partial all-reduces, random groups by global division, kept for their members until they ask, the filter by counts of
    groups. Our choice: a worker is in a group until it has its average, so that groups never conflict; groups of at most 3 as even as can
    be, a slack of 4, no regard for which workers share a node, a generator of groups that answers in no time.
    Not checked against the paper's full text, and no code by its authors was found.
    """

    source = (
        "Luo et al. 2020, Prague: High-Performance Heterogeneity-Aware Asynchronous Decentralized Training, ASPLOS "
        "(arXiv 1909.08029)"
    )
    Options: ClassVar[Any] = PragueOptions
    live = "its groups come from a generator that all workers ask, which the live runtime does not have"
    counts_rounds = True
    by_default = False

    def worker(self, w: Port) -> Program:
        """Steps, then the next group, until the run is over; then the group that this worker may still be in."""
        o = self.options
        over = False
        while True:
            for _ in range(0 if over else o.local_steps):
                done = yield w.compute(w.batch)
                over = not done.samples
                if over:
                    break
                yield w.step()
            over = over or (yield w.over())
            sync = yield w.group_reduce(o.group_size, o.slack, leaving=over)
            if sync is None:
                return
            reduced = yield w.wait(sync)
            yield w.merge(sync)
            over = over or reduced.stop

    def check(self, schedule: Schedule) -> None:
        """Every worker takes its groups in the order in which they were formed, and all members of a group take its average."""
        mixes, joins = schedule.rows(Kind.MIX), schedule.rows(Kind.JOIN)
        for worker in range(schedule.n):
            taken = schedule.source[mixes[schedule.worker[mixes] == worker]]
            if np.any(np.diff(taken) <= 0):
                raise ScheduleError(f"{self.name}: {schedule.worker_names([worker])[0]} takes its groups out of order")
        size = int(schedule.source.max(initial=-1)) + 1
        joined, mixed = (np.bincount(schedule.source[rows], minlength=size) for rows in (joins, mixes))
        if np.any(joined != mixed):
            raise ScheduleError(f"{self.name}: a group's average is not taken by all of its members")
