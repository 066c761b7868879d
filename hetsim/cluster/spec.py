"""A profile resolved: every worker spelled out, every unit SI, nothing left to look up.

`hetsim.cluster.profile.Profile` is the file a person writes; `Profile.cluster()` expands counts, looks up the
catalogue, attaches events to the workers and links they concern, and returns one `Cluster`. The simulator, the
predictors and the real runs read only this.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

Topology = Literal["switch", "nodes", "parameter_server"]
CollectiveName = Literal["ring", "tree", "hierarchical"]
Provenance = Literal["catalogue", "stated", "calibrated", "trace"]


@dataclass(frozen=True, kw_only=True)
class Slowdown:
    """From `at_s` until `until_s` every pass of a worker takes `factor` times as long."""

    at_s: float
    until_s: float = math.inf
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class BandwidthChange:
    """From `at_s` until `until_s` a link carries `bytes_per_s`; the latest change that holds wins."""

    at_s: float
    until_s: float = math.inf
    bytes_per_s: float


@dataclass(frozen=True, kw_only=True)
class Link:
    """One full-duplex link: payload bytes per second in each direction, one-way latency in seconds.

    `bytes_per_s` is what is left for payload (wire rate times `payload_share`); math.inf is a free link.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    changes: tuple[BandwidthChange, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Worker:
    """One GPU. A pass over m samples takes max(floor_s, overhead_s + m / samples_per_s), or `step_times_s` where given.

    `trace` holds recorded steps as (samples, seconds), replayed in order and repeated. `rank` is the position in the profile.
    """

    rank: int
    name: str
    group: str
    node: str
    gpu: str | None = None
    samples_per_s: float = math.inf
    overhead_s: float = 0.0
    floor_s: float = 0.0
    step_times_s: tuple[tuple[int, float], ...] = ()
    trace: tuple[tuple[int, float], ...] = ()
    max_batch_samples: int | None = None
    memory_bytes: float | None = None
    jitter_cv: float = 0.0
    straggler_probability: float = 0.0
    straggler_slowdown: float = 1.0
    price_per_h: float | None = None
    power_w: float | None = None
    price_source: str = ""  # "stated", the profile's word on it, or the catalogue's source; "" where there is no price
    power_source: str = ""
    update_s: float = 0.0
    speed_source: Provenance = "stated"
    slowdowns: tuple[Slowdown, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Network:
    """What connects the workers. `links[rank]` is that worker's own link; on topology "nodes" the workers of a node share
    `node_links[node]` towards other nodes and use `intra_node` among themselves."""

    topology: Topology = "switch"
    collective: CollectiveName = "ring"
    links: tuple[Link, ...]
    node_links: dict[str, Link] = field(default_factory=dict)
    intra_node: Link | None = None
    server: Link | None = None
    all_reduce_table: tuple[tuple[float, float], ...] = ()  # (bytes, seconds), measured for the whole group
    all_reduce_busy_table: tuple[tuple[float, float], ...] = ()  # the same while every worker computes
    overlap_slowdown: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """What the convergence predictors know of a workload, stated in its profile; `hetsim.convergence.constants` says how each is used."""

    initial_loss: float
    floor_loss: float
    target_loss: float
    curvature: float
    exponent: float
    directions: int
    noise: float
    noise_power: float
    largest_curvature: float
    min_updates: float
    noise_scale_samples: float
    source: str
    weight_square: float | None = None


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained: sizes for the simulator, names for the trainer, constants for the predictors."""

    name: str
    gradient_bytes: float
    dataset_samples: int
    activation_bytes_per_sample: float = 0.0
    backward_share: float = 2.0 / 3.0
    model: str | None = None
    dataset: str | None = None
    convergence: str | Convergence = "default"  # key into hetsim.convergence.constants, or the constants themselves


@dataclass(frozen=True, kw_only=True)
class Training:
    """How it is trained, and until when. Samples are counted over the whole cluster."""

    global_batch_samples: int = 256
    micro_batch_samples: int = 16
    learning_rate: float = 0.05
    lr_rule: Literal["none", "linear", "sqrt"] = "none"
    momentum: float = 0.9
    nesterov: bool = False
    weight_decay: float = 0.0
    optimizer: Literal["sgd", "adamw"] = "sgd"
    warmup_updates: int = 0
    clip_norm: float | None = None
    target_loss: float | None = None
    max_samples: int = 500_000
    seeds: int = 5


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Everything a run depends on, besides the algorithm and the seed."""

    name: str
    description: str = ""
    workers: tuple[Worker, ...]
    network: Network
    workload: Workload
    training: Training = Training()
    options: dict[str, dict[str, object]] = field(default_factory=dict)  # per algorithm name
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def n(self) -> int:
        return len(self.workers)
