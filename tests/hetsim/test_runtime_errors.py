"""Programs that break the contract fail with an error that names who and what, and never hang."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from handmade_clusters import cluster
from throwaway_algorithms import temporary_registry

from hetsim.algorithms import registry
from hetsim.algorithms.base import Algorithm, OneUpdateDelay, Program
from hetsim.cluster.spec import Cluster
from hetsim.commands import Port, ServerPort
from hetsim.errors import DeadlockError, ProgramError, UsageError
from hetsim.schedule import DiscardReason, Kind
from hetsim.simulate import Result, simulate


def three(**more: Any) -> Cluster:
    return cluster([4.0, 2.0, 1.0], gradient_bytes=4.0, bandwidths=[2.0] * 3, global_batch_samples=12, **more)


def run(
    program: Callable[[Port], Program],
    *,
    serving: Callable[[ServerPort], Program] | None = None,
    base: type[Algorithm] = Algorithm,
    c: Cluster | None = None,
    **budget: int,
) -> Result:
    """Simulate a program that is not registered afterwards."""
    with temporary_registry():

        class Odd(base, name="odd"):  # type: ignore[misc, valid-type]
            """An algorithm of a test."""

            has_server = serving is not None

            def worker(self, w: Port) -> Program:
                return program(w)

            def server(self, s: ServerPort) -> Program:
                assert serving is not None
                return serving(s)

        return simulate(c or three(), Odd(), **(budget or {"updates": 3}))


def test_the_registry_forgets() -> None:
    before = list(registry())
    run(synchronous)
    assert list(registry()) == before


def synchronous(w: Port) -> Program:
    while True:
        yield w.compute(w.batch)
        sync = yield w.all_reduce()
        reduced = yield w.wait(sync)
        yield w.apply(sync)
        if reduced.stop:
            return


def test_a_rank_that_never_joins() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        if w.name == "b":
            return
        sync = yield w.all_reduce()
        yield w.wait(sync)

    with pytest.raises(DeadlockError) as caught:
        run(program)
    text = str(caught.value)
    assert caught.value.now_s == 4.0  # c's batch
    assert "rank 0 (a): waits for all-reduce 0, joined by 2 of 3, missing: b; 0 updates applied" in text
    assert "rank 1 (b): finished" in text
    assert len(caught.value.grid) == 3


def test_ranks_that_launch_unequal_collectives() -> None:
    """Group and whole: each waits for the other kind."""

    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        sync = yield w.all_reduce(group=(0, 1)) if w.rank == 0 else w.all_reduce()
        yield w.wait(sync)

    with pytest.raises(DeadlockError) as caught:
        run(program)
    text = str(caught.value)
    assert "rank 0 (a): waits for all-reduce 0, joined by 1 of 2, missing: b" in text
    assert "rank 2 (c): waits for all-reduce 1, joined by 2 of 3, missing: a" in text


def test_a_server_that_does_not_answer() -> None:
    def program(w: Port) -> Program:
        yield w.wait((yield w.pull()))

    def server(s: ServerPort) -> Program:
        while True:
            yield s.receive()

    with pytest.raises(DeadlockError) as caught:
        run(program, serving=server)
    assert "rank 1 (b): waits for pull 1 of b" in str(caught.value)
    assert "(server): waits for a message" in str(caught.value)


def test_a_server_that_leaves() -> None:
    def program(w: Port) -> Program:
        yield w.wait((yield w.pull()))

    def server(s: ServerPort) -> Program:
        yield s.reply((yield s.receive()))

    with pytest.raises(DeadlockError, match=r"\(server\): finished"):
        run(program, serving=server)


def test_deadlock_is_found_although_events_are_still_to_come() -> None:
    from hetsim.cluster.spec import Slowdown

    def program(w: Port) -> Program:
        if w.rank:
            yield w.wait((yield w.all_reduce()))

    with pytest.raises(DeadlockError, match="missing: a"):
        run(program, c=three(slowdowns={0: (Slowdown(at_s=50.0, until_s=60.0, factor=2.0),)}))


def test_polling_for_ever() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        sync = yield w.all_reduce()
        while not (yield w.poll(sync)):
            pass

    with pytest.raises(ProgramError, match=r"odd: a gave 100,000 commands at 1 s .*must wait, not poll"):
        run(program)


def test_polling_on_the_end_of_the_data() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        sync = yield w.all_reduce()
        while not (yield w.poll(sync)):
            yield w.compute(w.batch)

    with pytest.raises(ProgramError, match="must wait, not poll"):
        run(program, max_samples=12)


def test_passes_that_take_no_time_beside_a_network_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that is infinitely fast would compute for ever before its first synchronization is through."""
    monkeypatch.setattr("hetsim.schedule.log.MOST_BLOCKS_AT_ONE_INSTANT", 3)
    c = cluster([math.inf] * 2, gradient_bytes=4.0, bandwidths=[2.0] * 2, global_batch_samples=8, micro_batch_samples=4)
    with pytest.raises(ProgramError, match="6,144 operations at 0 s without the clock moving"):
        simulate(c, "abs-sgd", updates=3)


