"""ASGD: a parameter server that applies every gradient as it comes."""

from __future__ import annotations

from hetsim.algorithms.base import Algorithm, Program
from hetsim.commands import Port, ServerPort


class Asgd(Algorithm, name="asgd"):
    """Asynchronous SGD with a parameter server: pull, compute, push, applied at once, nobody waits for anybody.

    Update: x_{k+1} = step(x_k, s_i(x_{k-τ}) / b_i) with τ the updates made by others meanwhile: about total rate / rate_i - 1 for worker i.
    With one worker this is SGD. Samples/s: Σ b / (t_i(b) + t_pull + t_push) while the server's link is not full.
    """

    source = "Dean et al. 2012, Large Scale Distributed Deep Networks, NeurIPS"
    has_server = True

    def buffers(self, optimizer_states: int) -> dict[str, int]:
        """Weights and gradient; the optimizer's state is the server's."""
        return super().buffers(0)

    def worker(self, w: Port) -> Program:
        """Pull, compute, push."""
        while True:
            pulled = yield w.wait((yield w.pull()))
            if pulled.stop:
                return
            yield w.compute(w.batch)
            yield w.wait((yield w.push()))

    def server(self, s: ServerPort) -> Program:
        """Apply every gradient, answer every pull."""
        while True:
            message = yield s.receive()
            if message.kind == "push":
                yield s.apply(message)
            else:
                yield s.reply(message)
