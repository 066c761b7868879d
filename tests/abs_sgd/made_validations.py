"""Validations whose truth is known: the measured runs are the predicted ones, slower by a factor."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from finished_runs import TWO, stretched

from abs_sgd import agreement
from abs_sgd.agreement import Run, Tolerances
from abs_sgd.validate import Pair, Validation, compared, document_of, prepare
from hetsim import load_profile, simulate


def made(
    factor: float,
    labels: Sequence[str] = ("s-sgd",),
    tolerances: Tolerances = Tolerances(),  # noqa: B008
    *,
    seeds: Sequence[int] = (0,),
    losses: bool = True,
    updates: int = 30,
) -> Validation:
    """Every label on every seed; without `losses` nothing is executed, as with --timing-only."""
    profile = load_profile(TWO)
    setup = prepare(profile, updates)
    setup = setup if losses else dataclasses.replace(setup, task=None)
    rows, pairs = [], dict[str, list[Pair]]()
    for label in labels:
        runs: list[Run] = []
        pairs[label] = []
        for seed in seeds:
            predicted = simulate(profile, label, updates=updates, seed=seed)
            pair, run = compared(setup, predicted, stretched(predicted, factor).schedule, None)
            pairs[label].append(pair)
            runs.append(
                dataclasses.replace(run, **({"replay_deviation": 0.0} if losses else {"unexecuted": "timing only"}))
            )
        rows.append(agreement.row(label, label, {}, runs, agreement.checks(runs, tolerances, updates)))
    document = document_of(
        setup, rows, seeds=seeds, updates=updates, shaped=False, said=["<said & done>"], tolerances=tolerances,
        pace_tolerance=0.25, machine=None,
    )  # fmt: skip
    return Validation(document=document, pairs=pairs, profile_yaml=setup.profile_yaml)
