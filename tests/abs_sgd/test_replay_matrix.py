"""The full matrix: every algorithm, its options and compute points, on real processes against one process.

    200 updates at a stable rate       ‖Δ‖/‖x‖ of what every rank ends with ≤ 1e-12 in float64, ≤ 1e-5 in float32
    teacher-forced, any rate, longer   the same for every state, each made from the states of the one process

Gradients are added in rank order (`exact`) or by the backend's all-reduce. Workers are unequal and jitter, so that shares wander.
"""

from __future__ import annotations

import dataclasses
import functools

import pytest
from test_simulated_schedules import cluster

from abs_sgd.replay.comparison import compare
from abs_sgd.replay.distributed import Request
from abs_sgd.replay.results import Deviation
from abs_sgd.update import UpdateRule
from hetsim.algorithms import registry
from hetsim.schedule import Schedule
from hetsim.simulate import simulate

pytestmark = [pytest.mark.torch, pytest.mark.live, pytest.mark.slow]
UPDATES = 200
STABLE = UpdateRule(learning_rate=0.02, momentum=0.9)
BOUNDS = {"float64": 1e-12, "float32": 1e-5}
POINTS = ("current", "look-ahead", "local-prediction", "blend", "damped-prediction")
ROUNDS = ("local-sgd", "streaming-diloco", "dasgd")  # whose updates are averages after several steps
DELAYED = ("one-step-delay", "one-step-delay-balanced", "abs-sgd")
SCHEDULES: dict[str, tuple[str, dict[str, object]]] = {
    "s-sgd": ("s-sgd", {}),
    "s-sgd, not overlapped": ("s-sgd", {"overlap": False}),
    "lb-bsp": ("lb-bsp", {"dead_band": 0.0}),
    **{f"{a}, {point}": (a, {"compute_point": point}) for a in DELAYED for point in POINTS},
    "one-step-delay-balanced, warmed up": ("one-step-delay-balanced", {"synchronous_updates": 5}),
    "abs-sgd, warmed up": ("abs-sgd", {"synchronous_updates": 5}),
    "abs-sgd, least batch": ("abs-sgd", {"trigger": "min_samples", "min_samples": 8}),
    "abs-sgd, global least batch": (
        "abs-sgd",
        {"trigger": "min_samples", "min_samples": 24, "min_samples_scope": "global"},
    ),
    "abs-sgd, target batch": ("abs-sgd", {"trigger": "target_batch", "target_batch": 32}),
    "abs-sgd, capped": ("abs-sgd", {"max_local_batch": 8}),
    "local-sgd": ("local-sgd", {}),
    "local-sgd, by speed": ("local-sgd", {"by_speed": True}),
    "local-sgd, by speed and samples": ("local-sgd", {"by_speed": True, "normalise": "samples"}),
    "asgd": ("asgd", {}),
    "ssp": ("ssp", {}),
    "dropcompute": ("dropcompute", {}),
    "dropcompute, planned": ("dropcompute", {"limit": "fixed", "limit_s": 0.02, "divisor": "planned"}),
    "ringmaster-asgd": ("ringmaster-asgd", {"threshold": 2}),
    "omnilearn": ("omnilearn", {}),
    "backup-workers": ("backup-workers", {}),
    "eager-sgd": ("eager-sgd", {}),
    "eager-sgd, solo": ("eager-sgd", {"mode": "solo", "divisor": "present"}),
    "streaming-diloco": ("streaming-diloco", {}),
    "streaming-diloco, late": ("streaming-diloco", {"overlap_steps": 9, "local_steps": 10}),
    "dasgd": ("dasgd", {}),
    "dasgd, later": ("dasgd", {"delay_steps": 5}),
    "ad-psgd": ("ad-psgd", {}),
    "ad-psgd, not overlapped": ("ad-psgd", {"overlap": False}),
    "dc-asgd": ("dc-asgd", {}),
    "dc-asgd, constant": ("dc-asgd", {"variant": "constant", "strength": 1.0}),
    "od-sgd": ("od-sgd", {}),
    "od-sgd, damped-prediction": ("od-sgd", {"compute_point": "damped-prediction"}),
    "rennala-sgd": ("rennala-sgd", {"gradients": 5}),
    "delay-adaptive-asgd": ("delay-adaptive-asgd", {}),
    "dc-s3gd": ("dc-s3gd", {}),
    "dc-s3gd, not corrected": ("dc-s3gd", {"strength": 0.0}),
    "dssp": ("dssp", {"staleness": 1, "extra": 4}),
    "prague": ("prague", {"group_size": 2}),
    "prague, rounds": ("prague", {"local_steps": 8}),
    "ssp, no slack": ("ssp", {"staleness": 0}),
    "ssp, a clock at a time": ("ssp", {"server_update": "clock", "staleness": 1}),
}
RULES = {
    "nesterov, decay, clipped": UpdateRule(
        learning_rate=0.02, momentum=0.9, nesterov=True, weight_decay=1e-3, clip_norm=0.5, lr_rule="sqrt", reference_batch_samples=24
    ),
    "adamw, warm-up": UpdateRule(
        learning_rate=0.001, momentum=0.9, optimizer="adamw", weight_decay=0.01, reference_batch_samples=24, warmup_samples=480
    ),
}  # fmt: skip
WITH_RULES = (
    "s-sgd",
    "abs-sgd, local-prediction",
    "abs-sgd, blend",
    "abs-sgd, damped-prediction",
    "local-sgd",
    "asgd",
    "dc-s3gd",
    "prague",
)
CASES = [*((name, "sgd") for name in SCHEDULES), *((name, rule) for name in WITH_RULES for rule in RULES)]


