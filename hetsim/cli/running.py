"""Commands that run something: simulate, compare, explain, replay."""

from __future__ import annotations

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit_json, emit_rich, say


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(simulate)


def simulate(
    profile: arg.ProfileArgument,
    algorithm: arg.OneAlgorithm,
    updates: int | None = typer.Option(
        None, "--updates", min=1, metavar="K", help="Stop after K updates. Default: the profile's training.max_samples."
    ),
    seed: arg.Seed = 0,
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
    output: arg.Output = None,
    force: arg.Force = False,
) -> None:
    """Time one algorithm on a cluster: samples/s, and where the time goes.

    \b
    Examples:
      hetsim simulate mixed-gpu-4 -a abs-sgd
      hetsim simulate mixed-gpu-4 -a s-sgd:overlap=false --updates 500 --json
      hetsim simulate mixed-gpu-4 -a abs-sgd -o run     # trace.json.gz opens in ui.perfetto.dev
    """
    from hetsim import export
    from hetsim.simulate import simulate as run

    label = arg.only_one(algorithm, "simulate")
    name, options = arg.parse_algorithm(label)
    folder = export.check_folder(output, force)
    loaded = arg.read_profile(profile, overrides)
    result = run(loaded, name, options=options, seed=seed, updates=updates)
    if folder is not None:
        export.write_simulation(result, folder, label=label, force=force)
        say(f"wrote {folder}")
    if as_json:
        emit_json(export.simulation_document(result, label=label))
        return
    from hetsim.cli import tables

    emit_rich(*tables.simulation(result, label))
