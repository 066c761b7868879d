"""Emulated links against the ring formula: all-reduces of gloo among hosts in network namespaces, and one long TCP transfer.

    python benchmarks/shaped_links.py

Needs Linux, root, ip, tc and torch. Medians of seven all-reduces, each after a rest of .1 s, so that each begins with full token buckets.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
from dataclasses import replace

from abs_sgd.netlab import NetLab
from hetsim.cluster import Cluster, load_profile
from hetsim.cluster.spec import Link

SIZES_MB = (1, 4, 10)
MBIT = 1e6 / 8

RANK = f"""
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
for size in {SIZES_MB}:
    x = torch.zeros(size * 250_000)
    for k in range(7):
        dist.barrier()
        time.sleep(0.1)
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(x)
        if dist.get_rank() == 0:
            print(size, time.perf_counter() - start)
dist.destroy_process_group()
"""

RECEIVE = """
import socket, time
listener = socket.create_server(("", 5000))
print("up", flush=True)
peer, _ = listener.accept()
skipped, got = 0, 0
while data := peer.recv(1 << 20):
    if skipped < 2e6:  # slow start, and what the bucket held
        skipped += len(data)
        start = time.perf_counter()
    else:
        got += len(data)
print(got / (time.perf_counter() - start))
"""

SEND = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000))
end = time.monotonic() + 3
while time.monotonic() < end:
    peer.sendall(bytes(1 << 18))
"""


def cluster(n: int, bytes_per_s: float) -> Cluster:
    full = load_profile("homogeneous-4").cluster()
    links = tuple(Link(bytes_per_s=bytes_per_s) for _ in range(n))
    return replace(full, workers=full.workers[:n], network=replace(full.network, links=links))


def transfer(lab: NetLab) -> float:
    """Payload bytes per second of one connection."""
    receiver = lab.exec(0, [sys.executable, "-c", RECEIVE], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    lab.exec(1, [sys.executable, "-c", SEND, lab.address(0)]).wait()
    return float(receiver.communicate()[0])


def all_reduces(lab: NetLab, n: int) -> dict[int, float]:
    """Median seconds by MB."""
    ranks = [lab.exec(r, [sys.executable, "-c", RANK], stdout=subprocess.PIPE) for r in range(n)]
    printed = [process.communicate()[0].decode() for process in ranks]
    rows = [line.split() for line in printed[0].splitlines()]
    return {size: statistics.median(float(s) for mb, s in rows if mb == str(size)) for size in SIZES_MB}


def main() -> None:
    if reason := NetLab.probe().reason:
        sys.exit(f"links cannot be shaped here: {reason}")
    print("payload       hosts   MB    formula   measured")
    for mbit in (200, 940):
        for n in (2, 4):
            with NetLab(cluster(n, mbit * MBIT)) as lab:
                if n == 2:
                    rate = transfer(lab) / MBIT
                    print(
                        f"{mbit:3d} Mbit/s  one TCP connection: {rate:.1f} Mbit/s, {rate / mbit - 1:+.1%}", flush=True
                    )
                for size, measured in all_reduces(lab, n).items():
                    formula = 2 * (n - 1) / n * size * 1e6 / (mbit * MBIT)
                    times = f"{formula * 1e3:7.1f} ms {measured * 1e3:7.1f} ms"
                    print(f"{mbit:3d} Mbit/s {n:8d} {size:4d} {times} {measured / formula - 1:+7.1%}", flush=True)


if __name__ == "__main__":
    main()
