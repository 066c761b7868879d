"""What converting the example under DDP to ABS-SGD changes; shown in docs/convert-your-ddp-script.md."""

from __future__ import annotations

import difflib
from pathlib import Path

EXAMPLES = Path(__file__).parents[1] / "examples"


def main() -> None:
    """Print the difference as Markdown."""
    names = ("train_ddp.py", "train_abs_sgd.py")
    before, after = ((EXAMPLES / name).read_text(encoding="utf-8").splitlines() for name in names)
    print("```diff")
    print("\n".join(difflib.unified_diff(before, after, *names, n=1, lineterm="")))
    print("```")


if __name__ == "__main__":
    main()
