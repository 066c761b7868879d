"""What the study compares: nine clusters, every algorithm, and the batches among which each may choose.

Three kinds of heterogeneous cluster, of 4, 8 and 16 workers each, all shipped as profiles: unequal GPUs (`mixed-gpu-N`), equal GPUs of
which one has a slow link (`slow-link-N`), unequal GPUs whose speeds and bandwidth change while they train (`changing-N`). The workload is
ResNet18 on CIFAR-10: step times published by others, constants of the quadratic model fitted to published runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hetsim import load_profile
from hetsim.algorithms import registry
from hetsim.cluster import Profile
from hetsim.cluster.spec import Cluster, Link, Worker

KINDS = {"unequal": "mixed-gpu", "slow link": "slow-link", "changing": "changing"}
SIZES = (4, 8, 16)
SEEDS = 5
LONG = 20_000  # updates to the target, beyond which a run is not repeated: one seed
MAX_SAMPLES = 10_000_000  # twice the profiles'; who is on the way is followed further, up to several times S-SGD's time
LITERAL_MAX_SAMPLES = (
    300_000_000  # a delay at the literal compute point needs up to thirty times the samples, however long it takes
)
ROOM = 1.5  # times the samples that were needed on the cluster as it stays: room for those of a changing one

GLOBAL_BATCHES = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
MICRO_BATCHES = (10, 20, 40, 80, 160, 320)  # of the slowest GPU, where batches are open and the cluster sets them
LOCAL = "compute_point=local-prediction"
VARIANTS = {  # of which each takes the best: local steps matter as a batch does, and compute points of our own
    "local-sgd": ("local-sgd:local_steps=4", "local-sgd", "local-sgd:local_steps=16"),
    "one-step-delay-balanced": ("one-step-delay-balanced", f"one-step-delay-balanced:{LOCAL}"),
    "abs-sgd": ("abs-sgd", f"abs-sgd:{LOCAL}"),
}

REFERENCE = "s-sgd"  # beside which all are followed: as far as a comparison would follow them
OWN = "abs-sgd"
LITERAL = "abs-sgd:compute_point=current"
ABLATION = "one-step-delay-balanced"
ABLATION_LITERAL = "one-step-delay-balanced:compute_point=current"
FOLLOWED_ALONE = ("one-step-delay", ABLATION_LITERAL, LITERAL)  # to the target, whatever S-SGD takes


@dataclass(frozen=True, kw_only=True)
class Contestant:
    """An algorithm of the study: the labels and the batches (`path`, `values`) of which it takes the best."""

    name: str
    labels: tuple[str, ...]
    path: str
    values: tuple[int, ...]
    max_samples: int
    beside: tuple[str, ...]
    """What it is followed beside: as far as a comparison of the two would."""


def contestants() -> tuple[Contestant, ...]:
    """Every registered algorithm, and the two literal readings."""
    labels = {name: VARIANTS.get(name, (name,)) for name in registry()}
    labels |= {label: (label,) for label in (ABLATION_LITERAL, LITERAL)}
    return tuple(_contestant(name, variants) for name, variants in labels.items())


def _contestant(name: str, labels: tuple[str, ...]) -> Contestant:
    is_open = registry()[name.partition(":")[0]].split == "open"
    path, values = ("micro", MICRO_BATCHES) if is_open else ("global", GLOBAL_BATCHES)
    alone = name in FOLLOWED_ALONE
    return Contestant(
        name=name,
        labels=labels,
        path=f"training.{path}_batch_samples",
        values=values,
        max_samples=LITERAL_MAX_SAMPLES if alone else MAX_SAMPLES,
        beside=() if alone or name == REFERENCE else (REFERENCE,),
    )


def published(name: str) -> bool:
    """Whether a baseline is somebody's published method at its published compute point: not ours, and not with our compute point."""
    return not name.startswith((OWN, ABLATION))


AVERAGING = (
    "local-sgd",
    "dasgd",
    "streaming-diloco",
    "ad-psgd",
    "prague",
)  # average parameters; the model is too kind to local steps


def published_gradient(name: str) -> bool:
    """Whether it is a published method that sums gradients, as ABS-SGD does, and does not average parameters."""
    return published(name) and name.partition(":")[0] not in AVERAGING


CORRECTING = (
    "dc-asgd",
    "dc-s3gd",
)  # with g⊙g for the Hessian, which the model has on a scale of its own: it says little about them


def published_plain(name: str) -> bool:
    """Whether it is a published method that sums gradients as they are, without a correction for their delay."""
    return published_gradient(name) and name.partition(":")[0] not in CORRECTING


def profile_of(kind: str, size: int, path: str, value: int, max_samples: int) -> Profile:
    """One cluster with one batch."""
    return load_profile(f"{KINDS[kind]}-{size}", overrides=[f"{path}={value}", f"training.max_samples={max_samples}"])


def after_changes(cluster: Cluster) -> Cluster:
    """The cluster as it stays once everything has changed that will: on it batches are chosen, for a run is longer than its changes.

    What ends is left out; what stays is put into the workers' times and the links' bandwidths.
    """
    network = cluster.network
    return replace(
        cluster,
        workers=tuple(_slowed(worker) for worker in cluster.workers),
        network=replace(
            network,
            links=tuple(_changed(link) for link in network.links),
            node_links={name: _changed(link) for name, link in network.node_links.items()},
            server=None if network.server is None else _changed(network.server),
        ),
    )


def _slowed(worker: Worker) -> Worker:
    factor = math.prod(s.factor for s in worker.slowdowns if math.isinf(s.until_s))
    return replace(
        worker,
        slowdowns=(),
        samples_per_s=worker.samples_per_s / factor,
        overhead_s=worker.overhead_s * factor,
        floor_s=worker.floor_s * factor,
        step_times_s=tuple((samples, seconds * factor) for samples, seconds in worker.step_times_s),
    )


def _changed(link: Link) -> Link:
    lasting = [change for change in link.changes if math.isinf(change.until_s)]
    rate = max(lasting, key=lambda change: change.at_s).bytes_per_s if lasting else link.bytes_per_s
    return replace(link, bytes_per_s=rate, changes=())
