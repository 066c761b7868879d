"""DC-S3GD, DaSGD, DSSP and Prague under their exact conditions, and what they do beyond them by hand or by properties."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from handmade_clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st
from test_equivalences import assert_same_log, losses, schedule, three

from hetsim.algorithms.dssp import extra_clocks
from hetsim.schedule import Kind, Schedule
from hetsim.schedule.kinds import Payload


def ends(s: Schedule, kind: Kind) -> list[float]:
    return s.end_s[s.rows(kind)].tolist()


# ---- DC-S3GD ---------------------------------------------------------------------------------------------------------------


def test_dc_s3gd_without_correction_or_momentum_is_one_step_delay_with_local_prediction() -> None:
    c = three()
    mine = schedule("dc-s3gd", c, strength=0.0)
    theirs = schedule("one-step-delay", c, compute_point="local-prediction")
    assert ends(mine, Kind.GRAD) == ends(theirs, Kind.GRAD) and ends(mine, Kind.REDUCE) == ends(theirs, Kind.REDUCE)
    assert losses(mine, 0.0) == pytest.approx(losses(theirs, 0.0), rel=1e-12)
    corrected = schedule("dc-s3gd", c)
    for column in ("kind", "worker", "start_s", "end_s", "state", "parent", "source", "slot", "samples", "first"):
        assert getattr(corrected, column).tobytes() == getattr(mine, column).tobytes(), column  # the same but for λ


@pytest.mark.parametrize(("beta", "nesterov", "decay"), [(0.0, False, 0.0), (0.9, False, 0.01), (0.9, True, 0.01)])
def test_dc_s3gd_without_correction_is_s_sgd_where_hessian_and_shares_are_common(
    beta: float, nesterov: bool, decay: float
) -> None:
    """The mean of where gradients are taken is the average they will be applied to, and the mean of the velocities the common one."""
    s = schedule("dc-s3gd", three(), strength=0.0)
    without = losses(schedule("s-sgd", three()), beta, nesterov=nesterov, weight_decay=decay)
    assert losses(s, beta, nesterov=nesterov, weight_decay=decay) == pytest.approx(without, rel=1e-12)


def test_corrections_of_equal_workers_cancel_in_the_mean_and_those_of_unequal_ones_do_not() -> None:
    """In the quadratic model, whose g⊙g is an expectation; a last batch of one sample makes shares unequal."""
    for samples, same in ((10**12, True), (40, False)):
        c = three(dataset_samples=samples)
        plain, corrected = (losses(schedule("dc-s3gd", c, strength=λ), 0.0) for λ in (0.0, 0.2))
        assert (corrected == pytest.approx(plain, rel=1e-9)) == same


def test_dc_s3gd_alone_is_sgd() -> None:
    c = three((30.0,), bandwidths=[2e6])
    alone = losses(schedule("dc-s3gd", c), 0.5)
    assert alone == pytest.approx(losses(schedule("s-sgd", c), 0.5), rel=1e-12)


# ---- DSSP ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("staleness", [0, 1, 3])
def test_dssp_without_a_range_is_ssp(staleness: int) -> None:
    c = three((80.0, 20.0, 9.0))
    assert_same_log(schedule("dssp", c, 60, staleness=staleness, extra=0), schedule("ssp", c, 60, staleness=staleness))


def test_dssp_with_a_threshold_that_nobody_reaches_is_asgd() -> None:
    c = three((80.0, 20.0, 9.0))
    assert_same_log(schedule("dssp", c, 60, staleness=1000), schedule("asgd", c, 60))


def push_times(s: Schedule, worker: int) -> list[float]:
    pushes = s.rows(Kind.REDUCE)
    pushes = pushes[(s.code[pushes] == Payload.GRADIENT) & (s.worker[pushes] == worker)]
    return s.end_s[pushes].tolist()


def test_dssp_by_hand() -> None:
    """A free network, passes of 1 and 8.5 s, s_L = 1, r_max = 8. At 2 a leads by 2, b has not pushed: a waits for b's push at 8.5, pushes
    at 9.5 and waits for the one at 17, pushes at 18. Its interval was 8.5, as b's, who is due at 25.5: to wait now is 7.5 s, one clock
    later, at 26.5 for all it knows, 1 s. It is granted that, pushes at 19, and now knows better: at 25, six clocks on, b is half a second
    away. There it leads by 9, all there is, and waits until b has pushed seven times more, at 85.
    """
    c = cluster([8.0, 8.0 / 8.5], global_batch_samples=16)
    s = schedule("dssp", c, 24, staleness=1, extra=8)
    assert push_times(s, 0)[:12] == pytest.approx([1, 2, 9.5, 18, 19, 20, 21, 22, 23, 24, 25, 86])
    assert push_times(s, 1)[:10] == pytest.approx([8.5 * k for k in range(1, 11)])


def test_dssp_lets_the_fastest_go_on_to_where_its_wait_is_shortest() -> None:
    """Passes of 2 and 9 s, s_L = 4, r_max = 5. At 10 a leads by 4 (b pushed at 9) and goes on, at 12 by 5, b has pushed but once: it waits
    until 18, pushes at 20: a lead of 5, its last two pushes at 12 and 20, b's at 9 and 18. From 20 in steps of 8 to b's 27, 36, 45 …: 36 is
    one of them, r = 2. So a pushes at 22 and 24 without waiting, a lead of 7 then; its interval is 2 now and b due at 27: 26 and 28 are
    as near, the earlier is taken, r = 1 of the 3 that are left. At 26 it leads by 8, no later push is nearer to 27, and it waits for b's
    pushes at 27, 36, 45 and 54, which bring its lead to 4."""
    c = cluster([8.0 / 2, 8.0 / 9], global_batch_samples=16)
    s = schedule("dssp", c, 24, staleness=4, extra=5)
    assert push_times(s, 0)[:13] == pytest.approx([2, 4, 6, 8, 10, 12, 20, 22, 24, 26, 56, 58, 60])


@settings(max_examples=200, deadline=None)
@given(
    st.tuples(st.floats(0, 100), st.floats(0.01, 100)),
    st.tuples(st.floats(0, 100), st.floats(0.01, 100)),
    st.integers(0, 15),
    st.integers(0, 15),
)
def test_extra_clocks_are_those_of_the_shortest_wait(
    own: tuple[float, float], slowest: tuple[float, float], most: int, reach: int
) -> None:
    """Against every pair of pushes."""
    (at, step), (last, pace) = own, slowest
    found = extra_clocks((at - step, at), (last - pace, last), most, reach)
    a, b = np.array([at - step, at]), np.array([last - pace, last])
    mine = a[1] + np.arange(most + 1) * (a[1] - a[0])
    due = b[1] + (np.arange(reach + 1) + 1) * (b[1] - b[0])
    apart = np.abs(mine[:, None] - due).min(axis=1)
    assert 0 <= found <= most and apart[found] <= apart.min() * (1 + 1e-9) + 1e-9
    assert extra_clocks(None, (0.0, 1.0), most, reach) == extra_clocks((0.0, 1.0), None, most, reach) == 0


@pytest.mark.parametrize("extra", [1, 2, 5])
def test_a_lead_uses_its_range_and_stays_in_it(extra: int) -> None:
    s = schedule("dssp", three((300.0, 100.0, 9.0), jitter_cv=0.1), 200, staleness=2, extra=extra)
    pushes, copies = s.rows(Kind.REDUCE), s.rows(Kind.COPY)
    pushes = set(pushes[s.code[pushes] == Payload.GRADIENT].tolist())
    clocks, leads = np.zeros(3, int), []
    for row in sorted([*pushes, *copies.tolist()]):
        if row in pushes:
            clocks[s.worker[row]] += 1
        else:
            leads.append(int(clocks[s.worker[row]] - clocks.min()))
    assert 2 < max(leads[:-10]) <= 2 + extra  # at the end everybody is let go


# ---- AD-PSGD ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [0.0, 0.9])
def test_ad_psgd_of_two_equals_is_s_sgd_in_its_mean(beta: float) -> None:
    """m' = m - lr·mean(g) although the gradients are of before the average: they are linear. An average comes in the middle of a round,
    without what the round adds."""
    c = cluster([20.0, 20.0], bandwidths=[1e8] * 2, gradient_bytes=1e5, global_batch_samples=18)
    mine = losses(schedule("ad-psgd", c), beta, weight_decay=0.01)
    theirs = losses(schedule("s-sgd", c), beta, weight_decay=0.01)
    assert mine[1:] == pytest.approx(theirs[:-1], rel=1e-12)


# ---- Prague ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "beta"), [(1, 0.0), (1, 0.9), (4, 0.9)])
def test_prague_with_one_group_of_all_is_local_sgd(steps: int, beta: float) -> None:
    """Batches are equal, so that Local SGD's weights by samples are too; nobody is ever two groups behind."""
    mine = schedule("prague", three(), 20, group_size=3, slack=2, local_steps=steps)
    theirs = schedule("local-sgd", three(), 20, local_steps=steps)
    assert mine.kind.tobytes() == theirs.kind.tobytes() and mine.end_s.tobytes() == theirs.end_s.tobytes()
    assert losses(mine, beta) == pytest.approx(losses(theirs, beta), rel=1e-12)
    if steps == 1 and not beta:
        assert losses(mine, 0.0) == pytest.approx(losses(schedule("s-sgd", three(), 20), 0.0), rel=1e-12)


