"""Export to albumentations: nested calls of its own transforms, as Python or as its own file.

Only transforms of the library are used, so that its JSON and YAML load without further code.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deepaa.export.measured import WITHOUT_SIZE
from deepaa.export.shared import Kept, difference_lines, header, literal
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
    note = "" if size is None else f"It is made for images of {size} x {size} pixels."
    head = header(kept, LIBRARY, USE.format(module=module), _way(size), note)
    code = f"import albumentations as A\n\naugment = A.Compose(\n    [\n{lines}\n    ]\n)\n"
    return f"{head}\n{code}"


def differences(kept: Kept, size: int | None) -> list[str]:
    """Where pixels differ from Pillow's, for files that cannot say it themselves."""
    return difference_lines(kept, LIBRARY, _way(size))


def _way(size: int | None) -> str:
    return WITHOUT_SIZE if size is None else LIBRARY


def save(kept: Kept, path: Path, size: int | None) -> None:
    """Write the pipeline as albumentations' own JSON or YAML."""
    try:
        module = importlib.import_module(LIBRARY)
    except ImportError as error:
        raise ValueError(
            f"{LIBRARY} cannot be imported ({error}); install it, or write a .py file"
        ) from error
    kind = "json" if path.suffix.lower() == ".json" else "yaml"
    layers = [built(call, module) for call in _layers(kept, size)]
    module.save(module.Compose(layers), path, data_format=kind)


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
    return _CALLS[row.operation.name](row.magnitude, size, dict(row.operation.options))


def _plain(name: str, **arguments: Any) -> Callable[..., Call]:
    return lambda m, size, options: Call(name, arguments)


def _affine(fill: Any, **arguments: Any) -> Call:
    fixed = {"interpolation": NEAREST, "border_mode": BLACK, "fill": fill}
    return Call("Affine", {**arguments, **fixed})


def _shear(axis: str) -> Callable[..., Call]:
    def make(m: float, size: int | None, options: dict[str, Any]) -> Call:
        angle = math.degrees(math.atan(m))
        shear = {"x": (0.0, 0.0), "y": (0.0, 0.0)} | {axis: (angle, angle)}
        # the library shears about the centre, Pillow about the corner: half the height between
        move = _move(axis, m / 2, size, round(m / 2 * (size or 0)))
        return _affine(options["fill"], shear=shear, **move)

    return make


def _translate(axis: str) -> Callable[..., Call]:
    def make(m: float, size: int | None, options: dict[str, Any]) -> Call:
        pixels = math.floor(m * (size or 0) + 0.5)
        return _affine(options["fill"], **_move(axis, m, size, pixels))

    return make


def _move(axis: str, share: float, size: int | None, pixels: int) -> dict[str, Any]:
    """A shift to the left or up by `pixels`, or by a share of the side where it is not known."""
    if size is None:
        return {"translate_percent": {"x": (0.0, 0.0), "y": (0.0, 0.0)} | {axis: (-share, -share)}}
    return {"translate_px": {"x": (0, 0), "y": (0, 0)} | {axis: (-pixels, -pixels)}}


def _rotate(m: float, size: int | None, options: dict[str, Any]) -> Call:
    return _affine(options["fill"], limit=(m, m))._replace(name="Rotate")


def _solarize(m: float, size: int | None, options: dict[str, Any]) -> Call:
    if m > 255:
        return Call("NoOp")
    threshold = max(0.0, (m - 0.01) / 255)  # so that rounding cannot pass a whole threshold
    return Call("Solarize", {"threshold_range": (threshold, threshold)})


def _posterize(m: float, size: int | None, options: dict[str, Any]) -> Call:
    bits = int(m)
    if bits < 1:
        return _factor("brightness")(0.0, size, options)
    return Call("NoOp") if bits > 7 else Call("Posterize", {"num_bits": (bits, bits)})


def _factor(name: str) -> Callable[..., Call]:
    def make(m: float, size: int | None, options: dict[str, Any]) -> Call:
        still = {"brightness": (1.0, 1.0), "contrast": (1.0, 1.0), "saturation": (1.0, 1.0)}
        return Call("ColorJitter", {**still, name: (m, m), "hue": (0.0, 0.0)})

    return make


def _sharpness(m: float, size: int | None, options: dict[str, Any]) -> Call:
    if m >= 1:  # with lightness 1 the kernel is Pillow's for this alpha
        alpha = min(1.0, (m - 1) / 13)
        return Call("Sharpen", {"alpha": (alpha, alpha), "lightness": (1.0, 1.0)})
    sigma = _blur_sigma(m)
    return Call("GaussianBlur", {"blur_limit": (3, 3), "sigma_limit": (sigma, sigma)})


def _blur_sigma(m: float) -> float:
    """The Gaussian of 3 x 3 pixels whose centre weighs as much as in Pillow's smoothing by m."""
    centre = m + (1 - m) * 5 / 13
    side = (1 - math.sqrt(centre)) / 2  # the three weights of a row are side, 1 - 2 side, side
    return math.sqrt(-0.5 / math.log(side / (1 - 2 * side)))


def _flip(m: None, size: int | None, options: dict[str, Any]) -> Call:
    half = (Call("HorizontalFlip", {"p": 0.5}), Call("NoOp", {"p": 0.5}))
    return Call("OneOf", {}, half)


def _cutout(m: float | None, size: int | None, options: dict[str, Any]) -> Call:
    whole = options["central"] == PIXEL
    if size is not None and size < options["min_side"]:
        return Call("NoOp")
    if m is not None and size is None:
        side: float = m
    else:
        pixels = math.floor(options["size"] if m is None else m * (size or 0))
        # Pillow's rectangle includes its last pixel
        side = min(pixels if whole else pixels + 1, size or pixels + 1)
    if side <= 0:
        return Call("NoOp")
    ranges = {"hole_height_range": (side, side), "hole_width_range": (side, side)}
    return Call("CoarseDropout", {"num_holes_range": (1, 1), **ranges, "fill": options["fill"]})


def _crop(m: None, size: int | None, options: dict[str, Any]) -> Call:
    reach = (-options["pad"], options["pad"])  # a padded image cut at a whole offset is a shift
    return _affine(options["fill"], translate_px={"x": reach, "y": reach})


def _resized_crop(m: None, size: int | None, options: dict[str, Any]) -> Call:
    if size is None:
        raise ValueError(
            "resized_crop needs the size of the images in albumentations: add --size, such as 224"
        )
    fixed = {"scale": options["scale"], "ratio": options["ratio"], "interpolation": CUBIC}
    return Call("RandomResizedCrop", {"size": (size, size), **fixed})


_CALLS: Mapping[str, Callable[..., Call]] = {
    "identity": _plain("NoOp"),
    "shear_x": _shear("x"),
    "shear_y": _shear("y"),
    "translate_x": _translate("x"),
    "translate_y": _translate("y"),
    "rotate": _rotate,
    "auto_contrast": _plain("AutoContrast", method="pil"),
    "invert": _plain("InvertImg"),
    "equalize": _plain("Equalize", mode="pil"),
    "solarize": _solarize,
    "posterize": _posterize,
    "contrast": _factor("contrast"),
    "color": _factor("saturation"),
    "brightness": _factor("brightness"),
    "sharpness": _sharpness,
    "flip": _flip,
    "cutout": _cutout,
    "crop": _crop,
    "resized_crop": _resized_crop,
}
