"""Yardsticks against brute force and by hand, and the lines that say what they mean wherever they are printed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
from handmade_clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from small_clusters import small

from hetsim import reasons
from hetsim.cluster import load_profile
from hetsim.cluster.spec import Cluster, Worker
from hetsim.compare import compare
from hetsim.compute import pass_model
from hetsim.convergence.constants import constants_of
from hetsim.convergence.predictor import Setting
from hetsim.explain import explain
from hetsim.export import simulation_document
from hetsim.report import Material, report_html
from hetsim.simulate import simulate
from hetsim.yardsticks import (
    all_reduce_over_critical,
    best_rate,
    critical_seconds,
    ideal_period,
    least_time,
    yardsticks,
)

sizes = st.integers(1, 60)
times = st.floats(0.001, 2.0)


def worker(**fields: object) -> Worker:
    return Worker(rank=0, name="w", group="w", node="w", **fields)  # type: ignore[arg-type]


@settings(deadline=None)
@given(
    line=st.tuples(st.floats(1.0, 500.0), st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
    table=st.dictionaries(sizes, times, max_size=5),
    cap=st.one_of(st.none(), sizes),
    most=sizes,
)
def test_the_best_rate_is_the_best_of_all_passes(
    line: tuple[float, float, float], table: dict[int, float], cap: int | None, most: int
) -> None:
    speed, overhead, floor = line
    steps = tuple(sorted(table.items()))
    w = worker(samples_per_s=speed, overhead_s=overhead, floor_s=floor, step_times_s=steps, max_batch_samples=cap)
    seconds = [pass_model(w).seconds(m) for m in range(1, min(most, cap or most) + 1)]
    tried = max((m + 1) / t if t > 0 else math.inf for m, t in enumerate(seconds))
    assert best_rate(w, most) == pytest.approx(tried, rel=1e-12)


def test_without_a_limit_a_line_has_its_own_speed_and_a_worker_that_takes_no_time_none() -> None:
    assert best_rate(worker(samples_per_s=250.0, overhead_s=0.1, floor_s=0.2)) == pytest.approx(250.0, rel=1e-6)
    assert best_rate(worker()) == math.inf
    assert least_time(cluster([math.inf, 100.0])) is None


def test_the_ideal_period_by_hand() -> None:
    """200 and 100 samples/s: 200 samples take 2/3 s at best, and 1 s where each computes 100."""
    c = cluster([200.0, 100.0], global_batch_samples=200, max_samples=4000)
    found = yardsticks(simulate(c, "s-sgd"), setting=None)
    assert found.ideal_period_s == pytest.approx(2 / 3)
    assert found.period_over_ideal == pytest.approx(1.5)
    balanced = yardsticks(simulate(c, "lb-bsp", options={"dead_band": 0.0}, max_samples=20000), setting=None)
    assert balanced.period_over_ideal == pytest.approx(1.0, abs=0.01)  # 133 + 67 samples, whole ones


@pytest.mark.parametrize("name", ["s-sgd", "lb-bsp", "one-step-delay", "local-sgd", "asgd", "ssp", "abs-sgd"])
def test_no_method_is_faster_than_the_ideal(name: str) -> None:
    c = cluster(
        [900.0, 400.0, 350.0],
        overheads=[0.01, 0.0, 0.03],
        floors=[0.02, 0.05, 0.0],
        bandwidths=[1e8] * 3,
        gradient_bytes=2e6,
        caps=[None, 40, None],
        global_batch_samples=96,
        micro_batch_samples=8,
        max_samples=40000,
    )
    result = simulate(c, name)
    found = yardsticks(result, setting=None)
    assert found.period_over_ideal is not None and found.period_over_ideal >= 1 - 1e-9
    ideal = ideal_period(c, result.timing.mean_batch_samples, 10**6)  # larger passes: a smaller ideal
    assert found.ideal_period_s is not None and ideal <= found.ideal_period_s * (1 + 1e-9)


def by_definition(c: Cluster) -> float:
    """T* written out: the best number of fastest workers, S_min (m + B_n) / Σ v_i."""
    known = constants_of(c.workload).noise_scale
    rates = sorted((best_rate(w) for w in c.workers), reverse=True)
    return min(known.min_updates * (m + known.noise_scale_samples) / sum(rates[:m]) for m in range(1, len(rates) + 1))


def test_the_least_time() -> None:
    c = load_profile("mixed-gpu-4").cluster()
    assert least_time(c) == pytest.approx(by_definition(c), rel=1e-12)
    slow = replace(c.workers[0], rank=4, name="x", step_times_s=(), samples_per_s=0.001, overhead_s=0.0, floor_s=0.0)
    assert least_time(replace(c, workers=(*c.workers, slow))) == pytest.approx(by_definition(c), rel=1e-6)  # left out


def test_the_all_reduce_over_the_critical_batch_by_hand() -> None:
    c = load_profile("mixed-gpu-4", overrides=["network.bandwidth_gbit_per_s=2", "network.latency_us=100"]).cluster()
    b = replace(c.workers[1], max_batch_samples=32)
    c = replace(c, workers=(c.workers[0], b, *c.workers[2:]))
    rates = [m / pass_model(w).seconds(m) for w, m in zip(c.workers, (128, 32, 128, 128), strict=True)]
    critical = constants_of(c.workload).noise_scale.noise_scale_samples / sum(rates)
    assert critical_seconds(c) == pytest.approx(critical, rel=1e-12)
    ring = 2 * 3 * (1e-4 + c.workload.gradient_bytes / 4 / min(link.bytes_per_s for link in c.network.links))
    assert all_reduce_over_critical(c) == pytest.approx(ring / critical, rel=1e-12)
    assert all_reduce_over_critical(cluster([math.inf, 100.0])) is None
    assert all_reduce_over_critical(cluster([100.0])) == 0.0


def test_explain_quotes_the_rule_of_the_study() -> None:
    page = (Path(__file__).parents[2] / "docs" / "study.md").read_text(encoding="utf-8")
    (threshold,) = re.findall(r"\| one-step-delay-balanced \|.*all-reduce / time for a critical batch ≥ ([\d.]+)", page)
    assert f"over {threshold}" in reasons.NETWORK_MEANS


def test_learning_rate_against_the_bound_of_each_delay() -> None:
    """Largest curvature 50 of ResNet18 on CIFAR-10; 2(1+β) without delay, 1-β with one update of it."""
    profile = load_profile("mixed-gpu-4")
    own = Setting(learning_rate=0.05, momentum=0.9)
    for name, options, bound in (
        ("s-sgd", {}, 3.8),
        ("one-step-delay", {}, 0.1),
        ("abs-sgd", {"compute_point": "current"}, 0.1),
        ("abs-sgd", {"compute_point": "local-prediction"}, 1.0),  # the workers' own deviations feed back
        ("abs-sgd", {}, 2.0),  # damped by half: 1 / max(γ, 1-γ)
    ):
        found = yardsticks(simulate(profile, name, options=options, updates=400), setting=own)
        assert found.rate_times_curvature == pytest.approx(2.5)
        assert found.stability_bound == pytest.approx(bound, rel=0.01), name  # the first update has no delay
    adam = load_profile("mixed-gpu-4", overrides=["training.optimizer=adamw"])
    assert yardsticks(simulate(adam, "s-sgd", updates=10), setting=own).stability_bound is None


def test_a_local_step_counts_as_an_update_against_the_critical_batch() -> None:
    profile = load_profile("mixed-gpu-4")
    found = yardsticks(simulate(profile, "local-sgd", updates=40), setting=None)
    assert found.batch_over_critical == pytest.approx(512 / 3040.24, rel=0.01)


def test_a_comparison_has_them_at_the_tuned_setting_and_only_where_they_apply() -> None:
    c = small(max_samples=100_000, seeds=1)
    row = compare(c, ["s-sgd"], jobs=1)["s-sgd"]
    known = constants_of(c.workload)
    assert row.learning_rate is not None and row.momentum is not None
    y = row.yardsticks
    assert y.rate_times_curvature == pytest.approx(row.learning_rate * known.nqm.quadratic().largest_curvature)
    assert y.stability_bound == pytest.approx(2 * (1 + row.momentum))
    assert y.time_over_least == pytest.approx(row.seconds / by_definition(c))
    by_noise = compare(c, ["s-sgd"], predictor="noise-scale", jobs=1)["s-sgd"]
    assert by_noise.yardsticks.rate_times_curvature is None
    assert by_noise.yardsticks.time_over_least == pytest.approx(by_noise.seconds / by_definition(c))
    assert by_noise.yardsticks.time_over_least >= 1
    other = compare(c, ["s-sgd"], target=1.5, jobs=1)["s-sgd"]  # another target than the one T* is for
    assert math.isfinite(other.seconds) and other.yardsticks.time_over_least is None


def test_shares_that_read_alike_stand_together() -> None:
    assert reasons.shares({"a": 0.25, "b": 0.25, "c": 0.25, "d": 0.25}) == "25 % each"
    assert reasons.shares({"d": 0.14, "a": 0.48, "b": 0.24, "c": 0.14}) == "a 48 %, b 24 %, d and c 14 % each"
    assert reasons.shares({"a-0": 0.3, "a-1": 0.3, "a-2": 0.3, "b": 0.1}) == "a-0 to a-2 30 % each, b 10 %"
    assert reasons.shares({"a": 0.3, "b": 0.1, "c": 0.3, "d": 0.3}) == "3 workers 30 % each, b 10 %"
    assert reasons.shares({"a": 1.0}) == "a 100 %"


def test_a_report_says_what_each_column_means_and_reads_documents_of_before() -> None:
    document = simulation_document(simulate(load_profile("mixed-gpu-4"), "abs-sgd", updates=40))
    page = report_html(Material(document=document))
    for name in reasons.shown([document]):
        assert name in page and escape(reasons.MEANINGS[name]) in page
    assert len(reasons.shown([document])) == 3 and reasons.WHO_MEANS in page
    old = {key: value for key, value in document.items() if key != "yardsticks"}
    assert "<h2>Why</h2>" not in report_html(Material(document=old))


def test_explain_warns_of_the_profile_s_own_setting() -> None:
    found = explain(load_profile("mixed-gpu-4"), "abs-sgd", {"compute_point": "current"})
    assert {"unstable-learning-rate", "catalogue-speeds"} <= {w.code for w in found.warnings}
    assert sum(found.sample_share.values()) == pytest.approx(1)
    document = found.to_json()
    assert document["yardsticks"]["stability_bound"] == pytest.approx(0.1, rel=0.01)
    assert document["warnings"][0].keys() == {"code", "text"}