@functools.cache
def schedule_of(name: str, updates: int) -> Schedule:
    algorithm, options = SCHEDULES[name]
    three = cluster()
    jitters = dataclasses.replace(
        three, workers=tuple(dataclasses.replace(worker, jitter_cv=0.2) for worker in three.workers)
    )
    return simulate(jitters, algorithm, options=options, updates=updates, seed=1).schedule


@functools.cache
def deviations(dtype: str, exact: bool) -> dict[tuple[str, str], Deviation]:
    """All cases on one set of processes."""
    requests = [
        Request(
            schedule=schedule_of(name, UPDATES // 8 if name.startswith(ROUNDS) else UPDATES),  # averages of 8 steps
            workload="digits-mlp",
            rule=RULES.get(rule, STABLE),
            task_options={"dtype": dtype},
            exact=exact,
        )
        for name, rule in CASES
    ]
    return dict(zip(CASES, compare(requests), strict=True))


def test_no_algorithm_is_left_out() -> None:
    assert {algorithm for algorithm, _ in SCHEDULES.values()} == set(registry())


@pytest.mark.timeout(1800)  # the first of each dtype runs them all
@pytest.mark.parametrize("exact", [True, False], ids=["rank order", "all-reduce"])
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("case", CASES, ids=": ".join)
def test_two_hundred_updates(case: tuple[str, str], dtype: str, exact: bool) -> None:
    found = deviations(dtype, exact)[case]
    assert found.compared >= 3
    assert found.value <= (0.0 if exact else BOUNDS[dtype])


LONG = {"s-sgd": 2000, "abs-sgd, local-prediction": 2000, "abs-sgd, current": 2000, "asgd": 2000, "local-sgd": 100}
WILD = UpdateRule(learning_rate=0.5, momentum=0.9)  # parts company by itself within a few hundred updates
CALMER = {"dc-asgd": dataclasses.replace(WILD, learning_rate=0.2)}  # at .5 its corrections go beyond all numbers


@functools.cache
def taught(dtype: str) -> dict[str, Deviation]:
    names = [*SCHEDULES]
    requests = [
        Request(
            schedule=schedule_of(name, LONG.get(name, 25 if name.startswith(ROUNDS) else UPDATES)),
            workload="digits-mlp",
            rule=CALMER.get(name, WILD),
            task_options={"dtype": dtype},
            exact=False,
        )
        for name in names
    ]
    return dict(zip(names, compare(requests, taught=True), strict=True))


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_teacher_forced_at_any_length_and_rate(name: str, dtype: str) -> None:
    found = taught(dtype)[name]
    assert found.compared >= 2 * LONG.get(name, 25)  # on a server once, and once by the worker that copies it
    assert found.value <= BOUNDS[dtype]
