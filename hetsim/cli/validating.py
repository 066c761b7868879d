"""validate: predict, run for real on this machine, compare."""

from __future__ import annotations

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit_json, emit_rich, progress_bar, say

OUTSIDE = 3  # exit code: a check failed


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def validate(
    profile: arg.ProfileArgument,
    algorithm: arg.OneAlgorithm,
    runs: int = typer.Option(1, "--runs", min=1, max=5, metavar="N", help="Runs, on paired seeds."),
    updates: int = typer.Option(60, "--updates", min=2, metavar="K", help="Updates of each run."),
    period_tolerance: float = typer.Option(0.05, "--period-tolerance", min=0.0, metavar="X", help="Time per update."),
    median_tolerance: float = typer.Option(
        0.02, "--median-tolerance", min=0.0, metavar="X", help="Time per update, median of several runs."
    ),
    share_tolerance: float = typer.Option(0.05, "--share-tolerance", min=0.0, metavar="X", help="Shares of samples."),
    time_tolerance: float = typer.Option(0.10, "--time-tolerance", min=0.0, metavar="X", help="Time to target."),
    pace_tolerance: float = typer.Option(
        0.25, "--pace-tolerance", min=0.0, metavar="X", help="How much longer than its profile a pass may take."
    ),
    shaped: bool | None = typer.Option(
        None,
        "--shaped/--unshaped",
        help="Shape links (needs root and tc). Default: where possible.",
        show_default=False,
    ),
    seed: arg.Seed = 0,
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
    output: arg.Output = None,
) -> None:
    """Predict, run for real on this machine, and say whether the prediction held. Exit code 3 where it did not.

    \b
    Examples:
      hetsim validate emulated-4 -a abs-sgd
      hetsim validate emulated-4 -a s-sgd -a lb-bsp -a abs-sgd --runs 5 -o held
      hetsim validate my.yaml -a abs-sgd --period-tolerance 0.02 --json
    """
    from abs_sgd import agreement, validation_report
    from abs_sgd.validate import validate as run
    from hetsim import export

    folder = export.check_folder(output, False)
    loaded = arg.read_profile(profile, overrides)
    tolerances = agreement.Tolerances(
        period=period_tolerance, period_median=median_tolerance, share=share_tolerance, time=time_tolerance
    )
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
            progress=progress,
        )
    command = arg.reproduce("validate", algorithm, predictor="nqm", seed=seed)
    command += f" --runs {runs} --updates {updates}"
    if folder is not None:
        validation_report.write(found, folder, command=command)
        say(f"wrote {folder} (open {folder / 'report.html'} in a browser)")
    if as_json:
        emit_json({**found.document, "command": command})
    else:
        emit_rich(*_shown(found.document, validation_report.lines))
    if not found.within:
        raise typer.Exit(OUTSIDE)


def _shown(document: dict[str, object], lines: object) -> list[object]:
    from rich.text import Text

    from hetsim.cli.tables import grid, paragraph

    out: list[object] = []
    for row in document["algorithms"]:  # type: ignore[attr-defined]
        table = grid("", "predicted", "measured", "off", right=frozenset({1, 2, 3}))
        for line in lines(row):  # type: ignore[operator]
            table.add_row(*line)
        out += [Text.assemble((row["name"], "bold"), " on ", (str(document["profile"]), "bold")), "", table]
        out += [paragraph("verdict", row["verdict"]), ""]
    out += [paragraph("run", text) for text in document["said"]]  # type: ignore[attr-defined]
    return out
