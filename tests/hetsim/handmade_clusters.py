"""Clusters built by hand for tests: plain numbers in, `hetsim.cluster.spec.Cluster` out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from hetsim.cluster.spec import Cluster, Link, Network, Slowdown, Training, Worker, Workload

FREE = math.inf


def cluster(
    speeds: Sequence[float],
    *,
    overheads: Sequence[float] | None = None,
    floors: Sequence[float] | None = None,
    bandwidths: Sequence[float] | None = None,
    latency_s: float = 0.0,
    gradient_bytes: float = 0.0,
    server: Link | None = None,
    names: Sequence[str] | None = None,
    slowdowns: dict[int, tuple[Slowdown, ...]] | None = None,
    links: Sequence[Link] | None = None,
    overlap_slowdown: float = 1.0,
    jitter_cv: float = 0.0,
    update_s: float = 0.0,
    dataset_samples: int = 10**12,
    backward_share: float = 2 / 3,
    options: dict[str, dict[str, object]] | None = None,
    caps: Sequence[int | None] | None = None,
    **training: Any,
) -> Cluster:
    """`speeds` in samples/s; `bandwidths` in bytes/s per worker (free where not given)."""
    n = len(speeds)
    names = names or [chr(97 + i) if n <= 26 else f"w{i:04d}" for i in range(n)]
    workers = tuple(
        Worker(
            rank=i,
            name=names[i],
            group=names[i],
            node=names[i],
            samples_per_s=speeds[i],
            overhead_s=(overheads or [0.0] * n)[i],
            floor_s=(floors or [0.0] * n)[i],
            slowdowns=(slowdowns or {}).get(i, ()),
            jitter_cv=jitter_cv,
            update_s=update_s,
            max_batch_samples=(caps or [None] * n)[i],
        )
        for i in range(n)
    )
    network = Network(
        links=tuple(links)
        if links
        else tuple(Link(bytes_per_s=b, latency_s=latency_s) for b in (bandwidths or [FREE] * n)),
        server=server or Link(bytes_per_s=FREE, latency_s=latency_s),
        overlap_slowdown=overlap_slowdown,
    )
    return Cluster(
        name="handmade",
        workers=workers,
        network=network,
        workload=Workload(
            name="handmade",
            gradient_bytes=gradient_bytes,
            dataset_samples=dataset_samples,
            backward_share=backward_share,
        ),
        training=Training(**training),
        options=options or {},
    )
