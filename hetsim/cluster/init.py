"""A commented profile to start from: `hetsim init --gpus A100:2,V100:2 --slow d:1gbit`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from string import ascii_lowercase

from hetsim.cluster import catalogue
from hetsim.cluster.checks import speed_known
from hetsim.cluster.document import parse_document
from hetsim.cluster.loader import load_profile
from hetsim.cluster.profile import MAX_WORKERS, SCHEMA_LINE, SCHEMA_VERSION
from hetsim.errors import Problem, ProfileError, UsageError, nearest

_RATE = re.compile(r"(\d+(?:\.\d+)?)\s*(gbit|mbit|kbit)(?:/s|ps)?", re.IGNORECASE)
_GBIT = {"gbit": 1.0, "mbit": 1e-3, "kbit": 1e-6}


def init_profile(
    gpus: str,
    *,
    slow: str | Iterable[str] = (),
    bandwidth: str = "10gbit",
    latency_us: float = 50.0,
    workload: str = "resnet18-cifar10",
    name: str = "my-cluster",
) -> str:
    """The text of a profile for `gpus` ("A100:2,V100:2"), every link `bandwidth`, those in `slow` ("d:1gbit") slower.

    Up to 26 GPUs get one line and one letter each, in the order given: a and b are the A100s, c and d the V100s. More
    become one group a line: a-0, a-1, ... `slow` names a worker, a group, or a GPU model (all of its workers).
    Raises UsageError: unknown GPU or worker, a name, count or rate that cannot be read.
    """
    wanted = _parse_gpus(gpus)
    total = sum(count for _, count in wanted)
    if total > MAX_WORKERS:
        raise UsageError(f"--gpus asks for {total:,} workers; at most {MAX_WORKERS:,} can be simulated")
    rows = _rows(wanted, total)
    links = _slow_links([slow] if isinstance(slow, str) else slow, rows)
    rate = parse_rate(bandwidth, "--bandwidth ")
    _check_speeds([gpu for gpu, _ in wanted], workload)
    text = _text(_plain(name), workload, rows, links, rate, latency_us, total)
    _check_loads(text, {"name": "--name", "network.bandwidth_gbit_per_s": "--bandwidth", "network.links": "--slow"})
    return text


def _plain(text: str) -> str:
    """As YAML: in quotes where it would otherwise be read as something else."""
    try:
        same = parse_document(text, "").value == text
    except ProfileError:
        same = False
    return text if same else json.dumps(text)


def _check_loads(text: str, flags: Mapping[str, str]) -> None:
    """What is written can be read. Raises UsageError, which names the flag whose value cannot stand in a profile."""
    try:
        load_profile(text)
    except ProfileError as error:
        problem = error.problems[0]
        flag = next((flag for path, flag in flags.items() if problem.path.startswith(path)), problem.path)
        raise UsageError(Problem("", problem.message, problem.hint).render(flag)) from None


def parse_rate(text: str, flag: str) -> float:
    """Gbit/s of "1gbit", "2.5Gbit/s" or "200mbit". Raises UsageError, which opens with `flag`."""
    match = _RATE.fullmatch(text.strip())
    value = float(match[1]) * _GBIT[match[2].lower()] if match else 0.0
    if not 0 < value < 1e9:
        raise UsageError(f"{flag}{text.strip()}: cannot read the rate (write 1gbit, 2.5gbit or 200mbit)")
    return value


def _parse_gpus(text: str) -> list[tuple[str, int]]:
    wanted = []
    for entry in filter(None, (part.strip() for part in text.split(","))):
        if swapped := re.fullmatch(r"(\d+)\s*[x×*:]\s*(\w.*)", entry):
            raise UsageError(f"--gpus {entry}: the GPU comes first (write {swapped[2]}:{swapped[1]})")
        gpu, _, count = entry.partition(":")
        if count and not re.fullmatch(r"[1-9]\d{0,6}", count.strip()):
            raise UsageError(f"--gpus {entry}: cannot read the count (write {gpu}:2)")
        wanted.append((_known(gpu.strip()), int(count or 1)))
    if not wanted:
        raise UsageError("--gpus names no GPU (write A100:2,V100:2)")
    return wanted


def _known(gpu: str) -> str:
    try:
        return catalogue.gpu(gpu).name
    except UsageError as error:
        own = "for one that is not in the catalogue state step_times_s in the profile, without gpu; --gpus '?' lists the catalogue"
        raise UsageError(f"{error}; {own}") from None


def _check_speeds(gpus: Sequence[str], workload: str) -> None:
    catalogue.workload(workload)

    def unknown(name: str) -> list[str]:
        return [gpu for gpu in dict.fromkeys(gpus) if not speed_known(gpu, name)]

    missing = unknown(workload)
    if missing:
        others = [name for name in catalogue.workload_names() if not unknown(name)]
        hint = f"it knows these GPUs for {', '.join(others)}; " if others else ""
        has = ", ".join(gpu for gpu in catalogue.gpu_names() if speed_known(gpu, workload))
        hint += f"for {workload} it has {has}; measure yours: hetsim import"
        raise UsageError(f"the catalogue has no speed of {', '.join(missing)} for workload {workload} ({hint})")


def _rows(wanted: Sequence[tuple[str, int]], total: int) -> list[tuple[str, str, int | None]]:
    """(name, gpu, count) of every line of `workers`."""
    if total <= len(ascii_lowercase):
        each = [gpu for gpu, count in wanted for _ in range(count)]
        return [(ascii_lowercase[i], gpu, None) for i, gpu in enumerate(each)]
    if len(wanted) > len(ascii_lowercase):
        raise UsageError(f"--gpus has {len(wanted)} entries; at most {len(ascii_lowercase)} become groups")
    return [(ascii_lowercase[i], gpu, count) for i, (gpu, count) in enumerate(wanted)]


def _slow_links(slow: Iterable[str], rows: Sequence[tuple[str, str, int | None]]) -> dict[str, float]:
    known = {name: [name] for name, _, _ in rows}
    known |= {f"{name}-{i}": [f"{name}-{i}"] for name, _, count in rows if count for i in range(count)}
    by_gpu = {gpu: [name for name, other, _ in rows if other == gpu] for _, gpu, _ in rows}
    links: dict[str, float] = {}
    for entry in slow:
        who, colon, rate = entry.partition(":")
        who = who.strip()
        if not colon:
            raise UsageError(f"--slow {entry}: write NAME:RATE, such as {rows[-1][0]}:1gbit")
        targets = known.get(who) or by_gpu.get(who)
        if targets is None:
            workers = ", ".join(
                f"{name} ({count} x {gpu})" if count else f"{name} ({gpu})" for name, gpu, count in rows
            )
            near = nearest(who, [*known, *by_gpu])
            raise UsageError(
                f"--slow {entry}: there is no worker {who!r} ({near if near.startswith('did') else workers})"
            )
        gbit = parse_rate(rate, f"--slow {who}:")
        links |= dict.fromkeys(targets, gbit)
    return links


def _text(
    name: str,
    workload: str,
    rows: Sequence[tuple[str, str, int | None]],
    links: dict[str, float],
    rate: float,
    latency_us: float,
    total: int,
) -> str:
    # 128 samples a GPU up to four GPUs, then 64: below critical up to 16 on the CIFAR-10 workload [our choice].
    batch = max(1, 128 * total if total <= 4 else 64 * total)
    lines = [
        SCHEMA_LINE,
        f"schema_version: {SCHEMA_VERSION}",
        f"name: {name}",
        f"description: {total} GPU{'s' if total > 1 else ''} ({', '.join(dict.fromkeys(gpu for _, gpu, _ in rows))}).",
        f"workload: {workload}    # in the catalogue; or inline: {{name, gradient_bytes, dataset_samples}}",
        "",
        "workers:    # in rank order; speed, memory, power and price come from the catalogue unless stated:",
        "            # samples_per_s and overhead_s (a pass of m samples takes overhead_s + m / samples_per_s), or",
        "            # step_times_s: {32: 0.04, 64: 0.06} as you measured them (hetsim import reads a CSV of them)",
    ]
    for worker, gpu, count in rows:
        lines.append(f"  - {{name: {worker}, gpu: {gpu}{f', count: {count}' if count else ''}, jitter_cv: 0.05}}")
    lines += [
        "",
        "network:",
        f"  bandwidth_gbit_per_s: {rate:g}    # wire rate of every link, each direction",
        f"  latency_us: {latency_us:g}    # one way",
        "  payload_share: 0.94    # left after headers: TCP over Ethernet",
    ]
    if links:
        lines.append("  links:    # those that differ")
        lines += [f"    {who}: {{bandwidth_gbit_per_s: {gbit:g}}}" for who, gbit in links.items()]
    lines += [
        "",
        "training:",
        f"  global_batch_samples: {batch}    # samples per update, where the algorithm fixes them",
        f"  micro_batch_samples: {min(40, batch)}    # one pass of the slowest GPU, where a batch is taken in passes",
        "  learning_rate: 0.05    # where it is not tuned",
        "  momentum: 0.9",
        "  weight_decay: 0.0005    # what the predictor's constants of ResNet18 on CIFAR-10 were fitted with",
        "  max_samples: 5000000    # how far a run is followed; further where it is still ahead in time",
        "",
        "algorithms:",
        "  abs-sgd: {micro_batch: equal-time}    # faster GPUs make larger passes, not more of them",
        "",
        "# events:    # what changes while it runs",
        f"#   - {{at_s: 30.0, worker: {rows[0][0]}, slowdown: 2.0, for_s: 60.0}}",
        f"#   - {{at_s: 90.0, link: {rows[-1][0]}, bandwidth_gbit_per_s: 0.2}}",
        "",
        "sources:",
        '  workers: "step times: hardware catalogue"',
        '  network: "stated"',
    ]
    return "\n".join(lines) + "\n"
