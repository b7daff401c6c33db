"""Export to albumentations: nested calls of its own transforms, as Python or as its own file.

Only transforms of the library are used, so that its JSON and YAML load without further code.
"""

from __future__ import annotations

import importlib
import io
import math
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from deepaa.export.shared import Kept, header, literal
from deepaa.ops import PIXEL, Row

LIBRARY = "albumentations"
USE = """\
    from {module} import augment

    image = augment(image=image)["image"]  # uint8 (H, W, 3), RGB: one draw per image

`A.save(augment, "policy.json")` and `A.load("policy.json")` keep it as a file without code."""


class Call(NamedTuple):
    """A transform of the library and its arguments."""

    name: str
    arguments: Mapping[str, Any] = {}
    children: tuple[Call, ...] = ()

    def weighted(self, p: float) -> Call:
        """The same with a probability."""
        return self._replace(arguments={**self.arguments, "p": p})


def source(kept: Kept, module: str, size: int | None) -> str:
    """The pipeline as a Python file that needs nothing but albumentations."""
    lines = "\n".join(f"        {line}" for call in _layers(kept, size) for line in _lines(call))
    code = f"import albumentations as A\n\naugment = A.Compose(\n    [\n{lines}\n    ]\n)\n"
    return f"{header(kept, LIBRARY, USE.format(module=module), size)}\n{code}"


def own_file(kept: Kept, size: int | None, *, kind: str) -> str:
    """The pipeline as a file of albumentations' own, of the kind json or yaml."""
    try:
        module = importlib.import_module(LIBRARY)
    except ImportError as error:
        raise ValueError(
            f"{LIBRARY} cannot be imported ({error}): pip install {LIBRARY}, or write a .py file"
        ) from error
    layers = [built(call, module) for call in _layers(kept, size)]
    module.save(module.Compose(layers), text := io.StringIO(), data_format=kind)
    return text.getvalue()


def _layers(kept: Kept, size: int | None) -> Iterator[Call]:
    for layer in kept.layers:
        rows = tuple(call(row, size).weighted(p) for row, p in layer)
        yield Call("OneOf", {"p": 1.0}, rows)


def _lines(call: Call) -> list[str]:
    """The call as lines of Python."""
    arguments = ", ".join(f"{key}={literal(value)}" for key, value in call.arguments.items())
    if not call.children:
        return [f"A.{call.name}({arguments}),"]
    inner = [f"        {line}" for child in call.children for line in _lines(child)]
    return [f"A.{call.name}(", "    [", *inner, "    ],", f"    {arguments},", "),"]


def built(call: Call, module: Any) -> Any:
    """The transform itself."""
    children = [built(child, module) for child in call.children]
    return getattr(module, call.name)(*([children] if children else []), **call.arguments)


# One function per operation: a magnitude, the side of the images if it is known, options

NEAREST, CUBIC, BLACK = 0, 2, 0
"""OpenCV's numbers of two interpolations and of a border of one colour."""


def call(row: Row, size: int | None) -> Call:
    """The transform of the library that is nearest to a transformation."""
    return _CALLS[row.operation.name](row.magnitude, size, **row.operation.options)


def _affine(fill: Any, name: str = "Affine", **arguments: Any) -> Call:
    fixed = {"interpolation": NEAREST, "border_mode": BLACK, "fill": fill}
    return Call(name, {**arguments, **fixed})


def _along(axis: str, value: float) -> dict[str, tuple[float, float]]:
    """The range of one value along an axis, and of zero along the other."""
    zero = type(value)()
    return {"x": (zero, zero), "y": (zero, zero)} | {axis: (value, value)}


def _shear(axis: str, m: float, size: int | None, fill: Any) -> Call:
    shear = _along(axis, math.degrees(math.atan(m)))
    # the library shears about the centre, Pillow about the corner: half the height between
    return _affine(fill, shear=shear, **_move(axis, m / 2, size, round(m / 2 * (size or 0))))


def _translate(axis: str, m: float, size: int | None, fill: Any) -> Call:
    return _affine(fill, **_move(axis, m, size, math.floor(m * (size or 0) + 0.5)))


