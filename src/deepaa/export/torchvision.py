"""The code of an export to torchvision: `deepaa convert` fills in policy and docstring.

    from {module} import augment

    image = augment(image)  # a PIL image (RGB or L) or a uint8 tensor (C, H, W)

`augment` is a v2.Compose and may stand inside another one, before conversion and normalisation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

# the policy: begin
# ruff: noqa: D102, D103, D107 - the functions are named after what they do
OPERATIONS: dict[str, tuple[str, dict[str, Any]]] = {"identity": ("identity", {})}
LAYERS: list[dict[str, dict[float | None, float]]] = [{"identity": {None: 1.0}}]
# the policy: end

NEAREST, BICUBIC = v2.InterpolationMode.NEAREST, v2.InterpolationMode.BICUBIC
UNIFORMS = 22
"""Random numbers in [0, 1) that an operation may use."""


def colour(image: Any, fill: Any) -> list[float]:
    """The fill value of each channel; a colour becomes its luma on a grey image."""
    channels, values = F.get_num_channels(image), fill if isinstance(fill, tuple) else (fill,)
    if len(values) == 3 and channels != 3:
        values = (round(0.299 * values[0] + 0.587 * values[1] + 0.114 * values[2]),)
    return [float(value) for value in (values * channels if len(values) == 1 else values)]


def affine(
    image: Any, fill: Any, move: tuple[int, int] = (0, 0), x: float = 0, y: float = 0
) -> Any:
    """The image moved by whole pixels or sheared about its upper left corner."""
    shear = [math.degrees(math.atan(x)), math.degrees(math.atan(y))]
    place = {"translate": list(move), "scale": 1.0, "shear": shear, "center": [0, 0]}
    return F.affine(image, 0.0, interpolation=NEAREST, fill=colour(image, fill), **place)


def shift(m: float, length: int) -> int:
    """By how many pixels a side of `length` is moved to the left or up."""
    return -math.floor(m * length + 0.5)


def cut(u: float, length: int, side: float, central: Any, whole: bool) -> tuple[int, int]:
    """First and last pixel of a cutout along one axis; the centre is drawn from `central`.

    `whole` keeps the side where the square crosses the first border.
    """
    if central == "pixel":
        first = int(u * length) - int(side) // 2
        return max(0, first), min(length, first + int(side)) - 1
    span = length if central is None else min(length, central)
    begin = (length - span) / 2 + u * span - side / 2
    start = int(max(0.0, begin))
    stop = (start if whole else begin) + side
    return start, int(min(length, stop))  # the last pixel counts: 16 pixels become 17


def cutout(
    image: Any, m: Any, u: list[float], *, size: int, fill: Any, central: Any, min_side: int
) -> Any:
    height, width = F.get_size(image)
    side = size if m is None else m * width
    if side <= 0 or min(height, width) < min_side:
        return image
    left, right = cut(u[0], width, side, central, m is not None)
    top, bottom = cut(u[1], height, side, central, m is not None)
    right, bottom = min(right, width - 1), min(bottom, height - 1)
    value = torch.tensor(colour(image, fill)).view(-1, 1, 1)
    value = value.to(image.dtype).to(image.device) if isinstance(image, torch.Tensor) else value
    return F.erase(image, top, left, bottom - top + 1, right - left + 1, value)


def crop(image: Any, m: Any, u: list[float], *, pad: int, fill: Any) -> Any:
    height, width = F.get_size(image)
    wide = F.pad(image, [pad], fill=colour(image, fill))
    return F.crop(wide, int(u[1] * (2 * pad + 1)), int(u[0] * (2 * pad + 1)), height, width)


def crop_box(u: list[float], height: int, width: int, scale: Any, ratio: Any) -> tuple[int, ...]:
    """Left, top, width and height of the first of ten boxes that fits, else of a central one."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for a, b in zip(u[2:22:2], u[3:22:2], strict=True):
        area = height * width * (scale[0] + (scale[1] - scale[0]) * a)
        shape = math.exp(low + (high - low) * b)
        w, h = round(math.sqrt(area * shape)), round(math.sqrt(area / shape))
        if 0 < w <= width and 0 < h <= height:
            return int(u[0] * (width - w + 1)), int(u[1] * (height - h + 1)), w, h
    w, h = min(width, round(height * ratio[1])), min(height, round(width / ratio[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def resized_crop(image: Any, m: Any, u: list[float], *, scale: Any, ratio: Any) -> Any:
    height, width = F.get_size(image)
    left, top, w, h = crop_box(u, height, width, scale, ratio)
    return F.resized_crop(image, top, left, h, w, [height, width], BICUBIC, antialias=True)


KERNELS: dict[str, Callable[..., Any]] = {
    "identity": lambda x, m, u: x,
    "shear_x": lambda x, m, u, fill: affine(x, fill, x=m),
    "shear_y": lambda x, m, u, fill: affine(x, fill, y=m),
    "translate_x": lambda x, m, u, fill: affine(x, fill, (shift(m, F.get_size(x)[1]), 0)),
    "translate_y": lambda x, m, u, fill: affine(x, fill, (0, shift(m, F.get_size(x)[0]))),
    "rotate": lambda x, m, u, fill: F.rotate(x, m, interpolation=NEAREST, fill=colour(x, fill)),
    "auto_contrast": lambda x, m, u: F.autocontrast(x),
    "invert": lambda x, m, u: F.invert(x),
    "equalize": lambda x, m, u: F.equalize(x),
    "solarize": lambda x, m, u: x if m > 255 else F.solarize(x, threshold=m),
    "posterize": lambda x, m, u: F.posterize(x, int(m)) if m >= 1 else F.adjust_brightness(x, 0.0),
    "contrast": lambda x, m, u: F.adjust_contrast(x, m),
    "color": lambda x, m, u: F.adjust_saturation(x, m),
    "brightness": lambda x, m, u: F.adjust_brightness(x, m),
    "sharpness": lambda x, m, u: F.adjust_sharpness(x, m),
    "flip": lambda x, m, u: F.horizontal_flip(x) if u[0] >= 0.5 else x,
    "cutout": cutout,
    "crop": crop,
    "resized_crop": resized_crop,
}
"""Of an image, a magnitude, random numbers and the options of an operation."""


class Transformation(v2.Transform):  # type: ignore[misc]
    """One operation at one magnitude, on the images of a sample; labels stay as they are."""

    def __init__(self, name: str, magnitude: float | None) -> None:
        super().__init__()
        self.name, self.magnitude = name, magnitude
        self.kernel, self.options = OPERATIONS[name]

    def extra_repr(self) -> str:
        return self.name if self.magnitude is None else f"{self.name} {self.magnitude:g}"

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        return {"u": torch.rand(UNIFORMS).tolist()}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return KERNELS[self.kernel](inpt, self.magnitude, params["u"], **self.options)


def layer(table: dict[str, dict[float | None, float]]) -> Any:
    """One transformation, drawn with the probabilities of `table`."""
    rows = [(name, m, p) for name, levels in table.items() for m, p in levels.items()]
    return v2.RandomChoice([Transformation(name, m) for name, m, _ in rows], [p for *_, p in rows])


augment = v2.Compose([layer(table) for table in LAYERS])
