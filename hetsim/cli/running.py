"""Commands that run something: simulate, compare, explain, replay."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit_json, emit_rich, out, progress_bar, say
from hetsim.errors import UsageError


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(compare)
    app.command()(simulate)
    app.command()(explain)
    app.command()(replay)


def compare(
    profile: arg.OptionalProfile = None,
    algorithm: arg.AllAlgorithms = None,
    predictor: str = typer.Option(
        "nqm",
        "--predictor",
        metavar="NAME",
        help="How the loss is predicted: nqm, noise-scale, or virtual (trains with torch).",
    ),
    seed: arg.Seed = 0,
    jobs: int | None = typer.Option(None, "--jobs", "-j", min=1, metavar="N", help="Processes. Default: one per CPU."),
    quick: Annotated[
        bool,
        typer.Option(
            "--quick",
            metavar=arg.FLAG,
            help="About a second: one seed, runs extended from their steady state; says how well periods are known.",
        ),
    ] = False,
    fixed: Annotated[
        bool,
        typer.Option(
            "--fixed",
            metavar=arg.FLAG,
            help="With --quick: all at the profile's learning rate and momentum, none tuned.",
        ),
    ] = False,
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
    output: arg.Output = None,
    force: arg.Force = False,
) -> None:
    """Compare algorithms on one cluster, each tuned: time to target, speed-up, who wins and why.

    \b
    Examples:
      hetsim compare
      hetsim compare mixed-gpu-8 --quick
      hetsim compare mixed-gpu-8 -o results      # results/report.html to send on
      hetsim compare my.yaml -a s-sgd -a abs-sgd -a abs-sgd:compute_point=current
      hetsim compare --set workers.d.gpu=V100 --set training.seeds=9 --json
    """
    from hetsim import export, writing
    from hetsim.cli.preview import Preview
    from hetsim.compare import compare as run

    if quick and jobs is not None:
        raise UsageError("--quick computes in one process; leave out --jobs")
    if fixed and not quick:
        raise UsageError("--fixed is for --quick; without it every algorithm is tuned")
    folder = writing.check_folder(output, force)
    loaded = arg.read_profile(profile, overrides)
    if quick:
        from hetsim.quick import quick as run_quick

        with progress_bar("quick comparison") as advance:
            found = run_quick(
                loaded,
                algorithm,
                predictor=predictor,
                seed=seed,
                tuned=not fixed,
                progress=lambda label, done, total: advance(done, total, f"quick comparison ({label} done)"),
            )
    else:
        with Preview(loaded, algorithm, seed) as preview:
            found = run(loaded, algorithm, predictor=predictor, seed=seed, jobs=jobs, progress=preview.done)
    if folder is not None:
        command = arg.reproduce("compare", algorithm, predictor=predictor, seed=seed)
        command += " --quick" * quick + " --fixed" * fixed
        export.write_comparison(found, folder, command=command, force=force)
        say(f"wrote {folder} (open {folder / 'report.html'} in a browser)")
    if as_json:
        emit_json(found.to_json())
        return
    from hetsim.cli import verdicts

    emit_rich(*verdicts.comparison(found, out().width))


def simulate(
    profile: arg.ProfileArgument,
    algorithm: arg.OneAlgorithm,
    updates: int | None = typer.Option(
        None,
        "--updates",
        min=1,
        metavar="K",
        help="Stop after K updates. Default: after training.max_samples of the profile.",
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
    from hetsim import export, writing
    from hetsim.simulate import simulate as run

    chosen = arg.only_one(algorithm, "simulate")
    folder = writing.check_folder(output, force)
    loaded = arg.read_profile(profile, overrides)
    result = run(loaded, chosen.name, options=chosen.options, seed=seed, updates=updates)
    if folder is not None:
        export.write_simulation(result, folder, label=chosen.label, force=force)
        say(f"wrote {folder}")
    if as_json:
        emit_json(export.simulation_document(result, label=chosen.label))
        return
    from hetsim.cli import tables

    emit_rich(*tables.simulation(result, chosen.label))


def explain(
    profile: arg.ProfileArgument,
    algorithm: arg.OneAlgorithm,
    seed: arg.Seed = 0,
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
) -> None:
    """Show the arithmetic of one period, from update to update, in numbers, beside what the simulator finds.

    \b
    Examples:
      hetsim explain mixed-gpu-4 -a abs-sgd
      hetsim explain mixed-gpu-4 -a s-sgd:overlap=false --set network.bandwidth_gbit_per_s=1
    """
    from hetsim.explain import explain as run

    chosen = arg.only_one(algorithm, "explain")
    found = run(arg.read_profile(profile, overrides), chosen.name, chosen.options, seed=seed)
    if as_json:
        emit_json(found.to_json())
        return
    from hetsim.cli import tables, worth

    emit_rich(*tables.explanation(found), "", *worth.memory(found.memory), "", *worth.marginal(found.marginal))


def replay(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="DIR",
            help="A run's folder: of simulate -o, runs/LABEL of compare -o, or torchrun -m abs_sgd -o.",
            show_default=False,
        ),
    ],
    backend: str = typer.Option(
        "inprocess",
        "--backend",
        metavar="NAME",
        help="inprocess: in this process, in simulated time; gloo, nccl: a process per worker on this machine.",
    ),
    device: str = typer.Option(
        "cpu", "--device", metavar="NAME", help="cpu or cuda; nccl wants a GPU for each worker."
    ),
    pace: Annotated[
        float | None,
        typer.Option(
            "--pace",
            metavar="X",
            help="With processes: X seconds per second of the schedule; without it as fast as it goes.",
            show_default=False,
        ),
    ] = None,
    checkpoint_every: Annotated[
        int | None,
        typer.Option(
            "--checkpoint-every",
            metavar="K",
            min=1,
            help="With processes: a checkpoint every K updates, in DIR/replay.",
            show_default=False,
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", metavar=arg.FLAG, help="Go on from the newest checkpoint in DIR/replay.")
    ] = False,
    workload: str = typer.Option(
        "auto", "--workload", metavar="NAME", help="What to train; auto: the profile's, or a small stand-in."
    ),
    data: Annotated[
        Path | None, typer.Option("--data", metavar="DIR", help="Folder with the data, where the workload needs some.")
    ] = None,
    seed: arg.Seed = 0,
    overrides: arg.Overrides = None,
    as_json: arg.Json = False,
) -> None:
    """Train what a run's schedule says, with true gradients, in its simulated time or by real processes (needs torch).

    \b
    Examples:
      hetsim simulate mixed-gpu-4 -a abs-sgd --updates 500 -o run
      hetsim replay run
      hetsim replay run --set training.learning_rate=0.02 --json
      hetsim replay run --backend gloo
      hetsim replay run --backend gloo --checkpoint-every 100 --resume    # goes on after it broke
    """
    from hetsim.cli import replaying, tables

    how = replaying.How(backend=backend, device=device, pace=pace, checkpoint_every=checkpoint_every, resume=resume)
    run = replaying.prepare(folder, workload, data, overrides, how)
    with progress_bar(f"training {run.schedule.header.algorithm}"):
        trained = run.train(seed)
    if as_json:
        emit_json(run.document(trained, seed))
        return
    if resume:
        went_on = f"went on from the checkpoint of update {trained.resumed_from}"
        say(went_on if trained.resumed_from else "no checkpoint yet: trained from the start")
    clock = "simulated time" if backend == "inprocess" else "time"
    emit_rich(*tables.curve(trained.curve, run.target, clock))
