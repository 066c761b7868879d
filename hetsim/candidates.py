"""What a plan tries: algorithms with their options, global batches and micro-batches, each within its own memory.

Two rounds. On the first seed all are tried, each tuned; what comes near the fastest is tried again on all seeds, and the nearest methods of
open batches with larger and smaller micro-batches before that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hetsim import wording
from hetsim.algorithms import Algorithm, registry
from hetsim.cluster.spec import Cluster
from hetsim.compare import compare
from hetsim.comparison import Comparison, Row
from hetsim.contest import FAIR
from hetsim.labels import Contender, expanded, label_of, parse
from hetsim.memory import memory_use, pass_limit
from hetsim.yardsticks import best_rate

POINTS = (
    "damped-prediction",
    "local-prediction",
    "current",
)  # compute points tried: our predictions, and the plain one
NEAR = (
    1.3  # times the fastest on the first seed: an open batch this near is tried with other micro-batches [our choice]
)
FINAL = 1.1  # times the fastest on the first seed: who is this near is tried on all seeds [our choice]
MOST_FINALISTS = 4
MICRO = (0.5, 2.0)  # times the micro-batch of those, in at most so many rounds [our choice]
MICRO_ROUNDS = 3
MOST_OPEN = 2  # such candidates at once
SAME = 0.1  # micro-batches this near one another are one [our choice]

Done = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """One way to train: a label, the samples of an update (where the algorithm fixes them) and of a micro-batch."""

    label: str
    batch: int
    micro: int

    @property
    def contender(self) -> Contender:
        """The algorithm and the options its label states."""
        return parse(self.label)

    def algorithm(self, cluster: Cluster) -> Algorithm:
        """With the profile's options."""
        return self.contender.algorithm(cluster.options)

    def overrides(self, cluster: Cluster) -> dict[str, int]:
        """What it changes in the profile, by path."""
        training = cluster.training
        found = {"training.global_batch_samples": self.batch, "training.micro_batch_samples": self.micro}
        own = {"training.global_batch_samples": training.global_batch_samples}
        own["training.micro_batch_samples"] = training.micro_batch_samples
        return {path: value for path, value in found.items() if value != own[path]}

    def name(self, cluster: Cluster) -> str:
        """The label, and what it changes in the profile."""
        changes = [f"{path.removeprefix('training.')}={value}" for path, value in self.overrides(cluster).items()]
        return f"{self.label} ({', '.join(changes)})" if changes else self.label

    def on(self, cluster: Cluster) -> Cluster:
        """The cluster it runs on: its batch, its micro-batch, and passes that leave room for what the algorithm keeps."""
        algorithm = self.algorithm(cluster)
        training = replace(
            cluster.training, global_batch_samples=self.batch, micro_batch_samples=min(self.micro, self.batch)
        )
        workers = tuple(replace(w, max_batch_samples=pass_limit(algorithm, cluster, w)) for w in cluster.workers)
        return replace(cluster, training=training, workers=workers)


@dataclass(frozen=True, kw_only=True)
class Tried:
    """A candidate and the row it came to; `comparison` is where the row is from."""

    candidate: Candidate
    row: Row
    comparison: Comparison

    @property
    def seconds(self) -> float:
        """Median time to target, infinite where it was not reached."""
        return self.row.seconds


def candidates(cluster: Cluster, algorithms: Sequence[str] | None, batches: Sequence[int] | None) -> list[Candidate]:
    """All of the first round. `algorithms`: labels instead of all there are; `batches`: global batches instead of the profile's."""
    labels = [parse(text).label for text in expanded(algorithms)] if algorithms else list(_labels(cluster))
    own = cluster.training
    return [
        Candidate(label=label, batch=batch, micro=min(own.micro_batch_samples, batch))
        for batch in dict.fromkeys(batches or (own.global_batch_samples,))
        for label in dict.fromkeys(labels)
    ]


def _labels(cluster: Cluster) -> Iterable[str]:
    """The algorithms compared by default, as the profile has them; with other compute points, triggers, micro-batches."""
    for name, kind in registry().items():
        if not kind.by_default:
            continue
        yield name
        fields, stated = kind.Options.model_fields, cluster.options.get(name, {})
        tried: list[tuple[str, Any]] = [("compute_point", point) for point in POINTS]
        tried += [("trigger", "target_batch"), ("micro_batch", "equal"), ("micro_batch", "equal-time")]
        for option, value in tried:
            if option in fields and stated.get(option, fields[option].default) != value:
                yield label_of(name, {option: value})


