"""The operations on uint8 (N, C, H, W) tensors, a different transformation for every image.

Plain torch, equal to `kernels_pil.py` bit for bit on CPU and CUDA. Each kernel takes a batch whose
lines (see `plan.Kind`) are all of one kind. On CPU the images of a kind are picked out first; on
CUDA, where picking would make the host wait, every kernel runs on the whole batch and the results
are selected. `kernels.c` and `kernels_triton.py` do the same work faster where they can run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from deepaa.ops.plan import Kind, Plan
from deepaa.ops.resized_crop import RESAMPLE_BITS, TAPS

CPU_CHUNK = 1 << 19
"""Bytes of images that the kernels take at a time on CPU: intermediates stay in the cache."""
CUDA_CHUNK = 1 << 24
"""The same on CUDA, where intermediates take up to 60 times as much."""
Kernel = Callable[[Tensor, Tensor, Plan], Tensor]
"""(images (N, C, H, W), lines (N, 6), plan) -> images of the same shape."""


def _fills(lines: Tensor, plan: Plan) -> Tensor:
    return plan.fills[lines[:, 5]][:, :, None, None]


def geometry(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Each output pixel copied from the source pixel its maps name, or filled."""
    n, channels, height, width = images.shape
    maps_x, maps_y = plan.maps_x[lines[:, 1]], plan.maps_y[lines[:, 2]]
    x = (maps_x[:, None, :width] + maps_x[:, width:, None]) >> 16
    y = (maps_y[:, None, :width] + maps_y[:, width:, None]) >> 16
    inside = (x >= 0) & (x < width) & (y >= 0) & (y < height)
    source = torch.where(inside, y * width + x, 0).long().view(n, 1, -1)
    moved = images.reshape(n, channels, -1).gather(2, source.expand(-1, channels, -1))
    return torch.where(inside[:, None], moved.view(images.shape), _fills(lines, plan))


def _look_up(images: Tensor, tables: Tensor) -> Tensor:
    """Values replaced through a table per image and channel: (N, C or 1, 256)."""
    n, channels, _height, _width = images.shape
    tables = tables.expand(n, channels, 256)
    return tables.gather(2, images.reshape(n, channels, -1).long()).view(images.shape)


