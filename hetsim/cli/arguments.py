"""Arguments that several commands share, and how their text is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hetsim.errors import UsageError

if TYPE_CHECKING:
    from hetsim.cluster import Profile
    from hetsim.labels import Contender

FLAG = " "  # of an option without a value, or Typer writes <bool> behind it as if it took one
PROFILE_HELP = "A shipped profile's name (hetsim profiles), a YAML file, or - for standard input."
ProfileArgument = Annotated[str, typer.Argument(metavar="PROFILE", help=PROFILE_HELP, show_default=False)]
OptionalProfile = Annotated[
    str | None,
    typer.Argument(metavar="PROFILE", help=PROFILE_HELP + " Default: mixed-gpu-4.", show_default=False),
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
AllAlgorithms = Annotated[
    list[str] | None,
    typer.Option(
        "--algorithm",
        "-a",
        metavar="NAME[:OPTION=VALUE,...]",
        help="An algorithm (hetsim algorithms), with options; repeatable; all: every one. Default: the core eight.",
        show_default=False,
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
Json = Annotated[bool, typer.Option("--json", metavar=FLAG, help="Print one JSON document instead of a table.")]
Output = Annotated[
    str | None,
    typer.Option("--output", "-o", metavar="DIR", help="Write a result folder.", show_default=False),
]
Force = Annotated[bool, typer.Option("--force", metavar=FLAG, help="Replace a result folder that exists.")]
CpuShares = Annotated[
    str | None,
    typer.Option(
        "--cpu-shares",
        metavar="X,...",
        help="Of a core for each process, as in 0.8,0.4: unequal workers on one machine (Linux, root).",
        show_default=False,
    ),
]


def numbers(option: str, text: str) -> tuple[float, ...]:
    """Numbers with commas between; none for "". Raises UsageError."""
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"{option} {text!r}: numbers with commas between, as in 0.8,0.4") from None


def read_profile(source: str | None, overrides: list[str] | None) -> Profile:
    """The profile a command was given; None is the embedded default, - standard input."""
    from hetsim.cluster import load_profile
    from hetsim.cluster.document import MAX_TEXT_BYTES
    from hetsim.cluster.loader import decoded

    if source != "-":
        return load_profile(source, overrides=overrides or ())
    import sys

    data = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1)
    return load_profile(decoded(data, "<stdin>") + "\n", overrides=overrides or (), name="<stdin>")


def only_one(algorithms: list[str], command: str) -> Contender:
    """The one algorithm that `command` takes."""
    from hetsim.labels import parse

    if len(algorithms) != 1:
        raise UsageError(f"hetsim {command} takes one algorithm; hetsim compare takes several")
    return parse(algorithms[0])


def reproduce(command: str, algorithms: list[str] | None, *, predictor: str, seed: int) -> str:
    """The command that gives the same result from inside a result folder, whose profile.yaml holds every override."""
    import shlex

    words = ["hetsim", command, "profile.yaml"]
    for label in algorithms or []:
        words += ["-a", label]
    words += ["--predictor", predictor] if predictor != "nqm" else []
    words += ["--seed", str(seed)] if seed else []
    return shlex.join(words)
