"""Which rank trains on which samples when batches are open: first come, first served, from one shared cursor per epoch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import Sampler

from abs_sgd.flight import Group
from abs_sgd.workloads.order import Ints, SampleOrder
from hetsim.errors import SimulationError, UsageError

VERSION = 1


class OpenBatchSampler(Sampler[list[int]]):
    """A `batch_sampler` that hands every sample to exactly one rank once per epoch, whatever the ranks' speeds.

        sampler = OpenBatchSampler(len(data), batch_size=32, seed=1)
        loader = DataLoader(data, batch_sampler=sampler, num_workers=2)
        trainer = AbsSgd(model, optimizer, sampler=sampler)
        for epoch in range(sampler.epoch, epochs):
            for x, y in loader: ...

    A rank claims its next `batch_size` places of the epoch's order on the job's store, one claim ahead on a thread of its own: asking
    costs .1 ms on an idle network and up to 141 ms on a busy one. The last batch of an epoch may be shorter; nothing is padded.
    Each iteration is the next epoch. A trainer that knows the sampler counts what was trained on: what a DataLoader has only prefetched
    comes again after an abandoned iteration, and after `load_state_dict`. Making one is a collective: all ranks do, in the same order.
    """

    def __init__(
        self,
        dataset_size: int,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        group: dist.ProcessGroup | None = None,
    ) -> None:
        if dataset_size < 1 or batch_size < 1:
            raise UsageError("dataset_size and batch_size must be at least 1")
        self.dataset_size, self.batch_size, self.seed, self.shuffle = dataset_size, batch_size, seed, shuffle
        self.epoch = 0  # of the next iteration
        self.group = Group(group, torch.device("cuda" if torch.cuda.is_available() else "cpu"))
        self._order = SampleOrder(dataset_size, seed)
        self._tracked = False
        self._base = 0  # all epochs before it are done with
        self._done: dict[int, torch.Tensor] = {}  # epoch -> places trained on, as far as this rank knows
        self._before: dict[int, torch.Tensor] = {}  # the same when the cursors started: they run over the other places
        self._pending: deque[tuple[int, Ints]] = deque()  # handed out, not yet trained on, in order
        self._ahead: dict[int, Callable[[], int]] = {}  # claims not yet used
        self._cursors: dict[str, int] = {}  # of a process alone
        self._generation = 0
        self._store: Any = None
        if self.group.n > 1:
            self._store = self.group.store("open-batch")

    def __iter__(self) -> Iterator[list[int]]:
        epoch = self.epoch
        again = list(self._pending)
        self._pending.clear()
        for old, places in again:
            yield self._hand_out(old, places)
        free = np.flatnonzero(~self._before[epoch].numpy()) if epoch in self._before else np.arange(self.dataset_size)
        while True:
            first = self._ahead.pop(epoch, None) or self._claim(epoch)
            at = first()
            if at >= len(free):
                break
            self._ahead[epoch] = self._claim(epoch)
            yield self._hand_out(epoch, free[at : at + self.batch_size])
        self.epoch = epoch + 1

    def track(self) -> None:
        """From now on only `consumed` counts a sample as used."""
        self._tracked = True

    def consumed(self, samples: int) -> None:
        """The next `samples` samples handed out were trained on. Raises UsageError for more than were handed out."""
        left = samples
        while left:
            if not self._pending:
                raise UsageError(
                    f"{samples} samples trained on, but {left} of them were never handed out by the sampler; where step() is given "
                    "tokens, say how many samples they are: step(tokens, samples=8)"
                )
            epoch, places = self._pending.popleft()
            self._mask(epoch)[torch.from_numpy(places[:left])] = True
            if len(places) > left:
                self._pending.appendleft((epoch, places[left:]))
            left -= min(left, len(places))

    def share(self) -> None:
        """Collective: every rank learns what the others trained on; epochs that are done with are forgotten."""
        span = self.group.total(torch.tensor([self._base, -max(self._done, default=-1)]), "min")
        for epoch in range(int(span[0]), int(-span[1]) + 1):
            self._done[epoch] = self.group.total(self._mask(epoch).to(torch.uint8), "max").bool()
        self._base = int(span[0])
        while self._base in self._done and bool(self._done[self._base].all()):
            del self._done[self._base]
            self._base += 1

    def state_dict(self) -> dict[str, Any]:
        """What was trained on, as far as this rank knows (all of it right after `share`)."""
        return {
            "version": VERSION,
            "dataset_size": self.dataset_size,
            "seed": self.seed,
            "shuffle": self.shuffle,
            "epoch": self._base,
            "done": {epoch: mask.clone() for epoch, mask in self._done.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Collective: go on where the ranks' states together stand; any number of ranks. Raises UsageError for other data or seed."""
        mine = {"version": VERSION, "dataset_size": self.dataset_size, "seed": self.seed, "shuffle": self.shuffle}
        for key, value in mine.items():
            if state[key] != value:
                raise UsageError(f"the sampler's state has {key} {state[key]}, this sampler {value}")
        self._base = int(state["epoch"])
        self._done = {int(epoch): mask.bool().clone() for epoch, mask in state["done"].items()}
        self._pending.clear()
        self._ahead.clear()
        self._generation += 1
        self.share()
        self._before = {epoch: mask.clone() for epoch, mask in self._done.items()}
        self.epoch = self._base

    def _hand_out(self, epoch: int, places: Ints) -> list[int]:
        if self._tracked:
            self._pending.append((epoch, places))
        else:
            self._mask(epoch)[torch.from_numpy(places)] = True
        found: list[int] = (self._order.epoch(epoch)[places] if self.shuffle else places).tolist()
        return found

    def _mask(self, epoch: int) -> torch.Tensor:
        if epoch not in self._done:
            done_with = epoch < self._base  # its places were all counted before
            self._done[epoch] = torch.full((self.dataset_size,), done_with)
        return self._done[epoch]

    def _claim(self, epoch: int) -> Callable[[], int]:
        """Ask for the next places; call the answer to have their first."""
        key = f"{self._generation}/{epoch}"
        if self._store is None:
            at = self._cursors.get(key, 0)
            self._cursors[key] = at + self.batch_size
            return lambda: at
        return _Claim(self._store, key, self.batch_size)


class _Claim(Thread):
    """One question to the store. A daemon: a store that no longer answers must not keep the process from ending."""

    def __init__(self, store: Any, key: str, size: int) -> None:
        super().__init__(name="open-batch", daemon=True)
        self._question = store, key, size
        self._first = 0
        self._error: Exception | None = None
        self.start()

    def run(self) -> None:
        store, key, size = self._question
        try:
            self._first = int(store.add(key, size)) - size
        except RuntimeError as error:
            self._error = error

    def __call__(self) -> int:
        self.join()
        if self._error is not None:
            raise SimulationError(f"the job's store, which hands out samples, is gone: {self._error}") from self._error
        return self._first
