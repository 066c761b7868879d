"""What a program was answered so far, so that a fresh one can be brought to the same point.

A generator cannot be saved, but it is deterministic given its answers: `feed` sends them to a new one, which then stands where the saved
one stood, with everything it had learned (batch sizes, lines fitted, counts). A few numbers per command, kept as two flat arrays.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from hetsim import commands as cmd
from hetsim.algorithms.base import Program
from hetsim.errors import UsageError

# Places are part of the checkpoints' format: append, never reorder.
COMMANDS: tuple[type, ...] = (
    cmd.Compute,
    cmd.AllReduce,
    cmd.Poll,
    cmd.Wait,
    cmd.Apply,
    cmd.Step,
    cmd.Predict,
    cmd.Merge,
    cmd.Discard,
    cmd.Count,
    cmd.Draw,
    cmd.Now,
)
CODES = {command: code for code, command in enumerate(COMMANDS)}
WHOLE = frozenset({cmd.Apply, cmd.Step, cmd.Discard, cmd.Count})  # answered with an int
NOTHING = frozenset({cmd.Predict, cmd.Merge})


class Answers:
    """Answers in order: `codes` says to what command, `values` holds their numbers."""

    def __init__(self, codes: bytes = b"", values: bytes = b"") -> None:
        self.codes = bytearray(codes)
        self.values = array("d", values)
        self._later: list[tuple[int, cmd.Computed]] = []  # on a GPU seconds are known once it has come so far

    def note(self, command: Any, answer: Any) -> None:
        """One more. Counts are exact up to 2^53."""
        kind = type(command)
        self.codes.append(CODES[kind])
        if kind is cmd.Compute:
            if type(answer) is not cmd.Computed:
                self._later.append((len(self.values) + 1, answer))
            self.values.extend(answer)
        elif kind is cmd.AllReduce:
            self.values.append(answer.id)
        elif kind is cmd.Wait:
            self.values.extend(_flat(answer))
        elif kind not in NOTHING:
            self.values.append(answer)

    def plain(self) -> dict[str, Tensor]:
        """As a checkpoint can hold it, copied; waits for the device where a time needs it."""
        for place, computed in self._later:
            self.values[place] = computed.seconds
        self._later.clear()
        return {"codes": copied(self.codes, torch.uint8), "values": copied(self.values, torch.float64)}

    @classmethod
    def of(cls, plain: Mapping[str, Tensor]) -> Answers:
        """The opposite of `plain`."""
        return cls(plain["codes"].numpy().tobytes(), plain["values"].numpy().tobytes())

    def computed(self) -> Iterator[int]:
        """Samples of every pass that had some."""
        for command, answer in self._read(cmd.Handle):
            if command is cmd.Compute and answer.samples:
                yield answer.samples

    def feed(self, program: Program, handle: Callable[[int], cmd.Handle]) -> Any:
        """Bring a fresh program to where it will take the last answer, which is returned. `handle`: the transfer of a number.

        Raises UsageError where the program asks for something else than the one that was saved.
        """
        if not self.codes:
            return None
        answer: Any = None
        try:
            for at, (kind, following) in enumerate(self._read(handle)):
                command = program.send(answer)
                if type(command) is not kind:
                    raise UsageError(
                        f"the checkpoint is of another program: its command {at} was {kind.__name__}, not {command!r}"
                    )
                if isinstance(command, cmd.Wait) and command.handle.result is None:
                    command.handle.result = following  # asked for again, it is answered as before
                answer = following
        except StopIteration:
            raise UsageError("the checkpoint is of another program: this one has already ended") from None
        return answer

    def _read(self, handle: Callable[[int], cmd.Handle]) -> Iterator[tuple[type, Any]]:
        values = iter(self.values)
        for code in self.codes:
            kind = COMMANDS[code]
            answer: Any = None
            if kind is cmd.Compute:
                answer = cmd.Computed(int(next(values)), next(values))
            elif kind is cmd.AllReduce:
                answer = handle(int(next(values)))
            elif kind is cmd.Wait:
                answer = _reduced(values)
            elif kind is cmd.Poll:
                answer = bool(next(values))
            elif kind in WHOLE:
                answer = int(next(values))
            elif kind not in NOTHING:
                answer = next(values)
            yield kind, answer


def copied(data: bytes | bytearray | array[float], dtype: torch.dtype) -> Tensor:
    """The numbers of a buffer as a tensor of its own."""
    held = bytearray(data) if isinstance(data, bytes | bytearray) else bytearray(data.tobytes())
    return torch.frombuffer(held, dtype=dtype) if held else torch.empty(0, dtype=dtype)


def _flat(reduced: cmd.Reduced) -> list[float]:
    ranks = reduced.contributors
    flat: list[float] = [reduced.samples, reduced.stop, len(ranks), *ranks, len(reduced.gathered)]
    for rank, values in reduced.gathered.items():
        flat += [rank, len(values), *values]
    return [float(value) for value in flat]


def _reduced(values: Iterator[float]) -> cmd.Reduced:
    samples, stop = int(next(values)), bool(next(values))
    contributors = tuple(int(next(values)) for _ in range(int(next(values))))
    gathered: dict[int, tuple[float, ...]] = {}
    for _ in range(int(next(values))):
        rank, count = int(next(values)), int(next(values))
        gathered[rank] = tuple(next(values) for _ in range(count))
    return cmd.Reduced(samples, gathered, contributors, stop)
