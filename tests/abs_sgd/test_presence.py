"""Who is there, who is gone, who is awaited: told by what ranks leave in the store."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace

import pytest
import torch.distributed as dist

from abs_sgd import presence as module
from abs_sgd.presence import MissingRankError, Presence, assemble, spoken

pytestmark = pytest.mark.torch
NAMES = ("a", "b", "c")


class Held:
    """A store in this process; `lost`: every call fails, as when its machine is gone."""

    def __init__(self) -> None:
        self.values: dict[str, bytes] = {}
        self.lost = False

    def _there(self) -> None:
        if self.lost:
            raise dist.DistNetworkError("connection reset")

    def set(self, key: str, value: str, /) -> None:
        self._there()
        self.values[key] = value.encode()

    def get(self, key: str, /) -> bytes:
        self._there()
        return self.values[key]

    def check(self, keys: list[str], /) -> bool:
        self._there()
        return all(key in self.values for key in keys)


def attempt(store: Held, ranks: tuple[int, ...], timeout_s: float) -> dict[int, str | MissingRankError]:
    found: dict[int, str | MissingRankError] = {}

    def come(rank: int) -> None:
        try:
            found[rank] = assemble(store, rank, NAMES, timeout_s)
        except MissingRankError as error:
            found[rank] = error

    threads = [threading.Thread(target=come, args=(rank,)) for rank in ranks]
    for thread in threads:
        thread.start()
        time.sleep(0.02)  # late is not missing
    for thread in threads:
        thread.join()
    return found


def test_all_come_and_a_second_attempt_on_the_same_store_is_another() -> None:
    """torchrun keeps its store when it starts ranks again: what the first attempt left there must not be believed."""
    store, names = Held(), set()
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        found = attempt(store, order, 20.0)
        assert len(set(found.values())) == 1 and len(found) == 3
        names.add(found[0])
    assert len(names) == 3


@pytest.mark.parametrize(
    ("there", "missing"), [((0, 1), "rank 2 (c)"), ((1, 2), "rank 0 (a)"), ((0,), "ranks 1 (b) and 2 (c)")]
)
def test_ranks_that_never_come_are_named_by_all_that_did(there: tuple[int, ...], missing: str) -> None:
    store = Held()
    attempt(store, (0, 1, 2), 20.0)  # an earlier attempt in which they came
    for error in attempt(store, there, 0.4).values():
        assert isinstance(error, MissingRankError) and str(error).startswith(f"{missing} did not come up within 0 s")


def test_ranks_in_words() -> None:
    assert spoken([2], NAMES) == "rank 2 (c)"
    assert spoken([0, 1, 2], NAMES) == "ranks 0 (a), 1 (b) and 2 (c)"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "NOTE_S", 0.02)
    monkeypatch.setattr(module, "ANSWER_S", 0.5)


def here(store: Held, rank: int, updates: int = 0) -> Presence:
    made = Presence(store, rank, NAMES, lambda: "the last checkpoint is of update 30 in run")
    made.watch(SimpleNamespace(updates=updates, wire=SimpleNamespace(launched=updates + 1, waiting=None)))
    return made


def test_a_silent_rank_is_named_with_its_last_update_and_the_last_checkpoint(quick: None) -> None:
    store = Held()
    present = [here(store, rank, 35 + rank) for rank in range(3)]
    time.sleep(0.2)
    present[2].close()  # killed: its thread says nothing more
    verdict = present[0].verdict()
    assert verdict == "rank 2 (c) is gone; its last update was 37; the last checkpoint is of update 30 in run"
    present[1].close()
    del store.values["alive/1"]
    assert present[0].verdict().startswith("ranks 1 (b) and 2 (c) are gone; their last updates were 36 and 37")
    present[0].close()


def test_a_rank_that_computes_is_not_gone_and_one_that_failed_left_a_word(quick: None) -> None:
    """Its thread answers while its program is busy."""
    store = Held()
    present = [here(store, rank) for rank in range(3)]
    assert present[1].verdict() == ""
    present[2].failed("no memory left")
    present[2].close()
    assert present[1].verdict().startswith("rank 2 (c) failed: no memory left; the last checkpoint")
    assert present[0].verdict(patient=False).startswith("rank 2 (c) failed")
    for each in present:
        each.close()


def test_without_its_store_a_rank_says_whose_machine_is_gone(quick: None) -> None:
    store = Held()
    one = here(store, 1)
    store.lost = True
    assert one.verdict().startswith("the job's store is gone, and with it rank 0 (a) or its machine")
    one.failed("nobody hears it")
    one.close()


def test_who_waits_long_says_for_whom(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "PATIENCE_S", 0.3)
    store = Held()
    present = [here(store, rank, updates) for rank, updates in ((0, 7), (1, 7), (2, 5))]
    time.sleep(0.2)
    waits = SimpleNamespace(updates=7, wire=SimpleNamespace(launched=8, waiting=(7, time.monotonic())))
    present[0].watch(waits)
    time.sleep(1.0)
    for each in present:
        each.close()
    said = capsys.readouterr().err.splitlines()
    assert said and len(said) <= 4  # once in a while, not with every note
    assert "rank 0 (a) has waited 0 s for rank 2 (c) (last update: 5)" in said[0]