def too_large(candidate: Candidate, cluster: Cluster) -> str:
    """Why it does not fit into some worker's memory; "" where it does."""
    algorithm = candidate.algorithm(cluster)
    for use, worker in zip(memory_use(algorithm, cluster, [1] * cluster.n), cluster.workers, strict=True):
        if pass_limit(algorithm, cluster, worker) == 0:
            return f"{use.worker} needs {wording.size(use.needs)} for a single sample and has {wording.size(use.has)}"
    return ""


def first_round(
    cluster: Cluster, chosen: Sequence[Candidate], *, predictor: str, seed: int, jobs: int | None, done: Done | None
) -> list[Tried]:
    """All candidates on one seed."""
    return _try(cluster, chosen, predictor=predictor, seed=seed, seeds=1, jobs=jobs, done=done)


def second_round(
    cluster: Cluster, tried: Sequence[Tried], *, predictor: str, seed: int, jobs: int | None, done: Done | None
) -> list[Tried]:
    """Other micro-batches on one seed, then the nearest of all on all seeds; [] where none reached the target."""
    best = min(one.seconds for one in tried)
    if not math.isfinite(best):
        return []
    known = list(tried)
    for _ in range(MICRO_ROUNDS):
        near = [one for one in known if one.seconds <= NEAR * min(one.seconds for one in known)]
        more = _other_micro_batches(cluster, near, [one.candidate for one in known])
        if not more:
            break
        far = _followed(cluster, FAIR * min(one.seconds for one in known))
        known += first_round(far, more, predictor=predictor, seed=seed, jobs=jobs, done=done)
    if cluster.training.seeds == 1:
        return known
    best = min(one.seconds for one in known)
    near = sorted((one for one in known if one.seconds <= FINAL * best), key=lambda one: one.seconds)[:MOST_FINALISTS]
    finalists = [one.candidate for one in near]
    seeds = cluster.training.seeds
    far = _followed(cluster, FAIR * best)
    again = _try(far, finalists, predictor=predictor, seed=seed, seeds=seeds, jobs=jobs, done=done)
    return [*again, *(one for one in known if one.candidate not in finalists)]


def _other_micro_batches(cluster: Cluster, near: Sequence[Tried], known: Sequence[Candidate]) -> list[Candidate]:
    """Around the nearest candidates of open batches, but for those tried; where the best so far is an outermost one, this goes on."""
    open_ones = sorted(
        (one for one in near if one.candidate.algorithm(cluster).split == "open"), key=lambda o: o.seconds
    )
    more: list[Candidate] = []
    for one in open_ones[:MOST_OPEN]:
        tried = [k.micro for k in known if replace(k, micro=one.candidate.micro) == one.candidate]
        for factor in MICRO:
            micro = min(max(1, round(factor * one.candidate.micro)), one.candidate.batch)
            if all(abs(micro / other - 1) > SAME for other in tried):
                more.append(replace(one.candidate, micro=micro))
    return list(dict.fromkeys(more))


def _followed(cluster: Cluster, seconds: float) -> Cluster:
    """The cluster with samples for so many seconds at the least, so that what larger batches cost is not cut off while they are ahead."""
    rate = sum(best_rate(worker) for worker in cluster.workers)
    if not math.isfinite(rate):
        return cluster
    most = max(cluster.training.max_samples, math.ceil(seconds * rate))
    return replace(cluster, training=replace(cluster.training, max_samples=most))


def _try(
    cluster: Cluster,
    chosen: Sequence[Candidate],
    *,
    predictor: str,
    seed: int,
    seeds: int,
    jobs: int | None,
    done: Done | None,
) -> list[Tried]:
    """One comparison for all that run on the same cluster; results in the order of `chosen`."""
    groups: dict[Any, list[Candidate]] = {}
    clusters: dict[Any, Cluster] = {}
    for candidate in chosen:
        own = candidate.on(cluster)
        key = (candidate.batch, candidate.micro, tuple(w.max_batch_samples for w in own.workers))
        groups.setdefault(key, []).append(candidate)
        clusters[key] = own
    found: dict[Candidate, Tried] = {}
    finished = 0

    def progress(label: str, *_: int) -> None:
        nonlocal finished
        finished += 1
        if done is not None:
            done(label, finished, len(chosen))

    for key, group in groups.items():
        labels = [candidate.label for candidate in group]
        c = compare(clusters[key], labels, predictor=predictor, seeds=seeds, seed=seed, jobs=jobs, progress=progress)
        found |= {candidate: Tried(candidate=candidate, row=c[candidate.label], comparison=c) for candidate in group}
    return [found[candidate] for candidate in chosen]
