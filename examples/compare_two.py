"""Does ABS-SGD beat load balancing on a slow network? Both tuned, over several seeds.

python examples/compare_two.py
"""

from __future__ import annotations

from hetsim import compare, load_profile


def main() -> None:
    found = compare(load_profile("mixed-gpu-4-slow"), ["lb-bsp", "abs-sgd"], predictor="noise-scale", seeds=3, jobs=1)
    for row in found.algorithms:
        print(f"{row.name}: {row.samples_per_s:.0f} samples/s, {row.mean_batch_samples:.0f} samples per update")
    print(found.sentence())


if __name__ == "__main__":
    main()
