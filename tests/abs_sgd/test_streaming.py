"""All-reduces that leave during the backward pass: every bucket once, in one order, when it is complete, and nothing else changes."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from device_by_hand import Device, lone_rank
from hypothesis import given
from hypothesis import strategies as st
from live_clusters import FLOAT64, RULE, two_workers
from torch import Tensor, nn

from abs_sgd.gradients import FlatModel
from abs_sgd.launch import launch
from abs_sgd.replay.inprocess import InProcess
from abs_sgd.runtime.computing import Passes
from abs_sgd.runtime.pacing import Pace
from abs_sgd.runtime.run import Pacing
from abs_sgd.runtime.streaming import Stream, buckets_of
from abs_sgd.runtime.wire import PeerLostError, Wire
from abs_sgd.update import State
from abs_sgd.workloads.digits import digits_mlp
from abs_sgd.workloads.user import user_task
from hetsim import commands as cmd
from hetsim.cluster.spec import Slowdown, Worker
from hetsim.errors import ProgramError
from hetsim.network import bucket_bytes
from hetsim.schedule import Kind
from hetsim.schedule.check import check

pytestmark = pytest.mark.torch


@given(st.integers(1, 30_000_000), st.sampled_from([2, 4, 8]))
def test_buckets_are_the_whole_vector_from_its_end_in_the_simulators_sizes(elements: int, itemsize: int) -> None:
    buckets = buckets_of(elements, itemsize)
    assert buckets[0][1] == elements and buckets[-1][0] == 0
    assert all(later[1] == earlier[0] for earlier, later in itertools.pairwise(buckets))
    assert [float((end - first) * itemsize) for first, end in buckets] == list(bucket_bytes(float(elements * itemsize)))


class Noting(Wire):
    """Keeps what is sent as it is at that moment, and how far the backward pass was."""

    def __init__(self, model: FlatModel, least_bytes: float = 0.0) -> None:
        super().__init__(0, 2, model.size, model.parameters_P.dtype, least_bytes)
        self.model = model
        self.sent: list[Tensor] = []
        self.complete_by_then: list[int] = []

    def send(self, part: Tensor) -> list[None]:
        self.sent.append(part.clone())
        self.complete_by_then.append(int(self.model.gradient_P.count_nonzero()))
        return [None]


@pytest.fixture
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("abs_sgd.runtime.streaming.bucket_bytes", lambda payload: bucket_bytes(payload, 800.0, 4000.0))


def parts() -> tuple[FlatModel, Passes]:
    task = digits_mlp(dtype=torch.float64)
    model = FlatModel(task.make_model(0))
    return model, Passes(task, model, 0, 5)


@pytest.mark.usefixtures("small_buckets")
@pytest.mark.parametrize("least_bytes", [0.0, 50_000.0])
@pytest.mark.parametrize("while_computing", [True, False])
def test_every_bucket_leaves_once_in_order_with_the_sum_of_all_passes(
    least_bytes: float, while_computing: bool
) -> None:
    """Seventeen samples in four passes: the last one feeds the stream. Bitwise the sum that is not streamed."""
    model, work = parts()
    whole_P = torch.zeros(model.size, dtype=torch.float64)
    work.add(3, 17, whole_P)
    wire = Noting(model, least_bytes)
    buffer_P = wire.buffer()
    stream = Stream(wire, buffer_P, model.gradient_P if while_computing else None)
    work.add(3, 17, buffer_P[: wire.size], stream)
    assert len(wire.sent) == (len(stream.buckets) if while_computing else 0)
    stream.finish()
    stream.finish()
    assert len(stream.works) == len(wire.sent) == len(stream.buckets) > 8
    assert torch.equal(torch.cat(wire.sent[::-1])[: wire.size], whole_P) and torch.equal(buffer_P[: wire.size], whole_P)
    assert float(stream.square) == pytest.approx(float(whole_P @ whole_P), rel=1e-12)
    if while_computing:
        done = wire.complete_by_then
        assert (
            done == sorted(done) and done[0] < done[-1]
        )  # the first bucket left before the last layer's gradient was there
    assert stream.left[-1] == 0.0 and stream.left[0] == pytest.approx(1.0 - 800.0 / max(8.0 * model.size, least_bytes))


@pytest.mark.usefixtures("small_buckets")
def test_a_parameter_that_a_pass_does_not_use_holds_nothing_up_for_ever() -> None:
    class Half(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.used, self.unused, self.last = nn.Linear(64, 10), nn.Linear(64, 10), nn.Linear(10, 10)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.used(x))  # type: ignore[no-any-return]

    model = FlatModel(Half().double())
    task = dataclasses.replace(digits_mlp(dtype=torch.float64))
    wire = Noting(model)
    buffer_P = wire.buffer()
    stream = Stream(wire, buffer_P, model.gradient_P)
    Passes(task, model, 0, None).add(0, 8, buffer_P, stream)
    whole_P = torch.zeros_like(buffer_P)
    Passes(task, model, 0, None).add(0, 8, whole_P)
    assert torch.equal(torch.cat(wire.sent[::-1]), whole_P) and whole_P.any()


@pytest.mark.usefixtures("small_buckets")
def test_a_peer_that_is_lost_in_the_middle_of_a_backward_pass_is_named() -> None:
    model, work = parts()
    whole_P = torch.zeros(model.size, dtype=torch.float64)
    work.add(0, 4, whole_P)
    wire = Noting(model)
    note = wire.send

    def send(part: Tensor) -> list[None]:
        if len(wire.sent) == 2:
            raise PeerLostError("all-reduce 0 failed on rank 0: connection reset")
        return note(part)

    wire.send = send  # type: ignore[method-assign]
    with pytest.raises(PeerLostError, match="connection reset"):
        work.add(0, 4, wire.buffer(), Stream(wire, wire.buffer(), model.gradient_P))
    again_P = torch.zeros(model.size, dtype=torch.float64)
    work.add(0, 4, again_P)  # no hook is left
    assert torch.equal(again_P, whole_P) and len(wire.sent) == 2


def test_a_paced_pass_sends_buckets_when_the_profiles_pass_would_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second's pass, six tenths of it backward, buckets with a half and a quarter still to come; half speed from 10.9 s on."""
    now_s, sent_s = [10.1], []

    def sleep(seconds: float) -> None:
        assert seconds > 0
        now_s[0] += seconds

    monkeypatch.setattr("abs_sgd.runtime.pacing.time.sleep", sleep)
    monkeypatch.setattr("abs_sgd.runtime.pacing.time.monotonic", lambda: now_s[0])
    slow = (Slowdown(at_s=10.9, until_s=20.0, factor=2.0),)
    worker = Worker(rank=0, name="w", group="g", node="n", samples_per_s=10.0, slowdowns=slow)
    pace = Pace(worker, 0, 4, tolerance=0.1, backward_share=0.6)

    def send() -> None:
        sent_s.append(now_s[0])
        now_s[0] += 0.01  # sending takes time, which is not slept on top

    pace.keep(10, 10.0, 10.1, [0.5, 0.25], send)
    assert np.allclose([*sent_s, now_s[0]], [10.7, 10.85, 11.1], rtol=0, atol=1e-9)


