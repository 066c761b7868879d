"""One rank of a replay: does what its orders say, with true gradients and true transfers.

It is a process of its own, started as `python -m abs_sgd.replay.rank FOLDER RANK`; what it needs lies in the folder and what it
finds is written there (tensors, JSON), under another name first. It ends when its standard input does, which is when
the process that started it ends.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from abs_sgd.gradients import Buffers, FlatModel
from abs_sgd.replay.exchange import Exchange, weighted_sum
from abs_sgd.replay.inprocess import PURPOSE_DROPOUT, SEED_BITS, numbers_of
from abs_sgd.replay.orders import Adopt, Arrive, Gradient, Launch, Make, Operation, Orders, make_orders
from abs_sgd.replay.plan import Mix, Point, Step
from abs_sgd.runtime.wire import PeerLostError
from abs_sgd.update import State, Updater, UpdateRule
from abs_sgd.workloads.order import words
from abs_sgd.workloads.task import Task
from hetsim.errors import HetsimError
from hetsim.schedule import Kind, PointRule, Schedule
from hetsim.schedule.store import load

FOREVER = timedelta(days=7)  # a slow rank is not an error; a dead one breaks its connections at once


@dataclass(frozen=True, kw_only=True)
class Job:
    """All that a rank needs besides the Schedule. `pace`: seconds here per second of the Schedule; None: as fast as it goes."""

    workload: str
    rule: dict[str, Any]
    task_options: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    thinning: int = 1
    exact: bool = True
    pace: float | None = None
    snapshots: tuple[int, ...] = ()  # states to be kept for evaluation


class RankRun:
    """States, accumulators and transfers of one rank."""

    def __init__(self, schedule: Schedule, orders: Orders, rank: int, task: Task, job: Job) -> None:
        self.orders, self.rank, self.task, self.job = orders, rank, task, job
        self.model = FlatModel(task.make_model(job.seed))
        self.model.model.train()
        rule = UpdateRule(**job.rule)
        blends = bool(np.any(schedule.code[schedule.rows(Kind.PREDICT)] == PointRule.BLEND))
        self.updater = Updater(rule, keep_mean_gradient=blends)
        self.exchange = Exchange(
            orders, rank, torch.zeros_like(self.model.parameters_P), rule, exact=job.exact, mean=blends
        )
        self.states = {0: State(parameters_P=self.model.parameters_P.clone())}
        self.sums: dict[int, Tensor] = {}
        self.counts = counts_of(schedule, job.thinning)
        self.updates = 0
        self.late_s = 0.0
        self.start_buffers: Buffers = self.model.save_buffers() if self.model.has_buffers else []
        self.seen = 0

    def execute(self, keep: Callable[[int, State], None]) -> None:
        """All operations in order; `keep(id, state)` sees every step and average when it is made."""
        operations = self.orders.operations[self.rank]
        drops = _drops(operations, self.orders, self.rank)
        start_s = time.monotonic()
        for operation, (states, slots, transfers) in zip(operations, drops, strict=True):
            if isinstance(operation, Launch):
                self._pace(operation, start_s)  # not before its time
            self._do(operation, keep)
            if not isinstance(operation, Launch):
                self._pace(operation, start_s)
            for state in states:
                if state != self.orders.final[self.rank]:
                    self.states.pop(state, None)
            for slot in slots:
                self.sums.pop(slot, None)
            for transfer in transfers:
                self.exchange.drop(transfer)

    def _pace(self, operation: Operation, start_s: float) -> None:
        if self.job.pace is None:
            return
        left_s = start_s + self.job.pace * operation.due_s - time.monotonic()
        if left_s > 0:
            time.sleep(left_s)
        self.late_s = max(self.late_s, -left_s)

    def _do(self, operation: Operation, keep: Callable[[int, State], None]) -> None:
        match operation:
            case Gradient():
                self._gradient(operation)
            case Launch():
                self._launch(operation.transfer)
            case Arrive():
                self.exchange.arrive(operation.transfer)
            case Adopt():
                self.states[operation.state] = self.exchange.states(operation.transfer)[0][1]
                self.updates = self.states[operation.state].progress.updates
            case Make():
                made = self._make(operation)
                self.states[operation.action.state] = made
                if not isinstance(operation.action, Point):
                    self.updates = made.progress.updates
                    keep(operation.action.state, made)

    def _gradient(self, operation: Gradient) -> None:
        numbers = numbers_of([(operation.first, operation.count)], self.job.thinning)
        if not len(numbers):
            return
        self.model.load(self.states[operation.state].parameters_P)
        batch = self.task.batch(numbers, self.job.seed)
        with torch.random.fork_rng(devices=[]):
            if not self.task.separable:  # dropout is keyed by (seed, first sample), as in process
                torch.manual_seed(int(words(self.job.seed, PURPOSE_DROPOUT, int(numbers[0]))) & SEED_BITS)
            gradient_P = self.model.gradient_sum(lambda model: self.task.loss_sum(model, batch))
        self.seen += len(numbers)
        held = self.sums.get(operation.slot)
        self.sums[operation.slot] = gradient_P if held is None else held.add_(gradient_P)

    def _launch(self, transfer: int) -> None:
        wire = self.orders.transfers[transfer]
        mine = [(weight, identity) for rank, identity, weight in wire.parts if rank == self.rank]
        if wire.gradients:
            own_P = weighted_sum([(weight, self.sums.get(slot)) for weight, slot in mine])
            self.exchange.launch(transfer, own_P, None, 1.0)
        elif mine:
            weight, state = mine[0]
            self.exchange.launch(transfer, None, self.states[state], weight)
        else:
            self.exchange.launch(transfer, None, None, 0.0)

    def _make(self, operation: Make) -> State:
        action = operation.action
        parent = self.states[action.parent]
        match action:
            case Step():
                return self._step(action, parent, operation.transfer)
            case Mix():
                return self.updater.average(
                    parent,
                    self.exchange.states(operation.transfer),
                    anchor=self.states[action.anchor] if action.anchor >= 0 else None,
                    weight=action.weight,
                    reset=action.reset,
                )
            case Point():
                return self._point(action, parent)

    def _step(self, action: Step, parent: State, transfer: int) -> State:
        if action.samples == 0 or action.divisor == 0:
            return parent  # a synchronization without samples makes no step
        if transfer >= 0:
            total_P = self.exchange.total(transfer)
        else:
            total_P = weighted_sum([(weight, self.sums.get(slot)) for slot, weight in action.parts])
        counted = sum(self.counts.get(slot, 0) for slot, _ in action.parts)
        thinned = self.job.thinning > 1
        divisor = action.divisor * counted / action.samples if thinned else float(action.divisor)
        if total_P is None or counted == 0:
            total_P, divisor = torch.zeros_like(parent.parameters_P), 1.0
        return self.updater.step(parent, total_P, divisor=divisor, samples=action.samples, scale=action.scale)

    def _point(self, action: Point, parent: State) -> State:
        own_P, count = self.sums.get(action.slot), self.counts.get(action.slot, 0)
        match PointRule(action.rule):
            case PointRule.CURRENT:
                return parent
            case PointRule.LOOK_AHEAD:
                parameters_P = self.updater.look_ahead(parent, action.amount)
            case PointRule.LOCAL_PREDICTION:
                parameters_P = self.updater.predict(parent, own_P, count)
            case PointRule.BLEND:
                parameters_P = self.updater.predict(parent, own_P, count, action.amount)
        return State(parameters_P=parameters_P, progress=parent.progress)


def counts_of(schedule: Schedule, thinning: int) -> dict[int, int]:
    """Training samples in every accumulator: the divisor of a step is known without asking the other ranks."""
    rows = schedule.rows(Kind.GRAD)
    first, end = schedule.first[rows], schedule.first[rows] + schedule.samples[rows]
    counts: dict[int, int] = {}
    for slot, count in zip(
        schedule.slot[rows].tolist(), (-(-end // thinning) + -first // thinning).tolist(), strict=True
    ):
        counts[slot] = counts.get(slot, 0) + count
    return counts


def _drops(
    operations: tuple[Operation, ...], orders: Orders, rank: int
) -> list[tuple[list[int], list[int], list[int]]]:
    """States, accumulators and transfers whose last use an operation is."""
    last: tuple[dict[int, int], dict[int, int], dict[int, int]] = ({}, {}, {})
    for at, operation in enumerate(operations):
        for uses, found in zip(_uses(operation, orders, rank), last, strict=True):
            found.update(dict.fromkeys(uses, at))
    drops: list[tuple[list[int], list[int], list[int]]] = [([], [], []) for _ in operations]
    for kind, found in enumerate(last):
        for identity, at in found.items():
            drops[at][kind].append(identity)
    return drops


def _uses(operation: Operation, orders: Orders, rank: int) -> tuple[list[int], list[int], list[int]]:
    match operation:
        case Gradient():
            return [operation.state], [operation.slot], []
        case Launch() | Arrive():
            wire = orders.transfers[operation.transfer]
            own = [identity for member, identity, _ in wire.parts if member == rank]
            mine = ([], own) if wire.gradients else (own, [])
            return (*mine, [operation.transfer])
        case Adopt():
            return [operation.state], [], [operation.transfer]
        case Make(action=Step() as step, transfer=transfer):
            slots = [slot for slot, _ in step.parts] if transfer < 0 else []
            return [step.parent, step.state], slots, [transfer]
        case Make(action=Mix() as mix, transfer=transfer):
            return [mix.parent, mix.state, mix.anchor], [], [transfer]
        case Make(action=Point() as point):
            return [point.parent, point.state], [point.slot], []
    raise AssertionError(operation)


# ---- the process ---------------------------------------------------------------------------------------------------------


def main(folder: Path, rank: int) -> None:
    """Execute this rank's orders; the result is rank-N.pt and rank-N.json, or rank-N.error.json and exit code 1."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        _run(folder, rank)
    except BaseException as error:
        message = str(error) if isinstance(error, HetsimError) else f"{type(error).__name__}: {error}"
        said = {"peer": isinstance(error, PeerLostError | dist.DistError), "message": message}
        write(folder / f"rank-{rank}.error.json", said)
        os._exit(1)  # a group with a broken connection may hang while it is taken down
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _run(folder: Path, rank: int) -> None:
    torch.set_num_threads(1)
    from abs_sgd.replay.distributed import task_of

    said = json.loads((folder / "job.json").read_text())
    port = said.pop("port")
    job = Job(**{**said, "snapshots": tuple(said["snapshots"])})
    schedule = load(folder / "schedule.parquet")
    orders = make_orders(schedule)
    task = task_of(job.workload, job.task_options)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=rank, world_size=orders.ranks, timeout=FOREVER)
    run = RankRun(schedule, orders, rank, task, job)
    wanted = {state for state in job.snapshots if _first_to_make(orders, state) == rank}
    began = [time.monotonic()]

    def keep(identity: int, state: State) -> None:
        progress_file.write_text(str(run.updates))
        if identity in wanted:
            snapshot = folder / f"state-{identity}.pt"
            write(snapshot, {"parameters_P": state.parameters_P})
            facts = {"updates": state.progress.updates, "samples": state.progress.samples}
            write(snapshot.with_suffix(".json"), {**facts, "time_s": time.monotonic() - began[0]})

    progress_file = folder / f"rank-{rank}.updates"
    dist.barrier()
    began[0] = time.monotonic()
    run.execute(keep)
    wall_s = time.monotonic() - began[0]
    final = orders.final[rank]
    tensors: dict[str, Any] = {"parameters_P": run.states[final].parameters_P}
    if run.start_buffers:
        tensors["buffers"] = run.model.save_buffers()
    write(folder / f"rank-{rank}.pt", tensors)
    facts = {"state": final, "wall_s": wall_s, "late_s": run.late_s, "seen": run.seen, "updates": run.updates}
    write(folder / f"rank-{rank}.json", facts)
    dist.barrier()  # nobody leaves, and with it its connections, before all have what they need
    dist.destroy_process_group()


def _first_to_make(orders: Orders, state: int) -> int:
    for rank, operations in enumerate(orders.operations):
        if any(isinstance(operation, Make) and operation.action.state == state for operation in operations):
            return rank
    return -1


def write(path: Path, value: dict[str, Any]) -> None:
    """JSON or tensors (by the file's name), under a temporary name first."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    if path.suffix == ".pt":
        torch.save(value, temporary)
    else:
        temporary.write_text(json.dumps(value))
    os.replace(temporary, path)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
