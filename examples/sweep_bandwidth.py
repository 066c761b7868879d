"""Samples/s and the batch of ABS-SGD against the bandwidth: throughput stays, the batch grows.

python examples/sweep_bandwidth.py
"""

from __future__ import annotations

from hetsim import load_profile, simulate

PROFILE = """
schema_version: 1
name: sweep
workload: resnet18-cifar10
workers:
  - {name: a, gpu: A100}
  - {name: b, gpu: V100}
  - {name: c, gpu: T4}
network: {bandwidth_gbit_per_s: BANDWIDTH}
training: {global_batch_samples: 384, micro_batch_samples: 64}
"""


def main() -> None:
    print("Gbit/s   s-sgd samples/s   abs-sgd samples/s   abs-sgd samples per update")
    for bandwidth in (0.5, 1, 5, 25):
        profile = load_profile(PROFILE.replace("BANDWIDTH", str(bandwidth)))
        s = simulate(profile, "s-sgd", updates=100).timing
        a = simulate(profile, "abs-sgd", updates=100).timing
        print(f"{bandwidth:6}   {s.samples_per_s:15.0f}   {a.samples_per_s:17.0f}   {a.mean_batch_samples:26.0f}")


if __name__ == "__main__":
    main()
