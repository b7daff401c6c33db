"""Wide residual networks (Zagoruyko and Komodakis, 2016)."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F


class _WideBlock(nn.Module):
    """Two 3x3 convolutions, each after batch norm and ReLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.norm1(x))
        inner: Tensor = self.conv2(F.relu(self.norm2(self.conv1(active))))
        # a shortcut that changes the shape starts behind the activation, one that does not at x
        short: Tensor = x if self.shortcut is None else self.shortcut(active)
        return short + inner


class WideResNet(nn.Module):
    """Wide residual network of Zagoruyko and Komodakis (2016) for any image size."""

    def __init__(self, depth: int, width: int, classes: int, channels: int = 3) -> None:
        """WRN-depth-width of the paper; its depth is 6 n + 4."""
        super().__init__()
        blocks = (depth - 4) // 6
        widths = (16, 16 * width, 32 * width, 64 * width)
        self.stem = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        layers: list[nn.Module] = []
        for group in range(3):
            for block in range(blocks):
                inputs = widths[group] if block == 0 else widths[group + 1]
                stride = 2 if group > 0 and block == 0 else 1
                layers.append(_WideBlock(inputs, widths[group + 1], stride))
        self.blocks = nn.Sequential(*layers)
        self.norm = nn.BatchNorm2d(widths[3])
        self.classify = nn.Linear(widths[3], classes)

    def forward(self, x: Tensor) -> Tensor:
        """Logits (N, classes) of normalised images (N, C, H, W)."""
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        out: Tensor = self.classify(x.mean((2, 3)))
        return out
