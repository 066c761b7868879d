"""What streamlit runs for `hetsim app`."""

from __future__ import annotations

import sys
from pathlib import Path

from hetsim.webapp import main

if __name__ == "__main__":
    # Streamlit puts a script's folder on the path; the pages' names must not stand in for other modules.
    sys.path[:] = [entry for entry in sys.path if Path(entry) != Path(__file__).parent]
    main()
