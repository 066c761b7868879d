"""A quick comparison against the full one it stands for."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from small_clusters import SMALL, small

from hetsim import load_profile
from hetsim.batch_means import relative_error
from hetsim.cluster import Cluster
from hetsim.compare import Comparison, compare, task_of
from hetsim.comparison import FULL, QUICK
from hetsim.convergence.noise_scale import NoiseScale
from hetsim.convergence.predictor import Setting
from hetsim.errors import UsageError
from hetsim.kept import Kept
from hetsim.known_period import WITHIN, _schedules
from hetsim.labels import parse
from hetsim.quick import quick
from hetsim.simulate import simulate
from hetsim.steady_curve import dense

LABELS = ["s-sgd", "lb-bsp", "one-step-delay", "local-sgd", "asgd", "abs-sgd"]


def late() -> Cluster:
    """Noise of a real network: the target takes more than two thousand updates."""
    cluster = small(target_loss=1.0)
    return replace(cluster, workload=replace(cluster.workload, convergence="resnet18-cifar10"))


@pytest.fixture(scope="module")
def found() -> Comparison:
    return quick(late(), LABELS, tuned=True)


def test_tuned_it_says_what_a_comparison_of_one_seed_says(found: Comparison) -> None:
    full = compare(late(), LABELS, seeds=1, jobs=1)
    assert (found.method, full.method) == (QUICK, FULL) and found.to_json().keys() == full.to_json().keys()
    fastest = [min(c.algorithms, key=lambda row: row.seconds).name for c in (found, full)]
    assert fastest[0] == fastest[1]
    for one, other in zip(found.algorithms, full.algorithms, strict=True):
        assert one.name == other.name and math.isfinite(one.seconds) == math.isfinite(other.seconds)
        close = 0.08 if one.name in ("asgd", "abs-sgd") else 0.02  # the loss goes up and down with their delays
        assert one.seconds == pytest.approx(other.seconds, rel=close), one.name
        assert one.update_period_s == pytest.approx(other.update_period_s, rel=0.02), one.name


def test_curves_meet_the_target_where_the_row_says(found: Comparison) -> None:
    for row in found.algorithms:
        curve = found.curves[row.name]
        for values in (curve.updates, curve.samples, curve.time_s):
            assert values[0] == 0 and np.all(np.diff(values) >= 0), row.name
        assert np.all(np.diff(curve.updates) > 0)
        met = curve.crossing(found.target.value)
        assert met is not None and met[1] == pytest.approx(row.seconds, rel=1e-9), row.name
        assert met[0] == pytest.approx(row.samples_to_target, rel=1e-3), row.name


@pytest.mark.parametrize("label", ["s-sgd", "local-sgd", "abs-sgd", "asgd"])
def test_a_curve_is_that_of_the_whole_run(label: str) -> None:
    cluster = replace(late(), training=replace(late().training, learning_rate=0.01, momentum=0.5, target_loss=0.4))
    c = quick(cluster, [label])
    task = task_of(cluster, "nqm", None)
    run = simulate(cluster, parse(label).algorithm(cluster.options), updates=60 if label == "local-sgd" else 1500)
    (whole,) = task.model().curves(run.schedule, cluster, [Setting(learning_rate=0.01, momentum=0.5)])
    curve = c.curves[label]
    inside = (curve.updates > 0) & (curve.updates < len(whole.loss) - 2)
    assert inside.sum() > 20
    at = curve.updates[inside]
    if label in (
        "asgd",
        "abs-sgd",
    ):  # the loss goes up and down within a pattern; what is not simulated follows its lower envelope
        simulated = len(c.runs[label].schedule.updates)
        early, late_ones = at <= simulated // 2, at > simulated
        assert early.any() and late_ones.any()
        assert curve.loss[inside][early] == pytest.approx(whole.loss[at][early], rel=1e-9)
        lowest = np.array([whole.loss[k - 48 : k + 48].min() for k in at[late_ones].tolist()])
        assert curve.loss[inside][late_ones] == pytest.approx(lowest, rel=0.1)
    else:
        assert curve.loss[inside] == pytest.approx(whole.loss[at], rel=0.03)
    assert curve.time_s[inside] == pytest.approx(whole.time_s[at], rel=0.03)
    assert c[label].learning_rate == 0.01 and c[label].momentum == 0.5


def test_fixed_settings_are_the_profiles_own_or_those_given() -> None:
    cluster = late()
    own = Setting.of(cluster.training)
    given = Setting(learning_rate=0.02, momentum=0.0)
    c = quick(cluster, ["s-sgd", "abs-sgd: compute_point=current"], settings={"abs-sgd:compute_point = current": given})
    assert [(row.learning_rate, row.momentum) for row in c.algorithms] == [
        (own.learning_rate, own.momentum),
        (given.learning_rate, given.momentum),
    ]
    assert any("not tuned" in sentence for sentence in c.assumptions)


def test_it_says_how_well_the_period_is_known_and_the_true_one_lies_within() -> None:
    c = quick(late(), LABELS)
    for row in c.algorithms:
        assert row.period_error is not None
        warned = any(w.code == "period-uncertain" and w.text.startswith(f"{row.name}:") for w in c.warnings)
        assert warned == (row.period_error > WITHIN)
        long = simulate(late(), row.name, updates=300 if row.name == "local-sgd" else 4000, verify=False).timing
        assert row.update_period_s == pytest.approx(long.update_period_s, rel=max(2 * row.period_error, 0.01))


def test_batch_means_cover_the_mean_of_independent_steps() -> None:
    rng = np.random.default_rng(0)
    hits = 0
    for _ in range(400):
        times = np.concatenate(([0.0], np.cumsum(rng.gamma(4.0, 0.25, 200))))
        error, mean = relative_error(times), times[-1] / 200
        assert error is not None
        hits += abs(mean - 1.0) <= error * mean
    assert 0.92 <= hits / 400 <= 0.98
    assert relative_error(np.arange(20.0)) is None and relative_error(np.zeros(50)) is None


@pytest.mark.parametrize("most", [1, 15, 16, 17, 1000, 12345])
def test_points_are_dense_first_and_never_further_apart_than_a_sixteenth(most: int) -> None:
    counts = dense(most)
    assert counts[0] == 1 and counts[-1] >= most and (len(counts) < 2 or counts[-2] < most)
    steps = np.diff(counts)
    assert np.all(steps >= 1) and np.all(steps <= np.maximum(1, counts[:-1] / 16 + 1e-9))


def test_what_changes_while_it_runs_is_followed_update_by_update() -> None:
    event = "events=[{at_s: 5.0, worker: slow, slowdown: 2.0}]"
    profile = load_profile(SMALL, overrides=[event, "training.target_loss=0.9", "training.learning_rate=0.05"])
    c = quick(profile, ["s-sgd", "abs-sgd"])
    assert any("update by update" in sentence for sentence in c.assumptions)
    for row in c.algorithms:
        run = simulate(profile, row.name, max_samples=row.tried_samples)
        (whole,) = (
            task_of(profile, "nqm", None)
            .model()
            .curves(run.schedule, profile.cluster(), [Setting.of(profile.cluster().training)])
        )
        met = whole.crossing(0.9)
        assert met is not None and row.seconds == pytest.approx(met[1], rel=1e-12)


def test_progress_names_every_algorithm_once() -> None:
    seen: list[tuple[str, int, int]] = []
    quick(small(target_loss=0.9), ["s-sgd", "abs-sgd"], progress=lambda *step: seen.append(step))
    assert sorted(label for label, _, _ in seen) == ["abs-sgd", "s-sgd"]
    assert [step[1:] for step in seen] == [(1, 2), (2, 2)]


def test_schedules_that_are_kept_change_nothing_but_what_is_asked() -> None:
    cluster = small(target_loss=0.9)
    _schedules.clear()
    fresh = quick(cluster, ["abs-sgd", "asgd"])
    other = replace(cluster, training=replace(cluster.training, learning_rate=0.02, micro_batch_samples=16))
    assert quick(other, ["abs-sgd"])["abs-sgd"].mean_batch_samples != fresh["abs-sgd"].mean_batch_samples
    assert quick(cluster, ["abs-sgd", "asgd"]).to_json() == fresh.to_json()
    slower = replace(cluster, training=replace(cluster.training, learning_rate=0.01))
    kept = len(_schedules)
    assert quick(slower, ["abs-sgd"]).runs["abs-sgd"].cluster is slower and len(_schedules) == kept


def test_delays_beyond_a_pattern_are_not_followed_and_it_says_so() -> None:
    workers = "  - {name: fast, samples_per_s: 100000, count: 3}\n  - {name: slow, samples_per_s: 20}\n"
    cluster = small(workers, target_loss=0.01)
    c = quick(cluster, ["s-sgd", "asgd"])
    assert any("few hundred updates only: asgd" in sentence for sentence in c.assumptions)
    assert c["asgd"].seconds == math.inf and len(c.curves["asgd"].loss) == len(c.runs["asgd"].schedule.updates) + 1


def test_a_target_that_is_met_before_the_start_takes_no_time() -> None:
    c = quick(small(target_loss=1e6), LABELS)
    assert {row.seconds for row in c.algorithms} == {0.0}
    assert all(math.copysign(1.0, row.seconds) == 1.0 and (row.samples_to_target or 0) >= 0 for row in c.algorithms)


class Training(NoiseScale):
    name = "patient"
    trains = True


def test_a_predictor_that_trains_is_refused_with_a_way_out() -> None:
    with pytest.raises(UsageError, match=r"predictor patient trains .*training\.seeds=1.*nqm or noise-scale"):
        quick(small(), ["s-sgd"], predictor=Training())
    assert quick(small(), ["s-sgd"], predictor="noise-scale").predictor == "noise-scale"


def test_what_was_asked_for_last_is_kept() -> None:
    kept: Kept[int] = Kept(2)
    made = []

    def make(key: int) -> int:
        made.append(key)
        return 10 * key

    assert [kept.get(key, partial(make, key)) for key in (1, 2, 1, 3, 1, 2)] == [10, 20, 10, 30, 10, 20]
    assert made == [1, 2, 3, 2] and len(kept) == 2
