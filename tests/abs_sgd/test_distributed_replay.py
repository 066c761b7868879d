"""A Schedule on real processes: the parameters of one process, and refusal of what cannot run.

All that runs to its end runs on one set of processes: starting them takes longer than what they do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from schedules_by_hand import finish, synchronous
from test_simulated_schedules import cluster, schedule_of

from abs_sgd.launch import RankFailedError
from abs_sgd.replay.comparison import in_process
from abs_sgd.replay.distributed import Request, _spread, replay, replay_all
from abs_sgd.replay.operations import Arrive, Launch, Orders, Transfer
from abs_sgd.replay.orders import make_orders
from abs_sgd.replay.results import Replayed
from abs_sgd.replay.verify import verify
from abs_sgd.update import State, UpdateRule
from hetsim.algorithms import registry
from hetsim.errors import ScheduleError, UsageError
from hetsim.schedule import Kind, Payload, PointRule, Schedule
from hetsim.schedule.log import Log
from hetsim.simulate import simulate

pytestmark = [pytest.mark.torch, pytest.mark.live]
STABLE = UpdateRule(learning_rate=0.02, momentum=0.9)
ADAMW = UpdateRule(learning_rate=0.002, optimizer="adamw", momentum=0.9)


def copied_and_continued() -> Schedule:
    """A worker pushes, copies what the server made of it, and goes on from there by itself."""
    log = Log(1)
    log.add(Kind.GRAD, 0, 0.0, 1.0, state=0, slot=0, samples=8, first=0)
    log.add(Kind.JOIN, 0, 1.0, 1.0, source=0, slot=0, samples=8)
    log.add(Kind.REDUCE, 0, 1.0, 2.0, source=0, samples=8)
    log.add(Kind.STEP, 1, 2.0, 2.0, state=1, parent=0, source=0, samples=8, first=8)
    log.add(Kind.REDUCE, 0, 2.0, 3.0, source=1, code=Payload.PARAMETERS)
    log.add(Kind.COPY, 0, 3.0, 3.0, state=1, source=1)
    log.add(Kind.WAIT, 0, 1.0, 3.0)
    log.add(Kind.GRAD, 0, 3.0, 4.0, state=1, slot=1, samples=8, first=8)
    log.add(Kind.STEP, 0, 4.0, 4.0, state=2, parent=1, slot=1, samples=8, first=8)
    schedule = finish(log, 1, 1437)
    object.__setattr__(schedule.header, "server", True)
    return schedule


def request_of(schedule: Schedule, rule: UpdateRule = STABLE, dtype: str = "float64", **options: object) -> Request:
    return Request(schedule=schedule, workload="digits-mlp", rule=rule, task_options={"dtype": dtype}, **options)  # type: ignore[arg-type]


def pointed(compute_point: str) -> Schedule:
    return simulate(cluster(), "abs-sgd", options={"compute_point": compute_point}, updates=12).schedule


@dataclass(frozen=True)
class Case:
    """A request and how far it may be from one process: 0 where gradients are added in its order."""

    request: Request
    bound: float = 0.0


PACE = 0.5
CASES = {
    **{algorithm: Case(request_of(schedule_of(algorithm, 20))) for algorithm in sorted(registry())},
    "float32, all-reduce": Case(request_of(schedule_of("abs-sgd", 20), dtype="float32", exact=False), 1e-5),
    "averages in float32, all-reduce": Case(
        request_of(schedule_of("local-sgd", 20), dtype="float32", exact=False), 1e-5
    ),
    "blend, adamw": Case(request_of(pointed("blend"), ADAMW)),
    "damped, adamw": Case(request_of(pointed("damped-prediction"), ADAMW)),
    "look-ahead": Case(request_of(pointed("look-ahead"))),  # a point that replicas share
    "copied, sgd": Case(request_of(copied_and_continued(), replace(STABLE, learning_rate=0.01))),
    "copied, adamw": Case(request_of(copied_and_continued(), replace(ADAMW, learning_rate=0.01))),
    "paced": Case(request_of(synchronous([[4, 4]] * 3, dataset_samples=1437), pace=PACE)),
}


def test_every_rank_ends_with_the_parameters_of_one_process_and_paced_it_takes_its_time() -> None:
    replayed = dict(zip(CASES, replay_all([case.request for case in CASES.values()]), strict=True))
    off = {name: deviation(CASES[name].request, found) for name, found in replayed.items()}
    assert {name: value for name, value in off.items() if not value <= CASES[name].bound} == {}
    assert replayed["paced"].wall_s >= PACE * CASES["paced"].request.schedule.horizon_s > 1.0


def deviation(request: Request, found: Replayed) -> float:
    seen: dict[int, State] = {}
    in_process(request, seen.__setitem__)
    assert len(found.final) == make_orders(request.schedule).ranks and all(state > 0 for state in found.final)
    pairs = [(seen[s].parameters_P, p) for s, p in zip(found.final, found.parameters_P, strict=True)]
    assert all(a.dtype == b.dtype for a, b in pairs)
    return max(float((a - b).norm() / a.norm()) for a, b in pairs)


def test_the_cases_are_what_their_names_say() -> None:
    for name, rule in (("blend, adamw", PointRule.BLEND), ("look-ahead", PointRule.LOOK_AHEAD)):
        schedule = CASES[name].request.schedule
        points = schedule.rows(Kind.PREDICT)
        assert len(points) and (schedule.code[points] == rule).all()
    assert registry().keys() <= CASES.keys()


def test_snapshots_lie_at_equal_distances_up_to_the_last_state() -> None:
    assert _spread([1, 2, 3, 4, 5, 6], 50) == (1, 2, 3, 4, 5, 6)
    assert _spread(list(range(1, 101)), 4) == (25, 50, 75, 100)
    assert _spread([7], 3) == (7,) and _spread([], 3) == _spread([1], 0) == ()


# ---- refused before anything starts --------------------------------------------------------------------------------------


def test_a_step_on_a_transfer_that_waits_for_that_step_is_refused() -> None:
    """Worker 0 steps on a transfer that worker 1 joins later, with a gradient taken at what worker 0 has stepped to."""
    log = Log(2)
    for worker in (0, 1):
        log.add(Kind.GRAD, worker, 0.0, 1.0, state=0, slot=worker, samples=4, first=4 * worker)
    log.add(Kind.JOIN, 0, 1.0, 1.0, source=0, slot=0, samples=4)
    log.add(Kind.STEP, 1, 1.0, 1.0, state=1, parent=0, source=0, samples=8, first=8)
    log.add(Kind.GRAD, 1, 1.0, 2.0, state=1, slot=2, samples=4, first=8)
    log.add(Kind.JOIN, 1, 2.0, 2.0, source=0, slot=2, samples=4)
    log.add(Kind.REDUCE, -1, 2.0, 3.0, source=0, samples=8)
    with pytest.raises(ScheduleError, match=r"w1 waits for transfer 0, which w1 cannot join before"):
        replay(finish(log, 2, 1437), "digits-mlp", STABLE)


def test_a_step_on_a_transfer_that_never_completes_is_refused() -> None:
    log = Log(2)
    for worker in (0, 1):
        log.add(Kind.GRAD, worker, 0.0, 1.0, state=0, slot=worker, samples=4, first=4 * worker)
        log.add(Kind.JOIN, worker, 1.0, 1.0, source=0, slot=worker, samples=4)
    log.add(Kind.STEP, 0, 1.0, 1.0, state=1, parent=0, source=0, samples=8, first=8)
    with pytest.raises(ScheduleError, match="w0 waits for transfer 0"):
        replay(finish(log, 2, 1437), "digits-mlp", STABLE)


def test_ranks_that_wait_for_each_other_are_told_apart_from_ranks_that_do_not() -> None:
    wires = {t: Transfer((0, 1), ((0, 0, 1.0), (1, 0, 1.0)), False, False) for t in (0, 1)}
    ahead, behind = (Launch(0, 0.0), Launch(1, 0.0), Arrive(0, 0.0), Arrive(1, 0.0)), (Launch(0, 0.0), Arrive(0, 0.0))
    verify(Orders((ahead, (*behind, Launch(1, 0.0), Arrive(1, 0.0))), wires, (0, 0)), ["a", "b"])
    with pytest.raises(ScheduleError, match=r"a waits for transfer 1, which b cannot join before"):
        verify(Orders((ahead, behind), wires, (0, 0)), ["a", "b"])
    with pytest.raises(ScheduleError, match="in another order"):
        verify(Orders((ahead, (Launch(1, 0.0), Launch(0, 0.0))), wires, (0, 0)), ["a", "b"])


def test_a_state_that_nothing_makes_is_refused() -> None:
    log = Log(1)
    log.add(Kind.GRAD, 0, 0.0, 1.0, state=7, slot=0, samples=4, first=0)
    with pytest.raises(ScheduleError, match="w0 needs state 7, which nothing makes"):
        make_orders(finish(log, 1, 1437))
    with pytest.raises(UsageError, match="pace"):
        replay(synchronous([[4]]), "digits-mlp", STABLE, pace=0.0)


def test_an_error_of_a_rank_is_told_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="thinning"):
        replay(synchronous([[4, 4]]), "digits-mlp", STABLE, thinning=0)
    rule = UpdateRule(learning_rate=0.1, lr_rule="linear")
    object.__setattr__(rule, "reference_batch_samples", 0)  # past its checks here; the rank's refuse it
    with pytest.raises(RankFailedError, match=r"rank \d \(w\d\) failed: ValueError"):
        replay(synchronous([[4, 4]], dataset_samples=1437), "digits-mlp", rule, folder=tmp_path)
    assert not [*tmp_path.glob("*.tmp"), *tmp_path.glob(".*.tmp")]
