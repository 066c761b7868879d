"""What the analytic predictors know of each workload: constants with their source, kept as data in `data/constants.json`.

The model's loss is mapped onto the workload's scale, so that a target such as 0.3 means something:
loss = floor + (initial - floor) · model loss / model loss at the start, `initial` being ln(classes) for classifiers (a uniform guess).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from hetsim.cluster.spec import Cluster, Convergence, Workload
from hetsim.convergence.predictor import Target
from hetsim.convergence.quadratic import Quadratic, power_law
from hetsim.errors import UsageError, nearest

NODES = 48  # of the compressed spectrum; error of the loss under .1 % (tests)
DEFAULT = "default"


@dataclass(frozen=True, kw_only=True)
class NoisyQuadraticConstants:
    """Bulk h_j = curvature·j^-exponent over `directions`, c_j = noise·h_j; trained at `target_ratio` of the initial loss.

    `outlier`, where given, is the curvature of one direction more: Hessians of networks have a bulk and a few outliers far above it
    (Sagun et al. 2017, Ghorbani et al. 2019). `noise_power`: the noise falls with the loss to this power. `weight_square`: squared norm of
    the weights before normalisations, over the loss above its floor at the start (`lengthening`); None: there are none."""

    directions: int
    exponent: float
    noise: float
    target_ratio: float
    source: str
    outlier: float | None = None
    curvature: float = 1.0
    noise_power: float = 0.0
    weight_square: float | None = None

    def quadratic(self, nodes: int | None = NODES) -> Quadratic:
        """The model, compressed to about `nodes` nodes (None: every direction)."""
        full = power_law(self.directions, exponent=self.exponent, noise=self.noise)
        full = replace(full, h=self.curvature * full.h, c=self.curvature * full.c, noise_power=self.noise_power)
        full = full.with_outlier(self.outlier)
        if self.weight_square is not None:  # θ² is in units of the loss over the model's
            full = replace(full, lengthening=1.0 / (self.weight_square * full.initial_loss))
        return full if nodes is None else full.compressed(nodes)


@dataclass(frozen=True, kw_only=True)
class NoiseScaleConstants:
    """Updates needed at an infinite batch, and the gradient noise scale in samples."""

    min_updates: float
    noise_scale_samples: float
    source: str


@dataclass(frozen=True, kw_only=True)
class WorkloadConstants:
    """Everything known of one workload. `metric` says in words what the target stands for."""

    name: str
    metric: str
    initial_loss: float
    floor_loss: float
    nqm: NoisyQuadraticConstants
    noise_scale: NoiseScaleConstants

    def loss(self, ratio: float) -> float:
        """A share of the model's initial loss on the workload's scale."""
        return self.floor_loss + (self.initial_loss - self.floor_loss) * ratio

    def ratio(self, loss: float) -> float:
        """The inverse of `loss`. UsageError where that loss is out of the model's range."""
        if not self.floor_loss < loss:
            raise UsageError(
                f"training.target_loss {loss:g} is not above {self.floor_loss:g}, the lowest loss the predictor knows for {self.name}"
            )
        return (loss - self.floor_loss) / (self.initial_loss - self.floor_loss)

    def target(self, cluster: Cluster) -> Target:
        """training.target_loss where the profile gives one, else the loss that stands for this workload's metric."""
        given = cluster.training.target_loss
        if given is None:
            return Target(metric=self.metric, value=self.loss(self.nqm.target_ratio))
        self.ratio(given)
        return Target(metric=f"training loss {given:g} on the noisy quadratic model's scale", value=given)


@cache
def _data() -> dict[str, Any]:
    text = files("hetsim.convergence").joinpath("data/constants.json").read_text(encoding="utf-8")
    workloads: dict[str, Any] = json.loads(text)["workloads"]
    return workloads


def workload_names() -> list[str]:
    """Workloads with constants."""
    return sorted(_data())


def constants(name: str) -> WorkloadConstants:
    """Constants by name. UsageError, with the nearest name, where there are none."""
    if name not in _data():
        raise UsageError(f"no convergence constants for {name!r} ({nearest(name, workload_names())})")
    entry = _data()[name]
    return WorkloadConstants(
        name=name,
        metric=entry["metric"],
        initial_loss=entry["initial_loss"],
        floor_loss=entry["floor_loss"],
        nqm=NoisyQuadraticConstants(**entry["nqm"]),
        noise_scale=NoiseScaleConstants(**entry["noise_scale"]),
    )


def fitted(workload: str, known: Convergence) -> WorkloadConstants:
    """The constants that a profile states."""
    ratio = (known.target_loss - known.floor_loss) / (known.initial_loss - known.floor_loss)
    return WorkloadConstants(
        name=workload,
        metric=f"loss {known.target_loss:g} of {workload} ({known.source})",
        initial_loss=known.initial_loss,
        floor_loss=known.floor_loss,
        nqm=NoisyQuadraticConstants(
            directions=known.directions,
            exponent=known.exponent,
            noise=known.noise,
            target_ratio=ratio,
            source=known.source,
            outlier=known.largest_curvature,
            curvature=known.curvature,
            noise_power=known.noise_power,
            weight_square=None
            if known.weight_square is None
            else known.weight_square / (known.initial_loss - known.floor_loss),
        ),
        noise_scale=NoiseScaleConstants(
            min_updates=known.min_updates, noise_scale_samples=known.noise_scale_samples, source=known.source
        ),
    )


def constants_of(workload: Workload) -> WorkloadConstants:
    """The constants a profile states or names, else those of the workload's own name, else the defaults."""
    if isinstance(workload.convergence, Convergence):
        return fitted(workload.name, workload.convergence)
    if workload.convergence != DEFAULT:
        return constants(workload.convergence)
    return constants(workload.name if workload.name in _data() else DEFAULT)
