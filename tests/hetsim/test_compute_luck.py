from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.cluster.spec import Worker
from hetsim.compute import WorkTimer
from hetsim.compute.luck import BLOCK, Luck, normals, uniforms
from hetsim.errors import UsageError

PLAIN = Worker(rank=0, name="w", group="w", node="w", samples_per_s=100.0)
JITTER = replace(PLAIN, jitter_cv=0.3)
BOTH = replace(JITTER, straggler_probability=0.2, straggler_slowdown=5.0)


def factors(worker: Worker, count: int, *, seed: int = 0, quantum: int = 1) -> np.ndarray:
    luck = Luck(worker, seed, quantum)
    return np.array([luck.mean(i * quantum, quantum) for i in range(count)])


GOLDEN_UNIFORMS = [0.8386964870467576, 0.9575175211961134, 0.7315306735627066, 0.06578011615108159]
GOLDEN_NORMALS = [1.584894989585404, 1.7061228748083623, -0.421851338101188, -0.06064874492594402]
GOLDEN_FACTORS = [
    1.1654651079746596,
    1.1796442220463028,
    0.9540345389465938,
    0.9890355928186038,
    1.2059999820268432,
    5.265965843955883,
]


def test_golden_draws() -> None:
    """These numbers never change: a seed gives the same schedule in every version."""
    assert uniforms(8, "jitter", "a-0", 0)[:4].tolist() == pytest.approx(GOLDEN_UNIFORMS, rel=1e-15)
    assert normals(8, "jitter", "a-0", 0)[:4].tolist() == pytest.approx(GOLDEN_NORMALS, rel=1e-12)
    worker = replace(BOTH, name="a-0", jitter_cv=0.1)
    assert factors(worker, 6, seed=8, quantum=16).tolist() == pytest.approx(GOLDEN_FACTORS, rel=1e-12)


def test_draws_do_not_depend_on_the_process() -> None:
    code = (
        "from hetsim.cluster.spec import Worker; from hetsim.compute import WorkTimer;"
        "t = WorkTimer(Worker(rank=0, name='w', group='w', node='w', samples_per_s=100.0, jitter_cv=.3), 11, 8);"
        "print([t.next(n) for n in (8, 3, 200, 5000)])"
    )
    outputs = set()
    for hash_seed in ("0", "1", "random"):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
        outputs.add(run.stdout)
    timer = WorkTimer(JITTER, 11, 8)
    assert outputs == {f"{[timer.next(n) for n in (8, 3, 200, 5000)]}\n"}


