"""The profile: the YAML file in which a person describes a cluster.

    Profile        what the file says, checked, frozen
    .cluster()     the same resolved into `hetsim.cluster.spec.Cluster`: names expanded, catalogue looked up, SI units
    .to_yaml()     canonical text; loading it gives an equal Profile
    .digest()      a fingerprint of the content

Units stand in the keys and values are numbers. Defaults without a source are our choice.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainValidator,
    Strict,
    Tag,
    WithJsonSchema,
)
from pydantic_core import PydanticKnownError

from hetsim.cluster.spec import CollectiveName, Topology

if TYPE_CHECKING:
    from hetsim.cluster.spec import Cluster

SCHEMA_VERSION = 1
SCHEMA_LINE = "# yaml-language-server: $schema=../hetsim/schemas/profile-1.json"
MAX_WORKERS = 20_000  # twice the largest cluster the simulator is benchmarked on
MAX_TRACE_ROWS = 5_000  # keeps a profile that holds its traces within the size that can be loaded

# Bounds on both sides keep every product and quotient of two values finite; none is near anything real.
LEAST = 1e-12
MAX_TIME_S = 1e9
_MAX_BYTES = 1e18
MAX_SAMPLES = 10**15
_MAX_GRADIENT_BYTES = (
    1e13  # 2.5 trillion float32 parameters; in DDP's buckets of 25 MiB already 400,000 transfers an update
)


def _whole(value: Any) -> Any:
    """5e4 is a whole number too, although YAML reads it as a float."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _option(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | str) or (isinstance(value, float) and abs(value) < float("inf")):
        return value
    raise ValueError("must be a finite number, text, true or false")


def _not_tiny(value: float) -> float:
    if value < LEAST:
        raise PydanticKnownError("greater_than_equal", {"ge": LEAST})
    return value


Number = Annotated[float, Strict(), AllowInfNan(False)]
Text = Annotated[str, Strict(), Field(max_length=2000)]
Flag = Annotated[bool, Strict()]
Name = Annotated[str, Strict(), Field(pattern=r"^[^\W\d_][\w-]*$", max_length=64)]

Positive = Annotated[Number, Field(gt=0, le=_MAX_BYTES), AfterValidator(_not_tiny)]
Rate = Annotated[Number, Field(gt=0, le=1e12), AfterValidator(_not_tiny)]
Seconds = Annotated[Number, Field(ge=0, le=MAX_TIME_S)]
PositiveSeconds = Annotated[Number, Field(gt=0, le=MAX_TIME_S), AfterValidator(_not_tiny)]
Samples = Annotated[int, Strict(), Field(gt=0, le=MAX_SAMPLES), BeforeValidator(_whole)]
Count = Annotated[int, Strict(), Field(ge=0, le=MAX_SAMPLES), BeforeValidator(_whole)]
Gbit = Annotated[Number, Field(gt=0, le=1e9), AfterValidator(_not_tiny)]
Micros = Annotated[Number, Field(ge=0, le=MAX_TIME_S)]
Steps = Annotated[tuple[tuple[Samples, PositiveSeconds], ...], Field(min_length=1, max_length=MAX_TRACE_ROWS)]
OptionValue = Annotated[
    bool | int | float | str | None,
    PlainValidator(_option),
    WithJsonSchema({"type": ["boolean", "integer", "number", "string", "null"]}),
]


def _workload_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    return "inline" if isinstance(value, dict | InlineWorkload) else None


def _convergence_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "name"
    return "stated" if isinstance(value, dict | ConvergenceEntry) else None


def _trace_kind(value: Any) -> str | None:
    if isinstance(value, str):
        return "file"
    return "steps" if isinstance(value, list | tuple) else None


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, protected_namespaces=())


