"""Programs run live: what they record is a Schedule that keeps every promise and reproduces their parameters."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_clusters import FLOAT64, RULE, SPEEDS, deviation, two_workers

from abs_sgd.launch import launch, read
from abs_sgd.runtime.run import Pacing
from hetsim.algorithms import make
from hetsim.schedule import Kind
from hetsim.schedule.check import check

pytestmark = [pytest.mark.torch, pytest.mark.live]
UPDATES = 20
RUNS: list[Any] = [
    ("s-sgd", {}),
    ("lb-bsp", {}),
    pytest.param("one-step-delay", {}, marks=pytest.mark.slow),
    ("one-step-delay-balanced", {"compute_point": "look-ahead", "synchronous_updates": 3}),
    ("local-sgd", {"local_steps": 3}),
    pytest.param("local-sgd", {"local_steps": 3, "by_speed": True}, marks=pytest.mark.slow),
    pytest.param("dropcompute", {"measured_updates": 5, "divisor": "planned"}, marks=pytest.mark.slow),
    pytest.param("omnilearn", {}, marks=pytest.mark.slow),
    pytest.param("od-sgd", {"kappa": 0.5}, marks=pytest.mark.slow),
    ("dc-s3gd", {}),
    ("abs-sgd", {"compute_point": "current"}),
    ("abs-sgd", {"compute_point": "local-prediction", "trigger": "target_batch"}),
    ("abs-sgd", {"compute_point": "damped-prediction"}),
    ("abs-sgd", {"compute_point": "blend", "trigger": "period_s", "period_s": 0.01, "micro_batch": "equal-time"}),
]


@pytest.mark.parametrize(
    ("algorithm", "options"), RUNS, ids=lambda v: v if isinstance(v, str) else "-".join(map(str, v.values()))
)
def test_a_live_run_is_reproduced_by_its_own_schedule(algorithm: str, options: dict[str, Any]) -> None:
    run = launch(two_workers(), algorithm, options=options, task_options=FLOAT64, rule=RULE, updates=UPDATES)
    schedule = run.schedule
    assert schedule.header.origin == "measured"
    account = check(schedule)
    assert account.in_flight == 0 and account.applied == run.samples
    make(algorithm, options).check(schedule)
    assert len(schedule.rows(Kind.REDUCE)) == UPDATES  # transfers; local-sgd makes its steps in between
    assert len(run.checksums) == 2 and len(set(run.checksums)) == 1
    assert deviation(run) <= 1e-12
    waits = schedule.rows(Kind.WAIT)
    assert (schedule.end_s[waits] >= schedule.start_s[waits]).all()
    assert set(schedule.worker[schedule.rows(Kind.GRAD)].tolist()) == {0, 1}


@pytest.mark.parametrize("algorithm", [pytest.param("s-sgd", marks=pytest.mark.slow), "abs-sgd"])
def test_every_sample_once_per_epoch_and_none_left_over(algorithm: str, tmp_path: Path) -> None:
    """Two epochs and a bit more: all of it is computed and applied although nobody planned who takes what."""
    samples = 2 * 1437 + 100
    live = two_workers(global_batch_samples=64, micro_batch_samples=24)
    launched = launch(live, algorithm, rule=RULE, samples=samples, folder=tmp_path)
    run = read(tmp_path)
    assert run.checksums == launched.checksums and not list(tmp_path.glob(".*"))
    schedule = run.schedule
    account = check(schedule)
    assert (account.applied, account.in_flight, account.discarded) == (samples, 0, 0)
    grads = schedule.rows(Kind.GRAD)
    numbers = np.concatenate(
        [np.arange(f, f + c) for f, c in zip(schedule.first[grads], schedule.samples[grads], strict=True)]
    )
    assert np.array_equal(np.sort(numbers), np.arange(samples))
    assert deviation(run) <= 1e-5  # float32


def test_paced_workers_take_their_profiles_time() -> None:
    """Faster than the profile nobody is; gradients padded to four times their size change nothing."""
    cluster = two_workers()
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    padded = dataclasses.replace(cluster.workload, gradient_bytes=4.0 * 8 * parameters)
    cluster = dataclasses.replace(cluster, workload=padded)
    pacing = Pacing(profile=True, pad=True, tolerance=1000.0)  # on a busy machine a pass may take any time
    run = launch(cluster, "abs-sgd", task_options=FLOAT64, rule=RULE, updates=UPDATES, pacing=pacing)
    schedule = run.schedule
    check(schedule)
    grads = schedule.rows(Kind.GRAD)
    given_s = schedule.samples[grads] / np.array(SPEEDS)[schedule.worker[grads]]
    took_s = schedule.end_s[grads] - schedule.start_s[grads]
    assert len(grads) >= UPDATES and took_s.min() > 0
    for worker in range(schedule.n):  # a pass may make up for what was lost before it, never more than that
        mine = grads[schedule.worker[grads] == worker]
        since_s = schedule.end_s[mine] - schedule.start_s[mine[0]]
        assert (since_s >= np.cumsum(given_s[schedule.worker[grads] == worker]) - 1e-6).all()
    assert deviation(run) <= 1e-12
