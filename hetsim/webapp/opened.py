"""What was opened, on the page: a validation (verdict, errors, curves, every figure) or a result (verdict, table, curves)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import streamlit as st

from hetsim import plots, wording
from hetsim import validation_tables as tables
from hetsim.report import Material, report_html
from hetsim.validation_figures import Axis, losses
from hetsim.validation_page import ValidationMaterial, validation_html
from hetsim.webapp import charts
from hetsim.webapp.messages import said
from hetsim.webapp.opening import OPENED, Opened

TIMELINE = str(Path(__file__).with_name("timeline.py"))
MARKS = {True: "✓ held", False: "✗ did not hold"}
AXES: tuple[Axis, ...] = ("seconds", "samples")
Row = Mapping[str, Any]


def show(opened: Opened) -> None:
    """All of it."""
    head, close = st.columns([5, 1], vertical_alignment="bottom")
    head.subheader(said(opened.name))
    close.button("Close", icon=":material/close:", key="opened-close", on_click=_close, help="Opens nothing else.")
    if opened.validation is not None:
        _validation(opened.name, opened.validation)
    elif opened.result is not None:
        _result(opened.name, opened.result)


def _close() -> None:
    st.session_state.pop(OPENED, None)


# ---- a validation --------------------------------------------------------------------------------------------------------


def _validation(name: str, material: ValidationMaterial) -> None:
    document = material.document
    tell = st.success if document["within"] else st.error
    icon = ":material/check_circle:" if document["within"] else ":material/cancel:"
    tell(said(tables.headline(document)), icon=icon)
    st.caption(said(f"{document['profile']}: {tables.facts(document)}"))
    st.dataframe(summary_rows(document), hide_index=True, width="stretch", height="content", key="opened-summary")
    st.caption(
        "How far measured figures are off the predicted ones, and up to where a prediction is said to have held."
    )
    labels = [row["name"] for row in document["algorithms"]]
    label = labels[0]
    if len(labels) > 1:
        label = st.selectbox(
            "Algorithm",
            labels,
            key="opened-algorithm",
            persist_state="session",
            help="Whose curves and figures are shown below.",
        )
    row = document["algorithms"][labels.index(label)]
    for text in (*tables.missed(row), *tables.uncompared(row)):
        st.markdown(f"- {said(text)}")
    _curves(material, label)
    with st.expander("Every figure, predicted and measured", icon=":material/table:"):
        st.dataframe(figure_rows(row), hide_index=True, width="stretch", height="content", key="opened-figures")
    if material.schedules.get(label):
        st.page_link(TIMELINE, label="Predicted and measured, worker by worker", icon=":material/view_timeline:")
    if document["said"]:
        with st.expander("How this was run", icon=":material/info:"):
            st.markdown("\n".join(f"- {said(text)}" for text in document["said"]))
    _page(name, lambda: validation_html(material))


def _curves(material: ValidationMaterial, label: str) -> None:
    curves = material.curves.get(label, ())
    if not curves:
        st.info(
            "Losses were not executed for these runs, or their curves are not in the folder.", icon=":material/info:"
        )
        return
    target = material.document["target_loss"]
    for column, axis in zip(st.columns(2), AXES, strict=True):
        with column:
            figure = losses(curves, axis, target)
            charts.show(figure, f"Predicted and measured loss of {label} against {axis}.", key=f"opened-loss-{axis}")
    if len(curves) > 1:
        st.caption(f"Medians of {len(curves)} runs, bands from the lowest to the highest.")


def summary_rows(document: Row) -> list[dict[str, str]]:
    """A row per algorithm: the verdict, and by how much each figure is off, marked where by more than allowed."""
    columns = tables.summary(document)
    out = []
    for place, row in enumerate(document["algorithms"]):
        cells = {"algorithm": row["name"], "verdict": MARKS[bool(row["within"])]}
        for column in columns:
            which = f"{column.which}, " if column.which else ""
            cell = column.cells[place]
            cells[f"{column.name} ({which}≤ {column.allowed})"] = f"✗ {cell.text}" if cell.off else cell.text
        out.append(cells)
    return out


def figure_rows(row: Row) -> list[dict[str, str]]:
    """Every figure of every run of one algorithm."""
    return [dict(zip(("figure", "predicted", "measured", "off"), line, strict=True)) for line in tables.lines(row)]


# ---- a result ------------------------------------------------------------------------------------------------------------


def _result(name: str, material: Material) -> None:
    document = material.document
    verdict = document.get("verdict") or f"Limited by {document.get('limited_by', wording.NONE)}."
    st.markdown(said(str(verdict)))
    st.caption(said(f"{document['profile']}, seed {document['seed']}; predicted, nothing was measured."))
    st.dataframe(result_rows(material.rows), hide_index=True, width="stretch", height="content", key="opened-summary")
    curves = material.curves
    if curves:
        ours = [row["name"] for row in material.rows if row["role"] == "ours"]
        target = document["target"]
        for column, axis in zip(st.columns(2), AXES, strict=True):
            with column:
                figure = plots.loss(curves, target=target["value"], against=axis, ours=ours, metric=target["metric"])
                charts.show(figure, f"Predicted loss of every algorithm against {axis}.", key=f"opened-loss-{axis}")
    _page(name, lambda: report_html(material))


def result_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """A row per algorithm, the fastest first."""
    return [
        {
            "algorithm": row["name"],
            "time to target": wording.seconds((row.get("time_to_target_s") or {}).get("median")),
            "× best baseline": wording.speedup_cell(row),
            "samples/s": wording.rate(row["samples_per_s"]),
            "busy": wording.percent(row["utilisation"]),
            "limited by": row["limited_by"],
        }
        for row in rows
    ]


def _page(name: str, html: Any) -> None:
    st.download_button(
        "Download the report",
        html,
        file_name=f"{name.removesuffix('.zip')}.html",
        mime="text/html",
        on_click="ignore",
        icon=":material/download:",
        key="opened-report",
        help="One HTML file with all figures, to send on.",
    )
