"""The arithmetic of one period, in numbers: how long a pass takes, how long the network takes, and what follows from the two.

Closed forms hold for steady speeds: jitter, stragglers, events and whatever else they leave out is listed, and the simulator's own
figures stand beside them, once without that luck and once as the profile says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hetsim.algorithms import make
from hetsim.cautions import cautions_of_cluster, cautions_of_run, unique
from hetsim.cluster.spec import Cluster
from hetsim.comparison import Yardsticks, plain
from hetsim.convergence.stability import Caution
from hetsim.marginal import Marginal, marginals
from hetsim.memory import MemoryUse, memory_of
from hetsim.metrics import Timing
from hetsim.period import MOST_EVENTS, UPDATES, Figures, Part, Period, without_luck
from hetsim.rows import timing_row
from hetsim.simulate import simulate
from hetsim.yardsticks import all_reduce_over_critical


@dataclass(frozen=True, kw_only=True)
class Explanation:
    """One period in numbers. `steps` are (name, formula with its numbers, value); where `closed` is None, `why` says so.

    `yardsticks` and `warnings` are at the profile's own learning rate, untuned; `sample_share` is each worker's share of the simulated run.
    `all_reduce_over_critical`: of the cluster (`hetsim.yardsticks`). `memory`: what each worker keeps; `marginal`: the same without some
    of them.
    """

    profile: str
    algorithm: str
    options: Mapping[str, Any]
    parts: tuple[Part, ...]
    steps: tuple[tuple[str, str, str], ...]
    closed: Figures | None
    why: str
    steady: Figures
    simulated: Figures
    left_out: tuple[str, ...]
    sample_share: Mapping[str, float]
    yardsticks: Yardsticks
    all_reduce_over_critical: float | None
    memory: tuple[MemoryUse, ...]
    marginal: tuple[Marginal, ...]
    warnings: tuple[Caution, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values with `schema_version`."""
        return {"schema_version": 1, **plain(self)}


def explain(cluster: Any, algorithm: str, options: Mapping[str, Any] | None = None, *, seed: int = 0) -> Explanation:
    """The arithmetic of one period of `algorithm` on a Profile or Cluster. Raises UsageError as `simulate` does."""
    resolved: Cluster = cluster if isinstance(cluster, Cluster) else cluster.cluster()
    program = make(algorithm, {**resolved.options.get(algorithm, {}), **(options or {})})
    updates = max(10, min(UPDATES, MOST_EVENTS // resolved.n))
    steady = simulate(without_luck(resolved), program, seed=seed, updates=updates)
    simulated = simulate(resolved, program, seed=seed, updates=updates)
    period = Period(resolved, program, steady)
    closed, why = period.closed()
    row = timing_row(simulated)
    return Explanation(
        profile=resolved.name,
        algorithm=algorithm,
        options=program.options.model_dump(mode="json"),
        parts=period.parts(),
        steps=tuple(period.steps),
        closed=closed,
        why=why,
        steady=_figures(steady.timing),
        simulated=_figures(simulated.timing),
        left_out=(*period.left_out(), *left_out(resolved)),
        sample_share=row.sample_share,
        yardsticks=row.yardsticks,
        all_reduce_over_critical=all_reduce_over_critical(resolved),
        memory=memory_of(simulated),
        marginal=marginals(resolved, program, seed=seed, whole=simulated),
        warnings=unique(
            [*cautions_of_cluster({algorithm: simulated}), *cautions_of_run(replace(row, name=algorithm), simulated)]
        ),
    )


def left_out(cluster: Cluster) -> list[str]:
    """What of this cluster the closed forms do not know."""
    workers, network = cluster.workers, cluster.network
    found = (
        (any(x.jitter_cv for x in workers), "jitter"),
        (any(x.straggler_probability for x in workers), "stragglers"),
        (any(x.trace for x in workers), "traces (their mean speed is used)"),
        (any(x.slowdowns for x in workers) or any(link.changes for link in network.links), "events"),
        (network.overlap_slowdown != 1.0, "the slow-down of compute while a collective is in flight"),
        (bool(network.all_reduce_busy_table), "the slow-down of collectives while workers compute"),
        (any(x.update_s for x in workers), "the time of an update (update_s)"),
        (True, "batches cut short at the end of an epoch"),
    )
    return [text for there, text in found if there]


def _figures(t: Timing) -> Figures:
    return Figures(
        update_period_s=t.update_period_s, mean_batch_samples=t.mean_batch_samples, samples_per_s=t.samples_per_s
    )
