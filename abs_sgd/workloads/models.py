"""Residual networks for 32x32 pictures (He et al. 2016)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor, nn
from torch.nn import functional

Norm = Literal["batch", "group"]
GROUPS = 8  # channels per group stay between 2 and 64 for the widths used here


def normalisation(kind: Norm) -> Callable[[int], nn.Module]:
    """BatchNorm (statistics over the pass: not sample-separable) or GroupNorm (per sample: separable)."""
    return nn.BatchNorm2d if kind == "batch" else lambda width: nn.GroupNorm(GROUPS, width)


class Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, a 1x1 convolution where the shape changes."""

    def __init__(self, width_in: int, width: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(width_in, width, 3, stride, 1, bias=False),
            norm(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            norm(width),
        )
        same = stride == 1 and width_in == width
        self.shortcut = (
            nn.Identity() if same else nn.Sequential(nn.Conv2d(width_in, width, 1, stride, bias=False), norm(width))
        )

    def forward(self, x: Tensor) -> Tensor:
        return functional.relu(self.body(x) + self.shortcut(x))


def resnet(widths: tuple[int, ...], blocks: int, norm: Norm, classes: int = 10) -> nn.Module:
    """A 3x3 stem, `blocks` per width (each width after the first halves the picture), global average, linear."""
    make = normalisation(norm)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), make(widths[0]), nn.ReLU()]
    width_in = widths[0]
    for level, width in enumerate(widths):
        for index in range(blocks):
            layers.append(Block(width_in, width, 2 if level > 0 and index == 0 else 1, make))
            width_in = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width_in, classes))


def small_resnet() -> nn.Module:
    """Three levels of one block (16, 32, 64 channels), GroupNorm, 78,042 parameters."""
    return resnet((16, 32, 64), 1, "group")


def resnet18(norm: Norm = "batch") -> nn.Module:
    """ResNet18 as used on CIFAR-10: 3x3 stem without pooling, 11.2 million parameters."""
    return resnet((64, 128, 256, 512), 2, norm)


def parameters(model: nn.Module) -> int:
    """Number of trained parameters."""
    return sum(p.numel() for p in model.parameters() if p.requires_grad)


__all__ = ["Block", "parameters", "resnet", "resnet18", "small_resnet"]
