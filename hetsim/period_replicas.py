"""Closed forms of the algorithms whose workers keep replicas of their own that are averaged some at a time, or in parts."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING

from hetsim import wording as w
from hetsim.cluster.spec import Link
from hetsim.errors import UsageError

if TYPE_CHECKING:
    from hetsim.period import Figures, Period


def prague(p: Period) -> Figures:
    """Local SGD where one group has all; as many groups side by side where workers, links and groups are equal."""
    o, n = p.options, p.cluster.n
    steps, groups = o.local_steps, -(-n // o.group_size)
    slow, _ = p.slowest()
    if groups == 1:
        c = p.all_reduce()
    else:
        _check_alike(p, groups)
        c = p.fabric.all_reduce_seconds(tuple(range(n // groups)), p.payload)
        p.step("all-reduce of a group", f"{groups} groups of {n // groups} side by side", w.seconds(c))
    batch, per = steps * sum(p.batches) / groups, f" / {groups}" if groups > 1 else ""
    text = f"(H·max t_i + C){per} = ({steps}·{w.seconds(slow)} + {w.seconds(c)}){per}"
    return p.finish((steps * slow + c) / groups, text, batch, f"H·Σ b_i{per} = {steps}·{sum(p.batches)}{per}")


def _check_alike(p: Period, groups: int) -> None:
    """Raises UsageError where random groups do not all take equally long."""
    times = {p.seconds(rank)[0] for rank in range(p.cluster.n)}
    links = {(link.bytes_per_s, link.latency_s) for link in p.cluster.network.links}
    if len(times) > 1 or len(links) > 1 or p.cluster.network.topology == "nodes" or p.cluster.n % groups:
        raise UsageError("who is in a group with whom is drawn, and who waits for whom with it; no closed form")


def streaming_diloco(p: Period) -> Figures:
    """H·max t_i where τ steps cover a fragment; else what they do not cover is waited for, P times in H steps."""
    o = p.options
    steps, parts, overlap = o.local_steps, o.fragments, o.overlap_steps
    slow, _ = p.slowest()
    c = p.all_reduce(parts)
    t, gap = w.seconds(slow), steps // parts  # steps between two fragments, at the least
    batch = sum(p.batches)
    if overlap < gap:
        alone = steps - parts * overlap
        whole = alone * slow + parts * max(overlap * slow, c)
        text = f"((H-Pτ)·max t_i + P·max(τ·max t_i, C)) / P = ({alone}·{t} + {parts}·max({overlap}·{t}, {w.seconds(c)})) / {parts}"
    elif c <= gap * slow:
        whole, text = steps * slow, f"H·max t_i / P = {steps}·{t} / {parts}"
    else:
        raise UsageError(
            "a fragment is sent while others are on their way, which share the links with it; no closed form"
        )
    return p.finish(whole / parts, text, steps * batch / parts, f"H·Σ b_i / P = {steps}·{batch} / {parts}")


def ad_psgd(p: Period) -> Figures:
    """Each at its own pace, where exchanges are hidden even if all meet at one partner, or there is nobody to meet."""
    by_name = sorted(range(p.cluster.n), key=lambda rank: p.cluster.workers[rank].name)
    active, passive = by_name[::2], by_name[1::2]
    rounds = [p.seconds(rank)[0] for rank in range(p.cluster.n)]
    kinds = {_place(p, rank): rank for rank in passive}  # one of each suffices
    known = {_place(p, rank): _exchange(p, rank, [*kinds.values()], len(active)) for rank in active}
    worst = 0.0
    for rank in active:
        alone, met = known[_place(p, rank)]
        worst = max(worst, met)
        if len(active) == 1:
            rounds[rank] = max(rounds[rank], alone) if p.options.overlap else rounds[rank] + alone
        elif not p.options.overlap or met > rounds[rank]:
            raise UsageError(
                f"exchanges of {len(active)} workers with partners that are drawn can meet at one, and are not hidden then; "
                "no closed form"
            )
    p.step("longest exchange", f"{len(active)} active workers, all with one partner", w.seconds(worst))
    rate = math.fsum(b / t for b, t in zip(p.batches, rounds, strict=True))
    exchanges = math.fsum(1 / rounds[rank] for rank in active)
    text = "1 / Σ 1/round_i of the active"
    return p.finish(1 / exchanges, text, rate / exchanges, "Σ b_i/round_i · period")


def _place(p: Period, rank: int) -> tuple[Link, str]:
    """What an exchange's time depends on."""
    return p.cluster.network.links[rank], p.fabric.nodes[rank] if p.fabric.nodes else ""


def _exchange(p: Period, rank: int, partners: list[int], active: int) -> tuple[float, float]:
    """Longest exchange of a worker with one of its partners, alone and beside those of all others on the same links.

    Shares are max-min fair: 1/active of a link at the least.
    """
    alone = met = 0.0
    for partner in partners:
        transfer = p.fabric.all_reduce(tuple(sorted((rank, partner))), p.payload)
        seconds, latency = p.fabric.seconds(transfer), math.fsum(phase.latency_s for phase in transfer.phases())
        alone, met = max(alone, seconds), max(met, latency + active * (seconds - latency))
    return alone, met


REPLICAS: dict[str, Callable[[Period], Figures]] = {
    "prague": prague,
    "streaming-diloco": streaming_diloco,
    "ad-psgd": ad_psgd,
}