def test_a_rank_sends_the_same_collectives_whether_it_has_samples_or_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "abs_sgd.runtime.streaming.bucket_bytes", lambda payload: bucket_bytes(payload, 8000.0, 16000.0)
    )
    device = Device()
    live = lone_rank("s-sgd", "gloo", device, 0.01, budget=40)  # two batches and a half, then none
    live.run()
    wire = live.wire
    per_transfer = [[size for number, size in wire.sent if number == k] for k in range(wire.launched)]  # type: ignore[attr-defined]
    assert wire.launched >= 3 and all(sizes == per_transfer[0] for sizes in per_transfer)
    assert sum(per_transfer[0][:-1]) == wire.size and len(per_transfer[0]) == 4

    empty = lone_rank("s-sgd", "gloo", device, 0.01, budget=0)
    assert empty.compute(cmd.Compute(16, True)) == cmd.Computed(0, 0.0)
    empty.all_reduce(cmd.AllReduce("gradients", 1.0, (), None, True))
    assert [size for _, size in empty.wire.sent] == per_transfer[0]  # type: ignore[attr-defined]


def test_what_has_begun_to_leave_can_neither_be_dropped_nor_weighted() -> None:
    live = lone_rank("s-sgd", "gloo", Device(), 0.01)
    live.compute(cmd.Compute(16, True))
    with pytest.raises(ProgramError, match="drops a gradient that it has begun to send"):
        live.discard(cmd.Discard("late", None))
    for weight, stream in ((0.5, True), (1.0, False)):
        with pytest.raises(ProgramError, match="sent with stream and weight 1"):
            live.all_reduce(cmd.AllReduce("gradients", weight, (), None, stream))
    saved = lone_rank("s-sgd", "gloo", Device(), 0.01)
    saved.keeper = SimpleNamespace(open={0: None})  # type: ignore[assignment]
    with pytest.raises(ProgramError, match="streams beside an earlier transfer: its runs cannot be saved"):
        saved.compute(cmd.Compute(16, True))
    predicting = lone_rank("abs-sgd", "gloo", Device(), 0.01)
    with pytest.raises(ProgramError, match="predicts from a sum of its own"):
        predicting.compute(cmd.Compute(16, True))


@pytest.mark.live
@pytest.mark.parametrize("paced", [False, True])
def test_a_streamed_live_run_is_reproduced_by_its_own_schedule(paced: bool) -> None:
    """9.6 MB in two buckets on two ranks; paced, 30 MB in three."""
    cluster = two_workers((200.0, 100.0), global_batch_samples=12)
    padded = 30e6 if paced else 1.0
    own = dataclasses.replace(
        cluster.workload, name="wide", model="wide_net:model", dataset="wide_net:data", dataset_samples=300, gradient_bytes=padded
    )  # fmt: skip
    cluster = dataclasses.replace(cluster, workload=own)
    pacing = Pacing(profile=paced, pad=paced, tolerance=1000.0)
    run = launch(cluster, "s-sgd", task_options=FLOAT64, rule=RULE, updates=6, pacing=pacing)
    check(run.schedule)
    assert run.schedule.header.options["overlap"] and len(set(run.checksums)) == 1
    seen: dict[int, State] = {}
    task = user_task("wide_net:model", "wide_net:data", dtype=torch.float64)
    assert FlatModel(task.make_model(0)).size * 8 > 2 * 2**20
    InProcess(run.schedule, task).train(RULE, observe=seen.__setitem__)
    end = seen[int(run.schedule.state[run.schedule.rows(Kind.STEP)[-1]])].parameters_P
    assert float(torch.linalg.vector_norm(end - run.parameters_P) / torch.linalg.vector_norm(end)) <= 1e-12
