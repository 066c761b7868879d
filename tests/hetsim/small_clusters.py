"""Clusters on which a comparison takes a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hetsim.cluster import Cluster, load_profile

SMALL = """
schema_version: 1
name: small
workload: {name: mine, gradient_bytes: 4.0e+6, dataset_samples: 6400, activation_bytes_per_sample: 1.0e+6}
workers:
  - {name: fast, samples_per_s: 800, jitter_cv: 0.1, price_per_h: 2.0, power_w: 300, memory_bytes: 1.6e+10}
  - {name: slow, samples_per_s: 200, jitter_cv: 0.1, price_per_h: 1.0, power_w: 100, memory_bytes: 1.6e+10}
network: {bandwidth_gbit_per_s: 5.0, latency_us: 50}
training: {global_batch_samples: 64, micro_batch_samples: 8, learning_rate: 0.05, momentum: 0.9, max_samples: 400000, seeds: 3}
"""


def small(workers: str | None = None, **training: Any) -> Cluster:
    """The cluster above, with other workers or training."""
    text = SMALL
    if workers is not None:
        head, rest = text.split("workers:\n")
        text = head + "workers:\n" + workers + rest[rest.index("network:") :]
    cluster = load_profile(text).cluster()
    return replace(cluster, training=replace(cluster.training, **training))
