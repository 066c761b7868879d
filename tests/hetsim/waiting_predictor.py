"""A predictor that never comes back, for the test of interruptions. It leaves its process number in a folder."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from hetsim.convergence import Target


class Waiting:
    name = "waiting"

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def target(self, cluster: Any) -> Target:
        return Target(metric="none", value=0.0)

    def curves(self, schedule: Any, cluster: Any, settings: Any, *, seed: int = 0) -> Any:
        Path(self.folder, str(os.getpid())).touch()
        time.sleep(300)


if __name__ == "__main__":
    from small_clusters import small
    from waiting_predictor import Waiting as Importable  # by its module's name, so that other processes find it

    from hetsim.compare import compare

    try:
        compare(small(max_samples=1000), ["s-sgd", "lb-bsp"], predictor=Importable(sys.argv[1]), jobs=2)
    except KeyboardInterrupt:
        sys.exit(130)
