"""The code of an export to torchvision: `deepaa convert` fills in policy and docstring.

    from {module} import augment

    image = augment(image)  # a PIL image (RGB or L) or a uint8 tensor (C, H, W)

`augment` is a v2.Compose and may stand inside another one, before conversion and normalisation.
"""

from __future__ import annotations

import math
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


def size_of(image: Any) -> tuple[int, int]:
    """Height and width."""
    height, width = F.get_size(image)
    return height, width


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
    return F.affine(
        image,
        angle=0.0,
        translate=list(move),
        scale=1.0,
        shear=shear,
        interpolation=NEAREST,
        fill=colour(image, fill),
        center=[0, 0],
    )


# One function per operation: an image, a magnitude, random numbers, options


def identity(image: Any, m: Any, u: list[float]) -> Any:
    return image


def shear_x(image: Any, m: float, u: list[float], *, fill: Any) -> Any:
    return affine(image, fill, x=m)


def shear_y(image: Any, m: float, u: list[float], *, fill: Any) -> Any:
    return affine(image, fill, y=m)


def translate_x(image: Any, m: float, u: list[float], *, fill: Any) -> Any:
    return affine(image, fill, (-math.floor(m * size_of(image)[1] + 0.5), 0))


def translate_y(image: Any, m: float, u: list[float], *, fill: Any) -> Any:
    return affine(image, fill, (0, -math.floor(m * size_of(image)[0] + 0.5)))


def rotate(image: Any, m: float, u: list[float], *, fill: Any) -> Any:
    return F.rotate(image, m, interpolation=NEAREST, fill=colour(image, fill))


def auto_contrast(image: Any, m: Any, u: list[float]) -> Any:
    return F.autocontrast(image)


def invert(image: Any, m: Any, u: list[float]) -> Any:
    return F.invert(image)


def equalize(image: Any, m: Any, u: list[float]) -> Any:
    return F.equalize(image)


def solarize(image: Any, m: float, u: list[float]) -> Any:
    return image if m > 255 else F.solarize(image, threshold=m)


def posterize(image: Any, m: float, u: list[float]) -> Any:
    return F.posterize(image, bits=int(m)) if m >= 1 else F.adjust_brightness(image, 0.0)


def contrast(image: Any, m: float, u: list[float]) -> Any:
    return F.adjust_contrast(image, m)


def color(image: Any, m: float, u: list[float]) -> Any:
    return F.adjust_saturation(image, m)


def brightness(image: Any, m: float, u: list[float]) -> Any:
    return F.adjust_brightness(image, m)


def sharpness(image: Any, m: float, u: list[float]) -> Any:
    return F.adjust_sharpness(image, m)


def flip(image: Any, m: Any, u: list[float]) -> Any:
    return F.horizontal_flip(image) if u[0] >= 0.5 else image


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
    height, width = size_of(image)
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
    height, width = size_of(image)
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
    w = min(width, round(height * ratio[1]))
    h = min(height, round(width / ratio[0]))
    return (width - w) // 2, (height - h) // 2, w, h


def resized_crop(image: Any, m: Any, u: list[float], *, scale: Any, ratio: Any) -> Any:
    height, width = size_of(image)
    left, top, w, h = crop_box(u, height, width, scale, ratio)
    return F.resized_crop(image, top, left, h, w, [height, width], BICUBIC, antialias=True)


class Transformation(v2.Transform):  # type: ignore[misc]
    """One operation at one magnitude, on the images of a sample; labels stay as they are."""

    def __init__(self, name: str, magnitude: float | None) -> None:
        super().__init__()
        self.name, self.magnitude = name, magnitude
        kind, self.options = OPERATIONS[name]
        self.kernel = globals()[kind]

    def extra_repr(self) -> str:
        return self.name if self.magnitude is None else f"{self.name} {self.magnitude:g}"

    def make_params(self, flat_inputs: list[Any]) -> dict[str, Any]:
        return {"u": torch.rand(UNIFORMS).tolist()}

    def transform(self, inpt: Any, params: dict[str, Any]) -> Any:
        return self.kernel(inpt, self.magnitude, params["u"], **self.options)


def layer(table: dict[str, dict[float | None, float]]) -> Any:
    """One transformation, drawn with the probabilities of `table`."""
    rows = [(name, m, p) for name, levels in table.items() for m, p in levels.items()]
    return v2.RandomChoice([Transformation(name, m) for name, m, _ in rows], [p for *_, p in rows])


augment = v2.Compose([layer(table) for table in LAYERS])
