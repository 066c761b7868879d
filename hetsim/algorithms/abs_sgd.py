"""ABS-SGD: delayed synchronous SGD with an open batch."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from hetsim.algorithms.balance import Pacer
from hetsim.algorithms.base import DelayedOptions, OneUpdateDelay, Program, Role, Split
from hetsim.commands import Port

NO_CAP = 2**62


class AbsSgdOptions(DelayedOptions):
    """When a worker leaves its batch, how large a batch may get, and where gradients are taken."""

    trigger: Literal["back-to-back", "min_samples", "target_batch", "period_s"] = Field(
        "back-to-back", description="when a batch ends once the last synchronization is complete"
    )
    min_samples: int = Field(1, ge=1, description="trigger min_samples: least samples of a batch")
    min_samples_scope: Literal["local", "global"] = Field(
        "local", description="trigger min_samples: counted over this worker or over all"
    )
    target_batch: int = Field(
        0, ge=0, description="trigger target_batch: samples of a batch over all workers; 0 is the global batch"
    )
    period_s: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="trigger period_s: least seconds between two synchronizations"
    )
    micro_batch: Literal["equal", "equal-time"] = Field(
        "equal",
        description="training.micro_batch_samples for all, or as many samples as each manages in the slowest worker's time",
    )
    max_local_batch: int = Field(0, ge=0, description="most samples of one worker in a batch; 0 is no cap")
    max_global_batch: int = Field(0, ge=0, description="most samples of all workers in a batch; 0 is no cap")

    @model_validator(mode="after")
    def _caps_allow_the_trigger(self) -> Self:
        if self.trigger == "min_samples":
            cap = self.max_local_batch if self.min_samples_scope == "local" else self.max_global_batch
            if cap and cap < self.min_samples:
                raise ValueError(f"min_samples {self.min_samples} is over the cap of {cap}, so no batch could ever end")
        if self.trigger == "target_batch" and self.max_global_batch and self.target_batch > self.max_global_batch:
            raise ValueError(f"target_batch {self.target_batch} is over max_global_batch {self.max_global_batch}")
        return self


class AbsSgd(OneUpdateDelay, name="abs-sgd"):
    """Delayed synchronous SGD with an open batch (ABS-SGD): a batch lasts until the next synchronization starts, nobody waits.

        a  |m|m|m|m|m|m|m|m|…      a worker leaves batch k at its first micro-batch boundary at which
        b  |m--|m--|m--|m--|…      synchronization k-1 is complete, applies update k-1, launches k and computes on
        net   |  r_1  | |  r_2 |

    x_{k+1} = step(x_k, Σ s_i / Σ b_i), every gradient exactly one update old. With equal speeds and one micro-batch per batch this is
    one-step delay. Samples/s: Σ v_i at any bandwidth; the period, and with it the batch, follows the link:
    max(C, g_slow) ≤ period ≤ C + g_slow.

    From the abstract of the paper: synchronization in the background on delayed gradients, batches that last until the next one starts. The
    triggers, caps, micro-batches and compute points are our choice; `compute_point: current` is the literal reading, the predictions,
    of which `damped-prediction` is the default, are ours.
    """

    source = "Zhou, Chen, Wu 2023, ABS-SGD (arXiv 2308.15164), by its abstract"
    role: ClassVar[Role] = "ours"
    Options: ClassVar[Any] = AbsSgdOptions
    split: ClassVar[Split] = "open"

    def worker(self, w: Port) -> Program:
        """Compute micro-batches until the last synchronization is complete and the trigger met; apply, launch, go on."""
        o = self.options
        cap = o.max_local_batch or NO_CAP
        counting = (
            o.max_global_batch
            or o.trigger == "target_batch"
            or (o.trigger == "min_samples" and o.min_samples_scope == "global")
        )
        plain = o.trigger == "back-to-back"
        pace = Pacer(w.micro_batch, w.max_pass[w.rank]) if o.micro_batch == "equal-time" else None
        micro = w.micro_batch
        sync, batch, everyone, updates = None, 0, 0, 0
        launched_s = (yield w.now()) if o.trigger == "period_s" else 0.0
        while True:
            samples = cap - batch
            done = yield w.compute(micro if micro < samples else samples)
            batch += done.samples
            if pace:
                pace.note(done)
            if counting:
                everyone = yield w.count(done.samples)
            if not done.samples:
                stuck = "data"  # the end of the data counts as a trigger
            elif batch >= cap or (o.max_global_batch and everyone >= o.max_global_batch):
                stuck = "cap"
            else:
                stuck = ""
                if not (plain or (yield from self.ready(w, batch, everyone, launched_s))):
                    continue
            if sync is not None:
                if not stuck and not (yield w.poll(sync)):
                    continue
                reduced = yield w.wait(sync, stuck)
                updates = yield w.apply(sync)
                if reduced.stop:
                    return
                if pace:
                    pace.update(reduced)
                    micro = pace.samples
            sync = yield w.all_reduce(gather=pace.report() if pace else ())
            batch = 0
            if o.trigger == "period_s":
                launched_s = yield w.now()
            if updates < o.synchronous_updates:
                reduced = yield w.wait(sync)
                updates = yield w.apply(sync)
                if reduced.stop:
                    return
                sync = None
            else:
                yield w.predict(sync)

    def ready(self, w: Port, batch: int, everyone: int, launched_s: float) -> Generator[Any, Any, bool]:
        """Is the trigger met? (back-to-back always is)"""
        o = self.options
        if o.trigger == "period_s":
            return bool((yield w.now()) - launched_s >= o.period_s)
        if o.trigger == "target_batch":
            return bool(everyone >= (o.target_batch or w.global_batch))
        return bool((everyone if o.min_samples_scope == "global" else batch) >= o.min_samples)
