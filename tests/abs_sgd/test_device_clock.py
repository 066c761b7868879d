"""Times of work on a GPU, which is played by hand here: known after the host has waited, in a possible order, exact among each other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from device_by_hand import LAUNCH_S, MAY_WAIT, PER_SAMPLE_S, Device, lone_rank
from hypothesis import given, settings
from hypothesis import strategies as st
from live_clusters import RULE

from abs_sgd.replay.inprocess import InProcess
from abs_sgd.runtime.clock import DeviceStopwatch, Moment, Stopwatch, stopwatch
from abs_sgd.runtime.rank import LiveRank
from abs_sgd.runtime.record import RankLog
from abs_sgd.runtime.run import schedule_of
from abs_sgd.workloads.digits import digits_mlp
from hetsim import commands as cmd
from hetsim.schedule import Kind, Schedule
from hetsim.schedule.check import check
from hetsim.schedule.table import Header

pytestmark = pytest.mark.torch


def test_a_cpu_knows_every_time_at_once() -> None:
    times = iter([1.0, 2.0, 3.5])
    watch = Stopwatch(lambda: next(times))
    assert (watch.mark(), watch.settle(), watch.mark()) == (1.0, 2.0, 3.5)
    assert watch.computed(4, 1.0, 3.5) == cmd.Computed(4, 2.5)
    assert type(stopwatch("cpu", lambda: 0.0)) is Stopwatch


def test_a_row_has_its_times_when_the_device_has_been_waited_for() -> None:
    device = Device()
    watch, log = DeviceStopwatch(device.clock, device.event), RankLog(0)
    before_s = device.host_s
    start = watch.mark()
    device.kernel(0.25)
    end = watch.mark()
    log.add(Kind.GRAD, start, end, state=0, slot=0, samples=1)
    assert device.host_s == before_s  # queued, and the host went on
    assert isinstance(end, Moment)
    with pytest.raises(RuntimeError, match="settle first"):
        log.pack()
    settled_s = watch.settle()
    (row,) = RankLog.unpack(log.pack()).rows
    assert row[3] - row[2] == 0.25 and before_s - LAUNCH_S <= row[2] and row[3] <= settled_s


def test_seconds_of_a_pass_wait_for_the_device_where_they_are_read() -> None:
    device = Device()
    watch = DeviceStopwatch(device.clock, device.event)
    waits, start = device.waits, watch.mark()
    device.kernel(0.5)
    done = watch.computed(8, start, watch.mark())
    assert done.samples == 8 and device.waits == waits
    assert done.seconds == 0.5 and device.waits == waits + 1
    assert done.seconds == 0.5 and device.waits == waits + 1


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["kernel", "host", "mark", "settle"]), st.integers(1, 64)), max_size=40))
def test_no_mark_is_later_than_it_was_or_before_the_last_settling(script: list[tuple[str, int]]) -> None:
    device = Device()
    watch = DeviceStopwatch(device.clock, device.event)
    floor_s, found = device.host_s, []
    for what, amount in [*script, ("settle", 1)]:
        if what == "kernel":
            device.kernel(amount / 1024)
        elif what == "host":
            device.host_s += amount / 1024
        elif what == "mark":
            mark = watch.mark()
            found.append((mark, device.busy_s, floor_s))
        else:
            floor_s = watch.settle()
            assert device.host_s >= device.busy_s - LAUNCH_S  # nothing is left but the anchor itself
    assert all(floor <= float(mark) <= true_s for mark, true_s, floor in found)
    assert all(true_s - float(mark) <= LAUNCH_S + 1e-12 for mark, true_s, _ in found)
    times = [float(mark) for mark, _, _ in found]
    assert times == sorted(times)


def drive(
    algorithm: str, backend: str, device: Device, seconds: float, pace: bool = False
) -> tuple[LiveRank, Schedule]:
    """Its run, and its Schedule."""
    live = lone_rank(algorithm, backend, device, seconds, pace)
    live.run()
    header = Header(
        algorithm=algorithm,
        options=live.algorithm.options.model_dump(mode="json"),
        seed=0,
        workers=("w0",),
        dataset_samples=live.task.samples,
        origin="measured",
    )
    return live, schedule_of([RankLog.unpack(live.log.pack())], header)


@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("algorithm", ["s-sgd", "lb-bsp", "one-step-delay", "local-sgd", "abs-sgd"])
@pytest.mark.parametrize("seconds", [2.0**-12, 0.3])
def test_a_rank_on_a_device_records_what_the_device_did(algorithm: str, backend: str, seconds: float) -> None:
    device = Device()
    live, schedule = drive(algorithm, backend, device, seconds)
    check(schedule)
    live.algorithm.check(schedule)
    grads = schedule.rows(Kind.GRAD)
    took_s = schedule.end_s[grads] - schedule.start_s[grads]
    assert np.allclose(took_s, PER_SAMPLE_S * schedule.samples[grads], rtol=0, atol=1e-12)
    reduces = schedule.rows(Kind.REDUCE)
    assert len(reduces) == 12
    assert (schedule.end_s[reduces] - schedule.start_s[reduces] >= seconds - 1e-12).all()
    if (
        algorithm == "abs-sgd" and seconds == 0.3
    ):  # polls are answered from where the device is: twenty micro-batches in .3 s
        per_update = np.bincount(schedule.slot[grads])
        assert np.median(per_update) == pytest.approx(0.3 / (4 * PER_SAMPLE_S), abs=1.0)
    seen: dict[int, torch.Tensor] = {}
    InProcess(schedule, digits_mlp(dtype=torch.float64)).train(
        RULE, observe=lambda number, state: seen.__setitem__(number, state.parameters_P)
    )
    end = int(schedule.state[schedule.rows(Kind.STEP if algorithm != "local-sgd" else Kind.MIX)[-1]])
    off = torch.linalg.vector_norm(seen[end] - live.version.state.parameters_P)
    assert float(off / torch.linalg.vector_norm(seen[end])) <= 1e-12


def test_a_paced_pass_sleeps_after_the_device_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()

    def sleep(seconds: float) -> None:
        assert device.host_s >= device.busy_s - LAUNCH_S
        device.host_s += seconds

    monkeypatch.setattr("abs_sgd.runtime.pacing.time.sleep", sleep)
    MAY_WAIT.update((cmd.Compute, cmd.Apply))
    try:
        _, schedule = drive("s-sgd", "gloo", device, 0.01, pace=True)
    finally:
        MAY_WAIT.difference_update((cmd.Compute, cmd.Apply))
    grads = schedule.rows(Kind.GRAD)
    given_s = schedule.samples[grads] / 64.0  # four times what the device takes
    assert np.allclose(schedule.end_s[grads] - schedule.start_s[grads], given_s, rtol=0, atol=4 * LAUNCH_S)
