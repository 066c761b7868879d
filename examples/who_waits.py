"""Where does the time go? Waiting by worker and cause, straight from the Schedule.

python examples/who_waits.py
"""

from __future__ import annotations

from hetsim import load_profile, simulate
from hetsim.schedule import Kind, WaitCause


def main() -> None:
    for algorithm in ("s-sgd", "ssp", "abs-sgd"):
        s = simulate(load_profile("mixed-gpu-4"), algorithm, updates=100).schedule
        waits = s.rows(Kind.WAIT)
        print(f"{algorithm}: {s.horizon_s:.2f} s")
        for rank, name in enumerate(s.header.workers):
            mine = waits[s.worker[waits] == rank]
            for cause in WaitCause:
                rows = mine[s.code[mine] == cause]
                seconds = float((s.end_s[rows] - s.start_s[rows]).sum())
                if seconds > 0:
                    print(f"  {name} waits {seconds:6.2f} s: {cause.name.lower()}")


if __name__ == "__main__":
    main()
