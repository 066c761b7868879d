"""DropCompute: synchronous SGD with a time limit on every worker's computation."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np
from pydantic import Field

from hetsim.algorithms.base import Algorithm, Options, Program, check_synchronous
from hetsim.commands import Port, Reduced
from hetsim.schedule.table import Schedule

MARGIN = 1e-3  # [our choice] share by which a chosen limit lies before the boundary it is meant for, so that rounding does not miss it
Row = tuple[float, ...]  # of one update: every worker's seconds for its whole batch


class DropComputeOptions(Options):
    """The limit, and what the sum of gradients is divided by."""

    limit: Literal["automatic", "fixed", "none"] = Field(
        "automatic", description="time limit: chosen from measured times, limit_s, or none at all"
    )
    limit_s: float = Field(1.0, gt=0, allow_inf_nan=False, description="limit fixed: seconds of computation")
    measured_updates: int = Field(
        20, ge=1, le=1000, description="limit automatic: first updates, without a limit, whose times are measured"
    )
    divisor: Literal["done", "planned"] = Field(
        "done", description="divide by the samples that were computed, or by the planned global batch"
    )


class DropCompute(Algorithm, name="dropcompute"):
    """Synchronous SGD with a time limit: between micro-batches a worker past the limit stops and synchronizes what it has.

        a  |m|m|m|m|······|             limit
        b  |m--|m--|m--|  ¦ never done  ¦
                          |all-reduce|

    x_{k+1} = step(x_k, Σ s_i / Σ b_i), all gradients taken at x_k. Without a limit this is S-SGD without overlap; one micro-batch is
    always done. The limit is the one of the largest effective speed-up on the measured times, the time saved times the share of samples
    done, and none where that is no gain:

        S(τ) = mean_k[(T_k + C) / (T_k(τ) + C)] · done(τ) / planned,   T_k(τ): when the last worker stops

    From the paper: the limit, its check between micro-batches, and the choice by S(τ); its authors' code takes the mean over updates of the
    product of both factors. Our choice: the product of their means, micro-batches of one worker and update count as equally long, the
    number of measured updates, samples not computed stay in the data set, and no overlap with the backward pass, since a worker knows
    only afterwards which micro-batch was its last.
    """

    source = "Giladi et al. 2023, DropCompute, NeurIPS (arXiv 2306.10598)"
    Options: ClassVar[Any] = DropComputeOptions
    by_default = False

    def worker(self, w: Port) -> Program:
        """Micro-batches up to the limit, then S-SGD."""
        o = self.options
        limit_s = o.limit_s if o.limit == "fixed" else math.inf
        table: list[Row] = []
        network: list[float] = []
        measuring, waited_s = o.limit == "automatic", 0.0
        while True:
            timed = measuring or limit_s < math.inf
            left, spent_s, began_s = w.batch, 0.0, (yield w.now()) if timed else 0.0
            while left and spent_s < limit_s:
                done = yield w.compute(min(w.micro_batch, left))
                if not done.samples:
                    break
                left -= done.samples
                if timed:
                    spent_s = (yield w.now()) - began_s
            computed = w.batch - left
            report = (spent_s * w.batch / computed if computed else 0.0, waited_s) if measuring else ()
            sync = yield w.all_reduce(gather=report)
            joined_s = (yield w.now()) if measuring else 0.0
            reduced = yield w.wait(sync)
            yield w.apply(sync, divisor=w.global_batch if o.divisor == "planned" else 0)
            if reduced.stop:
                return
            if measuring:
                waited_s = (yield w.now()) - joined_s
                measuring = len(table) + 1 < o.measured_updates
                note(reduced, table, network)
                if not measuring:
                    passes = tuple(-(-b // w.micro_batch) for b in w.batches)
                    limit_s = best_limit(tuple(table), passes, sum(network[1:]) / max(len(network) - 1, 1))

    def check(self, schedule: Schedule) -> None:
        """No staleness at all."""
        check_synchronous(self.name, schedule)


def note(reduced: Reduced, table: list[Row], network: list[float]) -> None:
    """Take what everybody measured: the seconds of its batch, and what it waited for the transfer before, the last to join for it alone."""
    rows = [reduced.gathered[rank] for rank in sorted(reduced.gathered)]
    table.append(tuple(seconds for seconds, _ in rows))
    network.append(min(waited for _, waited in rows))


@lru_cache(maxsize=64)  # every rank asks the same question after the same collective
def best_limit(table: tuple[Row, ...], passes: tuple[int, ...], network_s: float) -> float:
    """The limit of the largest effective speed-up; infinite where none is a gain. `passes`: micro-batches of each worker's batch."""
    seconds = np.array(table)  # (K, n)
    planned = np.array(passes, np.float64)
    micro = seconds / np.maximum(planned, 1)
    whole = seconds.max(axis=1) + network_s
    best, limit_s = 1.0, math.inf
    candidates = {
        float(j * t) * (1 - MARGIN)
        for t, count in zip(micro.mean(axis=0), passes, strict=True)
        for j in range(1, count)
    }
    for candidate in sorted(candidates, reverse=True):
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.ceil(candidate / micro - 1e-9)  # the first boundary at or past the limit
        done = np.clip(np.where(micro > 0, needed, planned), 1, planned)
        took = (np.minimum(done, planned) * micro).max(axis=1) + network_s
        if not took.min() > 0:
            continue
        gain = float(np.mean(whole / took) * np.minimum(done, planned).sum() / (planned.sum() * len(seconds)))
        if gain > best * (1 + 1e-12):
            best, limit_s = gain, candidate
    return limit_s
