"""Commands that describe: profiles, algorithms, schema, init, import, report, app."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit, emit_json, emit_rich, err, say
from hetsim.errors import MissingExtraError


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(init)
    app.command(name="import")(import_)
    app.command()(report)
    app.command()(profiles)
    app.command()(algorithms)
    app.command()(schema)
    app.command(name="app")(explorer)


OutputFile = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here, not to stdout.")]
ReplaceFile = Annotated[bool, typer.Option("--force", metavar=arg.FLAG, help="Replace a file that exists.")]


def _deliver(text: str, output: Path | None, force: bool) -> None:
    """To a file, or to stdout."""
    from hetsim import writing

    path = writing.check_file(output, force)
    if path is None:
        emit(text)
        return
    writing.write_file(path, text)
    say(f"wrote {path}")


def init(
    gpus: str = typer.Option(
        ...,
        "--gpus",
        metavar="GPU:N,...",
        help="GPUs of the catalogue, with counts; --gpus '?' lists them.",
        show_default=False,
    ),
    slow: Annotated[
        list[str] | None,
        typer.Option(
            "--slow",
            metavar="NAME:RATE",
            help="A worker with a slower link (workers are a, b, c, …); repeatable, also d:1gbit,c:2gbit.",
        ),
    ] = None,
    bandwidth: str = typer.Option(
        "10gbit", "--bandwidth", metavar="RATE", help="Every worker's link: 1gbit, 2.5gbit, 200mbit."
    ),
    workload: str = typer.Option("resnet18-cifar10", "--workload", metavar="NAME", help="What is trained."),
    name: str = typer.Option("my-cluster", "--name", metavar="NAME", help="Name of the profile."),
    output: OutputFile = None,
    force: ReplaceFile = False,
) -> None:
    """Write a commented profile of your cluster, to edit and to name in other commands.

    \b
    Examples:
      hetsim init --gpus A100:2,V100:2 --slow d:1gbit > my.yaml
      hetsim init --gpus T4:8 --bandwidth 25gbit -o my.yaml
      hetsim init --gpus '?'                     # the GPUs of the catalogue
    """
    from hetsim.cluster import init_profile

    if gpus.strip() == "?":
        from hetsim.cli import tables

        emit_rich(*tables.gpus())
        return
    links = [part.strip() for text in slow or () for part in text.split(",") if part.strip()]
    _deliver(init_profile(gpus, slow=links, bandwidth=bandwidth, workload=workload, name=name), output, force)


def import_(
    steps: Annotated[Path, typer.Argument(metavar="CSV", help="Columns worker,samples,seconds.", show_default=False)],
    workload: str = typer.Option("resnet18-cifar10", "--workload", metavar="NAME", help="What was trained."),
    name: str = typer.Option("imported", "--name", metavar="NAME", help="Name of the profile."),
    output: OutputFile = None,
    force: ReplaceFile = False,
) -> None:
    """Make a profile from your own step times; how well they fit goes to stderr.

    \b
    Examples:
      hetsim import steps.csv -o my.yaml
    """
    from hetsim.cli import tables
    from hetsim.cluster import import_steps

    text, fits = import_steps(steps, name=name, workload=workload)
    err().print(tables.fits(fits))
    for fit in fits:
        if fit.batches == 1:
            err().print(
                tables.paragraph("warning", f"{fit.worker}: one batch size says nothing of the overhead, taken as 0")
            )
    _deliver(text, output, force)


def report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="A folder written by compare, simulate or validate -o.", show_default=False),
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here. Default: DIR/report.html.")
    ] = None,
    force: ReplaceFile = False,
) -> None:
    """Make one HTML file of a result folder, to send on.

    \b
    Examples:
      hetsim report results --force
      hetsim report run -o run.html
      hetsim report held -o held.html            # predicted against measured, of hetsim validate
    """
    from hetsim import writing
    from hetsim.report import folder_html

    html = folder_html(folder)
    path = writing.check_file(output or folder / "report.html", force)
    assert path is not None
    writing.write_file(path, html)
    say(f"wrote {path}")


def explorer(port: int = typer.Option(8501, "--port", min=1, max=65535, metavar="N", help="Local port.")) -> None:
    """Open the explorer in a browser: what if the link were faster, a card another? (needs streamlit)

    \b
    Examples:
      hetsim app                                 # http://127.0.0.1:8501, on this machine only
      hetsim app --port 9000
    """
    from importlib.util import find_spec

    if find_spec("streamlit") is None:
        raise MissingExtraError("the explorer", "app")
    import sys

    from hetsim.webapp.serving import serve

    stdout = sys.stdout

    def announce(text: str) -> None:
        print(text, file=stdout, flush=True)

    serve(port, announce)


def profiles(as_json: arg.Json = False) -> None:
    """List the profiles that come with hetsim."""
    from hetsim.cluster import DEFAULT_PROFILE, shipped_profiles

    found = shipped_profiles()
    if as_json:
        rows = [{"name": name, "description": text, "default": name == DEFAULT_PROFILE} for name, text in found.items()]
        emit_json({"schema_version": 1, "profiles": rows})
        return
    from hetsim.cli import tables

    emit_rich(*tables.profiles(found, DEFAULT_PROFILE))


def algorithms(as_json: arg.Json = False) -> None:
    """List the algorithms, their options and where they are described."""
    from hetsim.algorithms import registry

    if as_json:
        rows = [
            {
                "name": name,
                "role": kind.role,
                "summary": kind.summary(),
                "source": kind.source,
                "live": kind.live,
                "options": {
                    key: {"default": field.default, "description": field.description or ""}
                    for key, field in kind.Options.model_fields.items()
                },
            }
            for name, kind in registry().items()
        ]
        emit_json({"schema_version": 1, "algorithms": rows})
        return
    from hetsim.cli import tables

    emit_rich(*tables.algorithms(registry()))


def schema() -> None:
    """Print the JSON Schema of profiles, for editors that complete and underline."""
    from hetsim.cluster.schema import schema_text

    emit(schema_text())
