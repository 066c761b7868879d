"""How far a replay on several processes is from the same Schedule in one process.

    compare(requests)                 the parameters that every rank ends with
    compare(requests, taught=True)    every state that any rank makes, each from the states of the one process

Rounding grows with the updates it goes through: in an unstable run without bound. Taught, a rank goes on from the state of the one
process after each update, so that one update alone is compared, and runs of any length and any learning rate can be.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from abs_sgd.checkpoint import plain_of
from abs_sgd.replay.distributed import Request, replay_all
from abs_sgd.replay.inprocess import InProcess, Observer
from abs_sgd.replay.job import TEACHER, task_of
from abs_sgd.replay.results import Deviation, Replayed
from abs_sgd.update import State


def compare(requests: Sequence[Request], *, taught: bool = False) -> list[Deviation]:
    """The largest ‖Δ‖/‖x‖ of each request. Raises as `replay_all`."""
    with tempfile.TemporaryDirectory(prefix="hetsim-replay-") as made:
        folder = Path(made)
        if not taught:
            found = replay_all(requests, folder)
            return [_final(request, run) for request, run in zip(requests, found, strict=True)]
        for number, request in enumerate(requests):
            teacher = folder / f"run-{number}" / TEACHER
            teacher.mkdir(parents=True)
            in_process(request, partial(_teach, teacher))
        runs = replay_all([replace(request, taught=True) for request in requests], folder)
        return [run.deviation for run in runs if run.deviation is not None]


def in_process(request: Request, observe: Observer) -> None:
    """Train a request in this process, pass by pass, adding in rank order as the ranks do; `observe(id, state)` sees every state."""
    task = task_of(request.workload, request.task_options)
    trainer = InProcess(request.schedule, task, seed=request.seed, thinning=request.thinning, fused=False)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        trainer.train(request.rule, observe=observe, evaluate_every_samples=0)
    finally:
        torch.set_num_threads(before)


def _teach(folder: Path, identity: int, state: State) -> None:
    torch.save(plain_of(state), folder / f"{identity}.pt")


def _final(request: Request, run: Replayed) -> Deviation:
    wanted = set(run.final)
    seen: dict[int, State] = {}

    def keep(identity: int, state: State) -> None:
        if identity in wanted:
            seen[identity] = state

    in_process(request, keep)
    found = Deviation(value=0.0, state=run.final[0], compared=0)
    for identity, parameters_P in zip(run.final, run.parameters_P, strict=True):
        right_P = seen[identity].parameters_P
        off = float((parameters_P - right_P).norm() / right_P.norm())
        worse = not off <= found.value
        found = Deviation(
            value=off if worse else found.value, state=identity if worse else found.state, compared=found.compared + 1
        )
    return found
