"""The code of an export to kornia: `deepaa convert --to kornia` fills in policy and docstring.

from {module} import augment

augment.to(images.device)
images = augment(images)  # float (N, C, H, W) in [0, 1]: one draw per image

`augment` is an nn.Module without parameters; its tables move with it to another device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from kornia import enhance
from kornia.geometry import transform as geometry
from torch import Tensor, nn

# the policy: begin
# ruff: noqa: D102, D103, D107 - the functions are named after what they do
OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {"identity": ("identity", {})}
LAYERS: list[dict[str, dict[float | None, float]]] = [{"identity": {None: 1.0}}]
# the policy: end

UNIFORMS = 22
"""Random numbers in [0, 1) that an operation may use per image."""


def colour(images: Tensor, fill: Any) -> Tensor:
    """The fill value of each channel, (C, 1, 1) in [0, 1]; a colour becomes its luma on grey."""
    channels, values = images.shape[1], fill if isinstance(fill, tuple) else (fill,)
    if len(values) == 3 and channels != 3:
        values = (round(0.299 * values[0] + 0.587 * values[1] + 0.114 * values[2]),)
    values = values * channels if len(values) == 1 else values
    return torch.tensor(values, dtype=images.dtype, device=images.device).view(-1, 1, 1) / 255


def warp(
    images: Tensor, fill: Any, rows: list[Any], mode: str = "nearest", padding_mode: str = "zeros"
) -> Tensor:
    """The images under the matrix [[a, b, c], [d, e, f]], from source to result, in pixels."""
    one = torch.ones(len(images), dtype=images.dtype, device=images.device)
    matrix = torch.stack([one * value for value in rows], 1).view(-1, 2, 3)
    paint = colour(images, fill)  # outside the image there are zeros, so fill is made zero
    size = (images.shape[2], images.shape[3])
    return geometry.warp_affine(images - paint, matrix, size, mode, padding_mode) + paint


def shift(m: Tensor, length: int) -> Tensor:
    """By how many whole pixels a side of `length` is moved to the left or up."""
    return -(m * length + 0.5).floor()


def rotate(x: Tensor, m: Tensor, u: Tensor, *, fill: Any) -> Tensor:
    paint = colour(x, fill)
    return geometry.rotate(x - paint, m, mode="nearest") + paint


def auto_contrast(x: Tensor, m: Tensor, u: Tensor) -> Tensor:
    flat = x.amax((2, 3), keepdim=True) == x.amin((2, 3), keepdim=True)
    return torch.where(flat, x, enhance.normalize_min_max(x))


def cut(u: Tensor, length: int, side: Tensor, central: Any, whole: Tensor) -> Tensor:
    """(N, length) whether a pixel of one axis is cut; the centre is drawn from `central`.

    `whole` keeps the side where the square crosses the first border.
    """
    if central == "pixel":
        first = (u * length).floor() - (side.floor() / 2).floor()
        last = first + side.floor() - 1
    else:
        span = length if central is None else min(length, central)
        begin = (length - span) / 2 + u * span - side / 2
        first = begin.clamp(min=0).floor()
        last = torch.where(whole, first, begin) + side  # it counts: 16 pixels become 17
        last = last.floor()
    place = torch.arange(length, device=u.device)
    return (place >= first[:, None]) & (place <= last[:, None])


def cutout(
    x: Tensor, m: Tensor, u: Tensor, *, size: int, fill: Any, central: Any, min_side: int
) -> Tensor:
    height, width = x.shape[2:]
    side = torch.where(m.isnan(), float(size), m * width)
    whole = ~m.isnan()
    columns = cut(u[:, 0], width, side, central, whole)
    lines = cut(u[:, 1], height, side, central, whole)
    inside = columns[:, None, None, :] & lines[:, None, :, None] & (side > 0).view(-1, 1, 1, 1)
    return x if min(height, width) < min_side else torch.where(inside, colour(x, fill), x)


def crop(x: Tensor, m: Tensor, u: Tensor, *, pad: int, fill: Any) -> Tensor:
    move = pad - (u[:, :2] * (2 * pad + 1)).floor()
    return warp(x, fill, [1, 0, move[:, 0], 0, 1, move[:, 1]])


def crop_boxes(u: Tensor, height: int, width: int, scale: Any, ratio: Any) -> Tensor:
    """(N, 4) left, top, width, height: the first of ten boxes that fits, else a central one."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    area = height * width * (scale[0] + (scale[1] - scale[0]) * u[:, 2:22:2])
    shape = (low + (high - low) * u[:, 3:22:2]).exp()
    w, h = (area * shape).sqrt().round(), (area / shape).sqrt().round()
    fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
    first = fits.int().argmax(1, keepdim=True)  # the first of equal ones
    w, h = w.gather(1, first)[:, 0], h.gather(1, first)[:, 0]
    x, y = (u[:, 0] * (width - w + 1)).floor(), (u[:, 1] * (height - h + 1)).floor()
    wide, tall = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    centre = torch.tensor([(width - wide) // 2, (height - tall) // 2, wide, tall]).to(u)
    return torch.where(fits.any(1, keepdim=True), torch.stack([x, y, w, h], 1), centre)


def resized_crop(x: Tensor, m: Tensor, u: Tensor, *, scale: Any, ratio: Any) -> Tensor:
    height, width = x.shape[2:]
    left, top, w, h = crop_boxes(u, height, width, scale, ratio).to(x).unbind(1)
    # pixel areas are matched, not pixel centres, as image libraries do when they resize
    a, d = width / w, height / h
    rows = [a, 0, -a * (left - 0.5) - 0.5, 0, d, -d * (top - 0.5) - 0.5]
    return warp(x, 0, rows, mode="bicubic", padding_mode="border").clamp(0, 1)


KERNELS: dict[str, Callable[..., Tensor]] = {
    "identity": lambda x, m, u: x,
    "shear_x": lambda x, m, u, fill: warp(x, fill, [1, -m, -m / 2, 0, 1, 0]),
    "shear_y": lambda x, m, u, fill: warp(x, fill, [1, 0, 0, -m, 1, -m / 2]),
    "translate_x": lambda x, m, u, fill: warp(x, fill, [1, 0, shift(m, x.shape[3]), 0, 1, 0]),
    "translate_y": lambda x, m, u, fill: warp(x, fill, [1, 0, 0, 0, 1, shift(m, x.shape[2])]),
    "rotate": rotate,
    "auto_contrast": auto_contrast,
    "invert": lambda x, m, u: enhance.invert(x),
    "equalize": lambda x, m, u: enhance.equalize(x),
    # a little less, so that rounding cannot pass a whole threshold
    "solarize": lambda x, m, u: enhance.solarize(x, (m - 0.01) / 255),
    "posterize": lambda x, m, u: enhance.posterize(x, m.long().clamp(0, 8)),
    "contrast": lambda x, m, u: enhance.adjust_contrast_with_mean_subtraction(x, m),
    "color": lambda x, m, u: enhance.adjust_saturation_with_gray_subtraction(x, m),
    "brightness": lambda x, m, u: enhance.adjust_brightness_accumulative(x, m),
    "sharpness": lambda x, m, u: enhance.sharpness(x, m),
    "flip": lambda x, m, u: torch.where((u[:, 0] < 0.5).view(-1, 1, 1, 1), x, geometry.hflip(x)),
    "cutout": cutout,
    "crop": crop,
    "resized_crop": resized_crop,
}
"""Of images, magnitudes (N,), random numbers (N, UNIFORMS) and the options of an operation."""


class Augment(nn.Module):
    """The policy for float images (N, C, H, W) in [0, 1], on any device: one draw per image."""

    probabilities: Tensor
    kind: Tensor
    magnitude: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.rows = list(dict.fromkeys((n, m) for t in LAYERS for n, ms in t.items() for m in ms))
        names = list(OPERATIONS)
        table = [[layer.get(n, {}).get(m, 0.0) for n, m in self.rows] for layer in LAYERS]
        self.register_buffer("probabilities", torch.tensor(table, dtype=torch.float32))
        self.register_buffer("kind", torch.tensor([names.index(name) for name, _ in self.rows]))
        values = [math.nan if m is None else m for _, m in self.rows]
        self.register_buffer("magnitude", torch.tensor(values, dtype=torch.float32))

    def choose(self, n: int) -> Tensor:
        """(n, layers) rows of `self.rows`, one per image and layer."""
        return torch.multinomial(self.probabilities, n, replacement=True).T

    def forward(self, images: Tensor) -> Tensor:
        if images.ndim != 4 or not images.is_floating_point():
            shape = tuple(images.shape)
            raise TypeError(f"expected float (N, C, H, W) in [0, 1], got {images.dtype} {shape}")
        for rows in self.choose(len(images)).T if len(images) else ():
            images = self.apply_rows(images, rows)
        return images

    def apply_rows(self, images: Tensor, rows: Tensor, u: Tensor | None = None) -> Tensor:
        """Each image under its row, with random numbers (N, UNIFORMS)."""
        u = torch.rand(len(images), UNIFORMS, device=images.device) if u is None else u
        out, kinds = images.clone(), self.kind[rows]
        for i in sorted(set(kinds.tolist())):  # this waits for the device
            kernel, options = list(OPERATIONS.values())[i]
            at = (kinds == i).nonzero()[:, 0]
            magnitude = self.magnitude[rows[at]].to(images.dtype)
            out[at] = KERNELS[kernel](images[at], magnitude, u[at], **options)
        return out


augment = Augment()
