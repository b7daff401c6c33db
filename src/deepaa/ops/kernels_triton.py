"""All layers of a draw in one Triton program per image, for CUDA.

A program walks its image tile by tile, layer after layer, between two buffers in global memory that
stay in the cache; a barrier separates the layers. It reads the same lines and constants as the
plain kernels in `kernels_torch.py` and must give the same bytes: integer and table work throughout,
and the two float expressions (blend, auto_contrast) with fused multiply-add switched off.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepaa.ops.plan import Kind, Plan
from deepaa.ops.resized_crop import RESAMPLE_BITS

_GEOMETRY = tl.constexpr(int(Kind.GEOMETRY))
_LOOKUP = tl.constexpr(int(Kind.LOOKUP))
_AUTO_CONTRAST = tl.constexpr(int(Kind.AUTO_CONTRAST))
_EQUALIZE = tl.constexpr(int(Kind.EQUALIZE))
_CONTRAST = tl.constexpr(int(Kind.CONTRAST))
_COLOR = tl.constexpr(int(Kind.COLOR))
_SHARPNESS = tl.constexpr(int(Kind.SHARPNESS))
_CUTOUT = tl.constexpr(int(Kind.CUTOUT))
_RESIZED_CROP = tl.constexpr(int(Kind.RESIZED_CROP))
_BITS = tl.constexpr(RESAMPLE_BITS)
_HALF = tl.constexpr(1 << (RESAMPLE_BITS - 1))


@triton.jit
def _copy(source, target, C: tl.constexpr, size, BLOCK: tl.constexpr):
    for start in range(0, C * size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < C * size
        tl.store(target + place, tl.load(source + place, mask=inside), mask=inside)


@triton.jit
def _geometry(source, target, fill, map_x, map_y, C: tl.constexpr, H, W, BLOCK: tl.constexpr):
    size = H * W
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < size
        y = place // W
        x = place - y * W
        column_x = tl.load(map_x + x, mask=inside, other=0)
        row_x = tl.load(map_x + W + y, mask=inside, other=0)
        column_y = tl.load(map_y + x, mask=inside, other=0)
        row_y = tl.load(map_y + W + y, mask=inside, other=0)
        from_x = (column_x + row_x) >> 16
        from_y = (column_y + row_y) >> 16
        known = inside & (from_x >= 0) & (from_x < W) & (from_y >= 0) & (from_y < H)
        origin = from_y * W + from_x
        for c in tl.static_range(C):
            moved = tl.load(source + c * size + origin, mask=known, other=0)
            moved = tl.where(known, moved, tl.load(fill + c))
            tl.store(target + c * size + place, moved, mask=inside)


@triton.jit
def _look_up(source, target, table, stride, C: tl.constexpr, size, BLOCK: tl.constexpr):
    for c in tl.static_range(C):
        for start in range(0, size, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < size
            value = tl.load(source + c * size + place, mask=inside, other=0)
            mapped = tl.load(table + c * stride + value.to(tl.int32), mask=inside, other=0)
            tl.store(target + c * size + place, mapped, mask=inside)


@triton.jit
def _auto_contrast(source, target, scales, C: tl.constexpr, size, BLOCK: tl.constexpr):
    for c in tl.static_range(C):
        low = tl.full((), 255, tl.int32)
        high = tl.full((), 0, tl.int32)
        for start in range(0, size, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < size
            value = tl.load(source + c * size + place, mask=inside, other=0).to(tl.int32)
            low = tl.minimum(low, tl.min(tl.where(inside, value, 255)))
            high = tl.maximum(high, tl.max(value))
        scale = tl.load(scales + tl.maximum(high - low, 0))  # float64
        offset = -low.to(tl.float64) * scale
        for start in range(0, size, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < size
            value = tl.load(source + c * size + place, mask=inside, other=0)
            mapped = value.to(tl.float64) * scale + offset
            mapped = tl.minimum(tl.maximum(mapped, 0.0), 255.0).to(tl.int32)
            mapped = tl.where(high > low, mapped, value.to(tl.int32))
            tl.store(target + c * size + place, mapped.to(tl.uint8), mask=inside)


@triton.jit
def _equalize_tables(source, tables, C: tl.constexpr, size, BLOCK: tl.constexpr):
    bins = tl.arange(0, 256)
    for c in tl.static_range(C):
        counts = tl.zeros((256,), tl.int32)
        for start in range(0, size, BLOCK):
            place = start + tl.arange(0, BLOCK)
            inside = place < size
            value = tl.load(source + c * size + place, mask=inside, other=0).to(tl.int32)
            counts += tl.histogram(value, 256)
            beyond = tl.maximum(start + BLOCK - size, 0)  # places past the end were counted as 0
            counts -= tl.where(bins == 0, beyond, 0)
        last = tl.max(tl.where(counts > 0, bins, 0))
        step = (size - tl.sum(tl.where(bins == last, counts, 0))) // 255
        before = tl.cumsum(counts, 0) - counts
        divisor = tl.maximum(step, 1)
        table = tl.minimum((divisor // 2 + before) // divisor, 255)
        table = tl.where(step == 0, bins, table)
        tl.store(tables + c * 256 + bins, table.to(tl.uint8))


@triton.jit
def _luma(source, place, inside, C: tl.constexpr, size):
    red = tl.load(source + place, mask=inside, other=0).to(tl.int32)
    grey = red
    if C == 3:
        green = tl.load(source + size + place, mask=inside, other=0).to(tl.int32)
        blue = tl.load(source + 2 * size + place, mask=inside, other=0).to(tl.int32)
        grey = (19595 * red + 38470 * green + 7471 * blue + 32768) >> 16
    return grey


@triton.jit
def _blend(base, value, factor):
    base = base.to(tl.float32)
    mixed = base + factor * (value.to(tl.float32) - base)
    return tl.minimum(tl.maximum(mixed, 0.0), 255.0).to(tl.int32).to(tl.uint8)


@triton.jit
def _contrast(source, target, factor, C: tl.constexpr, size, BLOCK: tl.constexpr):
    total = tl.zeros((), tl.int64)
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < size
        grey = _luma(source, place, inside, C, size)
        # a tile's sum fits 32 bits
        total += tl.sum(tl.where(inside, grey, 0)).to(tl.int64)
    mean = (2 * total + size) // (2 * size)
    for start in range(0, C * size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < C * size
        value = tl.load(source + place, mask=inside, other=0)
        tl.store(target + place, _blend(mean, value, factor), mask=inside)


@triton.jit
def _color(source, target, factor, C: tl.constexpr, size, BLOCK: tl.constexpr):
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < size
        grey = _luma(source, place, inside, C, size)
        for c in tl.static_range(C):
            value = tl.load(source + c * size + place, mask=inside, other=0)
            tl.store(target + c * size + place, _blend(grey, value, factor), mask=inside)


@triton.jit
def _sharpness(source, target, factor, C: tl.constexpr, H, W, BLOCK: tl.constexpr):
    size = H * W
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < size
        y = place // W
        x = place - y * W
        interior = inside & (x > 0) & (x < W - 1) & (y > 0) & (y < H - 1)
        for c in tl.static_range(C):
            plane = source + c * size + place
            value = tl.load(plane, mask=inside, other=0).to(tl.int32)
            total = 4 * value
            for dy in tl.static_range(-1, 2):
                for dx in tl.static_range(-1, 2):
                    total += tl.load(plane + dy * W + dx, mask=interior, other=0).to(tl.int32)
            smooth = tl.where(interior, (2 * total + 13) // 26, value)
            tl.store(target + c * size + place, _blend(smooth, value, factor), mask=inside)


@triton.jit
def _cutout(
    source, target, fill, left, top, right, bottom, C: tl.constexpr, H, W, BLOCK: tl.constexpr
):
    size = H * W
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < size
        y = place // W
        x = place - y * W
        covered = (x >= left) & (x <= right) & (y >= top) & (y <= bottom)
        for c in tl.static_range(C):
            value = tl.load(source + c * size + place, mask=inside, other=0)
            value = tl.where(covered, tl.load(fill + c), value)
            tl.store(target + c * size + place, value, mask=inside)


@triton.jit
def _to_byte(total):
    return tl.minimum(tl.maximum(total >> _BITS, 0), 255)


@triton.jit
def _resized_crop(
    source,
    target,
    taps_x,
    taps_y,
    left,
    top,
    width,
    height,
    C: tl.constexpr,
    H,
    W,
    BLOCK: tl.constexpr,
):
    size = H * W
    for start in range(0, size, BLOCK):
        place = start + tl.arange(0, BLOCK)
        inside = place < size
        y = place // W
        x = place - y * W
        tap_x = taps_x + (width * W + x) * 6
        tap_y = taps_y + (height * H + y) * 6
        first_x = left + tl.load(tap_x, mask=inside, other=0)
        first_y = top + tl.load(tap_y, mask=inside, other=0)
        for c in tl.static_range(C):
            plane = source + c * size
            total = tl.full((BLOCK,), _HALF, tl.int32)
            for j in range(5):  # not unrolled: 25 loads in flight would spill
                from_y = tl.minimum(first_y + j, H - 1)  # weights beyond the box are 0
                line = tl.full((BLOCK,), _HALF, tl.int32)
                for i in tl.static_range(5):
                    from_x = tl.minimum(first_x + i, W - 1)
                    value = tl.load(plane + from_y * W + from_x, mask=inside, other=0)
                    line += value.to(tl.int32) * tl.load(tap_x + 1 + i, mask=inside, other=0)
                total += _to_byte(line) * tl.load(tap_y + 1 + j, mask=inside, other=0)
            tl.store(target + c * size + place, _to_byte(total).to(tl.uint8), mask=inside)


@triton.jit
def _layer(
    source,
    target,
    line,
    maps_x,
    maps_y,
    lookups,
    fills,
    factors,
    scales,
    taps_x,
    taps_y,
    tables,
    C: tl.constexpr,
    H,
    W,
    HAS_CROP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    kind = tl.load(line)
    a1 = tl.load(line + 1)
    a2 = tl.load(line + 2)
    a3 = tl.load(line + 3)
    a4 = tl.load(line + 4)
    row = tl.load(line + 5)
    size = H * W
    fill = fills + row * C
    factor = tl.load(factors + row)
    if kind == _GEOMETRY:
        _geometry(
            source, target, fill, maps_x + a1 * (W + H), maps_y + a2 * (W + H), C, H, W, BLOCK
        )
    elif kind == _LOOKUP:
        _look_up(source, target, lookups + a1 * 256, 0, C, size, BLOCK)
    elif kind == _AUTO_CONTRAST:
        _auto_contrast(source, target, scales, C, size, BLOCK)
    elif kind == _EQUALIZE:
        _equalize_tables(source, tables, C, size, BLOCK)
        tl.debug_barrier()
        _look_up(source, target, tables, 256, C, size, BLOCK)
    elif kind == _CONTRAST:
        _contrast(source, target, factor, C, size, BLOCK)
    elif kind == _COLOR:
        _color(source, target, factor, C, size, BLOCK)
    elif kind == _SHARPNESS:
        _sharpness(source, target, factor, C, H, W, BLOCK)
    elif kind == _CUTOUT:
        _cutout(source, target, fill, a1, a2, a3, a4, C, H, W, BLOCK)
    if HAS_CROP:  # noqa: SIM102 - known when compiling, while the kind is not
        if kind == _RESIZED_CROP:
            _resized_crop(source, target, taps_x, taps_y, a1, a2, a3, a4, C, H, W, BLOCK // 4)


@triton.jit
def _program(
    images,
    out,
    scratch,
    lines,
    maps_x,
    maps_y,
    lookups,
    fills,
    factors,
    scales,
    taps_x,
    taps_y,
    tables,
    K,
    H,
    W,
    C: tl.constexpr,
    HAS_CROP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    n = tl.program_id(0).to(tl.int64)
    size = H * W
    lines += n * K * 6
    tables += n * C * 256
    first = n * C * size
    images += first
    out += first
    scratch += first
    left = 0  # layers that still change the image; the last of them writes to `out`
    for k in range(K):
        left += (tl.load(lines + k * 6) != 0).to(tl.int32)
    if left == 0:
        _copy(images, out, C, size, BLOCK)
    source = images
    for k in range(K):
        line = lines + k * 6
        if tl.load(line) != 0:
            target = scratch
            if left % 2 == 1:
                target = out
            _layer(
                source,
                target,
                line,
                maps_x,
                maps_y,
                lookups,
                fills,
                factors,
                scales,
                taps_x,
                taps_y,
                tables,
                C,
                H,
                W,
                HAS_CROP,
                BLOCK,
            )
            tl.debug_barrier()  # the next layer reads what other threads of this program wrote
            source = target
            left -= 1


def _tile(pixels: int) -> tuple[int, int]:
    """Pixels a program takes at a time, and its number of warps."""
    return min(1024, max(256, triton.next_power_of_2(pixels))), 4


def run(images: Tensor, lines: Tensor, plan: Plan) -> Tensor:
    """uint8 (N, C, H, W) under (N, K, 6) lines, on the device of `images`."""
    n, channels, height, width = images.shape
    out, scratch = torch.empty_like(images), torch.empty_like(images)
    tables = torch.empty(n * channels * 256, dtype=torch.uint8, device=images.device)
    nothing = plan.lines
    block, warps = _tile(height * width)
    with torch.cuda.device_of(images):  # Triton starts programs on the current one
        _program[(n,)](
            images,
            out,
            scratch,
            lines.contiguous(),
            plan.maps_x,
            plan.maps_y,
            plan.lookups,
            plan.fills,
            plan.factors,
            plan.scales,
            nothing if plan.taps_x is None else plan.taps_x,
            nothing if plan.taps_y is None else plan.taps_y,
            tables,
            *(lines.shape[1], height, width),
            C=channels,
            HAS_CROP=Kind.RESIZED_CROP in plan.kinds,
            BLOCK=block,
            num_warps=warps,
            enable_fp_fusion=False,
        )
    return out
