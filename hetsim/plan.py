"""plan: how to train on a cluster: algorithm, batches of every worker, passes, trigger and compute point, each with its reason.

All algorithms are tried by simulation and prediction (`hetsim.candidates`); the fastest to the target is taken, or, of those that cannot be
told from it, the simplest. Fixed batches are then split exactly (`hetsim.split`).
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetsim.candidates import Candidate, Done, Tried, candidates, first_round, second_round, too_large
from hetsim.cautions import unique
from hetsim.cluster.spec import Cluster
from hetsim.compare import speedup
from hetsim.comparison import Cost, Speedup, Tariff, TimeToTarget, Yardsticks, plain
from hetsim.convergence.predictor import Target
from hetsim.convergence.stability import Caution
from hetsim.costs import tariffs
from hetsim.errors import SimulationError, UsageError
from hetsim.marginal import Marginal, marginals
from hetsim.memory import MemoryUse, memory_use
from hetsim.period import Period, without_luck
from hetsim.plan_reasons import better_without, reasons_of
from hetsim.simulate import Result, simulate
from hetsim.split import batch_seconds, best_split
from hetsim.verdict import MARGIN

PLAN_VERSION = 1
SIMPLEST = ("equal", "balanced", "open")  # splits, the simplest first
SETTLED = 120  # updates after which balanced and paced batches have long settled [our choice]


@dataclass(frozen=True, kw_only=True)
class Share:
    """One worker's part of an update: `batch_samples` in `passes` of `pass_samples` at most.

    Of an open batch these are the mean over updates. `loss_weight`: what a mean loss over the own batch is multiplied by where gradients
    are then averaged over workers, as DDP does: n·b_i/B.
    """

    rank: int
    worker: str
    gpu: str | None
    batch_samples: float
    pass_samples: int
    passes: float
    loss_weight: float
    seconds: float
    memory: MemoryUse


@dataclass(frozen=True, kw_only=True)
class Alternative:
    """Another way that was tried: time to target, and how many times as fast the plan is; None where it was not reached."""

    name: str
    seconds: float | None
    slower: Speedup
    limited_by: str
    seeds: int


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What to run. `label` and `overrides` say it to hetsim; `workers` and `copy` to one's own script.

    `trigger`, `compute_point`, `micro_batch`: options where the algorithm has them. `excluded`: name -> why it does not fit into memory.
    """

    profile: str
    predictor: str
    seed: int
    seeds: tuple[int, ...]
    target: Target
    label: str
    algorithm: str
    options: Mapping[str, Any]
    overrides: Mapping[str, int]
    split: str
    trigger: str | None
    compute_point: str | None
    micro_batch: str | None
    global_batch_samples: int
    micro_batch_samples: int
    mean_batch_samples: float
    update_period_s: float
    samples_per_s: float
    learning_rate: float | None
    momentum: float | None
    time_to_target_s: TimeToTarget | None
    cost: Cost | None
    tariffs: Mapping[str, Tariff]
    yardsticks: Yardsticks
    workers: tuple[Share, ...]
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    excluded: Mapping[str, str]
    marginal: tuple[Marginal, ...]
    warnings: tuple[Caution, ...]
    assumptions: tuple[str, ...]
    versions: Mapping[str, str]

    def to_json(self) -> dict[str, Any]:
        """One document of plain values with `schema_version`; what does not apply is null."""
        return {"schema_version": PLAN_VERSION, **plain(self)}

    def arguments(self, profile: str) -> str:
        """PROFILE -a LABEL --set …: what every hetsim command and `python -m abs_sgd` understand."""
        words = [profile, "-a", self.label]
        for path, value in self.overrides.items():
            words += ["--set", f"{path}={value}"]
        return shlex.join(words)