def lookup(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Invert, solarize, posterize, brightness: one table for all channels."""
    return _look_up(images, plan.lookups[lines[:, 1]][:, None])


def auto_contrast(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Each channel stretched from its (lowest, highest) to (0, 255)."""
    flat = images.flatten(2)
    low, high = flat.amin(2).long(), flat.amax(2).long()
    # Python's float arithmetic: the product and the sum are rounded one after the other
    scale = plan.scales[high - low][..., None]
    offset = -low[..., None] * scale
    values = torch.arange(256, device=images.device)
    stretched = (values * scale + offset).clamp(0, 255).to(torch.uint8)
    flat_channel = (high <= low)[..., None]
    return _look_up(images, torch.where(flat_channel, values.to(torch.uint8), stretched))


def equalize(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Each channel through its own cumulative histogram, as Pillow counts it."""
    n, channels, height, width = images.shape
    bins = images.reshape(n, channels, -1).long()
    histogram = torch.zeros(n, channels, 256, dtype=torch.int64, device=images.device)
    histogram.scatter_add_(2, bins, torch.ones_like(bins))
    last = histogram.gather(2, bins.amax(2, keepdim=True))  # count of the highest value present
    step = (height * width - last) // 255
    before = histogram.cumsum(2) - histogram
    divisor = step.clamp(min=1)
    table = ((divisor // 2 + before) // divisor).clamp(max=255)
    values = torch.arange(256, device=images.device)
    return _look_up(images, torch.where(step == 0, values, table).to(torch.uint8))


def _luma(images: Tensor) -> Tensor:
    """Pillow's grey value, (N, 1, H, W) int32."""
    if images.shape[1] == 1:
        return images.int()
    weights = (19595, 38470, 7471)
    parts = [images[:, c : c + 1].int() * weight for c, weight in enumerate(weights)]
    return (parts[0] + parts[1] + parts[2] + 32768) >> 16


def _blend(degenerate: Tensor, images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Pillow's blend in float32: no fused multiply-add, because each line is its own kernel."""
    factor = plan.factors[lines[:, 5]][:, None, None, None]
    base = degenerate.float()
    mixed = (images.float() - base).mul_(factor).add_(base)
    return mixed.clamp_(0, 255).to(torch.uint8)


def contrast(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Blend with the image's mean grey."""
    count = plan.height * plan.width
    total = _luma(images).sum((1, 2, 3), dtype=torch.int64)
    mean = (2 * total + count) // (2 * count)
    return _blend(mean[:, None, None, None], images, lines, plan)


def color(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Blend with the grey image."""
    return _blend(_luma(images), images, lines, plan)


def sharpness(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """Blend with the image smoothed by [1 1 1; 1 5 1; 1 1 1] / 13; the border is copied."""
    _n, _channels, height, width = images.shape
    if height < 3 or width < 3:
        return images.clone()
    wide = images.to(torch.int16)
    lines_of_3 = wide[..., :-2, :] + wide[..., 1:-1, :] + wide[..., 2:, :]
    total = lines_of_3[..., :-2] + lines_of_3[..., 1:-1] + lines_of_3[..., 2:]
    total += 4 * wide[..., 1:-1, 1:-1]
    smooth = wide.clone()
    smooth[..., 1:-1, 1:-1] = (2 * total + 13) // 26  # floor(total / 13 + 1/2)
    return _blend(smooth, images, lines, plan)


def cutout(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """A rectangle painted over, both edges included."""
    left, top, right, bottom = (lines[:, i, None] for i in range(1, 5))
    x = torch.arange(plan.width, device=images.device)
    y = torch.arange(plan.height, device=images.device)
    inside_x, inside_y = (x >= left) & (x <= right), (y >= top) & (y <= bottom)
    inside = inside_y[:, None, :, None] & inside_x[:, None, None, :]
    return torch.where(inside, _fills(lines, plan), images)


def _resample(images: Tensor, start: Tensor, length: Tensor, taps: Tensor) -> Tensor:
    """The last axis from (start, length) of each image to its full size, in fixed point."""
    table = taps[length]  # (N, size, 6)
    size = images.shape[-1]
    total = torch.full(
        images.shape, 1 << (RESAMPLE_BITS - 1), dtype=torch.int32, device=images.device
    )
    for t in range(TAPS):
        # a weight of 0 lies beyond the last pixel
        place = (start[:, None] + table[..., 0] + t).clamp(max=size - 1)
        picked = images.gather(3, place.long()[:, None, None].expand(images.shape))
        total += picked * table[:, None, None, :, 1 + t]
    return (total >> RESAMPLE_BITS).clamp(0, 255).to(torch.uint8)


def resized_crop(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """A box enlarged to the full size: bicubic along x, rounded to bytes, then along y."""
    assert plan.taps_x is not None
    assert plan.taps_y is not None
    left, top, width, height = (lines[:, i] for i in range(1, 5))
    wide = _resample(images, left, width, plan.taps_x)
    return _resample(wide.transpose(2, 3), top, height, plan.taps_y).transpose(2, 3).contiguous()


KERNELS: Mapping[Kind, Kernel] = {
    Kind.GEOMETRY: geometry,
    Kind.LOOKUP: lookup,
    Kind.AUTO_CONTRAST: auto_contrast,
    Kind.EQUALIZE: equalize,
    Kind.CONTRAST: contrast,
    Kind.COLOR: color,
    Kind.SHARPNESS: sharpness,
    Kind.CUTOUT: cutout,
    Kind.RESIZED_CROP: resized_crop,
}


def run(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """uint8 (N, C, H, W) under (N, K, 6) lines, a part of the batch at a time."""
    on_cpu = images.device.type == "cpu"
    # on CUDA a twelfth of the batch at most, so that intermediates do not outgrow six batches
    limit = CPU_CHUNK if on_cpu else min(CUDA_CHUNK, max(CUDA_CHUNK // 16, images.numel() // 12))
    size = max(1, limit // images[0].numel())
    layer_of = _run_grouped if on_cpu else _run_selected
    out = torch.empty_like(images)
    for start in range(0, len(images), size):
        part = images[start : start + size]
        for k in range(lines.shape[1]):
            part = layer_of(part, lines[start : start + size, k], plan)
        out[start : start + size] = part
    return out


def _run_grouped(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """One layer: the images of each kind picked out, changed and put back."""
    out = images.clone()
    for kind, kernel in KERNELS.items():
        if kind in plan.kinds:
            mine = (lines[:, 0] == kind).nonzero()[:, 0]
            if len(mine):
                out[mine] = kernel(images[mine], lines[mine], plan)
    return out


def _run_selected(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """One layer on any device without waiting for it: every kernel on all images, then a choice."""
    out = images
    for kind, kernel in KERNELS.items():
        if kind not in plan.kinds:
            continue
        mine = lines[:, 0] == kind
        # lines of other kinds would index out of range
        safe = torch.where(mine[:, None], lines, torch.zeros_like(lines))
        if kind == Kind.RESIZED_CROP:
            safe[:, 3:5].clamp_(min=1)
        out = torch.where(mine[:, None, None, None], kernel(images, safe, plan), out)
    return out
