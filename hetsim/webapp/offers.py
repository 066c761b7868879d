"""What one can take away from Explore: files, the command, the link."""

from __future__ import annotations

import io
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import streamlit as st

from hetsim.comparison import QUICK, Comparison
from hetsim.errors import UsageError
from hetsim.export import safe_label, write_comparison
from hetsim.webapp import session
from hetsim.webapp.messages import said
from hetsim.webapp.tables import csv_text
from hetsim.webapp.view import View


def profile_yaml(view: View) -> str:
    """The profile with all changes, complete in itself."""
    return view.profile().to_yaml()


def result_zip(c: Comparison, command: str) -> bytes:
    """The folder of `hetsim compare -o`, as an archive."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory(prefix="hetsim-") as temporary:
        folder = write_comparison(c, Path(temporary) / "result", command=command)
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(folder.rglob("*")):
                if path.is_file():
                    archive.write(path, Path(safe_label(c.profile)) / path.relative_to(folder))
    return packed.getvalue()


def report(c: Comparison, command: str) -> str:
    """The report of `hetsim compare -o`, one file."""
    from hetsim.report import Material, report_html

    yaml = next((r.schedule.header.profile_yaml for r in c.runs.values()), "")
    document = {**c.to_json(), "command": command}
    schedules = {label: run.schedule for label, run in c.runs.items()}
    return report_html(Material(document=document, curves=dict(c.curves), schedules=schedules, profile_yaml=yaml))


def offers(view: View, c: Comparison, rows: list[dict[str, Any]]) -> None:
    """Buttons, command and link."""
    quick = c.method == QUICK
    name, command = safe_label(c.profile), view.command(quick)
    files: list[tuple[str, str, str, Callable[[], str | bytes], str]] = [
        ("Profile (YAML)", "yaml", "text/yaml", lambda: profile_yaml(view), "The cluster with all changes, to edit."),
        ("Table (CSV)", "csv", "text/csv", lambda: csv_text(rows), "The table above, for a spreadsheet."),
        ("Report (HTML)", "html", "text/html", lambda: report(c, command), "One file to send on: verdict, figures, assumptions."),
        ("Result folder (ZIP)", "zip", "application/zip", lambda: result_zip(c, command), "As hetsim compare -o writes it."),
    ]  # fmt: skip
    with st.container(horizontal=True):
        for label, ending, kind, make, means in files:
            st.download_button(
                label,
                make,
                f"{name}.{ending}",
                kind,
                key=f"offer/{kind}",
                help=means,
                on_click="ignore",
                icon=":material/download:",
            )
    st.markdown("**The same in a terminal**" + (": this quick picture" if quick else ": tuned, over all seeds"))
    if not view.shipped:
        st.caption(
            f"Your profile is read from {said(view.file_name())}: the file you uploaded, or the one offered above."
        )
    st.code(command, language="bash", wrap_lines=True)
    if quick:
        st.markdown("**In Python**")
        st.code(view.snippet(), language="python", wrap_lines=True)
        st.markdown("**Tuned, over all seeds**, with intervals; minutes rather than a second")
        st.code(view.command(), language="bash", wrap_lines=True)
    st.markdown("**Link to this view**, with its baseline where one is pinned")
    try:
        st.code(address(session.link(view, session.baseline())), language=None, wrap_lines=True)
    except UsageError as error:
        st.info(f"There is no link: {error}.", icon=":material/link_off:")


def address(parameters: dict[str, str]) -> str:
    """The link: where the app is, and the parameters."""
    base = (st.context.url or "").split("?")[0]
    return f"{base}?{urlencode(parameters)}" if parameters else base
