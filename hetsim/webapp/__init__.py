"""The explorer: a Streamlit app in which one finds out which algorithm suits a cluster, and what another cluster would bring.

main        one run of the app: the page that was asked for
view        what a picture depends on, its link and its command; without streamlit
session     what a person's session holds
pictures    comparisons by view, cached
jobs        long work in processes of its own, with progress
controls    from the values of controls to overrides and back; without streamlit
explore, timeline, map, validate, plan     the pages, scripts that streamlit runs
"""

from __future__ import annotations

from pathlib import Path

HERE = Path(__file__).parent
PAGES = (
    ("explore", "Explore", ":material/tune:"),
    ("timeline", "Timeline", ":material/view_timeline:"),
    ("map", "Map", ":material/grid_on:"),
    ("validate", "Validate", ":material/fact_check:"),
    ("plan", "Plan", ":material/checklist:"),
)


def main() -> None:
    """One run of the app, as streamlit asks for it at every change: navigation, the link's view, the page."""
    import streamlit as st

    from hetsim.webapp import options, session

    # An icon of streamlit's own would be fetched from elsewhere.
    st.set_page_config(page_title="hetsim", page_icon=str(HERE / "icon.svg"), layout="wide")
    if st.context.theme.type == "dark":
        st.html(options.DARK_STYLE)
    session.restore()
    there = [(name, title, icon) for name, title, icon in PAGES if (HERE / f"{name}.py").is_file()]
    pages = [
        st.Page(HERE / f"{name}.py", title=title, icon=icon, url_path=name, default=name == there[0][0])
        for name, title, icon in there
    ]
    page = st.navigation(pages)
    why = session.refused()
    if why is not None:
        st.error(f"This link cannot be followed: {why}", icon=":material/link_off:")
    page.run()
