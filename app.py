"""The explorer: `streamlit run app.py`. It only calls `hetsim.webapp`."""

from __future__ import annotations

from hetsim.webapp import main

if __name__ == "__main__":
    main()
