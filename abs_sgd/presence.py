"""Ranks that look after each other where no process watches them all: who is there at the start, who is gone, who is awaited.

    attempt = assemble(store, rank, names)               # all are there, or an error names the missing ones
    presence = Presence(PrefixStore(attempt, store), rank, names)
    presence.watch(live)                                 # a thread: "my last update was 37", for the others to read
    presence.verdict()                                   # after a failed collective: who is silent, and its last update

All of it goes through the job's store, on a connection of its own, and never in the way of training. A slow rank is no error: its thread
answers while it computes, and whoever waits for it says so once in a while.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch.distributed as dist

from hetsim.errors import SimulationError

ASSEMBLE_S = 600.0  # torchrun's own rendezvous waits as long
LOOK_S = 0.05  # between two looks at the store while ranks assemble [our choice]
NOTE_S = 0.25  # between two notes of a rank's last update [our choice]
ANSWER_S = 3.0  # for a living rank to answer, which it does with its next note [our choice]
PATIENCE_S = 60.0  # of waiting before a word about it [our choice]


class MissingRankError(SimulationError):
    """Ranks did not come up in time; the message names them."""


class Store(Protocol):
    """What is needed of torch.distributed's stores."""

    def set(self, key: str, value: str, /) -> None: ...

    def get(self, key: str, /) -> bytes: ...

    def check(self, keys: list[str], /) -> bool: ...


def say(text: str) -> None:
    """A line for whoever reads the log."""
    print(text, file=sys.stderr, flush=True)


def spoken(ranks: Sequence[int], names: Sequence[str]) -> str:
    """Ranks in words: "rank 2 (c)", "ranks 1 (b) and 2 (c)"."""
    each = [f"{rank} ({names[rank]})" for rank in ranks]
    return f"rank {each[0]}" if len(each) == 1 else f"ranks {', '.join(each[:-1])} and {each[-1]}"


def assemble(store: Store, rank: int, names: Sequence[str], timeout_s: float = ASSEMBLE_S) -> str:
    """Wait until all ranks are there; the name of this attempt, the same on all of them.

    The store may have served an attempt that broke, so nothing that lies in it is believed: rank 0 answers each rank's own new number, and
    what an attempt says to itself goes under its name. Raises MissingRankError, on every rank that came.
    """
    mine, until, told = uuid.uuid4().hex, time.monotonic() + timeout_s, time.monotonic() + PATIENCE_S
    welcome = _welcome if rank == 0 else _report
    while True:
        attempt, missing = welcome(store, rank, len(names), mine)
        if not missing:
            return attempt
        now = time.monotonic()
        if now > until:
            raise MissingRankError(
                f"{spoken(missing, names)} did not come up within {timeout_s:.0f} s: look at its log and its machine, or give it more time"
            )
        if now > told:
            say(f"rank {rank} ({names[rank]}) is waiting for {spoken(missing, names)} to come up")
            told = now + PATIENCE_S
        time.sleep(LOOK_S)


def _welcome(store: Store, rank: int, world: int, mine: str) -> tuple[str, list[int]]:
    """Rank 0: tell everybody who reports the attempt's name; who has not confirmed it."""
    missing = []
    for other in range(1, world):
        if store.check([f"here/{mine}/{other}"]):
            continue
        missing.append(other)
        if store.check([f"hello/{other}"]):
            store.set(f"welcome/{store.get(f'hello/{other}').decode()}", mine)
    if not missing:
        store.set(f"complete/{mine}", "")
    return mine, missing


def _report(store: Store, rank: int, world: int, mine: str) -> tuple[str, list[int]]:
    """The others: report, confirm what rank 0 answers, wait for the rest."""
    store.set(f"hello/{rank}", mine)
    if not store.check([f"welcome/{mine}"]):
        return "", [0]
    attempt = store.get(f"welcome/{mine}").decode()
    store.set(f"here/{attempt}/{rank}", "")
    if store.check([f"complete/{attempt}"]):
        return attempt, []
    missing = [other for other in range(1, world) if not store.check([f"here/{attempt}/{other}"])]
    return attempt, missing or [0]


