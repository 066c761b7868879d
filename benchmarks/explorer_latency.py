"""How long a new picture takes when a slider moves, and how far it is from the comparison it stands for.

    OMP_NUM_THREADS=1 python benchmarks/explorer_latency.py [--workers 4 8 16 64] [--moves 20] [--accuracy 4] [--page 10]

A walk: every move changes one field of `mixed-gpu-16` with as many workers, the others stay. A picture is loading the profile and
`hetsim.quick.quick` with all default algorithms, timing and curves, in this process, on one core; in processor time, since other work
may share the machine, and in wall time. `fixed`: at the profile's own settings. `tuned`: the same moves again with each algorithm at the
best of the grid; their schedules may still be there from before. Goals for `fixed`: median 0.5 s and 95th percentile 1.2 s for 4 to 16
workers, 4 s for 64. With --page N also the page: N moves of a slider of Explore, each a run of the whole script with figures and table as
streamlit's AppTest runs it, tuned, without browser and network. With --accuracy N the tuned pictures of N moves on four workers are held
against `hetsim.compare` on the same seed (a minute each).
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from hetsim import load_profile
from hetsim.cluster import Profile
from hetsim.compare import compare
from hetsim.quick import quick

GOALS_S = {4: (0.5, 1.2), 8: (0.5, 1.2), 16: (0.5, 1.2), 64: (4.0, 4.0)}
GPUS = ("A100", "QuadroRTX6000", "RTX2080Ti", "T4")


def walk(workers: int, moves: int, seed: int) -> list[dict[str, object]]:
    """The overrides of every move, each with one field other than the last."""
    rng = random.Random(seed)
    draw: dict[str, Callable[[], object]] = {
        "network.bandwidth_gbit_per_s": lambda: round(math.exp(rng.uniform(math.log(1), math.log(100))), 3),
        "network.latency_us": lambda: round(math.exp(rng.uniform(math.log(5), math.log(500))), 1),
        "workers.a.jitter_cv": lambda: round(rng.uniform(0.0, 0.2), 3),
        "workers.b.stragglers": lambda: f"{{probability: {rng.uniform(0.0, 0.05):.3f}, slowdown: 3.0}}",
        "workers.d.gpu": lambda: rng.choice(GPUS),
        "training.micro_batch_samples": lambda: rng.randrange(16, 129),
        "training.learning_rate": lambda: round(math.exp(rng.uniform(math.log(0.003), math.log(0.1))), 4),
        "training.target_loss": lambda: round(rng.uniform(0.5, 1.5), 2),
    }
    now: dict[str, object] = {f"workers.{name}.count": workers // 4 for name in "abcd"}
    now["training.global_batch_samples"] = 64 * workers if workers > 4 else 512
    out = []
    for _ in range(moves):
        field = rng.choice(list(draw))
        now = {**now, field: draw[field]()}
        out.append(now)
    return out


def profile_of(move: dict[str, object]) -> Profile:
    return load_profile("mixed-gpu-16", overrides=[f"{field}={value}" for field, value in move.items()])


def picture(move: dict[str, object], tuned: bool) -> tuple[float, float]:
    """Processor and wall seconds of one."""
    wall, cpu = time.perf_counter(), time.process_time()
    quick(profile_of(move), tuned=tuned)
    return time.process_time() - cpu, time.perf_counter() - wall


def high(values: list[float]) -> float:
    """95th percentile."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def latency(workers: int, moves: int) -> None:
    for tuned in (False, True):
        found = [picture(move, tuned) for move in walk(workers, moves + 1, seed=workers)][1:]  # the first one imports
        cpu, wall = ([pair[i] for pair in found] for i in (0, 1))
        median, most = GOALS_S.get(workers, (math.nan, math.nan))
        goal = "" if tuned else f"{median:8.1f} {most:6.1f}"
        print(
            f"{workers:>7}  {'tuned' if tuned else 'fixed'}  {1e3 * statistics.median(cpu):>9,.0f} {1e3 * high(cpu):>7,.0f} "
            f"{1e3 * statistics.median(wall):>9,.0f} {1e3 * high(wall):>7,.0f}  {goal}".rstrip(),
            flush=True,
        )


