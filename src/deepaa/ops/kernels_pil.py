"""The operations on one PIL image. These lines define what each operation means.

Every kernel is `(image, magnitude, uniforms, **options) -> image`: randomness comes in as numbers
in [0, 1), nothing is drawn here, and the input is never written to. Modes are RGB and L.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from PIL.Image import Image as PilImage
from PIL.Image import Resampling, Transform, Transpose

from deepaa.ops.boxes import crop_offset, cutout_box, resized_crop_box
from deepaa.ops.constants import fill_for
from deepaa.ops.space import PilKernel
from deepaa.ops.specs import BUILTIN

MODES = ("RGB", "L")


def _fill(image: PilImage, fill: Any) -> int | tuple[int, ...]:
    values = fill_for(fill, len(image.getbands()))
    return values[0] if image.mode == "L" else values


def _affine(image: PilImage, matrix: tuple[float, ...], fill: Any) -> PilImage:
    return image.transform(
        image.size, Transform.AFFINE, matrix, Resampling.NEAREST, fillcolor=_fill(image, fill)
    )


def identity(image: PilImage, m: None, u: Sequence[float]) -> PilImage:
    """The image as it is."""
    return image


def shear_x(image: PilImage, m: float, u: Sequence[float], *, fill: Any) -> PilImage:
    """Row y moves left by m * y pixels; the top row stays."""
    return _affine(image, (1, m, 0, 0, 1, 0), fill)


def shear_y(image: PilImage, m: float, u: Sequence[float], *, fill: Any) -> PilImage:
    """Column x moves up by m * x pixels; the left column stays."""
    return _affine(image, (1, 0, 0, m, 1, 0), fill)


def translate_x(image: PilImage, m: float, u: Sequence[float], *, fill: Any) -> PilImage:
    """The image moves left by m of its width."""
    return _affine(image, (1, 0, m * image.width, 0, 1, 0), fill)


def translate_y(image: PilImage, m: float, u: Sequence[float], *, fill: Any) -> PilImage:
    """The image moves up by m of its height."""
    return _affine(image, (1, 0, 0, 0, 1, m * image.height), fill)


def rotate(image: PilImage, m: float, u: Sequence[float], *, fill: Any) -> PilImage:
    """Turned counter-clockwise by m degrees about the centre; corners are cut."""
    return image.rotate(m, Resampling.NEAREST, fillcolor=_fill(image, fill))


def auto_contrast(image: PilImage, m: None, u: Sequence[float]) -> PilImage:
    """Each channel stretched to 0..255."""
    return ImageOps.autocontrast(image)


def invert(image: PilImage, m: None, u: Sequence[float]) -> PilImage:
    """255 - value."""
    return ImageOps.invert(image)


def equalize(image: PilImage, m: None, u: Sequence[float]) -> PilImage:
    """Each channel's histogram made as flat as its counts allow."""
    return ImageOps.equalize(image)


def solarize(image: PilImage, m: float, u: Sequence[float]) -> PilImage:
    """Values of m or more are inverted; m = 256 changes nothing."""
    return ImageOps.solarize(image, m)  # type: ignore[arg-type]  # a float compares as well


def posterize(image: PilImage, m: float, u: Sequence[float]) -> PilImage:
    """The highest int(m) bits of each value are kept; none at 0."""
    if m < 1:  # AutoAugment's original range goes down to no bits at all, which Pillow refuses
        return Image.new(image.mode, image.size)
    return ImageOps.posterize(image, min(8, int(m)))


def contrast(image: PilImage, m: float, u: Sequence[float]) -> PilImage:
    """A blend of the mean grey (m = 0) and the image (m = 1); beyond 1 extrapolates."""
    return ImageEnhance.Contrast(image).enhance(m)


def color(image: PilImage, m: float, u: Sequence[float]) -> PilImage:
    """A blend of the grey image (m = 0) and the image (m = 1); beyond 1 extrapolates."""
    return ImageEnhance.Color(image).enhance(m)


def brightness(image: PilImage, m: float, u: Sequence[float]) -> PilImage:
    """A blend of black (m = 0) and the image (m = 1); beyond 1 extrapolates."""
    return ImageEnhance.Brightness(image).enhance(m)


def sharpness(image: PilImage, m: float, u: Sequence[float]) -> PilImage:
    """A blend of the smoothed image (m = 0) and the image (m = 1); beyond 1 extrapolates."""
    return ImageEnhance.Sharpness(image).enhance(m)


def flip(image: PilImage, m: None, u: Sequence[float]) -> PilImage:
    """Left and right exchanged for half of the draws."""
    return image.transpose(Transpose.FLIP_LEFT_RIGHT) if u[0] >= 0.5 else image


def cutout(
    image: PilImage,
    m: float | None,
    u: Sequence[float],
    *,
    size: int,
    fill: Any,
    central: int | str | None,
    min_side: int,
) -> PilImage:
    """A square of `size` pixels, or of m of the width, painted over at a random place."""
    width, height = image.size
    box = cutout_box(u, height, width, m, size=size, central=central, min_side=min_side)
    if box is None:
        return image
    image = image.copy()
    # Pillow's rectangle includes its far edge: 16 pixels become 17, as in the authors' code.
    ImageDraw.Draw(image).rectangle(box, fill=_fill(image, fill))
    return image


def crop(image: PilImage, m: None, u: Sequence[float], *, pad: int, fill: Any) -> PilImage:
    """Padded by `pad` on every side, then cut back to its size at a random place."""
    x, y = crop_offset(u[0], pad), crop_offset(u[1], pad)
    out = Image.new(image.mode, image.size, _fill(image, fill))
    out.paste(image, (pad - x, pad - y))
    return out


def resized_crop(
    image: PilImage,
    m: None,
    u: Sequence[float],
    *,
    scale: tuple[float, float],
    ratio: tuple[float, float],
) -> PilImage:
    """A random box of `scale` of the area and `ratio` width : height, enlarged to the full size."""
    x, y, width, height = resized_crop_box(u, image.height, image.width, scale, ratio)
    return image.crop((x, y, x + width, y + height)).resize(image.size, Resampling.BICUBIC)


KERNELS: Mapping[str, PilKernel] = {name: globals()[name] for name in BUILTIN}
"""Each built-in operation's function above, which bears its name."""
