"""Commands that help to decide: plan."""

from __future__ import annotations

from typing import Annotated

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit, emit_json, emit_rich, progress_bar
from hetsim.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(plan)


def plan(
    profile: arg.ProfileArgument,
    algorithm: arg.Algorithms = None,
    batches: Annotated[
        str | None,
        typer.Option(
            "--batches",
            metavar="B,B,...",
            help="Global batches to choose from. Default: the profile's training.global_batch_samples.",
            show_default=False,
        ),
    ] = None,
    predictor: str = typer.Option(
        "nqm", "--predictor", metavar="NAME", help="nqm, noise-scale, or virtual (trains with torch)."
    ),
    seed: arg.Seed = 0,
    jobs: int | None = typer.Option(None, "--jobs", "-j", min=1, metavar="N", help="Processes. Default: one per CPU."),
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
) -> None:
    """Say how to train on a cluster: algorithm, batch and passes of every worker, trigger and compute point, and why.

    \b
    Examples:
      hetsim plan my.yaml
      hetsim plan my.yaml --batches 512,1024,2048
      hetsim plan my.yaml -a s-sgd -a lb-bsp      # choose between these
    """
    from hetsim.plan import plan as run

    loaded = arg.read_profile(profile, overrides)
    with progress_bar("trying algorithms") as advance:
        found = run(
            loaded,
            algorithm,
            batches=whole_numbers(batches),
            predictor=predictor,
            seed=seed,
            jobs=jobs,
            progress=lambda label, done, total: advance(done, total, f"trying algorithms ({label} done)"),
        )
    if as_json:
        emit_json(found.to_json())
        return
    from hetsim.cli import plans

    emit_rich(*plans.before(found))
    emit("\n".join(["\nto copy:", *plans.copy(found, plans.command_words(profile, overrides))]))
    emit_rich(*plans.after(found))


def whole_numbers(text: str | None) -> list[int] | None:
    """`512,1024` as numbers."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts or not all(part.isascii() and part.isdigit() and 0 < int(part) <= 10**9 for part in parts):
        raise UsageError(f"--batches {text}: whole numbers of samples, at least 1, with commas between them")
    return [int(part) for part in parts]