@pytest.mark.parametrize("what", ["apply", "merge"])
def test_using_what_is_not_complete(what: str) -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        sync = yield w.all_reduce("parameters" if what == "merge" else "gradients")
        yield w.apply(sync) if what == "apply" else w.merge(sync)

    with pytest.raises(ProgramError, match=f"odd: a .*{what.rstrip('y')}.* transfer 0 before it is complete"):
        run(program)


@pytest.mark.parametrize("yielded", [None, 3, "compute", (1, 2), object()])
def test_what_is_no_command(yielded: Any) -> None:
    def program(w: Port) -> Program:
        yield yielded

    with pytest.raises(ProgramError, match="which is no command"):
        run(program)


def test_predicting_from_an_old_transfer() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        old = yield w.all_reduce()
        yield w.wait(old)
        yield w.compute(w.batch)
        yield w.all_reduce()
        yield w.predict(old)

    with pytest.raises(ProgramError, match="odd: a predicts from a transfer that was not its last"):
        run(program, base=OneUpdateDelay)


def test_a_group_one_is_not_in() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        yield w.all_reduce(group=(1, 2))

    with pytest.raises(ProgramError, match=r"a starts a collective of a group it is not in: \(1, 2\)"):
        run(program)


def test_an_unknown_reason_to_discard() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        yield w.discard("boredom")

    with pytest.raises(ProgramError, match="'boredom'"):
        run(program)


def test_an_unknown_cause_of_waiting() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        yield w.wait((yield w.all_reduce()), "boredom")

    with pytest.raises(ProgramError, match="'boredom'"):
        run(program)


def test_an_error_of_the_program_itself_comes_out_as_it_is() -> None:
    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        raise RuntimeError("not until tomorrow")

    with pytest.raises(RuntimeError, match="tomorrow"):
        run(program)


@pytest.mark.parametrize("budget", [{"updates": 0}, {"max_samples": 0}, {"updates": -1}])
def test_nothing_to_do(budget: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="at least one update and one sample"):
        simulate(three(), "s-sgd", **budget)  # type: ignore[arg-type]


# ---- what no shipped algorithm uses yet ------------------------------------------------------------------------------------------


def test_two_collectives_in_a_row() -> None:
    """The second carries what is left: nothing. Both joins are in the log."""

    def program(w: Port) -> Program:
        while True:
            yield w.compute(w.batch)
            first = yield w.all_reduce()
            second = yield w.all_reduce()
            yield w.wait(first)
            yield w.apply(first)
            reduced = yield w.wait(second)
            yield w.apply(second)
            if reduced.stop:
                return

    s = run(program, updates=4).schedule
    joins = s.rows(Kind.JOIN)
    assert s.source[joins].tolist() == [0, 1] * 3 + [2, 3] * 3
    assert s.samples[joins].tolist() == [4, 0] * 6
    assert s.updates.samples.tolist() == [12, 12]


def test_discarding_and_draws() -> None:
    drawn: dict[str, list[float]] = {"a": [], "b": [], "c": []}

    def program(w: Port) -> Program:
        for _ in range(2):
            drawn[w.name].append((yield w.draw("coin")))
            assert (yield w.discard("late")) == 0
            yield w.compute(3)
            assert (yield w.discard("time-limit")) == 3

    s = run(program).schedule
    dropped = s.rows(Kind.DISCARD)
    assert s.samples[dropped].tolist() == [3] * 6
    assert set(s.code[dropped].tolist()) == {DiscardReason.TIME_LIMIT}
    flat = [x for xs in drawn.values() for x in xs]
    assert len(set(flat)) == 6 and all(0 <= x < 1 for x in flat)


def test_a_group_by_itself() -> None:
    """a and b average in a group of two: 2(n-1)/n · 4 bytes on 2 bytes/s is 2 s; c computes alone."""

    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        if w.rank < 2:
            sync = yield w.all_reduce(group=(0, 1))
            reduced = yield w.wait(sync)
            assert (reduced.samples, reduced.contributors) == (8, (0, 1))
            yield w.apply(sync)

    s = run(program).schedule
    reduce = s.rows(Kind.REDUCE)
    assert (s.start_s[reduce].tolist(), s.end_s[reduce].tolist()) == ([2.0], [4.0])
    assert s.samples[s.rows(Kind.DISCARD)].tolist() == [4]  # c's gradient, never used


def test_what_rides_along_reaches_everybody() -> None:
    seen = []

    def program(w: Port) -> Program:
        yield w.compute(w.batch)
        sync = yield w.all_reduce(gather=(float(w.rank), 0.5))
        reduced = yield w.wait(sync)
        seen.append(reduced.gathered)
        yield w.apply(sync)

    run(program, updates=1)
    assert seen == [{0: (0.0, 0.5), 1: (1.0, 0.5), 2: (2.0, 0.5)}] * 3


def test_a_server_knows_its_workers() -> None:
    known = []

    def program(w: Port) -> Program:
        yield w.wait((yield w.pull()))

    def server(s: ServerPort) -> Program:
        known.append((s.n, s.batches))
        while True:
            yield s.reply((yield s.receive()))

    run(program, serving=server, c=cluster([1.0] * 3, global_batch_samples=11))
    assert known == [(3, (4, 4, 3))]