def test_prague_alone_is_sgd() -> None:
    c = three((30.0,), bandwidths=[2e6])
    assert losses(schedule("prague", c), 0.5) == pytest.approx(losses(schedule("s-sgd", c), 0.5), rel=1e-12)


def groups(s: Schedule) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for row in s.rows(Kind.MIX).tolist():
        found.setdefault(int(s.source[row]), set()).add(int(s.worker[row]))
    return found


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.sampled_from([10.0, 20.0, 20.0, 33.0, 90.0]), min_size=2, max_size=8),
    st.integers(1, 5),
    st.integers(1, 6),
    st.sampled_from([0.0, 0.3]),
)
def test_groups_with_a_common_member_follow_one_another(
    speeds: list[float], size: int, slack: int, jitter: float
) -> None:
    """Sizes are kept, and at no time are two averages of one worker on the wire."""
    n = len(speeds)
    c = cluster(speeds, bandwidths=[1e6] * n, gradient_bytes=2e5, global_batch_samples=8 * n, jitter_cv=jitter)
    s = schedule("prague", c, 30, group_size=size, slack=slack)
    members = groups(s)
    assert max(len(m) for m in members.values()) <= size
    spans = {int(s.source[r]): (float(s.start_s[r]), float(s.end_s[r])) for r in s.rows(Kind.REDUCE)}
    for worker in range(n):
        mine = [spans[g] for g, m in sorted(members.items()) if worker in m]
        assert all(before[1] <= after[0] for before, after in pairwise(mine))


