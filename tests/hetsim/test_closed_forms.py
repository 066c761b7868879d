"""The simulator against the closed forms for deterministic speeds, within 1e-9 relative, on random clusters."""

from __future__ import annotations

import itertools
import math

import pytest
from handmade_clusters import cluster
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetsim.algorithms import registry
from hetsim.algorithms.balance import balanced
from hetsim.cluster.spec import Cluster, Link
from hetsim.network import Fabric, bucket_bytes
from hetsim.schedule.kinds import Kind
from hetsim.simulate import simulate

EXACT = 1e-9
MEGA = 1e6


@st.composite
def clusters(
    draw: st.DrawFn, least: int = 1, most: int = 12, floors: bool = True, samples_each: tuple[int, int] = (1, 64)
) -> Cluster:
    """Random speeds over two orders of magnitude, overheads, floors, links and sizes."""
    n = draw(st.integers(least, most))
    positive = lambda low, high: st.floats(low, high, allow_nan=False)  # noqa: E731
    per_worker = lambda s: draw(st.lists(s, min_size=n, max_size=n))  # noqa: E731
    return cluster(
        per_worker(positive(20, 2000)),
        overheads=per_worker(positive(0.002, 0.05)),  # and so at most some hundred micro-batches to a synchronization
        floors=per_worker(positive(0, 0.2)) if floors else None,
        bandwidths=per_worker(positive(20 * MEGA, 2000 * MEGA)),
        latency_s=draw(positive(0, 1e-3)),
        gradient_bytes=draw(positive(1e3, 5 * MEGA)),
        global_batch_samples=draw(st.integers(n * samples_each[0], n * samples_each[1])),
        micro_batch_samples=draw(st.integers(1, 32)),
    )


def pass_s(c: Cluster, i: int, b: int) -> float:
    """t_i(b) = max(floor, overhead + b/v), written out once more."""
    w = c.workers[i]
    return max(w.floor_s, w.overhead_s + b / w.samples_per_s)


def equal_batches(c: Cluster) -> list[int]:
    """B split equally, leftovers to the first by name."""
    base, left = divmod(c.training.global_batch_samples, c.n)
    return [base + (i < left) for i in range(c.n)]


def ring_s(c: Cluster, size: float | None = None) -> float:
    """C = 2(n-1)(α + M/(n·bw_min))."""
    if c.n == 1:
        return 0.0
    size = c.workload.gradient_bytes if size is None else size
    slowest = min(link.bytes_per_s for link in c.network.links)
    latency = max(link.latency_s for link in c.network.links)
    return 2 * (c.n - 1) * (latency + size / (c.n * slowest))


def rate(c: Cluster, name: str, options: dict[str, object] | None = None, updates: int = 40) -> float:
    return simulate(c, name, options=options, updates=updates).timing.samples_per_s


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_s_sgd_without_overlap(c: Cluster) -> None:
    b = equal_batches(c)
    expected = sum(b) / (max(pass_s(c, i, b[i]) for i in range(c.n)) + ring_s(c))
    assert rate(c, "s-sgd", {"overlap": False}) == pytest.approx(expected, rel=EXACT)


@settings(max_examples=60, deadline=None)
@given(clusters(least=2))
def test_s_sgd_with_overlap(c: Cluster) -> None:
    """max_j [max_i ready_ij + Σ_{l≥j} C_l], each bucket with its own latency."""
    b, f = equal_batches(c), c.workload.backward_share
    buckets = bucket_bytes(c.workload.gradient_bytes)
    total = sum(buckets)
    costs = [ring_s(c, size) for size in buckets]
    end = 0.0
    done = 0.0
    for j, size in enumerate(buckets):
        done += size
        left = 0.0 if j == len(buckets) - 1 else 1 - done / total
        ready = max((t := pass_s(c, i, b[i])) - f * t * left for i in range(c.n))
        end = max(end, ready + sum(costs[j:]))
    assert rate(c, "s-sgd") == pytest.approx(sum(b) / end, rel=EXACT)


def best_balanced_s(c: Cluster) -> float:
    """min over integer batches of max t_i(b_i), by an independent search over all times at which a batch could end."""
    batch = c.training.global_batch_samples
    ends = sorted(pass_s(c, i, b) for i in range(c.n) for b in range(1, batch + 1))
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        room = [math.floor((ends[middle] - w.overhead_s) * w.samples_per_s + 1e-7) for w in c.workers]
        fits = min(room) >= 1 and sum(room) >= batch
        low, high = (low, middle) if fits else (middle + 1, high)
    return ends[low]