def plan(
    cluster: Any,
    algorithms: Sequence[str] | None = None,
    *,
    batches: Sequence[int] | None = None,
    predictor: str = "nqm",
    seed: int = 0,
    jobs: int | None = None,
    progress: Done | None = None,
) -> Plan:
    """How to train on a Profile or Cluster. `algorithms`: labels to choose from, None for all; `batches`: global batches to choose from
    (the profile's). `progress(label, done, total)` is called as candidates of a round are complete.

    Raises UsageError, also where nothing fits into memory, and SimulationError where nothing reaches the target.
    """
    resolved: Cluster = cluster if isinstance(cluster, Cluster) else cluster.cluster()
    if batches and min(batches) < resolved.n:
        raise UsageError(f"a global batch of {min(batches)} samples is smaller than the {resolved.n} workers")
    wanted = candidates(resolved, algorithms, batches)
    excluded = {one.name(resolved): why for one in wanted if (why := too_large(one, resolved))}
    fitting = [one for one in wanted if one.name(resolved) not in excluded]
    if not fitting:
        name, why = next(iter(excluded.items()))
        raise UsageError(f"nothing fits into memory; {name}: {why}")
    how: dict[str, Any] = {"predictor": predictor, "seed": seed, "jobs": jobs, "done": progress}
    tried = first_round(resolved, fitting, **how)
    final = second_round(resolved, tried, **how)
    if not final:
        raise SimulationError(
            f"none of {len(tried)} candidates reaches the target within {resolved.training.max_samples:,} samples: raise "
            "training.max_samples or training.target_loss"
        )
    return _planned(resolved, choose(final, resolved), final, excluded, seed)


def choose(tried: Sequence[Tried], cluster: Cluster) -> Tried:
    """The fastest; of those that cannot be told from it on the same seeds, the simplest: the profile's own batches, no delay, equal
    batches before balanced and open ones, no options stated."""
    seeds = max(len(one.comparison.seeds) for one in tried)
    finalists = [one for one in tried if len(one.comparison.seeds) == seeds and math.isfinite(one.seconds)]
    best = min(finalists, key=lambda one: one.seconds)
    return min(
        (one for one in finalists if one is best or not clearly_slower(one, best)),
        key=lambda one: (simplicity(one, cluster), one.seconds),
    )


def clearly_slower(one: Tried, best: Tried) -> bool:
    """Whether `best` leads on every count of the paired interval, or with a single seed by more than the margin."""
    ratio = speedup(best.row, one.row, len(best.comparison.seeds))
    low = ratio.low if ratio.low is not None else ratio.value
    return low is None or low > 1.0 + MARGIN


def simplicity(one: Tried, cluster: Cluster) -> tuple[int, ...]:
    """Sorts the simplest first."""
    algorithm = one.candidate.algorithm(cluster)
    return (
        len(one.candidate.overrides(cluster)),
        int(algorithm.has_server) + int((one.row.staleness_max or 0) > 0),
        SIMPLEST.index(algorithm.split),
        len(one.candidate.contender.options),
    )


def _planned(cluster: Cluster, chosen: Tried, tried: Sequence[Tried], excluded: Mapping[str, str], seed: int) -> Plan:
    candidate, row, comparison = chosen.candidate, chosen.row, chosen.comparison
    own, algorithm = candidate.on(cluster), candidate.algorithm(cluster)
    steady = simulate(without_luck(own), algorithm, seed=seed, updates=SETTLED)
    workers = shares(own, candidate, steady, row.sample_share, row.mean_batch_samples)
    options = algorithm.options.model_dump(mode="json")
    worth = marginals(own, algorithm, seed=seed)
    ranked = sorted(tried, key=lambda one: (one.seconds, one.candidate.name(cluster)))
    return Plan(
        profile=cluster.name,
        predictor=comparison.predictor,
        seed=seed,
        seeds=comparison.seeds,
        target=comparison.target,
        label=candidate.label,
        algorithm=algorithm.name,
        options=options,
        overrides=candidate.overrides(cluster),
        split=algorithm.split,
        trigger=options.get("trigger"),
        compute_point=options.get("compute_point"),
        micro_batch=options.get("micro_batch"),
        global_batch_samples=candidate.batch,
        micro_batch_samples=candidate.micro,
        mean_batch_samples=row.mean_batch_samples,
        update_period_s=row.update_period_s,
        samples_per_s=row.samples_per_s,
        learning_rate=row.learning_rate,
        momentum=row.momentum,
        time_to_target_s=row.time_to_target_s,
        cost=row.cost,
        tariffs=tariffs(cluster),
        yardsticks=row.yardsticks,
        workers=workers,
        reasons=(*reasons_of(cluster, chosen, ranked, workers), *better_without(worth)),
        alternatives=tuple(_alternative(one, chosen, cluster) for one in ranked if one is not chosen),
        excluded=dict(excluded),
        marginal=worth,
        warnings=_warnings(chosen),
        assumptions=comparison.assumptions,
        versions=comparison.versions,
    )


