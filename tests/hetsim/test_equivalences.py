"""What each algorithm claims to be under its exact conditions: another one, to the byte of its log or in all numbers that training sees."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from handmade_clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.algorithms.dropcompute import best_limit
from hetsim.algorithms.omnilearn import proportional
from hetsim.cluster.spec import Cluster, Link, Training
from hetsim.convergence.joint import run_joint
from hetsim.convergence.operations import compile_schedule
from hetsim.convergence.quadratic import power_law
from hetsim.convergence.sequence import Rule
from hetsim.schedule import Kind, Schedule
from hetsim.schedule.log import DTYPE
from hetsim.simulate import simulate

LINKS: dict[str, Any] = {"gradient_bytes": 1e6, "bandwidths": [2e6, 3e6, 4e6], "latency_s": 1e-3}
SERVER = Link(bytes_per_s=3e6, latency_s=1e-3)


def three(speeds: tuple[float, ...] = (40.0, 20.0, 10.0), **more: Any) -> Cluster:
    return cluster(
        speeds,
        **{"server": SERVER, "global_batch_samples": 18, "micro_batch_samples": 2, "jitter_cv": 0.3, **LINKS, **more},
    )


EQUAL = three((20.0,) * 3, jitter_cv=0.0, bandwidths=[3e6] * 3)


def schedule(name: str, c: Cluster, updates: int = 25, **options: Any) -> Schedule:
    return simulate(c, name, options=options, updates=updates).schedule


def assert_same_log(a: Schedule, b: Schedule) -> None:
    for column in DTYPE.names or ():
        assert getattr(a, column).tobytes() == getattr(b, column).tobytes(), column


def assert_same_numbers(a: Schedule, b: Schedule) -> None:
    """Every update steps from the one before on the same samples per worker, as old, with the same weights; only times and sample
    numbers may differ, which decide nothing that a model's expectation sees."""
    u, v = a.updates, b.updates
    assert u.is_sequence and v.is_sequence and len(u) == len(v) > 10
    for column in ("samples", "divisor", "scale", "begin", "worker", "part_samples", "staleness"):
        assert getattr(u, column).tolist() == getattr(v, column).tolist(), column
    assert not u.predicted.any() and not v.predicted.any()


# ---- synchronous ---------------------------------------------------------------------------------------------------------


def test_dropcompute_without_a_limit_is_s_sgd() -> None:
    for options in ({"limit": "none"}, {"limit": "fixed", "limit_s": 1e6}):
        assert_same_numbers(schedule("dropcompute", three(), **options), schedule("s-sgd", three()))


def test_dropcompute_with_one_micro_batch_is_s_sgd_without_overlap_to_the_byte() -> None:
    c = three(micro_batch_samples=6)
    assert_same_log(schedule("dropcompute", c, limit="none"), schedule("s-sgd", c, overlap=False))


@pytest.mark.parametrize("limit_s", [0.01, 0.09, 0.25, 0.45, 1.0])
def test_dropcompute_s_period_is_its_limit_rounded_up_to_a_micro_batch(limit_s: float) -> None:
    """max_i min(⌈τ/g_i⌉, 3)·g_i + C with g = .05, .1, .2 s."""
    c = three(jitter_cv=0.0)
    all_reduce = 2 * 2 * (1e-3 + 1e6 / (3 * 2e6))
    ends = [min(max(math.ceil(limit_s / g - 1e-9), 1), 3) * g for g in (0.05, 0.1, 0.2)]
    t = simulate(c, "dropcompute", options={"limit": "fixed", "limit_s": limit_s}, updates=20).timing
    assert t.update_period_s == pytest.approx(max(ends) + all_reduce, rel=1e-9)
    assert t.mean_batch_samples == sum(2 * round(e / g) for e, g in zip(ends, (0.05, 0.1, 0.2), strict=True))


