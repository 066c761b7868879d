"""The inner loop: answers the commands every algorithm spends its time on, with everything it needs in local variables.

A worker-iteration of synchronous SGD is four commands, one event and three rows; at 2 µs there is no room for attribute look-ups, so
this one function holds the hot paths of `compute`, `poll`, `wait`, `all_reduce` and `apply` in line. What is rarer goes to the
handlers of `hetsim.runtime.driver`, which define the meaning; each shortcut below names the method it stands for.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from heapq import heappush
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from simpy.events import NORMAL

from hetsim import commands as cmd
from hetsim.errors import ProgramError
from hetsim.runtime.state import BLOCKED, Alarm, Rank, Transfer
from hetsim.schedule.kinds import WaitCause
from hetsim.schedule.log import GRAD, JOINED, JOINED_AT, ROW

if TYPE_CHECKING:
    from hetsim.runtime.driver import Simulation

waited_for = {"push": WaitCause.PUSH, "exchange": WaitCause.PEER}
CAUSES = {cause.name.lower() for cause in WaitCause}
by_name = attrgetter("order")
MOST_AT_ONE_INSTANT = 100_000  # commands without the clock moving: a program that polls in a loop never lets time pass


def inner_loop(
    sim: Simulation,
) -> tuple[Callable[[Rank, Any], None], Callable[[Alarm], None], Callable[[Transfer, Any], None]]:
    """(resume, computed, complete): give a program its answer and go on until it blocks; log a finished compute and
    resume; mark a transfer complete and wake who waits for it, in order of name."""
    env, log, dispenser = sim.env, sim.log, sim.dispenser
    queue, next_id = env._queue, env._eid  # what env.schedule does, without the call
    pack, row_bytes, block, block_end = ROW.pack_into, ROW.size, log.block, log.end
    join_into, grad_into = JOINED.pack_into, GRAD.pack_into
    handlers, begin = sim.handlers, sim.changes.begin
    varying = sim.varying
    open_collectives, early, start = sim.collectives.open, sim.collectives.early, sim.collectives.start
    find, left_after = sim.collectives.find, sim.collectives.left_after
    backward_share, alone = sim.cluster.workload.backward_share, sim.n == 1
    others = sim.n - 1
    prompt = not any(worker.update_s for worker in sim.cluster.workers)  # updates take no time
    Compute, Poll, Wait, AllReduce, Apply, Computed = (
        cmd.Compute,
        cmd.Poll,
        cmd.Wait,
        cmd.AllReduce,
        cmd.Apply,
        cmd.Computed,
    )
    plain, streamed = cmd.GRADIENTS, cmd.STREAMED
    new = tuple.__new__

    next_slot = 0
    normal = NORMAL
    everybody = sorted(sim.ranks, key=by_name)
    everybody_numbers = array("i", [rank.rank for rank in everybody])

    def resume(rank: Rank, value: Any, alone_until: int = -1) -> None:
        send = rank.send
        spins = 0
        while spins < MOST_AT_ONE_INSTANT:
            spins += 1
            while True:  # left by commands that a program could give for ever: those are counted
                try:
                    command = send(value)
                except StopIteration:
                    sim.finish(rank)
                    return
                kind = command.__class__
                if kind is Compute:
                    samples = command.samples
                    cursor = dispenser.cursor
                    if samples < dispenser.epoch_end - cursor:  # Dispenser.take
                        dispenser.cursor = cursor + samples
                    else:
                        samples = dispenser.take(samples)
                        if not samples:
                            rank.times = (0.0, 0.0)  # no pass to stream from
                            value = Computed(0, 0.0)
                            break
                    now = env._now
                    rank.job = (cursor, samples, now)
                    times = rank.timer(samples)
                    if times is not rank.times:
                        rank.times = times
                        rank.answer = new(Computed, (samples, times[0]))
                    if varying:
                        begin(rank, times[0], command.stream)
                        return
                    alarm = rank.alarm
                    alarm.callbacks = fire
                    heappush(queue, (now + times[0], normal, next(next_id), alarm))
                    return
                if kind is Poll:
                    value = command.handle.done
                    rank.polled(value)
                    break
                if kind is Wait:
                    transfer = command.handle
                    if not transfer.done:  # Simulation.wait
                        if command is not transfer.wait:
                            if command.cause not in CAUSES:
                                raise ProgramError(
                                    f"{sim.algorithm.name}: {rank.name} waits for the unknown cause {command.cause!r}"
                                )
                            transfer.causes[rank.rank] = command.cause
                        rank.waiting = transfer
                        rank.since_s = env._now
                        transfer.waiters.append(rank)
                        return
                    if transfer.kind == "all-reduce":
                        value = transfer.result
                        break
                elif kind is AllReduce:
                    if command is plain or (command is streamed and not varying):  # Collectives.all_reduce
                        key = rank.launches
                        value = open_collectives.get(key)
                        if value is None:
                            value = find(rank, None, key)
                        rank.launches = key + 1
                        now = env._now
                        slot, held = rank.slot, rank.held
                        at = log.at
                        number = value.id
                        if at == alone_until:  # nothing since its gradient: both in one row
                            join_into(block, at - row_bytes + JOINED_AT, number, held)
                            alone_until = -1
                        else:
                            pack(block, at, now, now, held, 0, rank.rank, -1, slot, number, 1.0, -1, 1, 0)
                            log.at = at = at + row_bytes
                            if at == block_end:
                                log.flush()
                        rank.sent = (number, slot, held)
                        rank.slot = -1
                        rank.held = 0
                        value.samples += held
                        if command is streamed and not alone:  # Collectives.note_ready
                            ready = value.ready
                            streams_s = backward_share * rank.times[1]
                            if ready is None:
                                value.ready = [now - streams_s * left for left in left_after]
                            else:
                                for bucket, left in early:
                                    ready_s = now - streams_s * left
                                    if ready_s > ready[bucket]:
                                        ready[bucket] = ready_s
                                ready[-1] = now
                        value.missing = missing = value.missing - 1
                        if not missing:
                            del open_collectives[key]
                            start(value, now)
                        if missing == others:  # the first to join
                            break
                        continue
                elif kind is Apply:
                    transfer = command.handle
                    parent = rank.state
                    state = transfer.children.get(parent)
                    if state is not None and not rank.update_s:  # Simulation.apply, another replica came first
                        rank.state = rank.point = state
                        rank.updates = value = rank.updates + 1
                        continue
                    if prompt and transfer.done and transfer.samples and command is transfer.apply:  # it is the first
                        state = transfer.children[parent] = sim.next_state
                        sim.next_state = state + 1
                        now, samples, at = env._now, transfer.samples, log.at
                        pack(
                            block, at, now, now, samples, samples, rank.rank, state, -1, transfer.id, 1.0, parent, 3, 0
                        )
                        log.at = at = at + row_bytes
                        if at == block_end:
                            log.flush()
                        rank.state = rank.point = state
                        rank.updates = value = rank.updates + 1
                        break
                handler = handlers.get(kind)
                if handler is None:
                    raise ProgramError(f"{sim.algorithm.name} yielded {command!r}, which is no command")
                value = handler(rank, command)
                if value is BLOCKED:
                    return
                break
        raise ProgramError(
            f"{sim.algorithm.name}: {rank.name} gave {MOST_AT_ONE_INSTANT:,} commands at {env.now:.6g} s without the clock "
            "moving; out of data a program must wait, not poll"
        )

    def computed(alarm: Alarm) -> None:
        rank: Rank = alarm.subject
        nonlocal next_slot
        slot = rank.slot
        if slot < 0:
            rank.slot = slot = next_slot
            next_slot = slot + 1
        first, samples, begun = rank.job
        rank.held += samples
        now = env._now
        at = log.at
        grad_into(block, at, begun, now, samples, first, rank.rank, rank.point, slot)
        log.at = at = at + row_bytes
        if at == block_end:
            log.flush()
            at = -1
        resume(rank, new(Computed, (samples, now - begun)) if varying else rank.answer, at)

    def complete(transfer: Transfer, result: Any) -> None:
        transfer.done, transfer.result = True, result
        waiters = transfer.waiters
        if len(waiters) == sim.n:
            waiters, numbers = everybody, everybody_numbers
        else:
            waiters.sort(key=by_name)
            numbers = array("i", [rank.rank for rank in waiters])
        now, number = env._now, transfer.id
        if transfer.kind == "pull":
            for rank in waiters:
                rank.waiting = None
                sim.server.waited(rank, transfer)
                resume(rank, sim.server.adopt(rank, transfer))
            return
        if waiters:
            cause = waited_for.get(transfer.kind, WaitCause.COLLECTIVE)
            log.released(now, number, numbers, [rank.since_s for rank in waiters], cause, transfer.causes)
        for rank in waiters:
            rank.waiting = None
            resume(rank, result)

    fire: list[Any] = [computed]
    return resume, computed, complete