class ConvergenceEntry(_Part):
    """A noisy quadratic model and a gradient noise scale of one's own training, as `hetsim fit` finds them."""

    initial_loss: Positive
    """Loss before training."""
    floor_loss: Annotated[Number, Field(ge=0, le=1e12)] = 0.0
    """Loss that training tends to; not reached."""
    target_loss: Positive
    """Loss that counts as trained, unless training.target_loss states another; above floor_loss."""
    curvature: Positive
    """Largest curvature of the bulk, in units of 1 / learning rate; direction j has curvature j^-exponent."""
    exponent: Annotated[Number, Field(ge=0, le=10)] = 1.0
    """How curvature falls from direction to direction."""
    directions: Annotated[int, Strict(), Field(gt=0, le=1_000_000), BeforeValidator(_whole)] = 1000
    """Directions of the bulk."""
    noise: Annotated[Number, Field(ge=0, le=1e12)]
    """Gradient variance of one sample per curvature, where the sum of all starts as curvature times 1."""
    noise_power: Annotated[Number, Field(ge=0, le=10)] = 0.0
    """The variance falls with the loss above its floor to this power; 0: it stays."""
    largest_curvature: Positive
    """Largest curvature of all, which limits the learning rate."""
    weight_square: Positive | None = None
    """Squared norm at the start of the weights before normalisations, which steps lengthen and so slow down; null: there are none."""
    min_updates: Positive
    """Updates to the target at an infinite batch."""
    noise_scale_samples: Annotated[Number, Field(ge=0, le=1e12)]
    """Gradient noise scale over the training, samples."""
    source: Text = "stated in the profile"
    """Where the constants come from."""


class InlineWorkload(_Part):
    """What is trained, where it is not one of the catalogue's workloads."""

    name: Name
    """Names the workload in results; a catalogue workload's name also brings that workload's GPU speeds."""
    gradient_bytes: Annotated[Number, Field(gt=0, le=_MAX_GRADIENT_BYTES), AfterValidator(_not_tiny)]
    """Bytes of one full gradient: 4 per parameter in float32."""
    dataset_samples: Samples = 50_000
    """Samples in one epoch (default: CIFAR-10's training set)."""
    activation_bytes_per_sample: Annotated[Number, Field(ge=0, le=_MAX_BYTES)] = 0.0
    """Memory that one more sample in a pass takes, bytes."""
    backward_share: Annotated[Number, Field(gt=0, le=1)] = 2.0 / 3.0
    """Share of a step in which gradients come out and may leave (backward takes about twice the forward pass)."""
    model: Text | None = None
    """Builds the model for real training: a built-in name or `package.module:function`."""
    dataset: Text | None = None
    """Opens the data for real training: a built-in name or `package.module:function`."""
    convergence: Annotated[
        Annotated[Name, Tag("name")] | Annotated[ConvergenceEntry, Tag("stated")], Discriminator(_convergence_kind)
    ] = "default"
    """Which constants the convergence predictors use: a name, or the constants themselves, as `hetsim fit` writes them."""


class Stragglers(_Part):
    """Rare slow passes."""

    probability: Annotated[Number, Field(ge=0, le=1)]
    """Chance that a quantum of work is slow."""
    slowdown: Annotated[Number, Field(ge=1, le=1e6)]
    """How many times as long it then takes."""