def gain(table: tuple[tuple[float, ...], ...], passes: tuple[int, ...], network_s: float, limit_s: float) -> float:
    """S(τ), micro-batch by micro-batch."""
    ratio, done = 0.0, 0
    for row in table:
        stops = []
        for seconds, count in zip(row, passes, strict=True):
            at, made = 0.0, 0
            while made < count and (made == 0 or at < limit_s - 1e-9 * seconds):
                made += 1
                at = made * seconds / count
            stops.append(at)
            done += made
        ratio += (max(row) + network_s) / (max(stops) + network_s)
    return ratio / len(table) * done / (sum(passes) * len(table))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(*[st.integers(1, 40)] * 3), min_size=1, max_size=4),
    st.tuples(*[st.integers(1, 6)] * 3),
    st.integers(0, 20),
)
def test_dropcompute_chooses_the_limit_of_the_largest_speed_up(
    rows: list[tuple[int, ...]], passes: tuple[int, ...], network: int
) -> None:
    table = tuple(tuple(float(x) for x in row) for row in rows)
    chosen = best_limit(table, passes, float(network))
    means = np.array(table).mean(axis=0) / np.array(passes)
    tried = [j * float(m) * 0.999 for m, count in zip(means, passes, strict=True) for j in range(1, count)]
    best = max([1.0, *(gain(table, passes, network, limit) for limit in tried)])
    assert (1.0 if math.isinf(chosen) else gain(table, passes, network, chosen)) == pytest.approx(best, rel=1e-9)
    assert math.isinf(chosen) == (best <= 1.0 + 1e-9)


def test_dropcompute_picks_a_limit_where_one_pays_and_keeps_it() -> None:
    """One worker eight times as slow, a fast network: after the measured updates it is cut to one of its three micro-batches."""
    c = three((80.0, 80.0, 10.0), gradient_bytes=1e3, jitter_cv=0.0)
    u = schedule("dropcompute", c, measured_updates=4).updates
    assert u.part_samples.reshape(-1, 3)[:4].tolist() == [[6, 6, 6]] * 4
    assert u.part_samples.reshape(-1, 3)[4:].tolist() == [[6, 6, 2]] * 21


def test_omnilearn_on_equal_workers_is_s_sgd() -> None:
    assert_same_log(schedule("omnilearn", EQUAL), schedule("s-sgd", EQUAL))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 6))
def test_one_step_of_omnilearn_s_controller(data: st.DataObject, n: int) -> None:
    """The sum is kept, nobody is left without samples or over its cap; without overheads one step makes all times equal to a sample."""
    lists = lambda s: tuple(data.draw(st.lists(s, min_size=n, max_size=n)))  # noqa: E731
    batches, speeds = lists(st.integers(1, 200)), lists(st.floats(1.0, 1000.0))
    caps = lists(st.one_of(st.none(), st.integers(1, 300)))
    made = proportional(batches, speeds, caps, 0.0)
    total = sum(batches)
    assert sum(made) == total and min(made) >= 1
    if sum(total if cap is None else cap for cap in caps) >= total:
        assert all(cap is None or b <= cap for b, cap in zip(made, caps, strict=True))
    if not any(caps) and min(total * x / sum(speeds) for x in speeds) >= 1:
        assert all(abs(b - total * x / sum(speeds)) < 1 + 1e-6 for b, x in zip(made, speeds, strict=True))


# ---- asynchronous --------------------------------------------------------------------------------------------------------


def test_ringmaster_without_a_threshold_is_asgd() -> None:
    assert_same_log(schedule("ringmaster-asgd", three(), 60, threshold=10**9), schedule("asgd", three(), 60))
    assert_same_log(schedule("ringmaster-asgd", EQUAL, 60), schedule("asgd", EQUAL, 60))  # nobody is n updates late


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_ringmaster_drops_exactly_what_is_too_old(threshold: int) -> None:
    """By a count of our own: of every push its updates since its pull."""
    r = simulate(three((80.0, 10.0, 9.0)), "ringmaster-asgd", options={"threshold": threshold}, updates=60)
    u = r.schedule.updates
    assert u.staleness.max() == threshold - 1
    assert r.samples.discarded > 0


