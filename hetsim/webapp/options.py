"""How streamlit runs the explorer: on this machine only, no statistics, colours for any colour vision.

`.streamlit/config.toml` says the same for `streamlit run app.py`; `hetsim app` passes them, so that an installed package looks alike.
"""

from __future__ import annotations

from typing import Any

from hetsim import look

ADDRESS = "127.0.0.1"
UPLOAD_MB = 20  # of anything, as the server takes it: results come as archives; a profile's own control takes 1 MB
# Of text and links on each background at least 4.5 : 1 (WCAG 2.2, 1.4.3). Okabe & Ito's sky blue takes the place of blue on dark.
LIGHT = {
    "primaryColor": look.BLUE,
    "backgroundColor": "#FFFFFF",
    "secondaryBackgroundColor": "#F3F5F7",
    "textColor": "#0D1117",  # captions are drawn at 60 % of it
    "linkColor": look.BLUE,
}
DARK = {
    "primaryColor": look.SKY,
    "backgroundColor": "#14181D",
    "secondaryBackgroundColor": "#20262D",
    "textColor": "#E6EAEE",
    "linkColor": look.SKY,
}
# Streamlit writes white on the primary colour in both; on sky blue that is 2.3 : 1.
ON_PRIMARY = (
    "[data-testid^=stBaseButton-primary]",
    "[data-testid^=stBaseButton-primary] *",
    "[data-tag]",
    "[data-tag] *",
)
DARK_STYLE = f"<style>{', '.join(ON_PRIMARY)} {{color: {DARK['backgroundColor']} !important}}</style>"
# A list of algorithms and their names are seen as a whole; streamlit cuts it off after four lines, and names that are long. A profile's
# text is in columns, by which its problems are told.
STYLE = (
    "<style>div:has(> [data-testid=stMultiSelectTagsContainer]) {max-height: none !important} "
    "[data-testid=stSidebar] [data-tag] {font-size: 0.75rem !important; max-width: 100% !important} "
    "[data-testid=stTextArea] textarea {font-family: monospace !important; white-space: pre !important; overflow-x: auto}</style>"
)
OPTIONS: dict[str, Any] = {
    "server.address": ADDRESS,
    "server.maxUploadSize": UPLOAD_MB,
    "server.showEmailPrompt": False,
    "server.fileWatcherType": "none",  # reloaded modules would forget what runs: a change is there after the next start
    "browser.gatherUsageStats": False,
    "client.toolbarMode": "minimal",
    **{f"theme.light.{key}": value for key, value in LIGHT.items()},
    **{f"theme.dark.{key}": value for key, value in DARK.items()},
}


def arguments() -> list[str]:
    """The options as `streamlit run` takes them."""
    import json

    def said(value: Any) -> str:
        return value if isinstance(value, str) else json.dumps(value)

    return [f"--{key}={said(value)}" for key, value in OPTIONS.items()]


def config_toml() -> str:
    """The options as streamlit's configuration file."""
    import json

    sections: dict[str, list[str]] = {}
    for key, value in OPTIONS.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, []).append(f"{name} = {json.dumps(value)}")
    head = "# Made of hetsim/webapp/options.py, which `hetsim app` passes; a test holds the two together.\n"
    return head + "\n".join(f"\n[{section}]\n" + "\n".join(lines) for section, lines in sections.items()) + "\n"
