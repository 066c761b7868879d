"""validate: predict, run for real on this machine, compare."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit_json, emit_rich, progress_bar, say
from hetsim.errors import MissingExtraError, UsageError

if TYPE_CHECKING:
    from abs_sgd.agreement import Tolerances
    from abs_sgd.validate import Validation
    from hetsim.cluster import Profile

OUTSIDE = 3  # exit code: a check failed
OF_THE_RUN = ("algorithm", "runs", "updates", "seed", "pace_tolerance", "shaped")  # known of a run made elsewhere


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def validate(
    context: typer.Context,
    profile: Annotated[
        str | None,
        typer.Argument(
            metavar="PROFILE",
            help=arg.PROFILE_HELP + " With --from-run by default the run's own.",
            show_default=False,
        ),
    ] = None,
    algorithm: arg.Algorithms = None,
    from_run: Annotated[
        list[Path] | None,
        typer.Option(
            "--from-run",
            metavar="DIR",
            help="Compare a finished run's folder, as torchrun -m abs_sgd -o writes it, and run nothing; repeatable.",
        ),
    ] = None,
    timing_only: Annotated[
        bool,
        typer.Option("--timing-only", metavar=arg.FLAG, help="With --from-run: compare no losses and no parameters."),
    ] = False,
    runs: int = typer.Option(1, "--runs", min=1, max=5, metavar="N", help="Runs, on paired seeds."),
    updates: int = typer.Option(60, "--updates", min=2, metavar="K", help="Updates of each run."),
    period_tolerance: float = typer.Option(
        0.05, "--period-tolerance", min=0.0, metavar="X", help="How far the time per update may be off, in every run."
    ),
    median_tolerance: float = typer.Option(
        0.02, "--median-tolerance", min=0.0, metavar="X", help="The same, median of several runs."
    ),
    share_tolerance: float = typer.Option(
        0.05, "--share-tolerance", min=0.0, metavar="X", help="How far a worker's share of the samples may be off."
    ),
    time_tolerance: float = typer.Option(
        0.10,
        "--time-tolerance",
        min=0.0,
        metavar="X",
        help="How far the time to target may be off, median of the runs.",
    ),
    pace_tolerance: float = typer.Option(
        0.25, "--pace-tolerance", min=0.0, metavar="X", help="How much longer than the profile says a pass may take."
    ),
    shaped: bool | None = typer.Option(
        None,
        "--shaped/--unshaped",
        metavar=arg.FLAG,
        help="Shape links (needs root and tc). Default: where possible.",
        show_default=False,
    ),
    unpaced: bool = typer.Option(
        False,
        "--unpaced",
        metavar=arg.FLAG,
        help="Emulate nothing: measure processes of this machine (or take PROFILE for them) and run them as they are.",
    ),
    cpu_shares: arg.CpuShares = None,
    workload: str = typer.Option(
        "digits-cnn", "--workload", metavar="NAME", help="What --unpaced measures and trains; with PROFILE that one's."
    ),
    seed: arg.Seed = 0,
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
    output: arg.Output = None,
) -> None:
    """Predict, train for real on this machine (or take finished runs), and say whether the prediction held; exit code 3 where it did not.

    The profiles emulated-* suit any machine that does nothing else: small passes that sleep to keep the profile's time, slow links.

    \b
    Examples:
      hetsim validate emulated-4 -a abs-sgd
      hetsim validate emulated-4 -a s-sgd -a lb-bsp -a abs-sgd --runs 5 -o held
      hetsim validate my.yaml -a abs-sgd --period-tolerance 0.02 --json
      hetsim validate --unpaced --cpu-shares 0.8,0.4 -a s-sgd -a abs-sgd      # calibrates first
      hetsim validate --from-run run                     # of torchrun, against its own profile
      hetsim validate calibrated.yaml --from-run run-0 --from-run run-1 -o held
    """
    from abs_sgd import agreement
    from abs_sgd.validate import validate as run
    from hetsim import validation_folder, writing

    folder = writing.check_folder(output, False)
    tolerances = agreement.Tolerances(
        period=period_tolerance, period_median=median_tolerance, share=share_tolerance, time=time_tolerance
    )
    if from_run:
        _refuse_what_the_run_says(context)
        found = _compare(profile, from_run, overrides, tolerances, losses=not timing_only)
        words = ["hetsim", "validate", "profile.yaml", *_words(from_run), *["--timing-only"] * timing_only]
        command = shlex.join(words)
    else:
        if (profile is None and not unpaced) or not algorithm:
            raise UsageError("name a profile and an algorithm (PROFILE -a NAME), or a finished run (--from-run DIR)")
        shares = arg.numbers("--cpu-shares", cpu_shares or "")
        if shares and not unpaced:
            raise UsageError("--cpu-shares: with --unpaced only; a paced run takes the profile's times")
        if timing_only:
            raise UsageError("--timing-only is for finished runs (--from-run DIR)")
        loaded = _measured(shares, workload, overrides) if profile is None else arg.read_profile(profile, overrides)
        with progress_bar("running") as progress:
            found = run(
                loaded,
                algorithm,
                runs=runs,
                updates=updates,
                seed=seed,
                tolerances=tolerances,
                shape=shaped,
                pace_tolerance=pace_tolerance,
                unpaced=unpaced,
                cpu_shares=shares,
                progress=progress,
            )
        command = arg.reproduce("validate", algorithm, predictor="nqm", seed=seed)
        command += f" --runs {runs} --updates {updates}"
        command += " --unpaced" * unpaced + (f" --cpu-shares {cpu_shares}" if shares else "")
    if folder is not None:
        validation_folder.write(found, folder, command=command)
        say(f"wrote {folder} (open {folder / 'report.html'} in a browser)")
    if as_json:
        emit_json({**found.document, "command": command})
    else:
        from hetsim.cli import tables

        emit_rich(*tables.validation(found.document))
    if not found.within:
        raise typer.Exit(OUTSIDE)


def _measured(shares: Sequence[float], workload: str, overrides: list[str] | None) -> Profile:
    """This machine's own profile, by `hetsim calibrate`."""
    from abs_sgd.calibrate import Settings, calibrate, under_torchrun
    from hetsim.cluster import load_profile

    if under_torchrun():
        raise UsageError("--unpaced starts its own processes; for runs under torchrun there is --from-run")
    if not shares:
        raise UsageError("--unpaced: name the processes' shares of a core (--cpu-shares 1,0.5) or a calibrated profile")
    say(f"measuring {len(shares)} processes on this machine")
    found = calibrate(Settings(workload=workload, cpu_shares=tuple(shares), device="cpu"))
    assert found is not None
    return load_profile(found.profile.to_yaml(), overrides=overrides or ())


def _compare(
    profile: str | None, folders: Sequence[Path], overrides: list[str] | None, tolerances: Tolerances, *, losses: bool
) -> Validation:
    try:
        from abs_sgd.validate_runs import validate_runs
    except ImportError as error:
        raise MissingExtraError("comparing real runs", "train") from error

    given = None if profile is None else arg.read_profile(profile, overrides)
    with progress_bar("comparing") as progress:
        return validate_runs(
            folders, given, overrides=overrides or (), tolerances=tolerances, losses=losses, progress=progress
        )


def _words(folders: Sequence[Path]) -> list[str]:
    """The folders as options, found also from inside a result folder."""
    return [word for folder in folders for word in ("--from-run", str(folder.absolute()))]


def _refuse_what_the_run_says(context: typer.Context) -> None:
    """Raises UsageError for options that a finished run has settled."""
    for name in OF_THE_RUN:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = "--unshaped/--shaped" if name == "shaped" else f"--{name.replace('_', '-')}"
            raise UsageError(f"{option}: settled when the run was made; leave it out with --from-run")