@pytest.mark.parametrize("variant", ["constant", "adaptive"])
def test_dc_asgd_without_a_correction_is_asgd(variant: str) -> None:
    a, b = schedule("dc-asgd", three(), 60, variant=variant, strength=0.0), schedule("asgd", three(), 60)
    assert_same_log(a, b)
    corrected = schedule("dc-asgd", three(), 60, variant=variant)
    for column in ("kind", "worker", "start_s", "end_s", "state", "parent", "source", "slot", "samples", "first"):
        assert getattr(corrected, column).tobytes() == getattr(b, column).tobytes(), column  # the same but for λ
    assert losses(corrected, 0.5) != pytest.approx(losses(b, 0.5), rel=1e-6)


def test_delay_adaptive_without_long_delays_is_asgd() -> None:
    """Of two equal workers a gradient is at most two updates old, whoever comes first in a round."""
    two = cluster([20.0, 20.0], server=SERVER, global_batch_samples=12, **{**LINKS, "bandwidths": [3e6, 3e6]})
    a = schedule("delay-adaptive-asgd", two, 60)
    assert a.updates.staleness.max() == 2
    assert_same_log(a, schedule("asgd", two, 60))


def test_delay_adaptive_shrinks_the_steps_of_old_gradients_and_nothing_else() -> None:
    c = three((400.0, 400.0, 4.0), gradient_bytes=1e3)
    a, b = schedule("delay-adaptive-asgd", c, 200), schedule("asgd", c, 200)
    u = a.updates
    assert u.staleness.max() > 20
    assert u.scale.tolist() == [3 / max(3, τ) for τ in u.staleness.tolist()]
    assert a.end_s.tobytes() == b.end_s.tobytes() and a.state.tobytes() == b.state.tobytes()


# ---- collectives that start without the late -------------------------------------------------------------------------------


def test_backup_workers_without_backups_is_s_sgd_without_overlap() -> None:
    for c in (three(), EQUAL, three(update_s=0.01), three((30.0,), bandwidths=[2e6])):
        assert_same_log(schedule("backup-workers", c, backups=0), schedule("s-sgd", c, overlap=False))


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(20, 2000), min_size=2, max_size=8, unique=True), st.integers(0, 7), st.floats(0.2, 1e7))
def test_backup_workers_keep_the_fastest(speeds: list[float], backups: int, size: float) -> None:
    """n'·b / (t_(n')(b) + C) samples/s with n' = n - k, and never anybody but the n' fastest."""
    n, b = len(speeds), 16
    c = cluster(speeds, bandwidths=[1e8] * n, gradient_bytes=size, global_batch_samples=n * b)
    r = simulate(c, "backup-workers", options={"backups": backups}, updates=20)
    kept = sorted(range(n), key=lambda i: -speeds[i])[: max(n - backups, 1)]
    assert set(r.schedule.updates.worker.tolist()) == set(kept)
    period = b / min(speeds[i] for i in kept) + 2 * (n - 1) * size / (n * 1e8)
    assert r.timing.samples_per_s == pytest.approx(len(kept) * b / period, rel=1e-9)


@pytest.mark.parametrize("mode", ["solo", "majority"])
@pytest.mark.parametrize("divisor", ["planned", "present"])
def test_eager_sgd_where_all_come_at_once_is_s_sgd(mode: str, divisor: str) -> None:
    """To the byte: who comes at the instant of the first is in it."""
    assert_same_log(schedule("eager-sgd", EQUAL, mode=mode, divisor=divisor), schedule("s-sgd", EQUAL, overlap=False))


def test_eager_sgd_loses_no_gradient_and_sums_stale_ones() -> None:
    """Nearly all of what was computed is applied, once; a late worker's accumulator may hold gradients of several points."""
    r = simulate(three((40.0, 38.0, 36.0), jitter_cv=0.6), "eager-sgd", options={"mode": "solo"}, updates=80)
    u, account = r.schedule.updates, r.samples
    assert account.applied + account.in_flight + account.discarded == account.handed_out
    assert account.discarded + account.in_flight <= 3 * 2 * 6  # of the last pass or two of each
    assert u.staleness.max() >= 1 and set(u.divisor.tolist()) == {18}
    slots = u.slot.tolist()
    assert len(set(slots)) < len(slots), "no accumulator has gradients of two points: the test shows nothing"
    per_update = np.bincount(u.owner, weights=u.part_samples)
    assert per_update.tolist() == u.samples.tolist()