@settings(max_examples=60, deadline=None)
@given(clusters(floors=False, samples_each=(16, 64)))
def test_lb_bsp_finds_the_best_integer_batches(c: Cluster) -> None:
    """B / (max t_i(b_i*) + C), where every worker has met two sizes and so can tell its overhead from its speed."""
    r = simulate(c, "lb-bsp", options={"overlap": False, "dead_band": 0.0}, updates=60)
    sizes = r.schedule.updates.part_samples.reshape(-1, c.n)
    assume(all(len(set(column)) > 1 for column in sizes.T.tolist()))
    expected = c.training.global_batch_samples / (best_balanced_s(c) + ring_s(c))
    assert r.timing.samples_per_s == pytest.approx(expected, rel=1e-7)


@settings(max_examples=60, deadline=None)
@given(clusters(floors=False))
def test_lb_bsp_is_within_a_sample_of_the_best_however_small_the_batch(c: Cluster) -> None:
    """With a sample or two each, measuring may never tell overhead from speed; then it is off by at most a worker's time for one."""
    t = simulate(c, "lb-bsp", options={"overlap": False, "dead_band": 0.0}, updates=60).timing
    best = best_balanced_s(c) + ring_s(c)
    one_more = max(w.overhead_s + 1 / w.samples_per_s for w in c.workers)
    assert best * (1 - 1e-9) <= t.update_period_s <= best + one_more


@settings(max_examples=40, deadline=None)
@given(clusters())
def test_one_step_delay(c: Cluster) -> None:
    b = equal_batches(c)
    period = max(max(pass_s(c, i, b[i]) for i in range(c.n)), ring_s(c))
    assert rate(c, "one-step-delay") == pytest.approx(sum(b) / period, rel=EXACT)


@settings(max_examples=40, deadline=None)
@given(clusters(), st.integers(1, 6))
def test_local_sgd(c: Cluster, h: int) -> None:
    b = equal_batches(c)
    expected = h * sum(b) / (max(h * pass_s(c, i, b[i]) for i in range(c.n)) + ring_s(c))
    assert rate(c, "local-sgd", {"local_steps": h}, updates=12) == pytest.approx(expected, rel=EXACT)


@settings(max_examples=40, deadline=None)
@given(clusters(least=2, most=6))
def test_asgd_when_the_server_is_never_full(c: Cluster) -> None:
    """Σ b/(t_i + t_pull + t_push): every worker by itself, so over any window within two batches per worker."""
    size = c.workload.gradient_bytes
    b = equal_batches(c)
    r = simulate(c, "asgd", updates=60 * c.n)
    t = r.timing
    cycle = [
        pass_s(c, i, b[i]) + 2 * (link.latency_s + size / link.bytes_per_s) for i, link in enumerate(c.network.links)
    ]
    expected = sum(x / y for x, y in zip(b, cycle, strict=True)) * t.window_s
    assert abs(t.samples_per_s * t.window_s - expected) <= 2 * sum(b)
    s = r.schedule
    for i in range(c.n):  # and each worker's cycle exactly
        ends = s.end_s[(s.kind == Kind.GRAD) & (s.worker == i)]
        if len(ends) > 2:
            assert (ends[1:] - ends[:-1]) == pytest.approx([cycle[i]] * (len(ends) - 1), rel=EXACT)


@settings(max_examples=25, deadline=None)
@given(clusters(least=2, most=6), st.integers(0, 4))
def test_ssp_tends_to_the_slowest_times_n(c: Cluster, s: int) -> None:
    """n·b / (max t_i + t_pull + t_push) once the fast ones have used up their lead (equal links: equal transfer times)."""
    links = (Link(bytes_per_s=50 * MEGA, latency_s=1e-4),) * c.n
    b = 32
    speeds = [200.0] + [400.0 + 10 * i for i in range(c.n - 1)]
    even = cluster(speeds, links=links, gradient_bytes=1e6, global_batch_samples=b * c.n)
    slowest = b / 200.0 + 2 * (1e-4 + 1e6 / (50 * MEGA))
    t = simulate(even, "ssp", options={"staleness": s}, updates=80 * c.n).timing
    assert abs(t.samples_per_s * t.window_s - c.n * b / slowest * t.window_s) <= 2 * c.n * b


