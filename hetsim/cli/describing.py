"""Commands that describe: profiles, algorithms, schema, init, import, report, app."""

from __future__ import annotations

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit, emit_json, emit_rich


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(profiles)
    app.command()(algorithms)
    app.command()(schema)


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