def test_in_majority_every_worker_starts_its_share() -> None:
    """The drawn one is in every sum with a fresh gradient; over many draws all are drawn."""
    r = simulate(three((80.0, 30.0, 9.0), jitter_cv=0.0), "eager-sgd", updates=90)
    u = r.schedule.updates
    fresh = [set(u.worker[(u.owner == k) & (u.staleness == 0)].tolist()) for k in range(len(u))]
    alone = [sum(f == {0} for f in fresh), sum(f >= {0, 1} and 2 not in f for f in fresh), sum(2 in f for f in fresh)]
    assert min(alone) > 15 and sum(alone) == len(u)  # a third each: a is always done before b, b before c


def test_rennala_among_equals_has_the_numbers_of_s_sgd() -> None:
    """S = n, equal speeds, a free network: n gradients at x_k in every update, whoever computed them."""
    for n in (1, 2, 3, 5):
        c = cluster([16.0] * n, global_batch_samples=4 * n, micro_batch_samples=2)
        u, v = schedule("rennala-sgd", c).updates, schedule("s-sgd", c).updates
        for column in ("samples", "divisor", "scale"):
            assert getattr(u, column).tolist() == getattr(v, column).tolist(), (n, column)
        assert u.is_sequence and not u.staleness.any() and len(u) == 25


@pytest.mark.parametrize("gradients", [1, 4, 7])
def test_rennala_takes_s_gradients_at_one_point(gradients: int) -> None:
    """Batches of 6 samples; on a network without latency no more than come at one instant, which with jitter is one."""
    r = simulate(three(latency_s=0.0), "rennala-sgd", options={"gradients": gradients}, updates=40)
    u = r.schedule.updates
    assert set(u.samples.tolist()) == {6 * gradients} and not u.staleness.any()
    if gradients == 7:
        fastest = u.part_samples[u.worker == 0].sum() / u.part_samples.sum()
        assert fastest > 0.5  # of three unequal workers the fastest computes most


# ---- one update of delay -----------------------------------------------------------------------------------------------------


def losses(s: Schedule, momentum: float, **more: Any) -> np.ndarray[Any, Any]:
    """E loss after every update by the quadratic model, at two learning rates, by the engine that knows every operation."""
    training = Training(global_batch_samples=18, **more)
    program = compile_schedule(s, training)
    rates, rule = np.array([0.05, 0.2]), Rule(training.weight_decay, training.nesterov)
    return run_joint(program, power_law(50, noise=1.0).compressed(8), rates, np.full(2, momentum), rule).loss


def test_od_sgd_without_its_local_update_is_one_step_delay() -> None:
    c = three()
    assert_same_log(schedule("od-sgd", c, compute_point="current"), schedule("one-step-delay", c))
    for beta in (0.0, 0.9):
        still = losses(schedule("od-sgd", c, kappa=0.0), beta, weight_decay=0.01, nesterov=beta > 0)
        assert still == pytest.approx(
            losses(schedule("one-step-delay", c), beta, weight_decay=0.01, nesterov=beta > 0), rel=1e-12
        )


def test_od_sgd_s_local_step_is_local_prediction_without_momentum_and_not_with_it() -> None:
    c = three()
    step, whole = schedule("od-sgd", c), schedule("one-step-delay", c, compute_point="local-prediction")
    assert step.end_s.tobytes() == whole.end_s.tobytes()
    assert losses(step, 0.0) == pytest.approx(losses(whole, 0.0), rel=1e-12)
    assert losses(step, 0.9) != pytest.approx(losses(whole, 0.9), rel=1e-3)


# ---- gossip --------------------------------------------------------------------------------------------------------------