def test_groups_are_random_and_do_not_hang_on_positions() -> None:
    c = cluster([20.0] * 6, global_batch_samples=48)
    seen = {frozenset(m) for m in groups(schedule("prague", c, 400)).values()}
    assert {len(m) for m in seen} == {3} and len(seen) == 20  # all there are
    names = ["d", "f", "a", "c", "b", "e"]
    turned = cluster([20.0] * 6, names=names, global_batch_samples=48)
    by_name = [
        [{x.header.workers[w] for w in m} for _, m in sorted(groups(x).items())]
        for x in (schedule("prague", c, 50), schedule("prague", turned, 50))
    ]
    assert by_name[0] == by_name[1]


def test_a_straggler_holds_up_few() -> None:
    """Of six workers one is forty times as slow: the others make several times its steps, which they do not where all are in one group;
    only who is in a group with the slow one waits for it."""
    c = cluster([40.0] * 5 + [1.0], bandwidths=[1e8] * 6, gradient_bytes=1e4, global_batch_samples=48)

    def steps(**options: int) -> list[int]:
        s = schedule("prague", c, 400, **options)
        own = s.rows(Kind.STEP)
        return np.bincount(s.worker[own], minlength=6).tolist()

    held, filtered = steps(group_size=6), steps(group_size=3, slack=1)
    assert max(held) <= min(held) + 1
    assert min(filtered[:5]) > 5 * filtered[5]


# ---- DaSGD ----------------------------------------------------------------------------------------------------------------


def test_dasgd_without_delay_is_local_sgd() -> None:
    for beta, c in ((0.0, three()), (0.9, three(dataset_samples=101))):
        mine, theirs = (
            schedule("dasgd", c, 12, delay_steps=0, local_steps=5),
            schedule("local-sgd", c, 12, local_steps=5),
        )
        assert mine.end_s.tobytes() == theirs.end_s.tobytes() and mine.scale.tobytes() == theirs.scale.tobytes()
        assert losses(mine, beta) == pytest.approx(losses(theirs, beta), rel=1e-9)


def test_dasgd_keeps_the_steps_made_meanwhile() -> None:
    """Without noise and with one worker an average is what was sent: merging it late changes nothing at all."""
    c = three((30.0,), bandwidths=[2e6])
    late, plain = (losses(schedule("dasgd", c, 10, delay_steps=d), 0.5) for d in (5, 0))
    one = losses(schedule("s-sgd", c, 8 * 10 + 5), 0.5)
    assert plain[1:] == pytest.approx(one[8:81:8], rel=1e-9)  # after every eighth step
    assert late[1:] == pytest.approx(one[13:86:8], rel=1e-9)  # five steps later


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(20, 2000), min_size=2, max_size=5), st.integers(1, 4), st.floats(0.05, 0.99))
def test_dasgd_hides_an_average_that_takes_no_longer_than_its_delay(
    speeds: list[float], delay: int, share: float
) -> None:
    """The slowest never waits where C ≤ d·t_slow: n·b / max t_i samples/s."""
    n, b = len(speeds), 16
    slow = b / min(speeds)
    size = share * delay * slow * n * 1e6 / (2 * (n - 1))
    c = cluster(speeds, bandwidths=[1e6] * n, gradient_bytes=size, global_batch_samples=n * b)
    s = schedule("dasgd", c, 12, delay_steps=delay, local_steps=delay + 2)
    grads = s.rows(Kind.GRAD)
    mine = grads[s.worker[grads] == min(range(n), key=lambda i: speeds[i])]
    assert s.end_s[mine] == pytest.approx(slow * np.arange(1, len(mine) + 1), rel=1e-9)