@settings(max_examples=60, deadline=None)
@given(clusters())
def test_abs_sgd_computes_at_full_speed_at_any_bandwidth(c: Cluster) -> None:
    """|samples - T·Σ v_i| ≤ 2 Σ m_i over a window T, and nobody ever waits."""
    m = c.training.micro_batch_samples
    r = simulate(c, "abs-sgd", updates=30)
    t = r.timing
    speed = sum(m / pass_s(c, i, m) for i in range(c.n))
    s = r.schedule
    grads = s.rows(Kind.GRAD)
    computed = s.samples[grads][(s.end_s[grads] > t.start_s) & (s.end_s[grads] <= t.end_s)].sum()
    assert abs(computed - speed * t.window_s) <= 2 * c.n * m
    # the samples of the updates in the window were computed up to a join before its ends, at most C and a micro-batch earlier
    slowest = max(pass_s(c, i, m) for i in range(c.n))
    assert abs(t.samples_per_s * t.window_s - speed * t.window_s) <= 2 * c.n * m + 2 * speed * slowest
    assert len(s.rows(Kind.WAIT)) == 0


@settings(max_examples=60, deadline=None)
@given(clusters(least=2))
def test_abs_sgd_starts_obey_the_recursion(c: Cluster) -> None:
    """start_{k+1} = max_i g_i·ceil((start_k + C)/g_i), and max(C, g_slow) ≤ period ≤ C + g_slow."""
    m = c.training.micro_batch_samples
    g = [pass_s(c, i, m) for i in range(c.n)]
    cost = ring_s(c)
    s = simulate(c, "abs-sgd", updates=15).schedule
    starts = s.start_s[s.rows(Kind.REDUCE)]
    assert starts[0] == pytest.approx(max(g), rel=EXACT)
    for start, after in itertools.pairwise(starts):
        quotients = [(start + cost) / x for x in g]
        if any(abs(q - round(q)) < 1e-6 for q in quotients):
            continue  # rounding decides on which side of a boundary the completion falls
        assert after == pytest.approx(max(x * math.ceil(q) for x, q in zip(g, quotients, strict=True)), rel=EXACT)
    period = (starts[-1] - starts[0]) / (len(starts) - 1)
    assert max(cost, max(g)) * (1 - 1e-6) <= period + max(g) / (len(starts) - 1)
    assert period <= (cost + max(g)) * (1 + 1e-6)


@pytest.mark.parametrize(("cost", "g", "period"), [(0.5, 0.08, 0.56), (0.5, 0.32, 0.64)])
def test_abs_sgd_period_where_every_boundary_divides_the_slowest(cost: float, g: float, period: float) -> None:
    size = 1e6
    c = cluster(
        [1 / g] * 2, bandwidths=[size / cost] * 2, gradient_bytes=size, micro_batch_samples=1, global_batch_samples=2
    )
    assert ring_s(c) == pytest.approx(cost)
    assert simulate(c, "abs-sgd", updates=60).timing.update_period_s == pytest.approx(period, rel=EXACT)


