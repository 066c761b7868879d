"""Commands that help to decide: plan, diff."""

from __future__ import annotations

from typing import Annotated

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit, emit_json, emit_rich, progress_bar
from hetsim.errors import UsageError

SIDE_HELP = "A profile (name or file), a result folder, a .json of --json, or a schedule.parquet."


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(plan)
    app.command()(diff)


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
    from hetsim.plan_copy import command_words, copy, read_batches

    loaded = arg.read_profile(profile, overrides)
    with progress_bar("trying algorithms") as advance:
        found = run(
            loaded,
            algorithm,
            batches=read_batches(batches),
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
    emit("\n".join(["\nto copy:", *copy(found, command_words(profile, overrides))]))
    emit_rich(*plans.after(found))


def diff(
    a: Annotated[str, typer.Argument(metavar="A", help=SIDE_HELP, show_default=False)],
    b: Annotated[str, typer.Argument(metavar="B", help="The same kind of thing as A.", show_default=False)],
    algorithm: arg.Algorithms = None,
    predictor: str = typer.Option(
        "nqm", "--predictor", metavar="NAME", help="Of profiles: by which both are compared."
    ),
    seed: arg.Seed = 0,
    jobs: int | None = typer.Option(None, "--jobs", "-j", min=1, metavar="N", help="Processes. Default: one per CPU."),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="PATH=VALUE", help="Of profiles: override a field of B; repeatable."),
    ] = None,
    as_json: arg.Json = False,
) -> None:
    """Say what differs between two profiles, results or schedules, and by how much.

    \b
    Examples:
      hetsim diff mixed-gpu-4 mixed-gpu-4-slow -a s-sgd -a abs-sgd    what a slow network changes
      hetsim diff my.yaml my.yaml --set workers.d.gpu=A100            what another GPU would
      hetsim diff before after                                        two folders of -o
      hetsim diff before.json after.json                              two documents of --json
      hetsim diff run/predicted/schedule.parquet run/measured-1/schedule.parquet
    """
    from hetsim.diff import diff as run
    from hetsim.diff import read_side

    sides = read_side(a), read_side(b, overrides or ())
    if overrides and sides[1].what != "profiles":
        raise UsageError("--set is for profiles")
    with progress_bar("comparing both") as advance:
        found = run(
            *sides,
            algorithms=algorithm,
            predictor=predictor,
            seed=seed,
            jobs=jobs,
            progress=lambda label, done, total: advance(done, total, f"comparing both ({label} done)"),
        )
    if as_json:
        emit_json(found.to_json())
        return
    from hetsim.cli import diffs

    emit_rich(*diffs.diff(found))
