"""The study's check by training: dearer samples leave every pass its time, and the table of ratios is the one by hand."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from hetsim import load_profile, simulate
from hetsim.cluster.spec import Convergence
from hetsim.compute.model import pass_model
from hetsim.convergence.constants import constants_of
from hetsim.convergence.predictor import Setting

pytestmark = pytest.mark.torch
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def check() -> ModuleType:
    places = [str(BENCHMARKS / "study"), str(BENCHMARKS)]
    sys.path[:0] = places
    try:
        return importlib.import_module("check")
    finally:
        for place in places:
            sys.path.remove(place)


def fitted(samples: float) -> Convergence:
    return Convergence(
        initial_loss=2.3,
        floor_loss=0.5,
        target_loss=1.7,
        curvature=0.04,
        exponent=1.1,
        directions=1000,
        noise=2.8,
        noise_power=0.0,
        largest_curvature=5.0,
        min_updates=100.0,
        noise_scale_samples=samples,
        source="by hand",
    )


@pytest.mark.parametrize("name", ["mixed-gpu-4", "slow-link-4"])
def test_a_sample_that_is_sixteen_times_as_dear_leaves_the_clock_as_it_was(check: ModuleType, name: str) -> None:
    """Multiples of 16: batches a sixteenth, passes equally long, so the same Schedule but for its counts of samples."""
    of = load_profile(
        name, overrides=["training.global_batch_samples=512", "training.micro_batch_samples=64"]
    ).cluster()
    noise = constants_of(of.workload).noise_scale.noise_scale_samples
    dear, factor = check.cheaper(of, fitted(noise / 16))
    assert factor == pytest.approx(1 / 16)
    assert (dear.training.global_batch_samples, dear.training.micro_batch_samples) == (32, 4)
    for before, after in zip(of.workers, dear.workers, strict=True):
        for samples in (1, 4, 17):
            assert pass_model(after).seconds(samples) == pytest.approx(
                pass_model(before).seconds(16 * samples), rel=1e-12
            )
    for algorithm in ("s-sgd", "one-step-delay"):
        one, two = (simulate(cluster, algorithm, updates=20).timing for cluster in (of, dear))
        assert two.update_period_s == pytest.approx(one.update_period_s, rel=1e-12)
        assert two.mean_batch_samples == one.mean_batch_samples / 16


def test_tiny_batches_keep_a_sample(check: ModuleType) -> None:
    assert [check.scaled(m, 0.0478) for m in (1, 10, 40, 512)] == [1, 1, 2, 24]


def test_ratios_are_those_of_the_best_trained_rate(check: ModuleType) -> None:
    def cell(label: str, predicted: float, trained: Sequence[float], again: Sequence[float]) -> object:
        setting = Setting(learning_rate=0.1, momentum=0.9)
        return check.Checked(
            kind="unequal",
            label=label,
            setting=setting,
            predicted_s=predicted,
            trained_s=tuple(trained),
            best_by_seed_s=(min(trained), *again),
            there_s=predicted,
        )

    found = [
        cell("lb-bsp", 30.0, [40.0, 32.0, 36.0], [30.0, 50.0]),
        cell("abs-sgd:compute_point=damped-prediction", 20.0, [16.0, 18.0, 99.0], [20.0, 20.0]),
    ]
    assert check.ratios(found)[1] == [["`lb-bsp`", "unequal", "1.50", "2.00 (1.50 – 2.50)"]]
    assert "| 32.0 (30.0 – 50.0) | 0.94 | 30.0 |" in check.tables(found)
    infinite = (float("inf"),) * 3
    never = replace(found[1], trained_s=infinite, best_by_seed_s=infinite)  # type: ignore[type-var]
    assert check.ratios([found[0], never])[1][0][-1] == "not reached"
    assert "| not reached | 0.00 |" in check.tables([found[0], never])
    neither = replace(found[0], trained_s=infinite, best_by_seed_s=infinite)  # type: ignore[type-var]
    assert check.ratios([neither, never])[1][0][-1] == "–"