def _move(axis: str, share: float, size: int | None, pixels: int) -> dict[str, Any]:
    """A shift to the left or up by `pixels`, or by a share of the side where it is not known."""
    if size is None:
        return {"translate_percent": _along(axis, -share)}
    return {"translate_px": _along(axis, -pixels)}


def _solarize(m: float, size: int | None) -> Call:
    if m > 255:
        return Call("NoOp")
    threshold = max(0.0, (m - 0.01) / 255)  # so that rounding cannot pass a whole threshold
    return Call("Solarize", {"threshold_range": (threshold, threshold)})


def _posterize(m: float, size: int | None) -> Call:
    bits = int(m)
    if bits < 1:
        return _factor("brightness", 0.0, size)
    return Call("NoOp") if bits > 7 else Call("Posterize", {"num_bits": (bits, bits)})


def _factor(name: str, m: float, size: int | None) -> Call:
    still = dict.fromkeys(("brightness", "contrast", "saturation"), (1.0, 1.0))
    return Call("ColorJitter", {**still, name: (m, m), "hue": (0.0, 0.0)})


def _sharpness(m: float, size: int | None) -> Call:
    if m >= 1:  # with lightness 1 the kernel is Pillow's for this alpha
        alpha = min(1.0, (m - 1) / 13)
        return Call("Sharpen", {"alpha": (alpha, alpha), "lightness": (1.0, 1.0)})
    # the Gaussian of 3 x 3 pixels whose centre weighs as much as in Pillow's smoothing by m
    centre = m + (1 - m) * 5 / 13
    side = (1 - math.sqrt(centre)) / 2  # the three weights of a row are side, 1 - 2 side, side
    sigma = math.sqrt(-0.5 / math.log(side / (1 - 2 * side)))
    return Call("GaussianBlur", {"blur_limit": (3, 3), "sigma_limit": (sigma, sigma)})


def _cutout(
    m: float | None, side: int | None, *, size: int, fill: Any, central: Any, min_side: int
) -> Call:
    if side is not None and side < min_side:
        return Call("NoOp")
    if m is not None and side is None:
        hole: float = m
    else:
        pixels = math.floor(size if m is None else m * (side or 0))
        # Pillow's rectangle includes its last pixel
        hole = min(pixels if central == PIXEL else pixels + 1, side or pixels + 1)
    if hole <= 0:
        return Call("NoOp")
    ranges = {"hole_height_range": (hole, hole), "hole_width_range": (hole, hole)}
    return Call("CoarseDropout", {"num_holes_range": (1, 1), **ranges, "fill": fill})


def _resized_crop(m: None, size: int | None, scale: Any, ratio: Any) -> Call:
    if size is None:
        raise ValueError(
            "resized_crop needs the size of the images in albumentations: add --size, such as 224"
        )
    fixed = {"scale": scale, "ratio": ratio, "interpolation": CUBIC}
    return Call("RandomResizedCrop", {"size": (size, size), **fixed})


_HALF = (Call("HorizontalFlip", {"p": 0.5}), Call("NoOp", {"p": 0.5}))
_CALLS: Mapping[str, Callable[..., Call]] = {
    "identity": lambda m, size: Call("NoOp"),
    "shear_x": partial(_shear, "x"),
    "shear_y": partial(_shear, "y"),
    "translate_x": partial(_translate, "x"),
    "translate_y": partial(_translate, "y"),
    "rotate": lambda m, size, fill: _affine(fill, "Rotate", limit=(m, m)),
    "auto_contrast": lambda m, size: Call("AutoContrast", {"method": "pil"}),
    "invert": lambda m, size: Call("InvertImg"),
    "equalize": lambda m, size: Call("Equalize", {"mode": "pil"}),
    "solarize": _solarize,
    "posterize": _posterize,
    "contrast": partial(_factor, "contrast"),
    "color": partial(_factor, "saturation"),
    "brightness": partial(_factor, "brightness"),
    "sharpness": _sharpness,
    "flip": lambda m, size: Call("OneOf", {}, _HALF),
    "cutout": _cutout,
    # a padded image that is cut at a whole offset is a shift
    "crop": lambda m, size, pad, fill: _affine(
        fill, translate_px={"x": (-pad, pad), "y": (-pad, pad)}
    ),
    "resized_crop": _resized_crop,
}
