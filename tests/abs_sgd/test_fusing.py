"""Fused passes give the unfused result; models that are not sample-separable run pass by pass with their own buffers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from schedules_by_hand import averaging, delayed, finish, synchronous
from torch import nn

from abs_sgd.gradients import FlatModel, average_buffers
from abs_sgd.replay.inprocess import InProcess, numbers_of
from abs_sgd.replay.plan import Pass, Step, make_plan
from abs_sgd.update import State, UpdateRule
from abs_sgd.workloads.digits import digits_cnn, digits_mlp
from abs_sgd.workloads.task import Task, seeded
from hetsim.schedule import Kind, PointRule, Schedule

pytestmark = pytest.mark.torch
SHARES = np.random.default_rng(5).integers(0, 9, (200, 4)).tolist()


def final(schedule: Schedule, task: Task, rule: UpdateRule, **options: bool) -> dict[int, State]:
    seen: dict[int, State] = {}
    InProcess(schedule, task, **options).train(rule, observe=seen.__setitem__, evaluate_every_samples=0)
    return seen


@pytest.mark.parametrize("point", list(PointRule))
def test_fused_equals_unfused(point: PointRule) -> None:
    schedule = delayed(SHARES, point, 0.5, micro=2)
    rule = UpdateRule(learning_rate=0.02, momentum=0.9, weight_decay=1e-3)
    task = digits_mlp(dtype=torch.float64)
    fused, single = final(schedule, task, rule), final(schedule, task, rule, fused=False)
    assert fused.keys() == single.keys()
    for k in (1, 2, 100, 200):
        a, b = fused[k].parameters_P, single[k].parameters_P
        assert float((a - b).norm() / b.norm()) < 1e-12


def test_fused_equals_unfused_for_averaging_and_a_convolution() -> None:
    schedule = averaging([1, 4], [0.2, 0.8], 10, batch=6)
    task, rule = digits_cnn(dtype=torch.float64), UpdateRule(learning_rate=0.02, momentum=0.5)
    fused, single = final(schedule, task, rule), final(schedule, task, rule, fused=False)
    last = max(fused)
    assert torch.allclose(fused[last].parameters_P, single[last].parameters_P, rtol=1e-11, atol=1e-13)


def test_number_of_passes() -> None:
    """`current`: one pass per update for all workers; a predicted point: one per worker; unfused: one per row."""
    shares = [[4, 4, 2]] * 10
    assert make_plan(delayed(shares, micro=2), fused=True).passes == 10
    assert make_plan(delayed(shares, PointRule.LOCAL_PREDICTION, micro=2), fused=True).passes == 30
    assert make_plan(delayed(shares, micro=2), fused=False).passes == 50
    assert make_plan(synchronous(shares, micro=2), fused=True).passes == 10


def test_unequal_weights_are_not_merged() -> None:
    schedule = synchronous([[4, 4, 2]] * 3)
    scale = schedule.scale.copy()
    scale[(schedule.kind == Kind.JOIN) & (schedule.worker == 2)] = 0.5
    weighted = replace(schedule, scale=scale)
    plan = make_plan(weighted, fused=True)
    assert plan.passes == 6
    assert [len(a.parts) for a in plan.actions if isinstance(a, Step)] == [2, 2, 2]
    task, rule = digits_mlp(dtype=torch.float64), UpdateRule(learning_rate=0.1)
    fused, single = final(weighted, task, rule), final(weighted, task, rule, fused=False)
    assert torch.allclose(fused[3].parameters_P, single[3].parameters_P, rtol=1e-12)
    assert not torch.allclose(fused[3].parameters_P, final(schedule, task, rule)[3].parameters_P, rtol=1e-6)


@given(
    shares=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).filter(any), min_size=1, max_size=8),
    micro=st.integers(1, 4),
    point=st.sampled_from(list(PointRule)),
    fused=st.booleans(),
)
def test_every_applied_sample_is_computed_once_and_everything_is_dropped(
    shares: list[list[int]], micro: int, point: PointRule, fused: bool
) -> None:
    plan = make_plan(delayed(shares, point, micro=micro), fused=fused)
    numbers = [n for a in plan.actions if isinstance(a, Pass) for n in numbers_of(a.ranges, 1).tolist()]
    assert sorted(numbers) == list(range(sum(map(sum, shares))))
    made = [a.state for a in plan.actions if not isinstance(a, Pass)]
    assert len(made) == len(set(made))
    dropped = [s for group in plan.drop_states for s in group]
    assert sorted(dropped) == sorted({*made, 0})
    for at, action in enumerate(plan.actions):
        gone = {s for group in plan.drop_states[:at] for s in group}
        used = {action.state} if isinstance(action, Pass) else {action.parent}  # type: ignore[union-attr]
        assert not used & gone


@given(first=st.integers(0, 1000), counts=st.lists(st.integers(1, 40), min_size=1, max_size=6), thin=st.integers(1, 9))
def test_thinning_keeps_each_training_sample_in_one_range(first: int, counts: list[int], thin: int) -> None:
    parts, at = [], first
    for count in counts:
        parts.append((at, count))
        at += count
    split = np.concatenate([numbers_of([p], thin) for p in parts])
    assert split.tolist() == numbers_of([(first, at - first)], thin).tolist()
    assert abs(len(split) - (at - first) / thin) <= 1


def test_thinned_training_is_training_on_the_thinned_schedule() -> None:
    task, rule = digits_mlp(dtype=torch.float64), UpdateRule(learning_rate=0.05, momentum=0.9)
    thick, thin = delayed([[16, 8], [8, 24]] * 20, micro=4), delayed([[4, 2], [2, 6]] * 20)
    seen: dict[int, State] = {}
    InProcess(thick, task, thinning=4).train(rule, observe=seen.__setitem__, evaluate_every_samples=0)
    assert torch.allclose(seen[40].parameters_P, final(thin, task, rule)[40].parameters_P, rtol=1e-12)
    assert seen[40].progress.samples == 4 * sum(map(sum, [[4, 2], [2, 6]] * 20))


def not_separable(layer: Callable[[], nn.Module]) -> Task:
    task = digits_mlp(dtype=torch.float64)
    build = lambda: nn.Sequential(nn.Linear(64, 16), layer(), nn.ReLU(), nn.Linear(16, 10))  # noqa: E731
    return replace(task, separable=False, make_model=seeded(build, dtype=torch.float64, device="cpu"))


def test_batchnorm_statistics_stay_with_their_replica() -> None:
    """Each worker's running mean follows its own passes alone; evaluation averages them by samples."""
    task = not_separable(lambda: nn.BatchNorm1d(16))
    schedule = synchronous([[8, 2]] * 3)
    rule = UpdateRule(learning_rate=0.0)  # parameters stay, statistics move
    trainer = InProcess(schedule, task)
    assert trainer.plan.passes == 6
    losses = trainer.train(rule, evaluate_every_samples=1)
    model = FlatModel(task.make_model(0))
    replicas = []
    for rank, count in enumerate((8, 2)):
        model.load_buffers(FlatModel(task.make_model(0)).save_buffers())
        for k in range(3):
            first = 10 * k + (0 if rank == 0 else 8)
            task.loss_sum(model.model.train(), task.batch(np.arange(first, first + count), 0))
        replicas.append(model.save_buffers())
    model.load_buffers(average_buffers(replicas, [24, 6]))
    assert losses.loss[-1] == pytest.approx(task.evaluate(model.model), rel=1e-12)
    assert losses.loss[-1] != losses.loss[0]
    plain = [v for v in replicas[0] if v.is_floating_point()]
    other = [v for v in replicas[1] if v.is_floating_point()]
    assert not torch.equal(plain[0], other[0])


