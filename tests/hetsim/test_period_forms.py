"""Closed forms of algorithms that are not compared by default, against the simulator: to 1e-9, wherever there is one."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from hetsim.algorithms import make, registry
from hetsim.cluster import load_profile
from hetsim.metrics import update_times
from hetsim.period import Figures, Period
from hetsim.period_field import collected
from hetsim.schedule.kinds import Kind, Payload
from hetsim.simulate import Result, simulate
from hetsim.wording import rate

HEAD = """
schema_version: 1
name: steady
workload: {name: w, gradient_bytes: SIZE, dataset_samples: 1000000}
workers:
"""
TAIL = """
network: {bandwidth_gbit_per_s: 1.0, latency_us: LATENCY, server: {bandwidth_gbit_per_s: 100.0}}
training: {global_batch_samples: BATCH, micro_batch_samples: 1, max_samples: 1000000}
"""
Speeds = st.lists(st.floats(40.0, 400.0) | st.just(100.0), min_size=1, max_size=5)
Size = st.sampled_from([1e4, 1e6, 2e7])
Latency = st.sampled_from([0.0, 100.0, 5000.0])


def look(
    name: str,
    options: dict[str, Any],
    speeds: list[float],
    size: float = 1e7,
    latency_us: float = 100.0,
    updates: int = 200,
    more: int = 1,
) -> tuple[Figures | None, str, Result]:
    """The closed form, why there is none, and a run. Batches of 16 each and, of several, `more` samples for the first."""
    rows = "".join(f"  - {{name: w{i}, samples_per_s: {v!r}, overhead_s: 0.01}}\n" for i, v in enumerate(speeds))
    return looked_at(
        name, options, rows, 16 * len(speeds) + (more if len(speeds) > 1 else 0), size, latency_us, updates
    )


def looked_at(
    name: str,
    options: dict[str, Any],
    rows: str,
    batch: int,
    size: float = 1e7,
    latency_us: float = 100.0,
    updates: int = 400,
) -> tuple[Figures | None, str, Result]:
    """The same of any workers."""
    tail = TAIL.replace("LATENCY", str(latency_us)).replace("BATCH", str(batch))
    cluster, program = load_profile(HEAD.replace("SIZE", str(size)) + rows + tail).cluster(), make(name, options)
    run = simulate(cluster, program, updates=updates)
    return *Period(cluster, program, run).closed(), run


def found(name: str, options: dict[str, Any], *rest: Any, **more: Any) -> tuple[Figures, Result]:
    """The same where there is one; other examples are not looked at."""
    closed, _, run = look(name, options, *rest, **more)
    assume(closed is not None)
    assert closed is not None
    return closed, run


def near(value: float) -> Any:
    return pytest.approx(value, rel=1e-9)


def agrees(closed: Figures, run: Result) -> None:
    """Period, batch and throughput are those of the run."""
    assert run.timing.update_period_s == near(closed.update_period_s)
    assert run.timing.mean_batch_samples == near(closed.mean_batch_samples)
    assert run.timing.samples_per_s == near(closed.samples_per_s)


def pace(run: Result, rank: int) -> tuple[float, int]:
    """Mean seconds from one pass of a worker to its next, without the first and the last three, and how many passes there were."""
    s = run.schedule
    rows = s.rows(Kind.GRAD)
    starts = s.start_s[rows[s.worker[rows] == rank]]
    assert len(starts) > 5
    return float(starts[-4] - starts[1]) / (len(starts) - 5), len(starts)


def shares(run: Result) -> list[int]:
    n = run.cluster.n
    return [16 + (rank == 0 and n > 1) for rank in range(n)]


@pytest.mark.parametrize("name", list(registry()))
def test_every_algorithm_has_a_closed_form_or_a_reason(name: str) -> None:
    closed, why, _ = look(name, {}, [100.0, 100.0], updates=20, more=0)
    assert (closed is None) == bool(why) and "is known here" not in why


@settings(max_examples=40, deadline=None)
@given(Speeds, Size, Latency, st.sampled_from([0.0, 0.05, 0.2]), st.booleans())
def test_omnilearn_is_s_sgd_on_the_batches_it_comes_to(
    speeds: list[float], size: float, latency: float, dead_band: float, overlap: bool
) -> None:
    options = {"dead_band": dead_band, "overlap": overlap}
    closed, run = found("omnilearn", options, speeds, size, latency, updates=400)
    agrees(closed, run)


def test_a_controller_that_steps_over_a_pass_more_never_settles() -> None:
    """22 samples each in passes of at most 6, 6 and 3, each with an overhead: a sample more can be a pass more."""
    rows = "".join(
        f"  - {{name: w{i}, samples_per_s: {speed}, overhead_s: 0.2, max_batch_samples: {cap}}}\n"
        for i, (speed, cap) in enumerate([(310.5, 6), (575.4, 6), (66.5, 3)])
    )
    closed, why, run = looked_at("omnilearn", {"dead_band": 0.0}, rows, 66)
    assert closed is None and "still changes the batches" in why
    updates = run.schedule.updates
    sizes = updates.part_samples[updates.worker == 2]
    assert np.ptp(sizes[len(sizes) // 2 :]) > 0


@settings(max_examples=60, deadline=None)
@given(Speeds, Size, Latency, st.integers(0, 12))
def test_rennala_s_recurrence_is_its_run(speeds: list[float], size: float, latency: float, gradients: int) -> None:
    closed, run = found("rennala-sgd", {"gradients": gradients}, speeds, size, latency)
    agrees(closed, run)


@pytest.mark.parametrize("latency", [0.0, 100.0])
@pytest.mark.parametrize("size", [1e4, 2e7])
@pytest.mark.parametrize("gradients", [0, 1, 3, 7])
def test_of_equal_workers_it_does_not_matter_whose_pass_ends_first(latency: float, size: float, gradients: int) -> None:
    closed, _, run = look("rennala-sgd", {"gradients": gradients}, [100.0] * 3, size, latency, more=0)
    assert closed is not None
    agrees(closed, run)


@given(st.lists(st.floats(0.5, 2.0), min_size=1, max_size=6), st.integers(1, 20))
def test_a_slow_network_collects_anew_from_every_update(times: list[float], wanted: int) -> None:
    """Passes under way end before the all-reduce does: min{T: Σ ⌊T/t_i⌋ ≥ S} + C with everything known at once."""
    ends = sorted({m * t for t in times for m in range(1, wanted + 1)})
    first = next(at for at in ends if sum(math.floor(at / t * (1 + 1e-12)) for t in times) >= wanted)
    tied = sum(abs(at / t - round(at / t)) < 1e-8 for at in [first] for t in set(times))
    assume(tied == 1)
    period, batch = collected(times, [1] * len(times), 3.0, 0.0, wanted, 10)
    assert period == near(first + 3.0) and batch == wanted


def test_passes_of_unequal_workers_that_end_at_one_instant_have_no_closed_form() -> None:
    assert look("rennala-sgd", {"gradients": 3}, [17 / 0.03, 16 / 0.08], 1e4, 0.0)[0] is not None  # 0.04 and 0.09 s
    closed, why, _ = look("rennala-sgd", {"gradients": 3}, [17 / 0.03, 16 / 0.07], 1e4, 0.0)  # 0.04 and 0.08 s
    assert closed is None and "end at one instant" in why


@settings(max_examples=40, deadline=None)
@given(Speeds, Size, st.integers(1, 3), st.integers(0, 2))
def test_prague_with_one_group_is_local_sgd(speeds: list[float], size: float, steps: int, spare: int) -> None:
    options = {"group_size": len(speeds) + spare, "local_steps": steps}
    closed, run = found("prague", options, speeds, size)
    agrees(closed, run)
    same, _ = found("local-sgd", {"local_steps": steps}, speeds, size)
    assert closed.update_period_s == near(same.update_period_s)


@pytest.mark.parametrize(("n", "size"), [(4, 2), (8, 2), (6, 3), (5, 1)])
def test_equal_groups_of_equal_workers_go_side_by_side(n: int, size: int) -> None:
    """The one sample more of the first worker is too much already; a batch that all share is not."""
    options, groups = {"group_size": size}, n // size
    assert look("prague", options, [100.0] * n)[0] is None
    closed, _, run = look("prague", options, [100.0] * n, more=0)
    assert closed is not None
    times, samples = update_times(run.schedule)
    last = groups * (len(times) // groups - 1)
    assert (times[last] - times[groups]) / (last - groups) == near(closed.update_period_s)
    assert samples[groups:last].sum() / (last - groups) == near(closed.mean_batch_samples)


@settings(max_examples=80, deadline=None)
@given(
    st.lists(st.sampled_from([50.0, 100.0, 130.0, 300.0]), min_size=1, max_size=4),
    st.sampled_from([1e4, 2e7, 2e8]),
    st.integers(1, 9),
    st.integers(1, 4),
    st.sampled_from([0, 0, 1, 1, 2, 3, 8]),
)
def test_streaming_diloco_waits_for_what_its_steps_do_not_cover(
    speeds: list[float], size: float, steps: int, fragments: int, overlap: int
) -> None:
    """Over whole turns of the fragments, once who is fast is as far ahead as it gets; at the end of the run the fast stop first."""
    assume(fragments <= steps and overlap < steps)
    options = {"local_steps": steps, "fragments": fragments, "overlap_steps": overlap}
    closed, run = found("streaming-diloco", options, speeds, size, updates=160)
    times, samples = update_times(run.schedule)
    last = fragments * (len(times) // fragments - 4)
    first = last - fragments * (last // (2 * fragments))
    assert (times[last] - times[first]) / (last - first) == near(closed.update_period_s)
    assert samples[first + 1 : last + 1].sum() / (last - first) == near(closed.mean_batch_samples)


def test_fragments_that_meet_on_the_links_have_no_closed_form() -> None:
    options = {"local_steps": 4, "fragments": 4, "overlap_steps": 2}
    closed, why, _ = look("streaming-diloco", options, [100.0, 200.0], 1e9)
    assert closed is None and "share the links" in why
    assert look("streaming-diloco", options, [100.0, 200.0], 1e6)[0] is not None


@settings(max_examples=60, deadline=None)
@given(Speeds, Size, Latency, st.booleans())
def test_ad_psgd_s_workers_keep_their_own_pace(speeds: list[float], size: float, latency: float, overlap: bool) -> None:
    closed, run = found("ad-psgd", {"overlap": overlap}, speeds, size, latency, updates=100)
    paces = [pace(run, rank)[0] for rank in range(len(speeds))]
    assert closed.samples_per_s == near(sum(b / t for b, t in zip(shares(run), paces, strict=True)))
    assert closed.update_period_s == near(1 / sum(1 / t for t in paces[::2]))


def test_exchanges_that_are_not_hidden_have_no_closed_form_among_many() -> None:
    for options, size in (({}, 1e9), ({"overlap": False}, 1e4)):
        closed, why, _ = look("ad-psgd", options, [100.0, 120.0, 140.0], size)
        assert closed is None and "can meet at one" in why
        assert look("ad-psgd", options, [100.0, 120.0], size)[0] is not None


@settings(max_examples=40, deadline=None)
@given(Speeds, Size, Latency, st.integers(0, 20))
def test_ringmaster_is_asgd_of_those_who_are_in_time(
    speeds: list[float], size: float, latency: float, threshold: int
) -> None:
    """Until the first workers stop: some are always in time, the others never."""
    closed, run = found("ringmaster-asgd", {"threshold": threshold}, speeds, size, latency, updates=120)
    s = run.schedule
    reduces = s.rows(Kind.REDUCE)
    pushes = reduces[(s.code[reduces] == Payload.GRADIENT) & (s.end_s[reduces] < s.updates.time_s[-10])]
    applied = np.isin(s.source[pushes], s.updates.source)
    used = sorted(set(s.worker[pushes][applied].tolist()))
    assert not np.isin(s.worker[pushes][~applied], used).any()
    paces = [pace(run, rank)[0] for rank in used]
    assert closed.update_period_s == near(1 / sum(1 / t for t in paces))
    assert closed.samples_per_s == near(sum(shares(run)[rank] / t for rank, t in zip(used, paces, strict=True)))


def test_delays_about_the_threshold_have_no_closed_form() -> None:
    closed, why, _ = look("ringmaster-asgd", {"threshold": 2}, [200.0, 150.0, 100.0], 1e4)
    assert closed is None and "now and then" in why


@settings(max_examples=40, deadline=None)
@given(Speeds, Size, st.integers(0, 4), st.sampled_from([0, 0, 3]))
def test_dssp_goes_at_the_slowest_s_pace(speeds: list[float], size: float, staleness: int, extra: int) -> None:
    """A period without clocks to be granted, a pace always: nobody has fallen further behind than the largest lead."""
    closed, why, run = look("dssp", {"staleness": staleness, "extra": extra}, speeds, size, updates=300)
    paces = [pace(run, rank) for rank in range(len(speeds))]
    slow = max(range(len(speeds)), key=lambda rank: 0.01 + shares(run)[rank] / speeds[rank])
    assume("nobody is held yet" not in why)
    assert (closed is None) == (extra > 0 and len(speeds) > 1)
    assert all(abs(passes - paces[slow][1]) <= staleness + extra + 2 for _, passes in paces)
    if closed is not None:
        assert closed.update_period_s * len(speeds) == near(paces[slow][0])
        assert closed.mean_batch_samples == near(sum(shares(run)) / len(speeds))
    else:
        assert extra and f"= {rate(sum(shares(run)) / paces[slow][0])} samples/s" in why
