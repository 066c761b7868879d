"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from hetsim.errors import UsageError

if TYPE_CHECKING:
    from hetsim.cluster import Profile

PROFILE_HELP = "A shipped profile's name (hetsim profiles), a YAML file, or - for standard input."
ProfileArgument = Annotated[str, typer.Argument(metavar="PROFILE", help=PROFILE_HELP, show_default=False)]
OptionalProfile = Annotated[
    str | None,
    typer.Argument(metavar="[PROFILE]", help=PROFILE_HELP + " Default: four unequal GPUs.", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Override any profile field; repeatable. Workers by name or position: workers.d.samples_per_s=150.",
    ),
]
Algorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME[:OPTION=VALUE,...]",
        help="An algorithm (hetsim algorithms), with options; repeatable.",
    ),
]
OneAlgorithm = Annotated[
    list[str],
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME[:OPTION=VALUE,...]",
        help="The algorithm (hetsim algorithms), with options.",
        show_default=False,
    ),
]
Seed = Annotated[int, typer.Option("--seed", min=0, metavar="N", help="Seed of all luck.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a table.")]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write a result folder.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", help="Replace a result folder that exists.")]


def read_profile(source: str | None, overrides: list[str] | None) -> Profile:
    """The profile a command was given; None is the embedded default, - standard input."""
    from hetsim.cluster import load_profile

    if source != "-":
        return load_profile(source, overrides=overrides or ())
    import sys

    text = sys.stdin.buffer.read(1_000_001).decode("utf-8-sig", errors="replace")
    return load_profile(text + "\n", overrides=overrides or (), name="<stdin>")


def parse_algorithm(text: str) -> tuple[str, dict[str, Any]]:
    """`abs-sgd:trigger=min_samples,min_samples=64` -> name and options. Raises UsageError where an option has no value."""
    name, _, rest = text.partition(":")
    options: dict[str, Any] = {}
    for part in filter(None, (p.strip() for p in rest.split(","))):
        key, equals, value = part.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise UsageError(f"-a {text}: must read name:option=value,option=value")
        options[key.strip()] = value.strip()
    return name.strip(), options


def only_one(algorithms: list[str], command: str) -> str:
    """The one algorithm that `command` takes."""
    if len(algorithms) != 1:
        raise UsageError(f"hetsim {command} takes one algorithm; hetsim compare takes several")
    return algorithms[0]
