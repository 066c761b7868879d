"""Predictors by name: hetsim's own, and those that installed packages add through the entry-point group `hetsim.predictors`."""

from __future__ import annotations

from importlib.metadata import EntryPoint, entry_points

from hetsim.convergence.predictor import Predictor
from hetsim.errors import MissingExtraError, UsageError, nearest

GROUP = "hetsim.predictors"
OWN = ("nqm", "noise-scale")
EXTRAS = {"virtual": ("training in virtual time (predictor virtual)", "train")}  # known to come with an extra


def predictor_names() -> list[str]:
    """Every predictor that can be asked for: hetsim's own first, then those of other packages, installed or known to exist."""
    return [*OWN, *sorted(({*_entry_points()} | set(EXTRAS)) - set(OWN))]


def get_predictor(name: str) -> Predictor:
    """The predictor of that name. UsageError where there is none, MissingExtraError where its package is not installed."""
    if name == "nqm":
        from hetsim.convergence.nqm import NoisyQuadratic

        return NoisyQuadratic()
    if name == "noise-scale":
        from hetsim.convergence.noise_scale import NoiseScale

        return NoiseScale()
    if name not in predictor_names():
        raise UsageError(f"unknown predictor {name!r} ({nearest(name, predictor_names())})")
    entry = _entry_points().get(name)
    try:
        if entry is None:
            raise ModuleNotFoundError(name)
        loaded = entry.load()
    except ModuleNotFoundError as missing:
        feature, extra = EXTRAS.get(name, (f"predictor {name}", "train"))
        raise MissingExtraError(feature, extra) from missing
    predictor = loaded() if isinstance(loaded, type) else loaded
    if not isinstance(predictor, Predictor):
        raise UsageError(
            f"predictor {name!r} of {entry.value} lacks name, target or curves (see hetsim.convergence.predictor)"
        )
    return predictor


def _entry_points() -> dict[str, EntryPoint]:
    return {e.name: e for e in entry_points(group=GROUP)}
