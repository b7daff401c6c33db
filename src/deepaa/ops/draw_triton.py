"""The numbers of a draw, and its lines, in one Triton program each.

Torch needs about a hundred small kernels for the same, which takes longer than changing the pixels
of a small batch. Both programs give exactly what `Policy.draw` and `plan.resolve` give.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from deepaa.ops.plan import LARGEST_UNIFORM, LINE, Kind, Plan
from deepaa.ops.rng import ABOUT_PIXEL, WHOLE

# the constants of rng.py, as the signed integers that Triton's literals can hold
_GOLDEN = tl.constexpr(0x9E3779B97F4A7C15 - 2**64)
_M1 = tl.constexpr(0xBF58476D1CE4E5B9 - 2**64)
_M2 = tl.constexpr(0x94D049BB133111EB - 2**64)
_CUTOUT = tl.constexpr(int(Kind.CUTOUT))
_LARGEST = tl.constexpr(LARGEST_UNIFORM)
_ABOUT_PIXEL = tl.constexpr(ABOUT_PIXEL)
_WHOLE = tl.constexpr(WHOLE)
_BLOCK = 256


@triton.jit
def _wide(value):
    return tl.full((), value, tl.int64).to(tl.uint64, bitcast=True)


@triton.jit
def _mix(z):
    z = (z ^ (z >> 30)) * _wide(_M1)
    z = (z ^ (z >> 27)) * _wide(_M2)
    return z ^ (z >> 31)


@triton.jit
def _word(key, layer, slot):
    counter = (layer.to(tl.int64) * 256 + slot + 1).to(tl.uint64)
    return _mix(key + counter * _wide(_GOLDEN))


@triton.jit
def _draw(
    keys,
    thresholds,
    choice,
    uniform,
    total,
    K,
    T,
    STEPS: tl.constexpr,
    U: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    n = place // K
    k = place - n * K
    key = _mix(tl.load(keys + n, mask=inside, other=0).to(tl.uint64, bitcast=True))
    word = (_word(key, k, 0) >> 11).to(tl.int64)
    # how many thresholds of this layer are at most the word
    low = tl.zeros((BLOCK,), tl.int32)
    high = tl.zeros((BLOCK,), tl.int32) + T
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        open_ = low < high
        step = tl.load(thresholds + k * T + middle, mask=inside & open_, other=0)
        right = open_ & (step <= word)
        high = tl.where(open_ & ~right, middle, high)
        low = tl.where(right, middle + 1, low)
    tl.store(choice + place, low.to(tl.int64), mask=inside)
    for u in range(U):
        bits = (_word(key, k, 2 + u) >> 40).to(tl.int32)
        tl.store(uniform + place.to(tl.int64) * U + u, bits.to(tl.float32) * 2.0**-24, mask=inside)


def draw(keys: Tensor, thresholds: Tensor, uniforms: int) -> tuple[Tensor, Tensor]:
    """(N, K) rows and (N, K, U) numbers for (N,) keys and (K, T) thresholds."""
    n, (depth, rows) = len(keys), thresholds.shape
    choice = torch.empty(n, depth, dtype=torch.int64, device=keys.device)
    uniform = torch.empty(n, depth, uniforms, dtype=torch.float32, device=keys.device)
    total = n * depth
    with torch.cuda.device_of(keys):  # Triton starts programs on the current one
        _draw[(triton.cdiv(total, _BLOCK),)](
            keys.contiguous(),
            thresholds,
            choice,
            uniform,
            total,
            depth,
            rows,
            STEPS=rows.bit_length(),
            U=uniforms,
            BLOCK=_BLOCK,
        )
    return choice, uniform


@triton.jit
def _bounded(u):
    u = tl.where(u == u, u, 0.0)  # NaN differs from itself
    return tl.minimum(tl.maximum(u.to(tl.float64), 0.0), _LARGEST)


@triton.jit
def _cut(u, length, side, span, rule):
    centre = (length - span) / 2 + u * span
    pixel = rule == _ABOUT_PIXEL
    first = tl.where(pixel, tl.floor(centre) - tl.floor(side / 2), centre - side / 2)
    start = tl.floor(tl.maximum(first, 0.0))
    stop = tl.where(rule == _WHOLE, start, first) + side
    stop = tl.floor(tl.minimum(stop, length)) - tl.where(pixel, 1.0, 0.0)
    return start.to(tl.int32), stop.to(tl.int32)


@triton.jit
def _resolve(
    lines,
    variants,
    cut,
    choice,
    uniform,
    out,
    total,
    rows,
    H,
    W,
    U: tl.constexpr,
    HAS_VARIANTS: tl.constexpr,
    HAS_CUT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    row = tl.load(choice + place, mask=inside, other=0)
    row = tl.minimum(tl.maximum(row, 0), rows - 1)  # whatever was given, memory is safe
    numbers = uniform + place.to(tl.int64) * U
    u0 = tl.zeros((BLOCK,), tl.float64)
    u1 = tl.zeros((BLOCK,), tl.float64)
    if U > 0:
        u0 = _bounded(tl.load(numbers, mask=inside, other=0.0))
    if U > 1:
        u1 = _bounded(tl.load(numbers + 1, mask=inside, other=0.0))
    kind = tl.load(lines + row * 6, mask=inside, other=0)
    a1 = tl.load(lines + row * 6 + 1, mask=inside, other=0)
    a2 = tl.load(lines + row * 6 + 2, mask=inside, other=0)
    a3 = tl.zeros((BLOCK,), tl.int32)
    a4 = tl.zeros((BLOCK,), tl.int32)
    if HAS_VARIANTS:
        a1 += (u0 * tl.load(variants + row * 2, mask=inside, other=0.0)).to(tl.int32)
        a2 += (u1 * tl.load(variants + row * 2 + 1, mask=inside, other=0.0)).to(tl.int32)
    if HAS_CUT:
        side = tl.load(cut + row * 4, mask=inside, other=0.0)
        span_x = tl.load(cut + row * 4 + 1, mask=inside, other=0.0)
        span_y = tl.load(cut + row * 4 + 2, mask=inside, other=0.0)
        rule = tl.load(cut + row * 4 + 3, mask=inside, other=0.0)
        left, right = _cut(u0, tl.zeros((BLOCK,), tl.float64) + W, side, span_x, rule)
        top, bottom = _cut(u1, tl.zeros((BLOCK,), tl.float64) + H, side, span_y, rule)
        is_cut = kind == _CUTOUT
        a1 = tl.where(is_cut, left, a1)
        a2 = tl.where(is_cut, top, a2)
        a3 = tl.where(is_cut, right, a3)
        a4 = tl.where(is_cut, bottom, a4)
    line = out + place.to(tl.int64) * 6
    tl.store(line, kind, mask=inside)
    tl.store(line + 1, a1, mask=inside)
    tl.store(line + 2, a2, mask=inside)
    tl.store(line + 3, a3, mask=inside)
    tl.store(line + 4, a4, mask=inside)
    tl.store(line + 5, row.to(tl.int32), mask=inside)


def resolve(plan: Plan, choice: Tensor, uniform: Tensor) -> Tensor:
    """`plan.resolve` for a table without resized crop."""
    out = torch.empty(*choice.shape, LINE, dtype=torch.int32, device=choice.device)
    total = choice.numel()
    nothing = plan.scales
    with torch.cuda.device_of(choice):  # Triton starts programs on the current one
        _resolve[(triton.cdiv(total, _BLOCK),)](
            plan.lines,
            nothing if plan.variants is None else plan.variants,
            nothing if plan.cut is None else plan.cut,
            choice.contiguous(),
            uniform.contiguous(),
            out,
            total,
            len(plan.lines),
            float(plan.height),  # not integers, which Triton compiles in when they are 1
            float(plan.width),
            U=uniform.shape[-1],
            HAS_VARIANTS=plan.variants is not None,
            HAS_CUT=plan.cut is not None,
            BLOCK=_BLOCK,
            enable_fp_fusion=False,
        )
    return out