class Watched(Protocol):
    """What a presence looks at: how far its own rank is."""

    updates: int

    @property
    def wire(self) -> Any: ...


class Presence:
    """One rank's word to the others, on a thread. `saved`: what could be gone on from, in words."""

    def __init__(self, store: Store, rank: int, names: Sequence[str], saved: Callable[[], str] = str) -> None:
        self.store, self.rank, self.names, self.saved = store, rank, names, saved
        self.live: Watched | None = None
        self._noted, self._told = "", 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._attend, name="presence", daemon=True)
        self._thread.start()

    def watch(self, live: Watched) -> None:
        """From now on the others can read how far this rank is."""
        self.live = live

    def close(self) -> None:
        """The run is over, or this rank is."""
        self._ended.set()
        self._thread.join(ANSWER_S)  # unless it waits for a store that does not answer

    def failed(self, message: str) -> None:
        """A last word to the others, if there still is a store."""
        with contextlib.suppress(dist.DistError, RuntimeError, OSError):
            self.store.set(f"failed/{self.rank}", message)

    def verdict(self, *, patient: bool = True) -> str:
        """Who broke the run, as far as the store knows: a rank that left a word, else those that do not answer in three seconds.

        "" where all answer, which a `patient` rank believes only after that time (a word may be under way)."""
        try:
            self.store.set("roll call", "")
            self.store.set(f"alive/{self.rank}", "")
            until = time.monotonic() + ANSWER_S
            while True:
                left = [r for r in range(len(self.names)) if not self.store.check([f"alive/{r}"])]
                words = [r for r in range(len(self.names)) if self.store.check([f"failed/{r}"])]
                if words or time.monotonic() > until or not (left or patient):
                    return self._spoken(left, words)
                time.sleep(LOOK_S)
        except (dist.DistError, RuntimeError, OSError):
            return f"the job's store is gone, and with it rank 0 ({self.names[0]}) or its machine{self._saved()}"

    def _spoken(self, silent: Sequence[int], words: Sequence[int]) -> str:
        if words:
            word = self.store.get(f"failed/{words[0]}").decode()
            return f"{spoken(words[:1], self.names)} failed: {word}{self._saved()}"
        if not silent:
            return ""
        updates = " and ".join(str(self._at(r)[0]) for r in silent)
        verb, whose = ("is", "its last update was") if len(silent) == 1 else ("are", "their last updates were")
        return f"{spoken(silent, self.names)} {verb} gone; {whose} {updates}{self._saved()}"

    def _saved(self) -> str:
        saved = self.saved()
        return f"; {saved}" if saved else ""

    def _at(self, rank: int) -> tuple[int, int]:
        """A rank's updates and launched collectives, as last noted."""
        key = f"at/{rank}"
        if not self.store.check([key]):
            return 0, 0
        updates, launched = self.store.get(key).decode().split()
        return int(updates), int(launched)

    def _attend(self) -> None:
        try:
            while not self._ended.wait(NOTE_S):
                if self.live is not None:
                    self._note(self.live)
                if self.store.check(["roll call"]):
                    self.store.set(f"alive/{self.rank}", "")
        except (dist.DistError, RuntimeError, OSError):
            return  # the store is gone; a collective that fails will say so

    def _note(self, live: Watched) -> None:
        at = f"{live.updates} {live.wire.launched}"
        if at != self._noted:
            self.store.set(f"at/{self.rank}", at)
            self._noted = at
        waiting, now = live.wire.waiting, time.monotonic()
        if waiting is None or now - max(waiting[1], self._told) < PATIENCE_S:
            return
        self._told = now
        others = [r for r in range(len(self.names)) if r != self.rank]
        awaited = [r for r in others if self._at(r)[1] <= waiting[0]]
        whom = spoken(awaited, self.names) if awaited else "the network"
        last = f" (last update: {', '.join(str(self._at(r)[0]) for r in awaited)})" if awaited else ""
        say(f"rank {self.rank} ({self.names[self.rank]}) has waited {now - waiting[1]:.0f} s for {whom}{last}")
