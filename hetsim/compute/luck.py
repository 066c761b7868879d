"""Seeded draws that depend on who asks for what, never on who else is there or in which order they ask.

A draw is keyed by (seed, purpose, name, number). Numbers come in blocks of `BLOCK`, one Philox stream each, keyed by a
hash that is the same in every process. Only raw bits are taken from numpy, whose streams of raw bits are guaranteed to
stay the same from version to version (its normal variates are not).
"""

from __future__ import annotations

import hashlib
import math

import numpy as np
from numpy.typing import NDArray

from hetsim.cluster.spec import Worker
from hetsim.errors import UsageError

BLOCK = 256  # quanta drawn at once: about 0.2 microseconds each, and 8 kB a worker, so that 10,000 workers stay small


def uniforms(seed: int, purpose: str, name: str, block: int, count: int = BLOCK) -> NDArray[np.float64]:
    """`count` numbers in [0, 1) with 53 random bits each."""
    key = hashlib.blake2b(repr((seed, purpose, name, block)).encode(), digest_size=16).digest()
    raw = np.random.Philox(key=int.from_bytes(key, "little")).random_raw(count)
    return np.asarray((raw >> np.uint64(11)) * 2.0**-53, dtype=np.float64)


def normals(seed: int, purpose: str, name: str, block: int, count: int = BLOCK) -> NDArray[np.float64]:
    """`count` standard normal numbers (Box and Muller 1958)."""
    half = -(-count // 2)
    radius_from, angle_from = uniforms(seed, purpose, name, block, 2 * half).reshape(2, half)
    radius = np.sqrt(-2.0 * np.log1p(-radius_from))
    angle = 2.0 * math.pi * angle_from
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]


class Luck:
    """How much longer than planned a worker's samples take, by their position in its life.

    Every quantum of `quantum_samples` samples has its factor: lognormal with mean 1 and coefficient of variation
    `jitter_cv`, times `straggler_slowdown` with `straggler_probability`. Samples share the factor of their quantum
    however they are cut into passes, so all algorithms meet the same luck whatever their batches.
    """

    def __init__(self, worker: Worker, seed: int, quantum_samples: int) -> None:
        if quantum_samples < 1:
            raise UsageError(f"a quantum of {quantum_samples} samples")
        self._worker = worker
        self._seed = seed
        self._quantum = quantum_samples
        self._span = quantum_samples * BLOCK
        self._first = -1  # the first sample of the block at hand
        self._factors: list[float] = []

    def mean(self, start: int, samples: int) -> float:
        """Mean factor over the samples start .. start + samples - 1, weighted by overlap with their quanta."""
        offset = start - self._first
        if offset < 0 or offset >= self._span or not self._factors:
            block = start // self._span
            self._factors = self._draw(block)
            self._first = block * self._span
            offset = start - self._first
        if offset + samples > self._span:
            return self._across(start, samples, self._span - offset)
        index, into = divmod(offset, self._quantum)
        last, beyond = divmod(offset + samples, self._quantum)
        factors = self._factors
        if last == index or (last == index + 1 and not beyond):
            return factors[index]
        weighted = (self._quantum - into) * factors[index] + self._quantum * sum(factors[index + 1 : last])
        if beyond:
            weighted += beyond * factors[last]
        return weighted / samples

    def _across(self, start: int, samples: int, here: int) -> float:
        """The mean over a stretch that leaves the block at hand after `here` samples."""
        weighted = here * self.mean(start, here)
        while here < samples:
            part = min(samples - here, self._span)
            weighted += part * self.mean(start + here, part)
            here += part
        return weighted / samples

    def _draw(self, block: int) -> list[float]:
        worker, seed = self._worker, self._seed
        factors = np.ones(BLOCK)
        if worker.jitter_cv > 0:
            variance = math.log1p(worker.jitter_cv**2)  # of the logarithm
            z = normals(seed, "jitter", worker.name, block)
            factors = np.exp(math.sqrt(variance) * z - variance / 2)
        if worker.straggler_probability > 0:
            slow = uniforms(seed, "straggler", worker.name, block) < worker.straggler_probability
            factors = np.where(slow, factors * worker.straggler_slowdown, factors)
        drawn: list[float] = factors.tolist()
        return drawn