def accuracy(moves: int) -> None:
    """Tuned pictures against comparisons of the same seed."""
    seconds: dict[str, list[float]] = defaultdict(list)
    periods: dict[str, list[float]] = defaultdict(list)
    only: dict[str, int] = defaultdict(int)
    same, near = 0, []
    for move in walk(4, moves, seed=1):
        short, full = quick(profile_of(move), tuned=True), compare(profile_of(move), seeds=1, jobs=1)
        first = [min(c.algorithms, key=lambda row: row.seconds) for c in (short, full)]
        same += first[0].name == first[1].name
        near.append(full[first[0].name].seconds / first[1].seconds)
        for one, other in zip(short.algorithms, full.algorithms, strict=True):
            periods[one.name].append(one.update_period_s / other.update_period_s - 1.0)
            if math.isfinite(one.seconds) and math.isfinite(other.seconds):
                seconds[one.name].append(one.seconds / other.seconds - 1.0)
            only[one.name] += math.isfinite(one.seconds) != math.isfinite(other.seconds)
    print(
        f"\n{'algorithm':<46}{'period: median':>15}{'largest':>9}{'seconds: median':>17}{'largest':>9}  reached by one only"
    )
    for name, own in periods.items():
        print(f"{name:<46}{_errors(own):>24}{_errors(seconds[name]):>26}  {only[name]:>4} of {moves}")
    print(
        f"the same algorithm is fastest in {same} of {moves}; the quick one's choice takes {max(near):.3f} times the least at worst"
    )


def page(moves: int) -> None:
    """Moves of the bandwidth's slider to values that were not shown before."""
    from streamlit.testing.v1 import AppTest

    app = AppTest.from_file(Path(__file__).parents[1] / "app.py", default_timeout=120)
    app.run()
    slider = next(s for s in app.sidebar.select_slider if s.label.startswith("Bandwidth"))
    steps = [step for step in slider.options if float(step) != slider.value]
    cpu, wall = [], []
    for step in random.Random(0).sample(steps, min(moves, len(steps))):
        slider = next(s for s in app.sidebar.select_slider if s.label.startswith("Bandwidth"))
        begun, used = time.perf_counter(), time.process_time()
        slider.set_value(float(step)).run()
        cpu.append(time.process_time() - used)
        wall.append(time.perf_counter() - begun)
        if app.exception or len(app.metric) != 4:
            raise SystemExit(f"bandwidth {step}: the page is not complete")
    print(
        f"\nthe whole page, 4 workers, tuned: processor {1e3 * statistics.median(cpu):,.0f} ms (95 %: {1e3 * high(cpu):,.0f}), "
        f"wall {1e3 * statistics.median(wall):,.0f} ms (95 %: {1e3 * high(wall):,.0f}); goals 1 s (2 s)"
    )


def _errors(values: list[float]) -> str:
    if not values:
        return f"{'–':>15}{'–':>9}"
    largest = max(values, key=abs)
    return f"{100 * statistics.median(map(abs, values)):>13.2f} %{100 * largest:>+7.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="*", default=[4, 8, 16, 64])
    parser.add_argument("--moves", type=int, default=20)
    parser.add_argument("--accuracy", type=int, default=0, metavar="N")
    parser.add_argument("--page", type=int, default=0, metavar="N")
    arguments = parser.parse_args()
    print(f"{'':>7}  {'':>5}  {'processor ms':>17} {'wall ms':>17}  {'goals s':>15}")
    print(f"{'workers':>7}  {'':>5}  {'median':>9} {'95 %':>7} {'median':>9} {'95 %':>7}  {'median':>8} {'95 %':>6}")
    for workers in arguments.workers:
        latency(workers, arguments.moves)
    if arguments.accuracy:
        accuracy(arguments.accuracy)
    if arguments.page:
        page(arguments.page)


if __name__ == "__main__":
    main()
