"""A rank's process: `python -m abs_sgd.replay.process FOLDER RANK PORT JOB…`, each JOB a folder with what is to be done.

Several jobs go through one process, which saves starting it again. What a rank finds is written to the job's folder (tensors, JSON);
errors and the last update to FOLDER. A process ends when its standard input does, which is when the one that started it ends.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from abs_sgd.checkpoint import CHECKPOINTS, blaming, newest, prune, read_share, seal, state_of, write_share
from abs_sgd.devices import FOREVER
from abs_sgd.processes import leave_word
from abs_sgd.replay.cuts import Cut, cuts
from abs_sgd.replay.job import TEACHER, Job, task_of, write
from abs_sgd.replay.operations import Make, Orders
from abs_sgd.replay.orders import make_orders
from abs_sgd.replay.rank import RankRun
from abs_sgd.update import State
from hetsim.schedule import Schedule
from hetsim.schedule.store import load


def main(folder: Path, rank: int, port: int, jobs: list[Path]) -> None:
    """Do this rank's part of every job; after an error rank-N.error.json and exit code 1."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)  # type: ignore[attr-defined]
    try:
        for number, job in enumerate(jobs):
            _do(folder, rank, number, job, dist.PrefixStore(str(number), store))  # type: ignore[attr-defined]
    except BaseException as error:
        leave_word(folder, rank, error)
        os._exit(1)  # a group with a broken connection may hang while it is taken down
    os._exit(0)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)


def _do(folder: Path, rank: int, number: int, job_folder: Path, store: Any) -> None:
    job = Job.load(job_folder)
    if rank >= job.ranks:
        return
    device = torch.device(job.devices[rank])
    if device.type == "cuda":
        torch.cuda.set_device(device)
    schedule = load(job_folder / "schedule.parquet")
    orders = make_orders(schedule)
    dist.init_process_group(
        job.backend,
        store=store,
        rank=rank,
        world_size=job.ranks,
        timeout=FOREVER,
        device_id=device if job.backend == "nccl" else None,
    )
    process = _Process(job_folder, rank, job, schedule, orders, folder / f"rank-{rank}.updates", number)
    process.execute()
    _meet(process.run)  # nobody leaves, and with it its connections, before all have what they need
    dist.destroy_process_group()


def _meet(run: RankRun) -> None:
    """Wait for all."""
    one = torch.ones(1, device=run.exchange.wire)
    dist.all_reduce(one)
    float(one)  # which waits for the device too


class _Process:
    """One job on one rank: the run, and what is written while it runs and when it has ended."""

    def __init__(
        self, folder: Path, rank: int, job: Job, schedule: Schedule, orders: Orders, progress: Path, number: int
    ) -> None:
        self.folder, self.rank, self.job, self.orders = folder, rank, job, orders
        self.progress, self.number = progress, number
        task = task_of(job.workload, job.task_options, job.devices[rank])
        self.run = RankRun(schedule, orders, rank, task, job, self._made)
        self.cuts = cuts(schedule, job.checkpoint_every)
        self.meta = {"run": job.same_run(schedule)} if job.checkpoint_every else {}
        self.wanted = {state for state in job.snapshots if _first_to_make(orders, state) == rank}
        self.began_s = 0.0
        self.deviation, self.deviates_at, self.compared = 0.0, 0, 0

    def execute(self) -> None:
        after, before_s = self._take_up() if self.job.resume else (None, 0.0)
        _meet(self.run)
        self.began_s = time.monotonic() - before_s
        self.run.execute(self.cuts, self._save, after)
        self._finish(time.monotonic() - self.began_s)

    def _made(self, identity: int, state: State) -> State:
        self.progress.write_text(f"{self.number} {self.run.updates}")
        if identity in self.wanted:
            snapshot = self.folder / f"state-{identity}.pt"
            write(snapshot, {"parameters_P": state.parameters_P.cpu()})
            facts = {"updates": state.progress.updates, "samples": state.progress.samples}
            write(snapshot.with_suffix(".json"), {**facts, "time_s": time.monotonic() - self.began_s})
        return self._taught(identity, state) if self.job.taught else state

    def _taught(self, identity: int, state: State) -> State:
        """The teacher's state in place of the own one, whose distance from it is one update's."""
        file, here = self.folder / TEACHER / f"{identity}.pt", state.parameters_P.device
        taught = state_of(torch.load(file, map_location=here, weights_only=True))
        off = float((state.parameters_P - taught.parameters_P).norm() / taught.parameters_P.norm())
        self.compared += 1
        if not off <= self.deviation:  # NaN too
            self.deviation, self.deviates_at = off, identity
        return taught

    def _save(self, cut: Cut) -> None:
        where = self.folder / CHECKPOINTS
        held = self.run.held()
        write_share(where, cut.update, self.rank, {**held, "wall_s": time.monotonic() - self.began_s})
        meta = {**self.meta, "row": cut.row, "time_s": cut.time_s}
        if seal(where, cut.update, self.job.ranks, meta) is not None:
            prune(where)

    def _take_up(self) -> tuple[Cut, float]:
        found = newest(self.folder / CHECKPOINTS)
        if found is None or found.update != self.job.resume:
            raise RuntimeError(f"the checkpoint of update {self.job.resume} is gone")
        held = read_share(found, self.rank, self.job.devices[self.rank])
        with blaming(found.share(self.rank)):
            self.run.take_up(held)
            cut = Cut(update=found.update, row=int(found.meta["row"]), time_s=float(found.meta["time_s"]))
            return cut, float(held["wall_s"])

    def _finish(self, wall_s: float) -> None:
        run, final = self.run, self.orders.final[self.rank]
        tensors: dict[str, Any] = {"parameters_P": run.states[final].parameters_P.cpu()}
        if run.start_buffers:
            tensors["buffers"] = [b.cpu() for b in run.model.save_buffers()]
        write(self.folder / f"rank-{self.rank}.pt", tensors)
        facts = {"state": final, "wall_s": wall_s, "late_s": run.late_s, "seen": run.seen, "updates": run.updates}
        taught = {"deviation": self.deviation, "deviates_at": self.deviates_at, "compared": self.compared}
        write(self.folder / f"rank-{self.rank}.json", {**facts, **taught})


def _first_to_make(orders: Orders, state: int) -> int:
    for rank, operations in enumerate(orders.operations):
        if any(isinstance(operation, Make) and operation.action.state == state for operation in operations):
            return rank
    return -1


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), [Path(name) for name in sys.argv[4:]])
