"""The gradient noise that a live run reports, against the per-sample gradients of the whole data set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from live_clusters import FLOAT64, two_workers

from abs_sgd.gradients import FlatModel
from abs_sgd.launch import launch
from abs_sgd.runtime.noise import NoiseLog
from abs_sgd.update import UpdateRule
from abs_sgd.workloads.digits import digits_mlp
from hetsim.schedule import Kind

pytestmark = pytest.mark.torch


@pytest.mark.live
def test_a_live_run_sees_the_noise_of_its_data() -> None:
    """One epoch at a rate that moves nothing: all gradients are taken at the initial parameters, whoever took which samples."""
    still = UpdateRule(learning_rate=1e-15)
    run = launch(two_workers(), "s-sgd", task_options=FLOAT64, rule=still, samples=1437)
    task = digits_mlp(dtype=torch.float64)
    model = FlatModel(task.make_model(0))
    rows = []
    for number in range(1437):
        batch = task.batch(np.array([number]), 0)
        rows.append(model.gradient_sum(lambda m, batch=batch: task.loss_sum(m, batch)))  # type: ignore[misc]
    each = torch.stack(rows)
    assert run.noise.trace == pytest.approx(float(each.var(0).sum()), rel=0.1)  # 60 updates of 24 samples
    schedule, traces, squares = run.schedule, [], []
    grads = schedule.rows(Kind.GRAD)
    for join in schedule.rows(Kind.REDUCE):
        members = [
            row
            for row in schedule.rows(Kind.JOIN)
            if schedule.source[row] == schedule.source[join] and schedule.samples[row]
        ]
        sums, counts = [], []
        for member in members:
            mine = [row for row in grads if schedule.slot[row] == schedule.slot[member]]
            sums.append(sum(each[int(schedule.first[r]) :][: int(schedule.samples[r])].sum(0) for r in mine))
            counts.append(int(schedule.samples[member]))
        if len(members) == 2:  # two means differ by noise alone: E |m_0 - m_1|² = tr Σ (1/b_0 + 1/b_1)
            (a, b), (p, q) = sums, counts
            traces.append(float((a / p - b / q).square().sum()) / (1 / p + 1 / q))
            squares.append((float((a + b).square().sum()) / (p + q) - traces[-1]) / (p + q))
    assert run.noise.trace == pytest.approx(np.mean(traces), rel=1e-9)
    assert run.noise.squared_norm == pytest.approx(np.mean(squares), rel=1e-9)


def test_one_contributor_says_nothing() -> None:
    log = NoiseLog()
    log.add((4.0, 0.0), (2, 0), 4.0)
    assert log.estimate.scale is None and "at least 2" in log.estimate.reason
    log.add((4.0, 1.0), (2, 1), 9.0)  # one parameter: sums 2 and 1, one gradient of 1 per sample, no noise
    assert log.estimate.trace == pytest.approx(0.0) and log.estimate.squared_norm == pytest.approx(1.0)
