"""What a Schedule says about time: throughput, period, utilisation, what each worker waited for, and what limits the run.

All figures are taken over the second half of the updates, from the completion of update ⌈K/2⌉ to that of update K, so that the
start does not count (staleness and who joins last are taken over the whole run). An update is a step on a transfer; for methods that
average parameters it is one averaging round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hetsim.batch_means import relative_error
from hetsim.cluster.spec import Cluster
from hetsim.schedule.kinds import Kind, WaitCause
from hetsim.schedule.table import Schedule

Floats = NDArray[np.float64]
WAITS = ("peers", "network", "push", "pull", "gate", "cap", "data", "peer")
NOTHING_WAITS = 0.01  # [our choice] below this share of waiting a run is called limited by computation


@dataclass(frozen=True, kw_only=True, eq=False)
class Timing:
    """Figures of one run over the window [start_s, end_s] (second half of the updates).

    `waiting`: cause -> share of all workers' time ("peers": for the last to join; "network": for the transfer itself).
    Per worker, shape (n,):
    `busy_share`, `waiting_share_by_worker`, `sample_share`. `staleness_*` are None for methods that average parameters.
    """

    updates: int
    start_s: float
    end_s: float
    samples_per_s: float
    update_period_s: float
    mean_batch_samples: float
    utilisation: float
    waiting_share: float
    waiting: dict[str, float]
    staleness_mean: float | None
    staleness_max: int | None
    busy_share: Floats
    waiting_share_by_worker: Floats
    sample_share: Floats
    last_share: Floats  # how often each worker was the last to join a collective
    period_error: float | None  # ± share of update_period_s (`hetsim.batch_means`)
    link_busy_share: float  # share of the window with a collective on the wire

    @property
    def window_s(self) -> float:
        """Length of the window."""
        return self.end_s - self.start_s


def update_times(s: Schedule) -> tuple[Floats, NDArray[np.int64]]:
    """Completion time and samples of every update (or averaging round) before the first worker stops, shapes (K,).

    An update by collective is complete when the collective is: a worker that runs ahead applies it later. At the server it is complete when
    it is applied. Once the first worker has been told to stop, what the others still finish says nothing about the rate.
    """
    u = s.updates
    reduces = s.rows(Kind.REDUCE)
    if len(u):
        arrived = np.full(int(s.source.max(initial=-1)) + 1, -np.inf)
        collective = reduces[s.worker[reduces] < 0]
        arrived[s.source[collective]] = s.end_s[collective]
        times = np.where(np.isfinite(arrived[u.source]), arrived[u.source], u.time_s)
        keep = times <= first_stop_s(s)
        return times[keep], u.samples[keep]
    steps = s.rows(Kind.STEP)
    total = np.concatenate(([0], np.cumsum(s.samples[steps])))
    upto = total[np.searchsorted(steps, reduces)]
    return s.end_s[reduces], np.diff(np.concatenate(([0], upto))).astype(np.int64)


def first_stop_s(s: Schedule) -> float:
    """When the first worker did its last thing."""
    last = np.full(s.n + 2, -np.inf)  # the server and the collectives (worker -1) have places of their own at the end
    last[s.worker] = s.end_s  # rows are in order of time: the last one stays
    active = last[: s.n][np.isfinite(last[: s.n])]
    return float(active.min()) if len(active) else 0.0


def clipped(s: Schedule, rows: NDArray[Any], start: Floats | float, end: Floats | float) -> Floats:
    """Seconds of each row's span inside [start, end]."""
    spans: Floats = np.maximum(0.0, np.minimum(s.end_s[rows], end) - np.maximum(s.start_s[rows], start))
    return spans


def last_joins(s: Schedule) -> tuple[Floats, NDArray[np.int64]]:
    """Per transfer: when its last member joined, and which worker that was; shapes (transfers,)."""
    joins = s.rows(Kind.JOIN)
    size = int(s.source.max(initial=-1)) + 1
    when = np.full(size, -np.inf)
    who = np.full(size, -1, np.int64)
    when[s.source[joins]] = s.start_s[joins]  # joins are in order of time: the last one stays
    who[s.source[joins]] = s.worker[joins]
    return when, who