def test_ad_psgd_alone_is_sgd() -> None:
    """One worker averages with itself: a step per batch at what it was."""
    c = three((30.0,), bandwidths=[2e6])
    for overlap in (True, False):
        s = schedule("ad-psgd", c, overlap=overlap)
        assert losses(s, 0.5)[1:] == pytest.approx(
            losses(schedule("s-sgd", c), 0.5)[1 - overlap : 26 - overlap], rel=1e-12
        )


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(20, 2000), min_size=2, max_size=7), st.floats(1e4, 1e7), st.booleans())
def test_ad_psgd_goes_at_everybody_s_own_pace(speeds: list[float], size: float, overlap: bool) -> None:
    """A passive worker never pauses; an active one's round is max(t, C) or t + C, with links wide enough for all exchanges at once."""
    n, b = len(speeds), 16
    c = cluster(speeds, bandwidths=[1e8] * n, gradient_bytes=size, global_batch_samples=n * b, server=SERVER)
    c = dataclasses.replace(
        c, network=dataclasses.replace(c.network, links=(Link(bytes_per_s=math.inf, latency_s=size / 2e8),) * n)
    )
    s = schedule("ad-psgd", c, 40, overlap=overlap)
    for w in range(n):
        ends = s.end_s[(s.kind == Kind.GRAD) & (s.worker == w)]
        passes, exchange = b / speeds[w], 2 * size / 2e8
        period = passes if w % 2 else max(passes, exchange) if overlap else passes + exchange
        if len(ends) > 2:
            assert np.diff(ends) == pytest.approx([period] * (len(ends) - 1), rel=1e-9)


# ---- averaging -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_streaming_diloco_without_its_parts_is_local_sgd(beta: float) -> None:
    """One fragment, merged at once, whole and by plain averaging; batches are equal, so that Local SGD's weights by samples are too."""
    plain = {
        "fragments": 1,
        "overlap_steps": 0,
        "outer_rate": 1.0,
        "outer_momentum": 0.0,
        "mixing": 1.0,
        "local_steps": 5,
    }
    mine, theirs = schedule("streaming-diloco", three(), 12, **plain), schedule("local-sgd", three(), 12, local_steps=5)
    assert mine.end_s.tobytes() == theirs.end_s.tobytes() and mine.kind.tobytes() == theirs.kind.tobytes()
    assert losses(mine, beta) == pytest.approx(losses(theirs, beta), rel=1e-9)
    other = schedule("streaming-diloco", three(), 12, **{**plain, "outer_rate": 0.4})
    assert losses(other, beta) != pytest.approx(losses(theirs, beta), rel=1e-3)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.floats(20, 2000), min_size=2, max_size=5), st.integers(1, 5), st.integers(1, 4), st.floats(0.05, 1.0)
)
def test_streaming_diloco_hides_fragments_that_take_no_longer_than_its_overlap(
    speeds: list[float], fragments: int, overlap: int, share: float
) -> None:
    """The slowest never waits where C/P ≤ τ·t_slow and one fragment travels at a time (τ ≤ H/P): n·b / max t_i samples/s."""
    n, b = len(speeds), 16
    slow = b / min(speeds)
    size = share * overlap * slow * fragments * n * 1e6 / (2 * (n - 1))  # C/P = share · τ · t_slow
    c = cluster(speeds, bandwidths=[1e6] * n, gradient_bytes=size, global_batch_samples=n * b)
    options = {"fragments": fragments, "overlap_steps": overlap, "local_steps": (fragments + 1) * overlap}
    r = simulate(c, "streaming-diloco", options=options, updates=40)
    slowest = min(range(n), key=lambda i: speeds[i])
    grads = r.schedule.rows(Kind.GRAD)
    mine = grads[r.schedule.worker[grads] == slowest]
    assert r.schedule.end_s[mine] == pytest.approx(slow * np.arange(1, len(mine) + 1), rel=1e-9)


def test_all_workers_of_streaming_diloco_hold_the_same_outer_parameters() -> None:
    """Where a replica takes all of what arrives (α = 1) and nothing is late, all are one after every turn of the fragments."""
    options = {"fragments": 4, "overlap_steps": 0, "local_steps": 4, "mixing": 1.0}
    s = schedule("streaming-diloco", three(), 40, **options)
    mixes = s.rows(Kind.MIX)
    assert sorted(set(s.first[mixes].tolist())) == [0, 1, 2, 3]
    for source in range(40):
        assert set(s.first[mixes[s.source[mixes] == source]].tolist()) == {source % 4}
