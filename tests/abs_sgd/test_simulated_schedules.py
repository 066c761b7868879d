"""Every algorithm's simulated Schedule trains: exact parameters of a scalar model, fused equals unfused, digits learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from abs_sgd.gradients import FlatModel
from abs_sgd.replay.inprocess import InProcess
from abs_sgd.update import State, UpdateRule
from abs_sgd.workloads.analytic import scalar_constant_gradient
from abs_sgd.workloads.digits import digits_mlp
from hetsim.algorithms import registry
from hetsim.cluster.spec import Cluster, Link, Network, Training, Worker, Workload
from hetsim.schedule import Kind, MixRule, Schedule, StepRule
from hetsim.simulate import simulate

pytestmark = pytest.mark.torch
SPEEDS = (512.0, 256.0, 128.0)  # exact in binary


def cluster() -> Cluster:
    return Cluster(
        name="three",
        workers=tuple(
            Worker(rank=i, name=f"w{i}", group="w", node=f"n{i}", samples_per_s=v) for i, v in enumerate(SPEEDS)
        ),
        network=Network(links=(Link(bytes_per_s=2.0**20),) * 3, server=Link(bytes_per_s=2.0**20)),
        workload=Workload(name="digits-mlp", gradient_bytes=2.0**15, dataset_samples=1437),
        training=Training(global_batch_samples=24, micro_batch_samples=4),
    )


def schedule_of(algorithm: str, updates: int = 40) -> Schedule:
    return simulate(cluster(), algorithm, updates=updates).schedule


@pytest.mark.parametrize("algorithm", sorted(registry()))
def test_scalar_model_counts_the_steps(algorithm: str) -> None:
    """Gradient -1, lr 1: a version is the number of steps behind it; an average that of its parts by weight."""
    schedule = schedule_of(algorithm)
    seen: dict[int, State] = {}
    trainer = InProcess(schedule, scalar_constant_gradient(), fused=False)
    trainer.train(UpdateRule(learning_rate=1.0), observe=seen.__setitem__)
    expected = {0: 0.0}
    taken: dict[int, int] = {}  # transfer -> state of its gradient
    slots: dict[int, int] = {}
    outer: dict[int, tuple[float, float]] = {}
    square = 0.0
    offered: dict[int, list[tuple[float, int]]] = {}
    for row in range(len(schedule)):
        kind, state, parent = int(schedule.kind[row]), int(schedule.state[row]), int(schedule.parent[row])
        source, slot, scale = int(schedule.source[row]), int(schedule.slot[row]), float(schedule.scale[row])
        if kind == Kind.JOIN and state >= 0:
            offered.setdefault(source, []).append((scale, state))
        elif kind == Kind.GRAD:
            slots[slot] = state
        elif kind == Kind.JOIN:
            taken[source] = slots.get(slot, 0)
        elif kind == Kind.STEP and schedule.code[row] != StepRule.PLAIN:
            if schedule.code[row] == StepRule.DELAY_COMPENSATED_ADAPTIVE:
                square = 0.95 * square + 0.05
                scale /= math.sqrt(square + 1e-7)
            apart = expected[parent] - expected[slots[slot] if source < 0 else taken[source]]
            if schedule.code[row] == StepRule.DELAY_COMPENSATED_RELATIVE:
                apart = math.copysign(1.0, apart) if abs(apart) > 1e-12 else 0.0
            expected[state] = expected[parent] + 1.0 - scale * apart
        elif kind in (Kind.STEP, Kind.PREDICT) and state not in expected:
            share = scale * float(schedule.samples[row]) / float(schedule.first[row] or 1)  # of a whole mean gradient
            expected[state] = expected[parent] + (share if kind == Kind.STEP else 1.0)
            if parent in outer:
                outer[state] = outer[parent]
        elif kind == Kind.MIX and schedule.code[row] == MixRule.OUTER:
            g, u = outer.get(parent, (0.0, 0.0))
            x, stated = expected[parent], schedule.header.outer
            if schedule.first[row] == stated["fragments"] - 1:  # a parameter alone is all of the last fragment
                moved = g - sum(expected[s] for _, s in offered[source]) / len(offered[source])
                u = stated["momentum"] * u + moved
                g -= stated["learning_rate"] * (moved + stated["momentum"] * u)
                x = (1 - scale) * x + scale * g
            expected[state], outer[state] = x, (g, u)
        elif kind == Kind.MIX and state not in expected:
            total = sum(w for w, _ in offered[source])
            mean = sum(w * expected[s] for w, s in offered[source])
            shift = schedule.code[row] == MixRule.SHIFT
            mean = mean / total if slot < 0 or shift else mean + (1 - total) * expected[slot]
            mean += expected[parent] - expected[slot] if shift else 0.0
            expected[state] = (1 - scale) * expected[parent] + scale * mean
    assert len(seen) > 20
    for state, made in seen.items():
        assert float(made.parameters_P) == pytest.approx(expected[state], rel=1e-12, abs=1e-12)


@pytest.mark.parametrize("algorithm", ["ad-psgd", "prague"])
def test_where_some_average_the_loss_is_that_of_the_mean_of_all(algorithm: str) -> None:
    schedule, task = schedule_of(algorithm), digits_mlp(dtype=torch.float64)
    seen: dict[int, State] = {}
    trainer = InProcess(schedule, task)
    curve = trainer.train(UpdateRule(learning_rate=0.05), evaluate_every_samples=1, observe=seen.__setitem__)
    joins, replica, means = schedule.rows(Kind.JOIN), dict.fromkeys(range(3), 0), dict[float, list[torch.Tensor]]()
    seen[0] = State(parameters_P=FlatModel(task.make_model(0)).parameters_P)
    made = {0}
    for row in np.flatnonzero(np.isin(schedule.kind, (Kind.STEP, Kind.MIX))).tolist():
        state, source = int(schedule.state[row]), int(schedule.source[row])
        replica[int(schedule.worker[row])] = state
        if schedule.kind[row] == Kind.MIX and state not in made:
            members = set(schedule.worker[joins[schedule.source[joins] == source]].tolist())
            now = [seen[state if worker in members else replica[worker]].parameters_P for worker in range(3)]
            means.setdefault(float(schedule.end_s[row]), []).append(torch.stack(now).mean(dim=0))
        made.add(state)
    model = FlatModel(task.make_model(0))
    assert len(curve.loss) > 20
    for time_s, loss in zip(curve.time_s[1:].tolist(), curve.loss[1:].tolist(), strict=True):
        found = []
        for mean_P in means[time_s]:
            model.load(mean_P)
            found.append(task.evaluate(model.model))
        assert min(abs(each - loss) for each in found) < 1e-9


@pytest.mark.parametrize("algorithm", sorted(registry()))
def test_fused_equals_unfused(algorithm: str) -> None:
    schedule = schedule_of(algorithm)
    last: list[torch.Tensor] = []
    for fused in (True, False):
        seen: dict[int, State] = {}
        trainer = InProcess(schedule, digits_mlp(dtype=torch.float64), fused=fused)
        trainer.train(UpdateRule(learning_rate=0.02, momentum=0.9), observe=seen.__setitem__)
        last.append(seen[max(seen)].parameters_P)
    assert float((last[0] - last[1]).norm() / last[1].norm()) < 1e-12


@pytest.mark.parametrize("algorithm", sorted(registry()))
def test_every_algorithm_learns_and_counts_its_samples(algorithm: str) -> None:
    schedule = schedule_of(algorithm, updates=120)
    curve = InProcess(schedule, digits_mlp()).train(UpdateRule(learning_rate=0.1, momentum=0.5))
    assert curve.loss[-1] < 0.6 * curve.loss[0]
    steps = schedule.rows(Kind.STEP)
    _, first = np.unique(schedule.state[steps], return_index=True)
    handed = int(schedule.samples[steps[first]].sum())
    if schedule.rows(Kind.MIX).size:
        assert 0.5 * handed < curve.samples[-1] <= handed  # steps since the last average are not in it
    else:
        assert curve.samples[-1] == handed
    assert np.all(np.diff(curve.time_s) >= 0) and curve.time_s[-1] <= schedule.horizon_s