def timing(s: Schedule, cluster: Cluster) -> Timing:
    """Compute the figures of a Schedule."""
    times, samples = update_times(s)
    count = len(times)
    half = (count + 1) // 2
    if count > half:
        start, end = float(times[half - 1]), float(times[-1])
        done, periods = int(samples[half:].sum()), count - half
    else:  # too short for a half: all of it
        start, end = 0.0, float(times[-1]) if count else s.horizon_s
        done, periods = int(samples.sum()), max(count, 1)
        end = end if end > start else s.horizon_s  # an averaging that nobody computed before
    window = end - start
    n = s.n

    def per_worker(rows: NDArray[Any], weights: NDArray[Any]) -> Floats:
        """Sums by worker, the server left out."""
        return np.bincount(s.worker[rows], weights=weights, minlength=n + 1)[:n].astype(np.float64)

    grads = s.rows(Kind.GRAD)
    busy = per_worker(grads, clipped(s, grads, start, end))
    waits = s.rows(Kind.WAIT)
    wait_s = clipped(s, waits, start, end)
    waiting = dict.fromkeys(WAITS, 0.0)
    when, who = last_joins(s)
    collective = waits[s.code[waits] == WaitCause.COLLECTIVE]
    joined = when[s.source[collective]]
    for_peers = clipped(s, collective, start, np.minimum(end, joined))
    waiting["peers"] = float(for_peers.sum())
    waiting["network"] = float(clipped(s, collective, start, end).sum() - for_peers.sum())
    for cause in WaitCause:
        if cause != WaitCause.COLLECTIVE:
            waiting[cause.name.lower()] = float(wait_s[s.code[waits] == cause].sum())
    whole = n * window if window > 0 else 1.0
    inside = grads[(s.end_s[grads] > start) & (s.end_s[grads] <= end)]
    shares = per_worker(inside, s.samples[inside])
    reduces = s.rows(Kind.REDUCE)
    on_wire = float(clipped(s, reduces, start, end).sum()) / window if window > 0 else 0.0
    last = np.bincount(who[s.source[reduces]][who[s.source[reduces]] >= 0], minlength=n).astype(float)
    u = s.updates
    weights = u.part_samples if len(u) else np.zeros(0)
    return Timing(
        updates=count,
        start_s=start,
        end_s=end,
        samples_per_s=done / window if window > 0 else 0.0,
        update_period_s=window / periods,
        mean_batch_samples=done / periods,
        utilisation=float(busy.sum()) / whole,
        waiting_share=float(wait_s.sum()) / whole,
        waiting={k: v / whole for k, v in waiting.items()},
        staleness_mean=float(np.average(u.staleness, weights=weights)) if weights.sum() else None,
        staleness_max=int(u.staleness.max()) if len(u.staleness) else None,
        busy_share=busy / window if window > 0 else busy,
        waiting_share_by_worker=per_worker(waits, wait_s) / window if window > 0 else busy * 0,
        sample_share=shares / shares.sum() if shares.sum() else shares,
        last_share=last / last.sum() if last.sum() else last,
        period_error=relative_error(times[half - 1 :]) if count > half else None,
        link_busy_share=min(1.0, on_wire),
    )


def limited_by(t: Timing, cluster: Cluster, *, server: bool = False) -> str:
    """What limits a run, in words."""
    names = [f"{w.name} ({w.gpu})" if w.gpu else w.name for w in cluster.workers]
    if cluster.n == 1:
        return "computation: one worker"
    worst = max(t.waiting, key=lambda k: t.waiting[k])
    share = t.waiting[worst]
    percent = f"{100 * share:.0f} % of all worker time"
    if t.waiting_share < NOTHING_WAITS:
        if t.link_busy_share > 0.5 and not server:
            return f"computation; the network ({slowest_link(cluster)}) sets the batch of {t.mean_batch_samples:,.0f} samples"
        return "computation: every worker is busy"
    if worst == "peers":
        slow = int(np.argmax(t.last_share))
        if t.last_share[slow] > 0.5:
            return f"straggler {names[slow]}: {percent} is spent waiting for it"
        return f"uneven finish: {percent} is spent waiting for the last to come"
    if worst in ("network", "push", "pull"):
        where = "the server's link or a worker's" if worst != "network" else slowest_link(cluster)
        return f"network ({where}): {percent} is spent waiting for it"
    if worst == "gate":
        slow = int(np.argmin(t.waiting_share_by_worker))  # shares of samples are equal under a bound on skew
        return f"the bound on skew: {percent} is spent waiting for {names[slow]}"
    causes = {"cap": "the batch cap", "data": "the end of the data", "peer": "the partner of an exchange"}
    return f"{causes.get(worst, worst)}: {percent} is spent waiting"


def slowest_link(cluster: Cluster) -> str:
    """The link with the least bandwidth, in words."""
    network = cluster.network
    links = [(link.bytes_per_s, f"link of {w.name}") for link, w in zip(network.links, cluster.workers, strict=True)]
    links += [(link.bytes_per_s, f"link of node {name}") for name, link in network.node_links.items()]
    slowest = min(b for b, _ in links)
    rate = f"{slowest * 8e-9:.3g} Gbit/s" if np.isfinite(slowest) else "free"
    named = [text for b, text in links if b == slowest]
    return f"{named[0]}, {rate}" if len(named) == 1 else f"all links, {rate}"