def test_jitter_is_lognormal_with_mean_one_and_the_cv_asked_for() -> None:
    from scipy import stats

    n = 60_000
    drawn = factors(JITTER, n)
    assert drawn.mean() == pytest.approx(1.0, abs=5 * 0.3 / n**0.5)
    assert drawn.std() == pytest.approx(0.3, rel=0.03)
    sigma2 = np.log1p(0.3**2)
    z = (np.log(drawn) + sigma2 / 2) / sigma2**0.5
    assert stats.kstest(z, "norm").pvalue > 1e-4
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 5 / n**0.5
    cosines, sines = z[: n // BLOCK * BLOCK].reshape(-1, 2, BLOCK // 2).swapaxes(0, 1)  # of the same radius
    assert abs(np.corrcoef(cosines.ravel(), sines.ravel())[0, 1]) < 5 / (n / 2) ** 0.5


def test_stragglers_come_as_often_and_are_as_slow_as_stated() -> None:
    n = 40_000
    only = replace(PLAIN, straggler_probability=0.05, straggler_slowdown=4.0)
    drawn = factors(only, n)
    assert set(np.unique(drawn)) == {1.0, 4.0}
    assert (drawn == 4.0).mean() == pytest.approx(0.05, abs=5 * (0.05 * 0.95 / n) ** 0.5)


def test_jitter_and_stragglers_are_drawn_apart() -> None:
    jitter, both = factors(JITTER, 2000), factors(BOTH, 2000)
    ratio = both / jitter
    assert set(np.round(np.unique(ratio), 9)) == {1.0, 5.0}
    slow = ratio > 2
    assert abs(jitter[slow].mean() - jitter[~slow].mean()) < 5 * 0.3 / slow.sum() ** 0.5


def test_seed_name_purpose_and_block_all_matter() -> None:
    base = uniforms(1, "jitter", "w", 0)
    for other in ((2, "jitter", "w", 0), (1, "straggler", "w", 0), (1, "jitter", "x", 0), (1, "jitter", "w", 1)):
        assert not np.isin(uniforms(*other), base).any()
    assert ((base >= 0) & (base < 1)).all()


def test_draws_belong_to_the_name_not_to_the_rank_or_the_others() -> None:
    moved = replace(JITTER, rank=9, group="g", node="n", samples_per_s=1.0)
    assert factors(moved, 600).tolist() == factors(JITTER, 600).tolist()


partitions = st.lists(st.integers(1, 900), min_size=1, max_size=30)


@settings(deadline=None)
@given(first=partitions, second=partitions, quantum=st.integers(1, 40), cap=st.integers(1, 200) | st.none())
def test_same_luck_however_the_samples_are_cut(
    first: list[int], second: list[int], quantum: int, cap: int | None
) -> None:
    """Without overhead, any two ways to cut the same samples into batches and passes take the same time."""
    gap = sum(first) - sum(second)
    (second if gap > 0 else first).extend([abs(gap)] * (gap != 0))
    whole = WorkTimer(BOTH, 5, quantum)
    cut = WorkTimer(replace(BOTH, max_batch_samples=cap), 5, quantum)
    a, b = (sum(t.next(n)[0] for n in sizes) for t, sizes in ((whole, first), (cut, second)))
    assert a == pytest.approx(b, rel=1e-12)


@settings(deadline=None)
@given(start=st.integers(0, 20_000), samples=st.integers(1, 9_000), quantum=st.integers(1, 30))
def test_mean_luck_against_one_sample_at_a_time(start: int, samples: int, quantum: int) -> None:
    each = np.repeat(factors(BOTH, (start + samples) // quantum + 1, quantum=quantum), quantum)
    assert Luck(BOTH, 0, quantum).mean(start, samples) == pytest.approx(
        float(each[start : start + samples].mean()), rel=1e-12
    )


def test_luck_may_be_asked_in_any_order() -> None:
    luck, fresh = Luck(BOTH, 0, 4), Luck(BOTH, 0, 4)
    far = luck.mean(10**9, 8)
    assert luck.mean(3, 7) == fresh.mean(3, 7) and fresh.mean(10**9, 8) == far


def test_each_pass_takes_its_time_times_its_own_luck() -> None:
    worker = replace(JITTER, overhead_s=0.5, max_batch_samples=16)
    f = factors(worker, 4, quantum=16)
    total, last = WorkTimer(worker, 0, 16).next(64)
    one = 0.5 + 16 / 100
    assert total == pytest.approx(one * f.sum(), rel=1e-14) and last == one * f[3]


def test_trace_worker_can_jitter_too() -> None:
    worker = replace(JITTER, trace=((4, 1.0), (4, 3.0)))
    f = factors(worker, 3, quantum=4)
    timer = WorkTimer(worker, 0, 4)
    assert [timer.next(4)[0] for _ in range(3)] == pytest.approx([f[0], 3 * f[1], f[2]], rel=1e-14)


def test_no_samples_take_no_time_and_use_no_luck() -> None:
    timer, other = WorkTimer(BOTH, 0, 8), WorkTimer(BOTH, 0, 8)
    assert timer.next(0) == (0.0, 0.0)
    assert timer.next(8) == other.next(8)


def test_stragglers_that_are_not_slower_change_nothing() -> None:
    same = replace(PLAIN, straggler_probability=0.5, straggler_slowdown=1.0)
    assert WorkTimer(same, 0, 8).next(8) == WorkTimer(PLAIN, 0, 8).next(8) == (0.08, 0.08)


def test_a_quantum_needs_a_sample() -> None:
    with pytest.raises(UsageError, match="quantum of 0"):
        WorkTimer(JITTER, 0, 0)
