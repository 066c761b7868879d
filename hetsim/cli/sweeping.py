"""The command `sweep`: many clusters at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit_json, emit_rich, progress_bar, say
from hetsim.errors import UsageError

if TYPE_CHECKING:
    from hetsim.sweeps import SweepSpec

SOURCE_HELP = (
    "A profile (shipped name, YAML file, - for standard input) or a specification (a YAML file with over: or latin:)."
)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(sweep)


def sweep(
    source: Annotated[
        str | None, typer.Argument(metavar="[PROFILE|SPEC]", help=SOURCE_HELP, show_default=False)
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="PATH=VALUES",
            help="A field of the grid: path=a,b,c or path=low..high:count, and :log or :whole; repeatable.",
        ),
    ] = None,
    latin: Annotated[
        list[str] | None,
        typer.Option(
            "--latin",
            metavar="PATH=RANGE",
            help="A field of a Latin hypercube: path=low..high, with :log or :whole; repeatable.",
        ),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            "--samples", metavar="N", min=1, help="Points of the hypercube. Default: 100.", show_default=False
        ),
    ] = None,
    algorithm: arg.Algorithms = None,
    predictor: Annotated[
        str | None,
        typer.Option("--predictor", metavar="NAME", help="nqm (default), noise-scale or virtual.", show_default=False),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            metavar="NAME",
            help="auto (default): the short way where there is one; full: every cell as hetsim compare computes it.",
            show_default=False,
        ),
    ] = None,
    seeds: Annotated[
        int | None, typer.Option("--seeds", min=1, metavar="N", help="Seeds per cell. Default: 1.", show_default=False)
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", min=0, metavar="N", help="Seed of all luck. Default: 0.", show_default=False)
    ] = None,
    jobs: int | None = typer.Option(None, "--jobs", "-j", min=1, metavar="N", help="Processes. Default: one per CPU."),
    backend: str = typer.Option(
        "loky",
        "--backend",
        metavar="NAME",
        help="loky: this machine; dask:tcp://host:8786 or ray:address: a cluster, through joblib.",
    ),
    overrides: arg.Overrides = None,
    dry_run: bool = typer.Option(False, "--dry-run", help="Compute a few cells only and say what all would take."),
    as_json: arg.Json = False,
    output: arg.Output = None,
    force: arg.Force = False,
) -> None:
    """Compare algorithms on many clusters, a grid or a Latin hypercube over any profile fields: who wins where.

    With -o an interrupted sweep goes on when the same command is given again.

    \b
    Examples:
      hetsim sweep --over network.bandwidth_gbit_per_s=1..100:9:log -o out
      hetsim sweep mixed-gpu-8 --over training.global_batch_samples=256,512,1024 --dry-run
      hetsim sweep my.yaml --latin network.bandwidth_gbit_per_s=1..100:log --latin workers.d.samples_per_s=100..800 --samples 200
      hetsim sweep out/spec.yaml --json
    """
    from hetsim.cli import sweeps
    from hetsim.sweeps import run
    from hetsim.sweeps.estimate import estimate

    stated = {"over": over, "latin": latin, "samples": samples, "algorithm": algorithm, "predictor": predictor}
    spec = _spec(source, {**stated, "method": method, "seeds": seeds, "seed": seed, "set": overrides})
    if dry_run:
        expected = estimate(spec, jobs=jobs, backend=backend, folder=output)
        emit_json(sweeps.estimate_document(expected)) if as_json else emit_rich(*sweeps.estimate(expected))
        return
    with progress_bar("sweep") as advance:

        def progress(what: str, done: int, of: int) -> None:
            if not what:
                say(f"{of:,} cells × {len(spec.labels)} algorithms" + (f", {done:,} cells are there" if done else ""))
            advance(done, of, what)

        found = run(spec, jobs=jobs, backend=backend, folder=output, force=force, progress=progress)
    if output is not None:
        said = (
            "was complete already"
            if not found.computed
            else f"wrote {output} ({found.computed:,} cells computed now; report.html opens in a browser)"
        )
        say(said)
    if as_json:
        emit_json(sweeps.document(found))
        return
    emit_rich(*sweeps.summary(found))


def _spec(source: str | None, stated: dict[str, Any]) -> SweepSpec:
    """The specification from a file, or from a profile and what was typed."""
    from hetsim.sweeps.design import read_axis, read_latin
    from hetsim.sweeps.spec import is_spec, load_spec, make_spec

    if source is not None and source.endswith((".yaml", ".yml")) and is_spec(source):
        extra = [f"--{name}" for name, value in stated.items() if value]
        if extra:
            raise UsageError(f"{source} says what to sweep; change it there, not by {', '.join(extra)}")
        return load_spec(source)
    seed = stated["seed"] or 0
    if stated["samples"] and not stated["latin"]:
        raise UsageError("--samples counts the points of a hypercube: name its fields with --latin")
    return make_spec(
        arg.read_profile(source, stated["set"]),
        axes=[read_axis(text) for text in stated["over"] or ()],
        latin=read_latin(stated["latin"] or (), stated["samples"] or 100, seed),
        algorithms=stated["algorithm"],
        predictor=stated["predictor"] or "nqm",
        method=stated["method"] or "auto",
        seeds=stated["seeds"] or 1,
        seed=seed,
    )
