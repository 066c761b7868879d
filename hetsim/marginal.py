"""What each worker is worth: the same algorithm on the same cluster without it.

Workers alike in everything but their name are taken together: one of them is left out, and all of them. The time to target is that of the
gradient noise scale, S_min (1 + B_n/B) updates of the simulated period: batches count, and a delay costs the same with and without.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim import wording
from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster, Worker
from hetsim.convergence.constants import constants_of
from hetsim.convergence.noise_scale import updates_needed
from hetsim.convergence.progress import progress_of
from hetsim.costs import cost
from hetsim.memory import pass_sizes
from hetsim.metrics import Timing
from hetsim.period import MOST_EVENTS, UPDATES
from hetsim.simulate import Result, simulate

MOST_KINDS = 16  # kinds of workers looked at, those with the least samples first [our choice]
HOW = "by the gradient noise scale: batch sizes count, what a delay costs is taken as the same; algorithm, global batch and passes stay"


@dataclass(frozen=True, kw_only=True)
class Marginal:
    """The cluster without some workers, over the cluster with them; above 1 is slower, dearer, more energy.

    None where a price or power is not known. `samples_per_s` and `update_period_s` are those without them.
    """

    without: tuple[str, ...]
    seconds_ratio: float
    cost_ratio: float | None
    energy_ratio: float | None
    samples_per_s: float
    update_period_s: float
    text: str


def marginals(
    cluster: Cluster, algorithm: Algorithm, *, seed: int = 0, whole: Result | None = None
) -> tuple[Marginal, ...]:
    """Each kind of worker, one of it and all of it left out; () for a single worker. `whole`: a run with all of them, if there is one."""
    if cluster.n == 1:
        return ()
    with_all = whole if whole is not None else _run(cluster, algorithm, seed)
    shares = with_all.timing.sample_share
    kinds = sorted(alike(cluster), key=lambda kind: float(sum(shares[w.rank] for w in kind)) / len(kind))[:MOST_KINDS]
    out = []
    for kind in kinds:
        for left_out in (kind[-1:], kind) if len(kind) > 1 else (kind,):
            if len(left_out) < cluster.n:
                out.append(_marginal(cluster, algorithm, with_all, left_out, seed))
    return tuple(out)


def _run(cluster: Cluster, algorithm: Algorithm, seed: int) -> Result:
    return simulate(cluster, algorithm, seed=seed, updates=max(10, min(UPDATES, MOST_EVENTS // cluster.n)))


def _marginal(cluster: Cluster, algorithm: Algorithm, whole: Result, left_out: Sequence[Worker], seed: int) -> Marginal:
    gone = {worker.rank for worker in left_out}
    rest = subset(_as_it_computes(cluster, algorithm, whole, gone), [r for r in range(cluster.n) if r not in gone])
    result = _run(rest, algorithm, seed)
    before, after = seconds_to_target(whole), seconds_to_target(result)
    ratio = after / before
    costs = cost(cluster, before), cost(rest, after)
    usd, kwh = _ratio(costs, "usd_to_target"), _ratio(costs, "kwh_to_target")
    names = tuple(worker.name for worker in left_out)
    return Marginal(
        without=names,
        seconds_ratio=ratio,
        cost_ratio=usd,
        energy_ratio=kwh,
        samples_per_s=result.timing.samples_per_s,
        update_period_s=result.timing.update_period_s,
        text=f"without {named(names)}: {change(ratio, 'slower', 'faster')}"
        + ("" if usd is None else f", {change(usd, 'dearer', 'cheaper')}")
        + ("" if kwh is None else f", {change(kwh, 'more energy', 'less energy')}"),
    )


def _as_it_computes(cluster: Cluster, algorithm: Algorithm, whole: Result, gone: set[int]) -> Cluster:
    """Where passes take equal time, the micro-batch is the slowest worker's: without it those who stay keep the passes they had."""
    if getattr(algorithm.options, "micro_batch", None) != "equal-time":
        return cluster
    usual = [
        sizes.most_common(1)[0][0]
        for rank, sizes in enumerate(pass_sizes(whole.schedule, cluster))
        if sizes and rank not in gone
    ]
    micro = min(usual, default=cluster.training.micro_batch_samples)
    return replace(cluster, training=replace(cluster.training, micro_batch_samples=micro))


def _ratio(costs: tuple[Any, Any], field: str) -> float | None:
    before, after = (None if c is None else getattr(c, field) for c in costs)
    return None if not before or after is None else float(after / before)


def seconds_to_target(result: Result) -> float:
    """Updates by the noise scale, S_min (1 + B_n/B), times the period; a round of local steps counts as that many updates."""
    known = constants_of(result.cluster.workload).noise_scale
    timing: Timing = result.timing
    counted = progress_of(result.schedule).steps
    steps = float(counted.mean()) if len(counted) else 1.0
    updates = float(updates_needed(timing.mean_batch_samples / steps, known.min_updates, known.noise_scale_samples))
    return updates / steps * timing.update_period_s


def alike(cluster: Cluster) -> list[tuple[Worker, ...]]:
    """Workers by kind: equal in all but rank, name and group, with equal links; on topology `nodes` those of one node."""
    kinds: dict[Any, list[Worker]] = {}
    for worker in cluster.workers:
        node = worker.node if cluster.network.topology == "nodes" else ""
        key = (replace(worker, rank=0, name="", group="", node=node), cluster.network.links[worker.rank])
        kinds.setdefault(key, []).append(worker)
    return [tuple(kind) for kind in kinds.values()]


def subset(cluster: Cluster, ranks: Sequence[int]) -> Cluster:
    """The cluster of some of its workers; a measured all-reduce table of the whole group is kept."""
    kept = [cluster.workers[rank] for rank in ranks]
    network = cluster.network
    nodes = {worker.node for worker in kept}
    return replace(
        cluster,
        workers=tuple(replace(worker, rank=i) for i, worker in enumerate(kept)),
        network=replace(
            network,
            links=tuple(network.links[rank] for rank in ranks),
            node_links={name: link for name, link in network.node_links.items() if name in nodes},
        ),
    )


def change(ratio: float, more: str, less: str) -> str:
    """`4 % slower`, `31 % cheaper`, `under 1 % slower`."""
    if not math.isfinite(ratio):
        return wording.NONE
    percent = 100 * (ratio - 1)
    size = f"{abs(percent):.0f}" if abs(percent) >= 0.5 else "under 1"
    return f"{size} % {more if percent >= 0 else less}"


def named(names: Sequence[str], most: int = 6) -> str:
    """a, b and c; of many the first."""
    if len(names) == 1:
        return names[0]
    if len(names) > most:
        return f"{', '.join(names[:most])} and {len(names) - most} more"
    return f"{', '.join(names[:-1])} and {names[-1]}"
