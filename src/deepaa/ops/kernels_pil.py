"""The operations on one PIL image. These lines define what each operation means.

Every kernel is `(image, magnitude, uniforms, **options) -> image`: randomness comes in as numbers
in [0, 1), nothing is drawn here, and the input is never written to. Modes are RGB and L.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageEnhance, ImageOps
from PIL.Image import Image as PilImage, Resampling, Transform, Transpose

from deepaa.ops.plan import fill_for
from deepaa.ops.resized_crop import resized_crop_box
from deepaa.ops.rng import cutout_box
from deepaa.ops.space import PilKernel


def _fill(image: PilImage, fill: Any) -> int | tuple[int, ...]:
    values = fill_for(fill, len(image.getbands()))
    return values[0] if image.mode == "L" else values


def _affine(image: PilImage, matrix: tuple[float, ...], fill: Any) -> PilImage:
    return image.transform(
        image.size, Transform.AFFINE, matrix, Resampling.NEAREST, fillcolor=_fill(image, fill)
    )


def _posterize(image: PilImage, m: float, u: Sequence[float]) -> PilImage:
    if m < 1:  # AutoAugment's original range goes down to no bits at all, which Pillow refuses
        return Image.new(image.mode, image.size)
    return ImageOps.posterize(image, min(8, int(m)))


def _cutout(
    image: PilImage, m: float | None, u: Sequence[float], *, fill: Any, **options: Any
) -> PilImage:
    box = cutout_box(u, image.height, image.width, m, **options)
    if box is None:
        return image
    image = image.copy()
    # Pillow's rectangle includes its far edge: 16 pixels become 17, as in the authors' code.
    ImageDraw.Draw(image).rectangle(box, fill=_fill(image, fill))
    return image


def _crop(image: PilImage, m: None, u: Sequence[float], *, pad: int, fill: Any) -> PilImage:
    x, y = (int(number * (2 * pad + 1)) for number in u[:2])
    out = Image.new(image.mode, image.size, _fill(image, fill))
    out.paste(image, (pad - x, pad - y))
    return out


def _resized_crop(
    image: PilImage, m: None, u: Sequence[float], *, scale: Any, ratio: Any
) -> PilImage:
    x, y, width, height = resized_crop_box(u, image.height, image.width, scale, ratio)
    return image.crop((x, y, x + width, y + height)).resize(image.size, Resampling.BICUBIC)


KERNELS: Mapping[str, PilKernel] = {
    # the image as it is
    "identity": lambda image, m, u: image,
    # row y moves left by m * y pixels; the top row stays
    "shear_x": lambda image, m, u, *, fill: _affine(image, (1, m, 0, 0, 1, 0), fill),
    # column x moves up by m * x pixels; the left column stays
    "shear_y": lambda image, m, u, *, fill: _affine(image, (1, 0, 0, m, 1, 0), fill),
    # the image moves left by m of its width
    "translate_x": lambda i, m, u, *, fill: _affine(i, (1, 0, m * i.width, 0, 1, 0), fill),
    # the image moves up by m of its height
    "translate_y": lambda i, m, u, *, fill: _affine(i, (1, 0, 0, 0, 1, m * i.height), fill),
    # turned counter-clockwise by m degrees about the centre; corners are cut
    "rotate": lambda image, m, u, *, fill: image.rotate(
        m, Resampling.NEAREST, fillcolor=_fill(image, fill)
    ),
    # each channel stretched to 0..255
    "auto_contrast": lambda image, m, u: ImageOps.autocontrast(image),
    # 255 - value
    "invert": lambda image, m, u: ImageOps.invert(image),
    # each channel's histogram made as flat as its counts allow
    "equalize": lambda image, m, u: ImageOps.equalize(image),
    # values of m or more are inverted; m = 256 changes nothing
    "solarize": lambda image, m, u: ImageOps.solarize(image, m),
    # the highest int(m) bits of each value are kept; none at 0
    "posterize": _posterize,
    # blends of the image (m = 1) with its mean grey, the grey image, black, or the smoothed image
    # (m = 0); beyond 1 they extrapolate
    "contrast": lambda image, m, u: ImageEnhance.Contrast(image).enhance(m),
    "color": lambda image, m, u: ImageEnhance.Color(image).enhance(m),
    "brightness": lambda image, m, u: ImageEnhance.Brightness(image).enhance(m),
    "sharpness": lambda image, m, u: ImageEnhance.Sharpness(image).enhance(m),
    # left and right exchanged for half of the draws
    "flip": lambda image, m, u: (
        image.transpose(Transpose.FLIP_LEFT_RIGHT) if u[0] >= 0.5 else image
    ),
    # a square of `size` pixels, or of m of the width, painted over at a random place
    "cutout": _cutout,
    # padded by `pad` on every side, then cut back to its size at a random place
    "crop": _crop,
    # a random box of `scale` of the area and `ratio` width : height, enlarged to the full size
    "resized_crop": _resized_crop,
}
"""Each built-in operation: what it does, and how."""
