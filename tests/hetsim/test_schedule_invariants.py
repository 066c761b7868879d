"""Every invariant of a Schedule has a change of one entry that breaks it, and is found."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from handmade_clusters import cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from hetsim.algorithms import registry
from hetsim.cluster.spec import Link
from hetsim.errors import ScheduleError
from hetsim.schedule import Kind, Schedule
from hetsim.schedule.check import check
from hetsim.schedule.log import DTYPE
from hetsim.simulate import simulate

COLUMNS = DTYPE.names or ()


def made(name: str, **more: Any) -> Schedule:
    """Two workers exact in binary, as in test_golden; an epoch is 16 samples."""
    c = cluster(
        [1.0, 0.5],
        gradient_bytes=4.0,
        bandwidths=[2.0, 4.0],
        server=Link(bytes_per_s=4.0),
        global_batch_samples=4,
        micro_batch_samples=1,
        dataset_samples=16,
    )
    return simulate(c, name, **{"updates": 8, **more}).schedule


SCHEDULES = {name: made(name) for name in registry()}


def changed(s: Schedule, column: str, row: int, value: float) -> Schedule:
    array = getattr(s, column).copy()
    array[row] = value
    return dataclasses.replace(s, **{column: array})


def nth(s: Schedule, kind: Kind, n: int, **where: int) -> int:
    """Row of the n-th of its kind."""
    rows = s.rows(kind)
    for column, value in where.items():
        rows = rows[getattr(s, column)[rows] == value]
    return int(rows[n])


Mutation = tuple[str, Callable[[Schedule], Schedule], str]
SYNC, ABS, LOCAL, ASGD = "s-sgd", "abs-sgd", "local-sgd", "asgd"

MUTATIONS: list[Mutation] = [
    # columns
    (SYNC, lambda s: changed(s, "kind", 3, 9), "a kind of row that is not known"),
    (SYNC, lambda s: changed(s, "kind", 3, -1), "a kind of row that is not known"),
    (SYNC, lambda s: changed(s, "worker", 0, 2), "no such worker"),
    (SYNC, lambda s: changed(s, "worker", 0, -2), "no such worker"),
    (ASGD, lambda s: changed(s, "worker", nth(s, Kind.STEP, 0), 3), "no such worker"),
    (SYNC, lambda s: changed(s, "worker", 0, -1), "done by nobody"),
    (SYNC, lambda s: changed(s, "scale", 0, np.nan), "a weight that is not finite"),
    (SYNC, lambda s: changed(s, "samples", nth(s, Kind.REDUCE, 0), -4), "fewer than no samples"),
    (SYNC, lambda s: changed(s, "state", 0, -2), "state below -1"),
    (SYNC, lambda s: changed(s, "slot", 0, 10**6), "slot beyond what so few rows can number"),
    (SYNC, lambda s: changed(s, "source", nth(s, Kind.JOIN, 0), 2**31 - 1), "source beyond"),
    (SYNC, lambda s: changed(s, "slot", 0, -1), "GRAD without its slot"),
    (SYNC, lambda s: changed(s, "source", nth(s, Kind.JOIN, 0), -1), "JOIN without its source"),
    (SYNC, lambda s: changed(s, "parent", nth(s, Kind.STEP, 0), -1), "STEP without its parent"),
    (LOCAL, lambda s: changed(s, "source", nth(s, Kind.MIX, 0), -1), "MIX without its source"),
    (ASGD, lambda s: changed(s, "state", nth(s, Kind.COPY, 0), -1), "COPY without its state"),
    (ABS, lambda s: changed(s, "parent", nth(s, Kind.PREDICT, 0), -1), "PREDICT without its parent"),
    (SYNC, lambda s: changed(s, "code", nth(s, Kind.WAIT, 0), 7), "WAIT with a code that is not known"),
    (ABS, lambda s: changed(s, "code", nth(s, Kind.PREDICT, 0), 99), "PREDICT with a code"),
    (SYNC, lambda s: dataclasses.replace(s, kind=s.kind[:-1]), "columns of unequal length"),
    (SYNC, lambda s: dataclasses.replace(s, header=dataclasses.replace(s.header, dataset_samples=0)), "a data set"),
    (SYNC, lambda s: dataclasses.replace(s, header=dataclasses.replace(s.header, workers=())), "needs workers"),
    # clock
    (SYNC, lambda s: changed(s, "start_s", 0, np.nan), "a time is not finite"),
    (SYNC, lambda s: changed(s, "end_s", len(s) - 1, np.inf), "a time is not finite"),
    (SYNC, lambda s: changed(s, "start_s", 0, 3.0), "ends before it starts"),
    (SYNC, lambda s: changed(s, "end_s", nth(s, Kind.REDUCE, 0), 7.0), "the clock runs backwards"),
    (SYNC, lambda s: changed(s, "start_s", nth(s, Kind.WAIT, 0, worker=0), 1.0), "a worker does two things at once"),
    (SYNC, lambda s: changed(s, "start_s", nth(s, Kind.WAIT, 0, worker=0), 2.5), "time of a worker is unaccounted for"),
    (SYNC, lambda s: changed(s, "start_s", nth(s, Kind.GRAD, 0, worker=0), 0.5), "time of a worker is unaccounted for"),
    # ranges
    (SYNC, lambda s: changed(s, "samples", 0, 0), "a gradient over no samples"),
    (SYNC, lambda s: changed(s, "first", 0, -2), "a sample number below 0"),
    (SYNC, lambda s: changed(s, "first", nth(s, Kind.GRAD, 1), 1), "samples handed out twice"),
    (SYNC, lambda s: changed(s, "samples", nth(s, Kind.GRAD, 0), 3), "samples handed out twice"),
    (SYNC, lambda s: changed(s, "samples", nth(s, Kind.GRAD, 0), 1), "were never computed"),
    (SYNC, lambda s: dataclasses.replace(s, header=dataclasses.replace(s.header, dataset_samples=15)), "crosses the end of an epoch"),
    (SYNC, lambda s: dataclasses.replace(s, first=s.first + 16 * (s.kind == Kind.GRAD)), "were never computed"),
    # causality
    (SYNC, lambda s: changed(s, "slot", nth(s, Kind.GRAD, 1), 0), "an accumulator of two workers"),
    (SYNC, lambda s: changed(s, "slot", nth(s, Kind.JOIN, 0), 40), "uses a gradient that was never computed"),
    (SYNC, lambda s: changed(s, "slot", nth(s, Kind.JOIN, 0), 2), "uses a gradient before it is complete"),
    (SYNC, lambda s: changed(s, "slot", nth(s, Kind.JOIN, 2), 0), "a gradient is used twice"),
    (SYNC, lambda s: changed(s, "state", nth(s, Kind.GRAD, 0), 1), "reads parameters that do not exist yet"),
    (SYNC, lambda s: changed(s, "state", nth(s, Kind.GRAD, 0), 30), "reads parameters that do not exist yet"),
    (LOCAL, lambda s: changed(s, "state", nth(s, Kind.JOIN, 0), 30), "reads parameters that do not exist yet"),
    (ASGD, lambda s: changed(s, "state", nth(s, Kind.COPY, 0), 1), "reads parameters that do not exist yet"),
    (SYNC, lambda s: changed(s, "parent", nth(s, Kind.STEP, 0), 2), "starts from parameters that do not exist yet"),
    (SYNC, lambda s: changed(s, "parent", nth(s, Kind.STEP, 0), 1), "starts from parameters that do not exist yet"),
    (LOCAL, lambda s: changed(s, "parent", nth(s, Kind.MIX, 0), 40), "starts from parameters that do not exist yet"),
    ("one-step-delay", lambda s: changed(s, "state", nth(s, Kind.GRAD, 1, worker=1), 1), "parameters from the future"),
    (SYNC, lambda s: changed(s, "source", nth(s, Kind.STEP, 0), 1), "applies a transfer before it is complete"),
    (SYNC, lambda s: changed(s, "source", nth(s, Kind.REDUCE, 1), 0), "before it is complete|already complete"),
    (LOCAL, lambda s: changed(s, "source", nth(s, Kind.MIX, 0), 1), "applies a transfer before it is complete"),
    (SYNC, lambda s: changed(s, "source", nth(s, Kind.JOIN, 2), 0), "joins a transfer that is already complete"),
    # account
    (SYNC, lambda s: changed(s, "samples", nth(s, Kind.STEP, 0), 5), "an update's samples are not those of its contributions"),
    (SYNC, lambda s: changed(s, "samples", nth(s, Kind.JOIN, 0), 3), "an update's samples are not those"),
    (SYNC, lambda s: changed(s, "source", nth(s, Kind.STEP, 1), 0), "applied in two different updates"),
    (LOCAL, lambda s: changed(s, "samples", nth(s, Kind.STEP, 0), 3), "hands over other samples than were computed"),
    ("one-step-delay", lambda s: changed(s, "samples", nth(s, Kind.DISCARD, 0), 3), "hands over other samples than were computed"),
    (SYNC, lambda s: changed(s, "slot", nth(s, Kind.JOIN, -1), -1), "not those of its contributions"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "mutate", "message"), MUTATIONS, ids=[f"{i}-{m[2][:40]}" for i, m in enumerate(MUTATIONS)]
)
def test_one_change_is_found(name: str, mutate: Callable[[Schedule], Schedule], message: str) -> None:
    s = SCHEDULES[name]
    check(s)
    with pytest.raises(ScheduleError, match=message):
        check(mutate(s))


def test_a_measured_schedule_may_have_gaps() -> None:
    """Real workers do things that nobody times."""
    s = SCHEDULES[SYNC]
    measured = dataclasses.replace(s, header=dataclasses.replace(s.header, origin="measured"))
    gap = changed(measured, "start_s", nth(s, Kind.WAIT, 0, worker=0), 2.5)
    check(gap)
    with pytest.raises(ScheduleError, match="two things at once"):
        check(changed(measured, "start_s", nth(s, Kind.WAIT, 0, worker=0), 1.0))


@settings(max_examples=500, deadline=None)
@given(st.sampled_from(sorted(registry())), st.data())
def test_any_change_is_judged_and_never_crashes(name: str, data: st.DataObject) -> None:
    """Whatever is put where, the answer is an account or a ScheduleError; so are the updates and the timing of what passes."""
    s = SCHEDULES[name]
    for _ in range(data.draw(st.integers(1, 3))):
        column = data.draw(st.sampled_from(COLUMNS))
        row = data.draw(st.integers(0, len(s) - 1))
        kind = DTYPE[column].kind
        if kind == "f":
            value: float = data.draw(st.one_of(st.floats(), st.sampled_from(s.end_s.tolist())))
        else:
            bits = 8 * DTYPE[column].itemsize - 1
            value = data.draw(st.one_of(st.integers(-3, 20), st.integers(-(2**bits), 2**bits - 1)))
        s = changed(s, column, row, value)
    try:
        account = check(s)
    except ScheduleError:
        return
    assert account.handed_out == account.applied + account.in_flight + account.discarded
    assert account.in_flight >= 0


# ---- promises of the algorithms ---------------------------------------------------------------------------------------------------


def point_of(s: Schedule, update: int, worker: int) -> int:
    """A row of the gradient that `worker` put into an update."""
    u = s.updates
    slot = int(u.slot[(u.owner == update) & (u.worker == worker)][0])
    return int(s.rows(Kind.GRAD)[s.slot[s.rows(Kind.GRAD)] == slot][-1])


@pytest.mark.parametrize("name", ["s-sgd", "lb-bsp"])
def test_a_stale_gradient_breaks_the_synchronous_promise(name: str) -> None:
    s = SCHEDULES[name]
    broken = changed(s, "state", point_of(s, 5, 1), 4)
    check(broken)
    with pytest.raises(ScheduleError, match="a synchronous update uses a stale gradient"):
        registry()[name]().check(broken)


@pytest.mark.parametrize("name", ["one-step-delay", "one-step-delay-balanced", "abs-sgd"])
def test_two_updates_of_delay_break_the_promise(name: str) -> None:
    s = SCHEDULES[name]
    older = int(s.state[point_of(s, 4, 1)])
    broken = changed(s, "state", point_of(s, 5, 1), older)
    check(broken)
    with pytest.raises(ScheduleError, match="update 5 uses a gradient 2 updates old, promised 1"):
        registry()[name]().check(broken)


@pytest.mark.parametrize("name", ["one-step-delay", "abs-sgd"])
def test_a_fork_breaks_the_sequence(name: str) -> None:
    s = SCHEDULES[name]
    steps = s.rows(Kind.STEP)
    broken = changed(s, "parent", int(steps[s.state[steps] == s.updates.state[3]][0]), int(s.updates.state[1]))
    with pytest.raises(ScheduleError, match="one sequence"):
        registry()[name]().check(broken)


def test_ssp_notices_a_worker_too_far_ahead() -> None:
    """A log of asynchronous SGD with one worker four times as fast breaks the promise of s = 1."""
    c = cluster([4.0, 1.0], global_batch_samples=4)
    s = simulate(c, "asgd", updates=40).schedule
    ssp = registry()["ssp"]
    with pytest.raises(ScheduleError, match="clocks ahead of the slowest, promised 1"):
        ssp(ssp.Options(staleness=1)).check(s)
    ssp(ssp.Options(staleness=1000)).check(s)


def test_measured_workers_need_not_begin_together() -> None:
    """The first row to end may be of a pass that began after another: x_0 was there all along."""
    s = SCHEDULES[SYNC]
    measured = dataclasses.replace(s, header=dataclasses.replace(s.header, origin="measured"))
    check(changed(measured, "start_s", nth(s, Kind.GRAD, 0, worker=0), 0.5))
