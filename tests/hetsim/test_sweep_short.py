"""The short way of a cell against the comparison it stands for."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from small_clusters import SMALL, small

from hetsim import load_profile
from hetsim.algorithms import make, registry
from hetsim.algorithms.local_sgd import LocalSgd
from hetsim.cluster import Cluster
from hetsim.compare import task_of
from hetsim.contest import FAIR, MOST, PATIENCE, first_length
from hetsim.steady_run import ROUNDS, UPDATES, allowed, first_updates, is_short
from hetsim.steady_tuning import _tunings
from hetsim.sweeps.cell import run_cell


def late() -> Cluster:
    """Noise of a real network: the target takes more than two thousand updates."""
    cluster = small(target_loss=1.0)
    return replace(cluster, workload=replace(cluster.workload, convergence="resnet18-cifar10"))


def by_label(
    cluster: Cluster, labels: list[str], method: str, seeds: int = 1, seed: int = 0
) -> dict[str, dict[str, Any]]:
    return {row["algorithm"]: row for row in run_cell(cluster, labels, "nqm", method, seeds, seed)}


def test_a_target_met_early_is_met_exactly_as_in_a_comparison() -> None:
    cluster = small(target_loss=0.9)
    labels = ["s-sgd", "one-step-delay", "abs-sgd", "local-sgd"]
    short, full = by_label(cluster, labels, "auto"), by_label(cluster, labels, "full")
    for label in labels:
        assert short[label]["method"] == "full"
        for column in ("seconds", "samples_to_target", "updates_to_target", "learning_rate", "momentum", "speedup"):
            assert short[label][column] == full[label][column], (label, column)


def test_a_late_target_is_met_at_about_the_same_time() -> None:
    cluster = late()
    labels = [name for name, kind in registry().items() if kind.by_default]
    short, full = (by_label(cluster, labels, method, 2) for method in ("auto", "full"))
    steady = [label for label in labels if short[label]["method"] == "steady"]
    assert {"s-sgd", "lb-bsp", "abs-sgd", "asgd"} <= set(steady)
    best = min(row["seconds"] for row in full.values() if row["seconds"] is not None)
    for label in labels:
        one, other = short[label]["seconds"], full[label]["seconds"]
        if other is None:  # given up as hopeless by its trend, or a little before the end of what is allowed
            assert one is None or FAIR * best < one < PATIENCE * best, label
        else:
            # where delays or shares change, the loss goes up and down: it meets the target in a dip, soon or not so soon
            close = 0.08 if label in ("asgd", "ssp") else 0.04 if label == "abs-sgd" else 0.01
            assert one == pytest.approx(other, rel=close), label
            assert short[label]["speedup"] == pytest.approx(full[label]["speedup"], rel=close + 0.01), label


def test_what_was_tuned_before_changes_nothing() -> None:
    cluster = late()
    _tunings.clear()
    fresh = run_cell(cluster, ["s-sgd", "abs-sgd"], "nqm", "auto", 1, 0)
    kept = run_cell(cluster, ["s-sgd", "abs-sgd"], "nqm", "auto", 1, 0)
    run_cell(small(target_loss=0.06, momentum=0.8, weight_decay=0.01), ["s-sgd"], "nqm", "auto", 1, 0)
    assert fresh == kept == run_cell(cluster, ["s-sgd", "abs-sgd"], "nqm", "auto", 1, 0)


@pytest.mark.parametrize(
    "override",
    [
        "events=[{at_s: 5.0, worker: slow, slowdown: 2.0}]",
        "events=[{at_s: 5.0, link: slow, bandwidth_gbit_per_s: 0.1}]",
        "training.warmup_updates=5",
    ],
)
def test_a_cluster_that_changes_is_computed_in_full(override: str) -> None:
    cluster = load_profile(SMALL, overrides=[override, "training.target_loss=0.9"]).cluster()
    assert is_short(small(), "nqm") and not is_short(small(), "noise-scale") and not is_short(cluster, "nqm")
    rows = run_cell(cluster, ["s-sgd"], "nqm", "auto", 1, 0)
    assert rows[0]["method"] == "full" and rows == run_cell(cluster, ["s-sgd"], "nqm", "full", 1, 0)


def test_an_algorithm_without_a_steady_state_is_followed_like_in_a_comparison() -> None:
    cluster = small(target_loss=0.5)
    label = "local-sgd:by_speed=true,normalise=samples"
    short, full = (by_label(cluster, ["s-sgd", label], method) for method in ("auto", "full"))
    assert short[label]["method"] == "full" and short[label]["seconds"] == full[label]["seconds"] is not None


def test_whatever_counts_rounds_is_simulated_over_fewer_updates() -> None:
    class Renamed(LocalSgd):
        """Local SGD under another name."""

    assert first_updates(make("s-sgd")) == UPDATES > first_updates(make("local-sgd")) == ROUNDS
    assert first_updates(Renamed()) == ROUNDS


def test_how_far_an_algorithm_is_followed_is_the_rule_of_comparisons() -> None:
    cluster = small(max_samples=100_000)
    task = task_of(cluster, "nqm", None)
    limit, first = 100_000, first_length(task)
    assert first == 64_000
    assert allowed(task, math.inf, 500.0) == limit
    assert allowed(task, 10.0, 1000.0) == max(min(PATIENCE * 10_000, limit), first)
    assert allowed(task, 1.0, 1000.0) == first
    assert allowed(task, 1000.0, 1000.0) == FAIR * 1_000_000
    assert allowed(task, 1e6, 1000.0) == MOST * limit
