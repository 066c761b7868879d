"""Messages between workers and a parameter server, on gloo: one thread per direction and peer, so that a slow link holds up nobody else.

    worker -> server   push (header, gradient sum), pull (header), left (header)
    server -> worker   arrived (header), answer (header, parameters), left (header)

A header is a small float64 vector and says what follows; payloads have the model's own dtype and are padded like a collective's. Both
ends post their receives ahead: gloo sends nothing before the other end has, so a payload would wait for a round trip. Messages of one
peer arrive in their order; those of several in the order in which they are complete. gloo's `is_completed` of a send or receive never
turns true without `wait`, which is why a thread waits.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from abs_sgd.runtime.wire import PeerLostError

HEADER = 8  # kind, number, and at most six values
HEADER_TAG, PAYLOAD_TAG = 1, 2
PATIENCE = datetime.timedelta(days=1)  # a slow worker is no error; one that is gone is seen by its broken connection


class Letter(IntEnum):
    """What a message is."""

    PUSH = 0
    PULL = 1
    ARRIVED = 2
    ANSWER = 3
    LEFT = 4


@dataclass(frozen=True, kw_only=True)
class Mail:
    """A complete message. `values`: what its header carries; `payload_P`: a gradient sum or parameters, padding cut off."""

    letter: Letter
    peer: int
    number: int
    values: tuple[float, ...]
    payload_P: Tensor | None = None


class Post:
    """One end of the connection between a worker and the server: a sending and a receiving thread.

    `payload`: the letter from the other end that has one. `announced` gets each header as it comes, `delivered` each message when all of
    it is there, `failed` the error that ended a thread; all three are called in these threads.
    """

    def __init__(
        self,
        peer: int,
        group: Any,
        *,
        size: int,
        elements: int,
        dtype: torch.dtype,
        payload: Letter,
        delivered: Callable[[Mail], None],
        failed: Callable[[PeerLostError], None],
        announced: Callable[[Mail], None] = lambda mail: None,
    ) -> None:
        self.peer, self.group = peer, group
        self.size, self.elements, self.dtype, self.payload = size, elements, dtype, payload
        self.announced, self.delivered, self.failed = announced, delivered, failed
        self._out: SimpleQueue[tuple[Letter, int, tuple[float, ...], Tensor | None]] = SimpleQueue()
        self._threads = [
            threading.Thread(target=self._guarded, args=(work,), name=f"{name} {peer}", daemon=True)
            for name, work in (("to", self._send), ("from", self._receive))
        ]
        for thread in self._threads:
            thread.start()

    def send(
        self,
        letter: Letter,
        number: int,
        values: tuple[float, ...] = (),
        payload_P: Tensor | None = None,
    ) -> None:
        """Queue a message and return. The payload must not change before the other end has answered."""
        self._out.put((letter, number, values, payload_P))

    def close(self) -> None:
        """Say that nothing more comes, and wait until the other end says so too."""
        self.send(Letter.LEFT, 0)
        for thread in self._threads:
            thread.join()

    # ---- the two threads -------------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except RuntimeError as error:
            self.failed(PeerLostError(f"the connection to rank {self.peer} broke: {str(error).splitlines()[0]}"))

    def _send(self) -> None:
        spare_P: Tensor | None = None
        while True:
            letter, number, values, payload_P = self._out.get()
            header = torch.zeros(HEADER, dtype=torch.float64)
            header[: 2 + len(values)] = torch.tensor((letter, number, *values), dtype=torch.float64)
            works = [dist.isend(header, self.peer, group=self.group, tag=HEADER_TAG)]
            if payload_P is not None:
                if len(payload_P) < self.elements or payload_P.device.type != "cpu":
                    if spare_P is None:
                        spare_P = torch.zeros(self.elements, dtype=self.dtype)
                    spare_P[: len(payload_P)] = payload_P
                    payload_P = spare_P
                works.append(dist.isend(payload_P, self.peer, group=self.group, tag=PAYLOAD_TAG))
            for work in works:
                if work is not None:
                    work.wait()
            if letter == Letter.LEFT:
                return

    def _receive(self) -> None:
        header, coming = self._expect(HEADER, torch.float64, HEADER_TAG)
        payload_P, payload = self._expect(self.elements, self.dtype, PAYLOAD_TAG)
        while True:
            coming.wait()
            kind, number, *values = header.tolist()
            mail = Mail(letter=Letter(round(kind)), peer=self.peer, number=round(number), values=tuple(values))
            if mail.letter != Letter.LEFT:
                header, coming = self._expect(HEADER, torch.float64, HEADER_TAG)
            self.announced(mail)
            if mail.letter == self.payload:
                payload.wait()
                mail = replace(mail, payload_P=payload_P[: self.size])
                payload_P, payload = self._expect(self.elements, self.dtype, PAYLOAD_TAG)
            self.delivered(mail)
            if mail.letter == Letter.LEFT:
                return

    def _expect(self, elements: int, dtype: torch.dtype, tag: int) -> tuple[Tensor, Any]:
        """Fresh memory and a receive into it that is under way; what came before may be in use for as long as it likes."""
        into = torch.empty(elements, dtype=dtype)
        return into, dist.irecv(into, self.peer, group=self.group, tag=tag)


def server_group() -> Any:
    """Connections of their own for messages with the server; every rank of the default group makes it at the same place."""
    return dist.new_group(timeout=PATIENCE)
