"""An all-reduce that leaves bucket by bucket while the backward pass still runs, as in PyTorch DDP.

    compute    |---- forward ----|------- backward -------|
    bucket 1                               ready ^==C1==|
    bucket 2                                     ready ^|==C2==|
    last bucket                                   ready ^      |==Ck==|  iteration ends

Pure arithmetic: the duration C_j of a bucket's all-reduce comes from outside.
"""

from __future__ import annotations

from collections.abc import Sequence

MIB = 1024.0 * 1024.0
FIRST_BUCKET_BYTES = MIB  # torch.distributed, dist._DEFAULT_FIRST_BUCKET_BYTES
BUCKET_BYTES = 25.0 * MIB  # DistributedDataParallel(bucket_cap_mb=25), the default


def bucket_bytes(payload: float, first: float = FIRST_BUCKET_BYTES, later: float = BUCKET_BYTES) -> tuple[float, ...]:
    """Sizes of DDP's gradient buckets in the order they leave: a small first one, full ones, and what remains. At least one.

    Tensors are not cut here: DDP closes a bucket with the tensor that fills it, so real buckets are a little larger.
    """
    if first <= 0.0 or later <= 0.0:
        raise ValueError(f"bucket sizes must be positive, not {first} and {later}")
    sizes = [min(first, payload)]
    left = payload - sizes[0]
    while left > 0.0:
        sizes.append(min(later, left))
        left -= sizes[-1]
    return tuple(sizes)


def stream_ready(end_s: float, pass_s: float, backward_share: float, buckets: Sequence[float]) -> list[float]:
    """When each bucket of one worker is ready: gradients appear evenly by bytes over the last `backward_share` of the pass.

    ready_j = end - f·t·(1 - bytes in buckets 1..j / all bytes); the last bucket is ready at `end_s` exactly.
    """
    total = sum(buckets)
    ready, done = [], 0.0
    for size in buckets:
        done += size
        ready.append(end_s - backward_share * pass_s * (1.0 - done / total) if total > 0.0 else end_s)
    ready[-1] = end_s
    return ready


def streamed_finish(ready: Sequence[Sequence[float]], bucket_seconds: Sequence[float]) -> float:
    """When the last bucket is through: max_j [max_i ready_ij + Σ_{l≥j} C_l], `ready` by worker and bucket.

    A bucket starts when it is ready on every worker and the bucket before it is through. With k equal buckets of C/k, ends e_i and
    passes t_i this is max(max_i(e_i - f·t_i·(1 - 1/k)) + C, max_i e_i + C/k).
    """
    finish = max(row[0] for row in ready) + bucket_seconds[0]
    for j in range(1, len(bucket_seconds)):
        finish = max(finish, max(row[j] for row in ready)) + bucket_seconds[j]
    return finish
