"""Checkpoints of live runs without processes: what programs were answered, samples that were claimed and lost, transfers in flight."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from live_clusters import two_workers
from test_live_parts import Counters

from abs_sgd.checkpoint import newest, read_share
from abs_sgd.gradients import FlatModel
from abs_sgd.runtime.answers import COMMANDS, Answers
from abs_sgd.runtime.clock import Stopwatch
from abs_sgd.runtime.keeper import Keeper
from abs_sgd.runtime.keeping import Keeping, Kept, keeping_of, together
from abs_sgd.runtime.rank import LiveRank
from abs_sgd.runtime.run import port_of
from abs_sgd.runtime.samples import SampleDispenser, SharedCount, holes_below
from abs_sgd.runtime.wire import LiveTransfer, Share, Wire
from abs_sgd.update import Updater, UpdateRule
from abs_sgd.workloads import get
from hetsim import commands as cmd
from hetsim.algorithms import make
from hetsim.errors import UsageError
from hetsim.schedule import PointRule

pytestmark = pytest.mark.torch

# ---- answers ---------------------------------------------------------------------------------------------------------------

PROGRAMS: list[tuple[str, dict[str, Any]]] = [
    ("s-sgd", {}),
    ("lb-bsp", {"dead_band": 0.0}),
    ("one-step-delay-balanced", {"dead_band": 0.0, "synchronous_updates": 2}),
    ("local-sgd", {"local_steps": 3, "by_speed": True, "dead_band": 0.0}),
    ("abs-sgd", {"trigger": "target_batch", "micro_batch": "equal-time", "max_local_batch": 40}),
    ("abs-sgd", {"trigger": "period_s", "period_s": 0.3}),
]


class World:
    """Answers a program's commands with what a seed says; nothing else changes what it does next."""

    def __init__(self, seed: int) -> None:
        self.luck, self.launched, self.gather = random.Random(seed), 0, ()

    def __call__(self, command: Any) -> Any:
        luck = self.luck
        match command:
            case cmd.Compute():
                return cmd.Computed(luck.choice([command.samples, command.samples, 0]), luck.uniform(0.1, 2.0))
            case cmd.AllReduce():
                self.launched, self.gather = self.launched + 1, command.gather
                return cmd.Handle(self.launched - 1)
            case cmd.Poll():
                return luck.random() < 0.5
            case cmd.Wait():
                others = tuple(value * luck.uniform(0.5, 4.0) for value in self.gather)
                return cmd.Reduced(luck.randint(0, 99), {0: self.gather, 1: others} if others else {}, (0, 1), False)
            case cmd.Apply() | cmd.Step() | cmd.Count():
                return luck.randint(0, 2**40)
            case cmd.Now():
                return luck.uniform(0.0, 1e6)
        return None


def shape(command: Any) -> Any:
    """What a command asks for, with a transfer by its number."""
    return type(command), *(value.id if isinstance(value, cmd.Handle) else value for value in command)


@settings(max_examples=40, deadline=None)
@given(which=st.sampled_from(PROGRAMS), before=st.integers(1, 80), seed=st.integers(0, 2**32))
def test_a_fresh_program_goes_on_where_the_saved_one_stood(
    which: tuple[str, dict[str, Any]], before: int, seed: int
) -> None:
    """From there on both do the same whatever happens: batches learned, lines fitted, counts."""
    algorithm, port = make(*which), port_of(two_workers(), 0)
    program, world, answers, answer = algorithm.worker(port), World(seed), Answers(), None
    for _ in range(before):
        command = program.send(answer)
        answer = world(command)
        answers.note(command, answer)
    again = Answers.of(answers.plain())
    assert (again.codes, again.values) == (answers.codes, answers.values)
    fresh = algorithm.worker(port_of(two_workers(), 0))
    handles: dict[int, cmd.Handle] = {}
    taken = again.feed(fresh, lambda number: handles.setdefault(number, cmd.Handle(number)))
    assert shape_of(taken) == shape_of(answer)
    mine = theirs = World(seed + 1)
    for _ in range(40):
        command, other = program.send(answer), fresh.send(taken)
        assert shape(command) == shape(other)
        answer = taken = mine(command)
    assert mine is theirs


def shape_of(answer: Any) -> Any:
    return answer.id if isinstance(answer, cmd.Handle) else answer


def test_answers_of_another_program_are_refused() -> None:
    port, answers = port_of(two_workers(), 0), Answers()
    answers.note(port.compute(4), cmd.Computed(4, 1.0))
    answers.note(port.all_reduce(), cmd.Handle(0))
    with pytest.raises(UsageError, match="another program"):
        answers.feed(make("local-sgd").worker(port), cmd.Handle)
    assert answers.feed(make("s-sgd").worker(port), cmd.Handle).id == 0
    assert list(answers.computed()) == [4]
    assert Answers().feed(make("s-sgd").worker(port), cmd.Handle) is None
    assert len(set(COMMANDS)) == 12  # places are the files' format