class WorkerEntry(_Part):
    """One GPU, or `count` equal ones.

    Its speed is, in this order: a recorded trace, measured step times, the line max(floor_s, overhead_s + m /
    samples_per_s), or what the catalogue knows of its `gpu` for this workload.
    """

    name: Name
    """Unique. With `count` the members are NAME-0, NAME-1, ..."""
    gpu: Text | None = None
    """A GPU of the catalogue: brings speed, memory, price and power unless stated here."""
    count: Samples | None = None
    """How many such workers."""
    node: Name | None = None
    """The machine it sits in; workers of one node share its link (topology `nodes`)."""
    samples_per_s: Rate | None = None
    """Speed on large batches, samples per second."""
    overhead_s: Seconds | None = None
    """Time of a pass that does not depend on its samples, seconds."""
    floor_s: Seconds | None = None
    """No pass takes less than this, seconds."""
    step_times_s: Annotated[dict[Samples, PositiveSeconds], Field(min_length=1)] | None = None
    """Measured: seconds of a pass by its samples; interpolated."""
    trace: (
        Annotated[Annotated[Text, Tag("file")] | Annotated[Steps, Tag("steps")], Discriminator(_trace_kind)] | None
    ) = None
    """Recorded steps, replayed: a CSV file (samples,seconds) beside the profile, or [samples, seconds] pairs."""
    max_batch_samples: Samples | None = None
    """The most samples one pass can hold; derived from memory where not stated."""
    memory_bytes: Positive | None = None
    """Memory of the GPU, bytes."""
    jitter_cv: Annotated[Number, Field(ge=0, le=10)] = 0.0
    """Coefficient of variation of step times (lognormal, mean 1)."""
    stragglers: Stragglers | None = None
    """Rare slow passes."""
    price_per_h: Annotated[Number, Field(ge=0, le=1e9)] | None = None
    """Price of one such worker per hour."""
    power_w: Annotated[Number, Field(ge=0, le=1e9)] | None = None
    """Power of one such worker, watts."""
    update_s: Seconds = 0.0
    """Time of one optimizer step, seconds."""

    def members(self) -> tuple[str, ...]:
        """The names of the workers this entry stands for."""
        return (self.name,) if self.count is None else tuple(f"{self.name}-{i}" for i in range(self.count))


class LinkEntry(_Part):
    """What differs from the network's own bandwidth and latency."""

    bandwidth_gbit_per_s: Gbit | None = None
    """Wire rate of the link in each direction, Gbit/s."""
    latency_us: Micros | None = None
    """One-way latency, microseconds."""


class TablePoint(_Part):
    """One measured all-reduce over the whole group."""

    bytes: Positive
    """Payload, bytes."""
    seconds: PositiveSeconds
    """How long it took."""


class NetworkEntry(_Part):
    """What connects the workers."""

    topology: Topology = "switch"
    """switch: one link a worker; nodes: workers of a node share one; parameter_server: one a worker, and a server."""
    collective: CollectiveName = "ring"
    """How an all-reduce runs."""
    bandwidth_gbit_per_s: Gbit = 10.0
    """Wire rate of every link that `links` does not list, Gbit/s."""
    latency_us: Micros = 50.0
    """One-way latency of every link that `links` does not list, microseconds."""
    links: dict[Name, LinkEntry] = Field(default_factory=dict)
    """Links that differ, by worker, group or node name."""
    intra_node: LinkEntry | None = None
    """Between workers of one node (default 100 Gbit/s, 5 us); `payload_share` does not apply to it."""
    server: LinkEntry | None = None
    """The parameter server's link (default: as any other)."""
    all_reduce_table: tuple[TablePoint, ...] = ()
    """Measured all-reduce times of the whole group; beats the formula, interpolated in log size."""
    all_reduce_busy_table: tuple[TablePoint, ...] = ()
    """The same while every worker computes, where computing slows a collective (CPUs, gloo)."""
    payload_share: Annotated[Number, Field(gt=0, le=1), AfterValidator(_not_tiny)] = 1.0
    """What is left of the wire rate after headers."""
    overlap_slowdown: Annotated[Number, Field(ge=1, le=1000)] = 1.0
    """Compute takes this many times as long while a collective is in flight."""


