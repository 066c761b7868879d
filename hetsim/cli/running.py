"""Commands that run something: simulate, compare, explain, replay."""

from __future__ import annotations

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit_json, emit_rich, say


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(simulate)
    app.command()(explain)


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


def explain(
    profile: arg.ProfileArgument,
    algorithm: arg.OneAlgorithm,
    seed: arg.Seed = 0,
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
) -> None:
    """Show the arithmetic of one period, in numbers, beside what the simulator finds.

    \b
    Examples:
      hetsim explain mixed-gpu-4 -a abs-sgd
      hetsim explain mixed-gpu-4 -a s-sgd:overlap=false --set network.bandwidth_gbit_per_s=1
    """
    from hetsim.explain import explain as run

    name, options = arg.parse_algorithm(arg.only_one(algorithm, "explain"))
    found = run(arg.read_profile(profile, overrides), name, options, seed=seed)
    if as_json:
        emit_json(found.to_json())
        return
    from hetsim.cli import tables

    emit_rich(*tables.explanation(found))