def shares(
    cluster: Cluster, candidate: Candidate, steady: Result, sample_share: Mapping[str, float], mean_batch: float
) -> tuple[Share, ...]:
    """Every worker's part. Balanced batches are the exact split, others what the simulation has."""
    algorithm = steady.algorithm
    times = [batch_seconds(worker) for worker in cluster.workers]
    unit = Period(cluster, algorithm, steady).batches  # of one pass or step: a micro-batch of an open batch
    batches: list[float] = [float(b) for b in unit]
    if algorithm.split == "balanced":
        batches = [float(b) for b in best_split(candidate.batch, times)]
    elif algorithm.split == "open":
        batches = [mean_batch * sample_share[worker.name] for worker in cluster.workers]
    sizes = []
    for worker, batch, micro in zip(cluster.workers, batches, unit, strict=True):
        cap = worker.max_batch_samples
        whole = micro if algorithm.split == "open" else round(batch)
        parts = 1 if cap is None else max(1, -(-whole // cap))
        sizes.append(max(1, -(-whole // parts)))
    total = math.fsum(batches)
    uses = memory_use(algorithm, cluster, sizes)
    return tuple(
        Share(
            rank=worker.rank,
            worker=worker.name,
            gpu=worker.gpu,
            batch_samples=batch,
            pass_samples=size,
            passes=batch / size if algorithm.split == "open" else float(-(-round(batch) // size)),
            loss_weight=cluster.n * batch / total,
            seconds=batch / size * time(size) if algorithm.split == "open" else time(round(batch)),
            memory=use,
        )
        for worker, batch, size, time, use in zip(cluster.workers, batches, sizes, times, uses, strict=True)
    )


def _alternative(one: Tried, chosen: Tried, cluster: Cluster) -> Alternative:
    seeds = min(len(one.comparison.seeds), len(chosen.comparison.seeds))
    return Alternative(
        name=one.candidate.name(cluster),
        seconds=one.seconds if math.isfinite(one.seconds) else None,
        slower=slower(one, chosen, seeds),
        limited_by=one.row.limited_by,
        seeds=len(one.comparison.seeds),
    )


def slower(one: Tried, chosen: Tried, seeds: int) -> Speedup:
    """How many times as long `one` takes, on the seeds that both were tried on."""
    from hetsim.intervals import paired_ratio
    from hetsim.verdict import seconds_by_seed

    if not math.isfinite(one.seconds):
        return Speedup(value=None, low=None, high=None)
    ratio = paired_ratio(seconds_by_seed(one.row, seeds)[:seeds], seconds_by_seed(chosen.row, seeds)[:seeds])
    if ratio is None or not math.isfinite(ratio.median):
        return Speedup(value=None, low=None, high=None)
    return Speedup(value=ratio.median, low=ratio.low, high=ratio.high)


def _warnings(chosen: Tried) -> tuple[Caution, ...]:
    """Of the comparison, those that concern the chosen one, but for what untuned settings would do."""
    label = chosen.candidate.label
    own = [w for w in chosen.comparison.warnings if w.text.startswith((f"{label}:", f"{label},"))]
    others = tuple(f"{name}{mark}" for name in chosen.comparison.runs for mark in (":", ","))
    common = [w for w in chosen.comparison.warnings if not w.text.startswith(others)]
    untuned = "at the profile's own setting, untuned"
    return unique([*common, *(w for w in own if untuned not in w.text)])
