"""Commands that look at the machine: doctor."""

from __future__ import annotations

import typer

from hetsim.cli import arguments as arg
from hetsim.cli.terminal import emit_json, emit_rich


def register(app: typer.Typer) -> None:
    """Add the commands, in the order of the help."""
    app.command()(doctor)


def doctor(as_json: arg.Json = False) -> None:
    """Say what this machine offers, what each absence disables, and what to install.

    \b
    Examples:
      hetsim doctor
      hetsim doctor --json
    """
    from dataclasses import asdict

    from abs_sgd.doctor import examine

    checks = examine()
    if as_json:
        emit_json({"schema_version": 1, "checks": [asdict(check) for check in checks]})
        return
    from rich.text import Text

    from hetsim.cli.tables import grid

    table = grid("", "what", "found")
    for check in checks:
        table.add_row("ok" if check.ok else Text("no", style="bold"), check.name, Text(check.found))
        if not check.ok:
            table.add_row("", "", Text(f"disables: {check.disables}"))
            table.add_row("", "", Text(f"needs: {check.remedy}"))
    emit_rich(table)
