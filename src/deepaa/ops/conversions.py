"""PIL images as tensors and back, and what to do with those that policies cannot take."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image

MODES = ("RGB", "L")
"""PIL images that policies take."""
SCALE_16_BITS = "np.uint8(np.asarray(image) // 257)"
"""How 16 bits a value become 8; Pillow's own conversion would clip nearly all to white."""


def check_mode(image: Image) -> None:
    """Raise for a PIL image that is not RGB or L, and say how it becomes one."""
    if image.mode in MODES:
        return
    advice = "use image.convert('RGB')"
    if image.mode.startswith("I"):
        given = "" if "16" in image.mode else " and give np.asarray(image)"
        advice = (
            f"declare the range of its values to DeepAutoAugment, value_range=(0, 65535){given}, "
            "or scale them to 8 bits first, which convert() would clip; for 16 bits: "
            f"Image.fromarray({SCALE_16_BITS})"
        )
    elif image.mode in ("P", "1"):
        advice += ", or tv_tensors.Mask(image) if it is a mask"
    elif image.mode == "F":
        advice = (
            "scale its values to 0..255 first, which convert() would clip; for values in [0, 1]: "
            "Image.fromarray(np.uint8(np.asarray(image) * 255 + 0.5))"
        )
    raise ValueError(f"image has mode {image.mode!r}; policies work on RGB and L: {advice}")


def integer_error(images: Tensor) -> str:
    """What is wrong with images of other integers, and what to do."""
    small = not images.numel() or float(images.double().max()) < 256
    advice = "use images.to(torch.uint8)"
    if not small:
        advice = "scale them to 8 bits; for 16 bits: (images.int() // 257).to(torch.uint8)"
    shape = tuple(images.shape)
    return f"images should be uint8 or float in [0, 1], got {images.dtype} {shape}: {advice}"


def pil_to_tensor(image: Image) -> Tensor:
    """An RGB or L image as uint8 (C, H, W)."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return pixels[None] if pixels.ndim == 2 else pixels.permute(2, 0, 1).contiguous()


def tensor_to_pil(image: Tensor) -> Image:
    """uint8 (1 or 3, H, W) as an L or RGB image."""
    from PIL.Image import fromarray

    if image.shape[0] not in (1, 3):
        raise ValueError(f"a PIL image has 1 or 3 channels here, got {image.shape[0]}")
    pixels = image[0] if image.shape[0] == 1 else image.permute(1, 2, 0)
    return fromarray(pixels.contiguous().numpy())


@cache
def pillow_rounds_blends() -> bool:
    """Whether this Pillow rounds the product in a blend before it adds, as on x86-64.

    20 + 0.85 * (0 - 20) in float32 is 3 when the product is rounded first, and 2.9999998, so 2,
    when a fused multiply-add keeps it exact.
    """
    from PIL import Image

    one, other = Image.new("L", (1, 1), 20), Image.new("L", (1, 1), 0)
    return bool(Image.blend(one, other, 0.85).getpixel((0, 0)) == 3)
