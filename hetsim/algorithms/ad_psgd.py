"""AD-PSGD: every worker averages with one random neighbour at a time, nobody waits for the group."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from pydantic import Field

from hetsim.algorithms.base import Algorithm, Options, Program
from hetsim.commands import Port
from hetsim.errors import ScheduleError
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule


class AdPsgdOptions(Options):
    """When to average."""

    overlap: bool = Field(True, description="average while the next gradient is computed, or between two of them")


class AdPsgd(Algorithm, name="ad-psgd"):
    """Asynchronous decentralized SGD: each step of a replica comes with an average of it and one random neighbour's, nobody waits for all.

        x_i, x_j := (x_i + x_j)/2 at once,   x_i := step(x_i, s_i/b_i) with s_i taken at what x_i was before

    Workers are active or passive by turns of their names: active ones start an exchange per batch with a passive one drawn at random,
    passive ones compute and are averaged while they do, so that no two wait for each other. Momentum stays local. With one worker this is
    SGD. A worker's samples/s are b / max(t(b), its exchange), or b / (t(b) + exchange) without overlap, whatever the others do.

    In the quadratic model, whose workers share one loss, the replicas' mean takes S-SGD's steps exactly where workers are equal, without
    their waiting. Unequal ones swing at different paces and damp each other, so that noise in steep directions is less (.4 to .85 of
    S-SGD's at momentum .9, speeds 8 : 6 : 2 : 1 and 4 : 3.4 : 2.8 : 1.9). What is read is the mean of all replicas; its expectation
    swings with who has averaged last, in the model it is a running mean. Where data differ by worker, or replicas are so far apart that
    their mean is no good, it does worse than this.

    From the paper: atomic averaging of pairs, a bipartite graph, gradients from before the average. Our choice: every active worker is a
    neighbour of every passive one; parameters cross each other on the wire; who has left is averaged with no more.
    """

    source = (
        "Lian et al. 2018, Asynchronous Decentralized Parallel Stochastic Gradient Descent, ICML (arXiv 1710.06952)"
    )
    Options: ClassVar[Any] = AdPsgdOptions
    live = "its passive workers would have to answer in the middle of a pass, which takes a thread of its own"
    by_default = False

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """The partner's parameters beside the own."""
        return {**super().buffers(optimizer_states), "partner's parameters": 1}

    def worker(self, w: Port) -> Program:
        """Every second by name is active."""
        place = w.by_name.index(w.rank)
        passive = w.by_name[1::2]
        return self.passive(w) if place % 2 else self.active(w, passive or (w.rank,))

    def active(self, w: Port, partners: tuple[int, ...]) -> Program:
        """Exchange with a random partner, compute, step."""
        overlap = self.options.overlap
        while True:
            partner = partners[int((yield w.draw("partner")) * len(partners))]
            exchange = (yield w.exchange(partner)) if overlap else None
            done = yield w.compute(w.batch)
            if exchange is not None:
                reduced = yield w.wait(exchange)
            if not done.samples:
                return
            yield w.step()
            if exchange is None:
                reduced = yield w.wait((yield w.exchange(partner)))
            if reduced.stop:
                return

    def passive(self, w: Port) -> Program:
        """Compute and step; the others do the averaging."""
        while True:
            done = yield w.compute(w.batch)
            if not done.samples:
                return
            yield w.step()
            if (yield w.over()):
                return

    def check(self, schedule: Schedule) -> None:
        """Every exchange is of one active worker, with at most one passive."""
        order = np.argsort(np.array(schedule.header.workers))
        role = np.empty(schedule.n, np.int64)
        role[order] = np.arange(schedule.n) % 2
        mixes = schedule.rows(Kind.MIX)
        made = np.zeros((int(schedule.source.max(initial=-1)) + 1, 2), np.int64)
        np.add.at(made, (schedule.source[mixes], role[schedule.worker[mixes]]), 1)
        used = made[np.unique(schedule.source[mixes])]
        if np.any(used[:, 0] != 1) or np.any(used[:, 1] > 1):
            raise ScheduleError(f"{self.name}: an exchange is not of one active and at most one passive worker")
