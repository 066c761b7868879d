"""`python -m hetsim` is `hetsim`."""

from __future__ import annotations

from hetsim.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