def test_dropout_belongs_to_the_samples_not_to_the_order() -> None:
    """The same passes in a Schedule of one worker or two: same masks, as they are keyed by (seed, first sample)."""
    task, rule = not_separable(lambda: nn.Dropout(0.5)), UpdateRule(learning_rate=0.1)
    two = final(synchronous([[4, 4]] * 5), task, rule)[5].parameters_P
    one = final(synchronous([[8]] * 5, micro=4), task, rule)[5].parameters_P
    other = InProcess(synchronous([[4, 4]] * 5), task, seed=1)
    seen: dict[int, State] = {}
    other.train(rule, observe=seen.__setitem__)
    assert torch.allclose(one, two, rtol=1e-12)
    assert not torch.allclose(seen[5].parameters_P, two, rtol=1e-3)


def test_training_leaves_the_global_generator_alone() -> None:
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    final(synchronous([[4, 4]] * 2), not_separable(lambda: nn.Dropout(0.5)), UpdateRule(learning_rate=0.1))
    assert torch.equal(torch.rand(3), expected)


def test_same_seed_same_bits() -> None:
    schedule, rule = delayed(SHARES[:50], PointRule.LOCAL_PREDICTION), UpdateRule(learning_rate=0.05, momentum=0.9)
    first, second = (InProcess(schedule, digits_mlp(), seed=2).train(rule) for _ in range(2))
    assert first.loss.tolist() == second.loss.tolist()
    other = InProcess(schedule, digits_mlp(), seed=3).train(rule)
    assert other.loss.tolist() != first.loss.tolist()


def test_joined_but_never_applied_is_not_computed_when_fused() -> None:
    from hetsim.schedule.log import Log

    log = Log(1)
    log.add(Kind.GRAD, 0, 0.0, 1.0, state=0, slot=0, samples=4, first=0)
    log.add(Kind.JOIN, 0, 1.0, 1.0, source=0, slot=0, samples=4)
    schedule = finish(log, 1, 100)
    assert make_plan(schedule, fused=True).passes == 0
    assert make_plan(schedule, fused=False).passes == 1
