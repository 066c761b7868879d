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
SIDEBAR_PX = 340  # the longest name of an algorithm fits [our choice]
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
    st.set_page_config(
        page_title="hetsim", page_icon=str(HERE / "icon.svg"), layout="wide", initial_sidebar_state=SIDEBAR_PX
    )
    st.html(options.STYLE)
    if st.context.theme.type == "dark":
        st.html(options.DARK_STYLE)
    session.restore()
    there = [(name, title, icon) for name, title, icon in PAGES if (HERE / f"{name}.py").is_file()]
    pages = [
        st.Page(HERE / f"{name}.py", title=title, icon=icon, url_path=name if place else "", default=not place)
        for place, (name, title, icon) in enumerate(there)
    ]
    named = st.Page(lambda: None, title=there[0][1], url_path=there[0][0], visibility="hidden")
    page = st.navigation([*pages, named])
    if page is named:  # the first page's address is the app's own; whoever asks for it by name is led there
        st.switch_page(pages[0], query_params=st.query_params.to_dict())
    why = session.refused()
    if why is not None:
        st.error(f"This link cannot be followed: {why}", icon=":material/link_off:")
    page.run()