def test_abs_sgd_period_of_four_unequal_workers() -> None:
    """g = 10, 13, 21, 40 and C = 40: against the recursion in integers; the shares wander although nothing jitters."""
    g = [10, 13, 21, 40]
    c = cluster(
        [1 / x for x in g],
        bandwidths=[3.0] * 4,
        gradient_bytes=80.0,
        micro_batch_samples=1,
        global_batch_samples=4,
    )
    assert ring_s(c) == 40.0
    r = simulate(c, "abs-sgd", updates=4000)
    starts = r.schedule.start_s[r.schedule.rows(Kind.REDUCE)]
    expected = [40]
    while len(expected) < len(starts):
        expected.append(max(x * -(-(expected[-1] + 40) // x) for x in g))
    assert starts.tolist() == expected
    assert r.timing.update_period_s == pytest.approx(60.0, abs=0.1)
    assert r.timing.utilisation >= 0.999
    assert len({tuple(p) for p in r.schedule.updates.part_samples.reshape(-1, 4).tolist()}) > 10


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 64), st.floats(10, 1000), st.floats(1e3, 1e8))
def test_one_worker_is_the_same_for_all(batch: int, speed: float, size: float) -> None:
    """Without overhead and communication every method computes at the worker's speed."""
    c = cluster(
        [speed],
        bandwidths=[1e6],
        gradient_bytes=size,
        global_batch_samples=batch,
        micro_batch_samples=batch,
        server=Link(bytes_per_s=math.inf),
        links=[Link(bytes_per_s=math.inf)],
    )
    for name in registry():
        assert rate(c, name, updates=20) == pytest.approx(speed, rel=EXACT), name


def test_no_jump_from_nine_to_twelve_workers() -> None:
    """Ranks 9 to 12 sort as w0009 … w0012; names must not decide anything but ties."""
    rates = []
    for n in range(8, 14):
        c = cluster(
            [100.0] * n, bandwidths=[1e8] * n, gradient_bytes=4e7, global_batch_samples=16 * n, micro_batch_samples=4
        )
        assert Fabric(c.network, n).all_reduce_seconds(tuple(range(n)), 4e7) == pytest.approx(ring_s(c), rel=EXACT)
        rates.append(rate(c, "s-sgd", {"overlap": False}) / n)
        assert rate(c, "abs-sgd") / n == pytest.approx(100.0, rel=0.05)
    steps = [a / b for a, b in itertools.pairwise(rates)]
    assert all(1.0 <= step < 1.02 for step in steps)


# elsewhere timing anomalies are real: another order of arrival, another rounding of batches
MONOTONE = ("s-sgd", "one-step-delay", "od-sgd", "local-sgd", "abs-sgd")


@settings(max_examples=30, deadline=None)
@given(clusters(least=2, most=6), st.sampled_from(MONOTONE), st.floats(1.05, 4))
def test_more_bandwidth_and_speed_never_hurt_synchronous_methods(c: Cluster, name: str, factor: float) -> None:
    """S-SGD, one-step delay and local SGD are monotone; ABS-SGD's samples/s do not depend on the link."""
    import dataclasses

    wide = dataclasses.replace(
        c,
        network=dataclasses.replace(
            c.network,
            links=tuple(Link(bytes_per_s=x.bytes_per_s * factor, latency_s=x.latency_s) for x in c.network.links),
        ),
    )
    fast = dataclasses.replace(
        c, workers=tuple(dataclasses.replace(w, samples_per_s=w.samples_per_s * factor, floor_s=0.0) for w in c.workers)
    )
    base = simulate(c, name, updates=20).timing
    slack = 2 * c.n * c.training.micro_batch_samples / (base.samples_per_s * base.window_s) if name == "abs-sgd" else 0
    for better in (wide, fast):
        t = simulate(better, name, updates=20).timing
        slack_too = 2 * c.n * c.training.micro_batch_samples / (t.samples_per_s * t.window_s) if slack else 0
        assert t.samples_per_s * (1 + slack_too) >= base.samples_per_s * (1 - slack - EXACT)


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 60),
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.01, 1)), min_size=1, max_size=4),
    st.data(),
)
def test_balanced_batches_are_optimal(total: int, lines: list[tuple[float, float]], data: st.DataObject) -> None:
    """Against brute force over every split of the total."""
    caps = tuple(data.draw(st.one_of(st.none(), st.integers(1, 60))) for _ in lines)
    got = balanced(total, tuple(lines), caps)
    assert sum(got) == total and min(got) >= 0
    limits = [total if cap is None else cap for cap in caps]
    if sum(limits) < total:
        limits = [total] * len(lines)
    assert all(b <= limit for b, limit in zip(got, limits, strict=True))

    def best(left: int, rest: list[tuple[tuple[float, float], int]]) -> float:
        (line, limit), tail = rest[0], rest[1:]
        if not tail:
            return line[0] + line[1] * left if left <= limit else math.inf
        return min(max(line[0] + line[1] * b, best(left - b, tail)) for b in range(min(left, limit) + 1))

    if total ** (len(lines) - 1) < 4000:
        value = max(a + s * b for (a, s), b in zip(lines, got, strict=True))
        assert value == pytest.approx(best(total, list(zip(lines, limits, strict=True))), rel=1e-9)