class TrainingEntry(_Part):
    """How it is trained, and until when. Samples are counted over the whole cluster."""

    global_batch_samples: Samples = 256
    """Samples per update, where the algorithm fixes them."""
    micro_batch_samples: Samples = 16
    """Samples of one pass where a batch is taken in passes."""
    learning_rate: Annotated[Number, Field(gt=0, le=1e6)] = 0.05
    """Learning rate, where it is not tuned."""
    lr_rule: Literal["none", "linear", "sqrt"] = "none"
    """How the learning rate follows the batch of an update."""
    momentum: Annotated[Number, Field(ge=0, lt=1)] = 0.9
    """Momentum of SGD."""
    nesterov: Flag = False
    """Nesterov's momentum."""
    weight_decay: Annotated[Number, Field(ge=0, le=1e3)] = 0.0
    """Weight decay."""
    optimizer: Literal["sgd", "adamw"] = "sgd"
    """The optimizer of every replica."""
    warmup_updates: Count = 0
    """Updates over which the learning rate rises to its value."""
    clip_norm: Annotated[Number, Field(gt=0, le=1e12)] | None = None
    """Clip the aggregated gradient to this norm."""
    target_loss: Annotated[Number, Field(gt=0, le=1e12)] | None = None
    """The loss to reach; where not stated the predictor chooses one and says so."""
    max_samples: Samples = 500_000
    """Give up after so many samples."""
    seeds: Annotated[int, Strict(), Field(gt=0, le=1000), BeforeValidator(_whole)] = 5
    """Repetitions behind every interval."""


class Event(_Part):
    """Something that changes while the cluster runs: a worker's speed or a link's bandwidth."""

    at_s: Seconds
    """When it begins, seconds."""
    for_s: PositiveSeconds | None = None
    """How long it lasts; for good where not stated."""
    worker: Name | None = None
    """A worker or a group: with `slowdown`."""
    slowdown: Annotated[Number, Field(gt=0, le=1e6), AfterValidator(_not_tiny)] | None = None
    """Passes take this many times as long."""
    link: Name | None = None
    """The link of a worker, a group or a node, or `server`: with `bandwidth_gbit_per_s`."""
    bandwidth_gbit_per_s: Gbit | None = None
    """The link's wire rate from then on, Gbit/s."""


class Profile(_Part):
    """A cluster and what it trains, as its file says it."""

    schema_version: Annotated[int, Strict(), Field(ge=1, le=SCHEMA_VERSION)]
    """Version of this file format."""
    name: Annotated[Text, Field(pattern=r"^\w[\w. -]*$", max_length=100)]
    """Names the cluster in tables and files."""
    description: Text = ""
    """One sentence for lists."""
    extends: Text | None = None
    """A profile to start from: mappings merge, lists replace. Resolved while loading."""
    workload: Annotated[
        Annotated[Text, Tag("name")] | Annotated[InlineWorkload, Tag("inline")], Discriminator(_workload_kind)
    ] = "resnet18-cifar10"
    """A workload of the catalogue by name, or one described here."""
    workers: Annotated[tuple[WorkerEntry, ...], Field(min_length=1)]
    """The GPUs, in rank order."""
    network: NetworkEntry = NetworkEntry()
    """What connects them."""
    training: TrainingEntry = TrainingEntry()
    """How they train."""
    algorithms: dict[Text, dict[Text, OptionValue]] = Field(default_factory=dict)
    """Options by algorithm; each option has a default."""
    events: tuple[Event, ...] = ()
    """What changes while it runs."""
    sources: dict[Text, Text] = Field(default_factory=dict)
    """Where a number comes from, by its path (workers.2.samples_per_s); `calibrated ...` marks a measurement."""

    def cluster(self) -> Cluster:
        """Every worker spelled out in SI units. Raises ProfileError where the parts do not fit together."""
        from hetsim.cluster.resolve import resolve

        return resolve(self)

    def to_yaml(self) -> str:
        """Canonical YAML, complete in itself (no `extends`, no file names): loading it gives an equal profile."""
        from hetsim.cluster.writer import write_yaml

        return write_yaml(self)

    def digest(self) -> str:
        """SHA-256 of the content, in hexadecimal; the order of keys and unstated defaults do not matter."""
        content = self.model_dump(mode="json", exclude_defaults=True)
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
