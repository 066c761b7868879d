"""Which weights the loss knows only by their direction, found by their gradient, and how much steps lengthen them.

What stands before a normalisation may be of any length. By Euler's theorem the gradient of a function that does not change along w is at
right angles to it, w·∂L/∂w = 0, which an ordinary tensor meets by chance at one point and not at several. What a longer w does to the
training is in `hetsim.convergence.lengthening`; that model has one length, here every tensor has its own. With s_i the tensor's share of
the gradient's square, it lengthens by s_i/|w_i|² and weighs s_i in what the training does, so that the one length is

    1/|w|² = Σ s_i² / |w_i|²        over the tensors before normalisations
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from abs_sgd.gradients import FlatModel
from abs_sgd.workloads.task import Batch, Task

ALONG = 1e-3  # |cos(w, ∂L/∂w)| below this at every point: float32 and the ε of a normalisation allow no exact zero [our choice]


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """`square`: squared norm at the first point, as one for all; None where no tensor stands before a normalisation. `ratios`: by how much
    that has grown, for the gradient as a whole, at every point."""

    square: float | None
    ratios: tuple[float, ...]


def lengths(task: Task, points: Sequence[Tensor], batches: Sequence[Batch]) -> Lengths:
    """From parameter vectors along a training, the first one its start, and some batches of the size that is trained with."""
    model = FlatModel(task.make_model(0))
    model.model.train()
    sizes = [p.numel() for p in model.model.parameters() if p.requires_grad]
    norms, along, shares = [], [], []
    for point_P in points:
        model.load(point_P)
        gradients = [model.gradient_sum(lambda m, data=data: task.loss_sum(m, data)) for data in batches]  # type: ignore[misc]
        w = _split(point_P, sizes)
        g = _split(torch.stack(gradients), sizes)
        square_I = torch.stack([part.square().sum() for part in g])
        norms.append(torch.stack([part.square().sum() for part in w]))
        cosine_I = torch.stack(
            [(gi.sum(0) @ wi).abs() / (gi.sum(0).norm() * wi.norm()) for gi, wi in zip(g, w, strict=True)]
        )
        along.append(cosine_I.nan_to_num(1.0))
        shares.append(square_I / square_I.sum())
    free = torch.stack(along).amax(0) < ALONG
    share_I = torch.stack(shares).mean(0) * free
    inverse = float((share_I.square() / norms[0])[free].sum())
    ratios = [float(1.0 - share_I.sum() + (share_I * at / norms[0])[free].sum()) for at in norms]
    return Lengths(square=1.0 / inverse if inverse > 0 else None, ratios=tuple(ratios))


def _split(values: Tensor, sizes: Sequence[int]) -> list[Tensor]:
    """Along the last axis."""
    ends = np.cumsum(sizes).tolist()
    return [values[..., end - size : end].double() for size, end in zip(sizes, ends, strict=True)]
