"""Memory of each worker: what an algorithm keeps, what a pass keeps, and whether the GPU holds it.

    buffers · gradient_bytes                  parameters, gradients (two where one travels while the next is summed), optimizer, predictions
    activation_bytes_per_sample · samples     of the largest pass; nothing where the workload does not say

An estimate from below: framework, kernels' work space and fragmentation are not in it. Parameters and gradients have one precision.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from hetsim.algorithms import Algorithm
from hetsim.cluster.spec import Cluster, Training, Worker
from hetsim.compute import passes
from hetsim.schedule.kinds import Kind
from hetsim.schedule.table import Schedule
from hetsim.simulate import Result


@dataclass(frozen=True, kw_only=True)
class MemoryUse:
    """Bytes on one worker: `parts` by what they hold, `needs` their sum, `has` the GPU's memory (None where it is not known).

    `pass_samples`: the largest pass, whose activations are among the parts where the workload states them.
    """

    worker: str
    parts: Mapping[str, float]
    pass_samples: int
    needs: float
    has: float | None

    @property
    def fits(self) -> bool:
        """Whether it fits, as far as that is known."""
        return self.has is None or self.needs <= self.has


def optimizer_states(training: Training) -> int:
    """Parameter-sized buffers of the optimizer: two moments for Adam, one for momentum, none for plain SGD."""
    return 2 if training.optimizer == "adamw" else int(training.momentum > 0)


def memory_use(algorithm: Algorithm, cluster: Cluster, pass_samples: list[int]) -> tuple[MemoryUse, ...]:
    """Per worker, with passes of at most so many samples."""
    size, per_sample = cluster.workload.gradient_bytes, cluster.workload.activation_bytes_per_sample
    buffers = algorithm.buffers(optimizer_states(cluster.training))
    kept = {what: count * size for what, count in buffers.items() if count}
    out = []
    for worker, samples in zip(cluster.workers, pass_samples, strict=True):
        parts = {**kept, "activations": per_sample * samples} if per_sample else kept
        needs = math.fsum(parts.values())
        out.append(
            MemoryUse(worker=worker.name, parts=parts, pass_samples=samples, needs=needs, has=worker.memory_bytes)
        )
    return tuple(out)


def memory_of(result: Result) -> tuple[MemoryUse, ...]:
    """Per worker, with the largest passes of a run."""
    sizes = pass_sizes(result.schedule, result.cluster)
    return memory_use(result.algorithm, result.cluster, [max(found, default=0) for found in sizes])


def pass_limit(algorithm: Algorithm, cluster: Cluster, worker: Worker) -> int | None:
    """Most samples of a pass that this worker's memory holds beside what the algorithm keeps, and no more than the profile allows.

    0 where not one fits, None where nothing limits it."""
    per_sample = cluster.workload.activation_bytes_per_sample
    known = [] if worker.max_batch_samples is None else [worker.max_batch_samples]
    if worker.memory_bytes is not None:
        kept = algorithm.parameter_buffers(optimizer_states(cluster.training)) * cluster.workload.gradient_bytes
        free = worker.memory_bytes - kept
        if per_sample > 0:
            known.append(max(0, math.floor(free / per_sample)))
        elif free < 0:
            known.append(0)
    return min(known, default=None)


def pass_sizes(schedule: Schedule, cluster: Cluster) -> list[Counter[int]]:
    """Per worker, how many passes of each size: batches cut where memory asks for it."""
    grads = schedule.rows(Kind.GRAD)
    out = []
    for worker in cluster.workers:
        batches = np.unique(schedule.samples[grads[schedule.worker[grads] == worker.rank]], return_counts=True)
        sizes: Counter[int] = Counter()
        for batch, times in zip(batches[0].tolist(), batches[1].tolist(), strict=True):
            for size in passes(batch, worker.max_batch_samples):
                sizes[size] += times
        out.append(sizes)
    return out