# ---- samples ---------------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    ranks=st.integers(1, 4),
    epoch=st.integers(1, 40),
    budget=st.integers(0, 150),
    breaks=st.lists(st.integers(0, 12), max_size=3),
    seed=st.integers(0, 2**32),
)
def test_no_sample_is_lost_or_used_twice_wherever_a_run_breaks(
    ranks: int, epoch: int, budget: int, breaks: list[int], seed: int
) -> None:
    """Each rank's share is taken at a moment of its own; what it did after that never happened."""
    choice = random.Random(seed)
    used: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    held: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    holes: list[tuple[int, int]] = []
    base = 0
    for moves in [*breaks, None]:
        store = Counters()
        desks = [
            SampleDispenser(lambda n, s=store: s.later("samples", n), epoch, budget, holes=holes, base=base, held=h)  # type: ignore[misc]
            for h in held
        ]
        saved_at = [choice.randint(0, moves) if moves is not None else 0 for _ in desks]
        shares: list[Any] = [None] * ranks
        active = set(range(ranks))
        done = [0] * ranks
        while active:
            rank = choice.choice(sorted(active))
            if moves is not None and done[rank] == saved_at[rank]:
                shares[rank] = (list(used[rank]), desks[rank].desk())
            if moves is not None and done[rank] > moves:
                active.remove(rank)
                continue
            done[rank] += 1
            taken = desks[rank].take(choice.randint(1, 15))
            used[rank] += taken
            if choice.random() < 0.7:
                desks[rank].ahead(choice.randint(1, 15))
            if not taken and moves is None:
                assert not desks[rank].has_more()
                active.remove(rank)
        if moves is not None:
            settled = [desk() for _, desk in shares]
            used, held = [share[0] for share in shares], [ranges for ranges, _ in settled]
            everything = [r for ranges in (*used, *held) for r in ranges]
            base = max([reach for _, reach in settled] + [first + count for first, count in everything])
            holes = holes_below(base, everything)
    numbers = [n for ranges in used for first, count in ranges for n in range(first, first + count)]
    assert sorted(numbers) == list(range(budget))
    assert all(f // epoch == (f + c - 1) // epoch for ranges in used for f, c in ranges)


def test_holes_are_what_nobody_used_or_holds() -> None:
    assert holes_below(0, []) == []
    assert holes_below(5, []) == [(0, 5)]
    assert holes_below(20, [(10, 2), (0, 4), (4, 1)]) == [(5, 5), (12, 8)]
    with pytest.raises(UsageError, match="sample 3 is in two shares"):
        holes_below(9, [(0, 4), (3, 2)])


# ---- transfers in flight ---------------------------------------------------------------------------------------------------


class Alone(Wire):
    """A group of one: a transfer is complete once it has been asked for so often."""

    def __init__(self, size: int, patience: int) -> None:
        super().__init__(0, 1, size, torch.float64)
        self.patience = patience
        self.asked: dict[int, int] = {}

    def start(self, buffer_P: torch.Tensor, share: Share, sent: Sequence[Any] = ()) -> LiveTransfer:
        self.launched += 1
        return LiveTransfer(self.launched - 1, buffer_P, self._row(share), [])

    def complete(self, transfer: LiveTransfer) -> bool:
        self.asked[transfer.id] = self.asked.get(transfer.id, 0) + 1
        return self.asked[transfer.id] > self.patience


def deep(w: cmd.Port) -> Iterator[Any]:
    """Two transfers in flight while the third batch is computed; each is polled before it is applied."""
    flying: list[Any] = []
    while True:
        done = yield w.compute(3)
        yield w.poll(flying[-1]) if flying else w.now()
        if len(flying) == 2 or not done.samples:
            first = flying.pop(0)
            reduced = yield w.wait(first)
            yield w.apply(first)
            if reduced.stop:
                return
        flying.append((yield w.all_reduce(gather=(1.5,))))
        yield w.predict(flying[-1])


def crossed(w: cmd.Port) -> Iterator[Any]:
    """Applies the later transfer first."""
    while True:
        handles = []
        for _ in range(2):
            yield w.compute(3)
            handles.append((yield w.all_reduce()))
        for handle in reversed(handles):
            reduced = yield w.wait(handle)
            yield w.apply(handle)
        if reduced.stop:
            return


def ranked(
    program: Any, folder: Path, resume: int = 0, every: int = 4, updates: int = 13, patience: int = 1
) -> tuple[LiveRank, Keeper]:
    """A rank alone with its program, gone on from a checkpoint where one is named."""
    task = get("digits-mlp", dtype=torch.float64)
    model = FlatModel(task.make_model(0))
    keeper = Keeper(Keeping(folder=str(folder), every=every, resume=resume), 0, 1)
    kept = keeper.keeping.start(0, 1)
    _, holes, base = together([kept.account(0)]) if kept else (0.0, [], 0)
    store = Counters()
    clock = iter(range(int(kept.time_s) + 1 if kept else 0, 10**9))
    live = LiveRank(
        port=port_of(two_workers(), 0),
        algorithm=SimpleNamespace(
            name="deep", worker=program, point_rule=lambda workers: (PointRule.LOCAL_PREDICTION, 1.0)
        ),  # type: ignore[arg-type]
        task=task,
        seed=0,
        updater=Updater(UpdateRule(learning_rate=0.05, momentum=0.9)),
        model=model,
        wire=Alone(model.size, patience),
        dispenser=SampleDispenser(
            lambda n: store.later("samples", n), 20, 10**6, holes=holes, base=base, held=kept.ranges if kept else ()
        ),
        counter=SharedCount(store.later),
        watch=Stopwatch(lambda: float(next(clock))),
        max_updates=updates,
        keeper=keeper,
    )
    if kept:
        keeper.resume(live, kept)
    return live, keeper


@pytest.mark.parametrize("patience", [0, 1], ids=["seen complete", "not seen"])
def test_what_is_in_flight_is_launched_again(patience: int, tmp_path: Path) -> None:
    whole, keeper = ranked(deep, tmp_path / "whole", patience=patience)
    whole.run()
    keeper.close()
    assert newest(tmp_path / "whole").update == 12  # type: ignore[union-attr]
    broken, keeper = ranked(deep, tmp_path / "broken", updates=6, patience=patience)
    broken.run()
    keeper.close()
    found = newest(tmp_path / "broken")
    assert found is not None and found.update == 4
    flying = read_share(found, 0)["flying"]
    assert [(f["number"], f["seen"]) for f in flying] == [(4, patience == 0)]
    again, keeper = ranked(deep, tmp_path / "broken", resume=4, patience=patience)
    again.run()
    keeper.close()
    assert torch.equal(again.version.state.parameters_P, whole.version.state.parameters_P)
    assert keeper.before == [4]
    columns = [0, *range(4, 12)]  # all but the times
    one, two = ([tuple(row[c] for c in columns) for row in live.log.rows] for live in (whole, again))
    assert one == two
    assert again.log.polls == whole.log.polls
    assert again.noise == whole.noise


def test_transfers_applied_in_another_order_than_launched_cannot_be_saved(tmp_path: Path) -> None:
    live, _ = ranked(crossed, tmp_path, every=1)
    with pytest.raises(UsageError, match="applies transfer 1 before transfer 0, which was launched earlier"):
        live.run()


def test_a_checkpoint_that_cannot_be_written_stops_the_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    live, _ = ranked(deep, tmp_path / "file")
    with pytest.raises(OSError):
        live.run()


# ---- who may go on from what -----------------------------------------------------------------------------------------------


def keeping(
    folder: Path, algorithm: str = "s-sgd", *, every: int = 2, resume: bool = False, seed: int = 0
) -> Keeping | None:
    rule = UpdateRule(learning_rate=0.05)
    return keeping_of(folder, every, resume, two_workers(), make(algorithm), "digits-mlp", {}, rule, seed)


def test_a_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    from abs_sgd.checkpoint import seal, write_share

    assert keeping(tmp_path, every=0) is None
    first = keeping(tmp_path)
    assert first is not None and (first.resume, first.every) == (0, 2)
    assert keeping(tmp_path, resume=True).resume == 0  # type: ignore[union-attr]
    for rank in range(2):
        write_share(first.folder, 4, rank, {"ranges": [], "reach": 0, "time_s": 1.0})
    write_share(first.folder, 6, 0, {})  # its rank 1 died
    seal(first.folder, 4, 2, {"run": first.run})
    with pytest.raises(UsageError, match="holds checkpoints of an earlier run, the newest of update 4"):
        keeping(tmp_path)
    assert keeping(tmp_path, resume=True).resume == 4  # type: ignore[union-attr]
    assert not list(Path(first.folder).glob("update-000000006*"))
    with pytest.raises(UsageError, match="of another run: it had seed 0, now 1"):
        keeping(tmp_path, resume=True, seed=1)
    with pytest.raises(UsageError, match="it had algorithm 's-sgd', now 'lb-bsp'"):
        keeping(tmp_path, "lb-bsp", resume=True)
    with pytest.raises(UsageError, match="asgd: runs with a parameter server cannot be saved"):
        keeping(tmp_path / "other", "asgd")
    with pytest.raises(UsageError, match="at least 1"):
        keeping(tmp_path, every=-1)


def test_shares_are_put_together_by_the_latest_clock_and_the_farthest_claim() -> None:
    def account(reach: int, time_s: float, ranges: list[tuple[int, int]]) -> bytes:
        held = {"reach": reach, "time_s": time_s, "ranges": ranges}
        nothing = {"rows": torch.empty(0, dtype=torch.uint8), "polls": torch.empty(0, dtype=torch.uint8)}
        none = {"seen": torch.empty(0, 2), "outcomes": torch.empty(0, dtype=torch.float64)}
        return Kept({**held, **nothing, **none}, Path()).account(0)

    assert together([account(8, 2.0, [(0, 3)]), account(12, 1.5, [(4, 4)])]) == (2.0, [(3, 1), (8, 4)], 12)
    assert together([account(0, 0.0, [])]) == (0.0, [], 0)
    assert np.isclose(together([account(1, 3.25, [(0, 1)])])[0], 3.25)
