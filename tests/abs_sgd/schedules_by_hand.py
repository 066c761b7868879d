"""Small Schedules written row by row, one second per update, so that tests of training need no simulator."""

from __future__ import annotations

from collections.abc import Sequence

from hetsim.schedule import Header, Kind, MixRule, Payload, PointRule, Schedule
from hetsim.schedule.log import Log


def finish(log: Log, workers: int, dataset_samples: int, name: str = "by-hand") -> Schedule:
    names = tuple(f"w{i}" for i in range(workers))
    header = Header(algorithm=name, options={}, seed=0, workers=names, dataset_samples=dataset_samples)
    return Schedule(header=header, **log.columns())


def synchronous(shares: Sequence[Sequence[int]], dataset_samples: int = 10**9, micro: int | None = None) -> Schedule:
    """Update k takes shares[k][i] samples of worker i at x_k, in passes of at most `micro`."""
    n = len(shares[0])
    log, first, slot = Log(n), 0, 0
    for k, batch in enumerate(shares):
        for i, count in enumerate(batch):
            first = _grads(log, i, float(k), k, slot + i, first, count, micro, dataset_samples)
        _reduce_and_step(log, k, batch, slot, [1.0] * n, k + 1, k)
        slot += n
    return finish(log, n, dataset_samples)


def delayed(
    shares: Sequence[Sequence[int]],
    rule: PointRule = PointRule.CURRENT,
    amount: float = 1.0,
    dataset_samples: int = 10**9,
    micro: int | None = None,
) -> Schedule:
    """One update of delay: batch k is taken while synchronization k-1 runs, at the compute point of `rule` predicted
    from x_{k-1}.

    With changing shares this is what ABS-SGD logs.
    """
    n, updates = len(shares[0]), len(shares)
    log, first = Log(n), 0
    points = [0] * n
    fresh = updates + 1  # ids of predicted points
    for k, batch in enumerate(shares):
        for i, count in enumerate(batch):
            first = _grads(log, i, float(k), points[i], k * n + i, first, count, micro, dataset_samples)
        if k > 0:
            _step_all(log, k, shares[k - 1], k, k - 1, k - 1)
        for i, count in enumerate(batch):
            log.add(Kind.JOIN, i, k + 1.0, k + 1.0, source=k, slot=k * n + i, samples=count)
        for i in range(n):
            points[i] = k  # the version the worker holds while synchronization k runs
            if rule != PointRule.CURRENT:
                points[i], fresh = fresh, fresh + 1
                log.add(
                    Kind.PREDICT, i, k + 1.0, k + 1.0, state=points[i], parent=k, source=k, slot=k * n + i,
                    scale=amount, code=rule,
                )  # fmt: skip
        log.add(Kind.REDUCE, -1, k + 1.0, k + 2.0, source=k, samples=sum(batch), code=Payload.GRADIENT)
    _step_all(log, updates, shares[-1], updates, updates - 1, updates - 1)
    return finish(log, n, dataset_samples)


def averaging(
    steps: Sequence[int],
    weights: Sequence[float],
    rounds: int,
    batch: int = 2,
    anchored: bool = True,
    rule: MixRule = MixRule.KEEP,
    weight: float = 1.0,
) -> Schedule:
    """Local SGD: worker i makes steps[i] steps of its own, then all average with JOIN weights `weights`."""
    n = len(steps)
    log, first, slot, state = Log(n), 0, 0, 0
    held, anchor = [0] * n, 0
    for r in range(rounds):
        for i, count in enumerate(steps):
            for _ in range(count):
                log.add(Kind.GRAD, i, float(r), r + 0.5, state=held[i], slot=slot, samples=batch, first=first)
                state += 1
                log.add(
                    Kind.STEP, i, r + 0.5, r + 0.5, state=state, parent=held[i], slot=slot, samples=batch, first=batch
                )
                held[i], slot, first = state, slot + 1, first + batch
            log.add(Kind.JOIN, i, r + 0.5, r + 0.5, state=held[i], source=r, samples=count * batch, scale=weights[i])
        log.add(Kind.REDUCE, -1, r + 0.5, r + 1.0, source=r, samples=batch * sum(steps), code=Payload.PARAMETERS)
        for i in range(n):
            state += 1
            log.add(
                Kind.MIX, i, r + 1.0, r + 1.0, state=state, parent=held[i], source=r, slot=anchor if anchored else -1,
                scale=weight, code=rule,
            )  # fmt: skip
            held[i] = state
        anchor = held[0]
    return finish(log, n, 10**9)


def asynchronous(order: Sequence[int], batch: int = 1) -> Schedule:
    """ASGD: pushes arrive in `order` (worker numbers); each worker pulls the newest version after its push."""
    n = max(order) + 1
    log, held, first = Log(n), [0] * n, 0
    for k, i in enumerate(order):
        t = k + 1.0
        log.add(Kind.GRAD, i, t - 0.5, t, state=held[i], slot=k, samples=batch, first=first)
        log.add(Kind.JOIN, i, t, t, source=2 * k, slot=k, samples=batch)
        log.add(Kind.REDUCE, i, t, t, source=2 * k, samples=batch, code=Payload.GRADIENT)
        log.add(Kind.STEP, n, t, t, state=k + 1, parent=k, source=2 * k, samples=batch, first=batch)
        log.add(Kind.COPY, i, t, t, state=k + 1, source=2 * k + 1)
        held[i], first = k + 1, first + batch
    return finish(log, n, 10**9)


def _grads(
    log: Log, worker: int, t: float, state: int, slot: int, first: int, count: int, micro: int | None, dataset: int
) -> int:
    """Passes of at most `micro` samples, none across an epoch's end; returns the next free sample number."""
    end = first + count
    while first < end:
        size = min(micro or count, end - first, dataset - first % dataset)
        log.add(Kind.GRAD, worker, t, t + 1.0, state=state, slot=slot, samples=size, first=first)
        first += size
    return first


def _reduce_and_step(
    log: Log, k: int, batch: Sequence[int], slot: int, weights: Sequence[float], state: int, parent: int
) -> None:
    for i, count in enumerate(batch):
        log.add(Kind.JOIN, i, k + 1.0, k + 1.0, source=k, slot=slot + i, samples=count, scale=weights[i])
    log.add(Kind.REDUCE, -1, k + 1.0, k + 1.0, source=k, samples=sum(batch), code=Payload.GRADIENT)
    _step_all(log, k + 1, batch, state, parent, k)


def _step_all(log: Log, t: int, batch: Sequence[int], state: int, parent: int, source: int) -> None:
    for i in range(len(batch)):
        log.add(
            Kind.STEP, i, float(t), float(t), state=state, parent=parent, source=source, samples=sum(batch),
            first=sum(batch),
        )  # fmt: skip
