"""The explorer: `streamlit run app.py`. It only calls `hetsim.webapp`."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec

if __name__ == "__main__":
    if find_spec("hetsim.webapp") is None:
        raise SystemExit(
            "This version of hetsim has no explorer yet; `hetsim compare` answers the question in a terminal."
        )
    import_module("hetsim.webapp").main()
