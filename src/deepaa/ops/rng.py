"""Randomness as a pure function of one 64-bit key per image: numbers, and the box of cutout.

Every number an image consumes is a hash of (key, layer, slot). There is no generator state, so the
same keys give the same draws on CPU and CUDA, eager and compiled, for any batch size and any number
of workers. The hash is the finaliser of SplitMix64 (Steele, Lea and Flood, 2014), applied once to
the key and once to key + counter; torch's int64 arithmetic wraps as the definition asks.

The box of cutout is computed for one image in plain Python, and for many in the same IEEE double
arithmetic, so that the integers are equal on every device.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from deepaa.ops.space import PIXEL

CHOICE, GATE, UNIFORM = 0, 1, 2
"""Slots of a layer: which row, whether a chain's slot is open, and the first uniform number."""
SLOTS = 256
"""Slots per layer."""
BITS = 53
"""Choices compare 53-bit integers, so that float64 probabilities lose nothing."""

CLIPPED, ABOUT_PIXEL, WHOLE = 0.0, 1.0, 2.0
"""The three rules by which cutout keeps its square inside the image; see `_cut`."""

_MASK = (1 << 64) - 1
_GOLDEN, _M1, _M2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def _signed(value: int) -> int:
    value &= _MASK
    return value - (1 << 64) if value >> 63 else value


def _mix_int(z: int) -> int:
    z = ((z ^ (z >> 30)) * _M1) & _MASK
    z = ((z ^ (z >> 27)) * _M2) & _MASK
    return z ^ (z >> 31)


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical right shift: torch's `>>` on int64 copies the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift(z, 30)) * _signed(_M1)
    z = (z ^ _shift(z, 27)) * _signed(_M2)
    return z ^ _shift(z, 31)


def hash_int(key: int, counter: int) -> int:
    """The 64-bit number that `key` holds at `counter`, as an unsigned Python int."""
    return hash_mixed(mixed_key(key), counter)


def mixed_key(key: int) -> int:
    """The half of `hash_int` that all numbers of a key share."""
    return _mix_int(key & _MASK)


def hash_mixed(mixed: int, counter: int) -> int:
    """`hash_int` of the key whose `mixed_key` this is."""
    z = (mixed + (counter + 1) * _GOLDEN) & _MASK
    z = ((z ^ (z >> 30)) * _M1) & _MASK  # `_mix_int`, without the cost of a call
    z = ((z ^ (z >> 27)) * _M2) & _MASK
    return z ^ (z >> 31)


def hash_keys(keys: Tensor, counters: Tensor) -> Tensor:
    """The 64-bit numbers that `keys` hold at `counters` (broadcast), as int64.

    Not for compiled code: Inductor folds a range times a large constant into an index expression
    that must not wrap, and the hash lives from wrapping. `Policy.draw` is one opaque call there.
    """
    return _mix(_mix(keys) + (counters + 1) * _signed(_GOLDEN))


def draw_words(keys: Tensor, depth: int, uniforms: int) -> tuple[Tensor, Tensor, Tensor]:
    """All numbers of a draw for (N,) keys and K = `depth` layers, from one hash.

    Returns (N, K) integers in [0, 2^53) that choose rows, (N, K) such integers that open gates, and
    (N, K, uniforms) float32 numbers in [0, 1), multiples of 2^-24.
    """
    layers = torch.arange(0, depth * SLOTS, SLOTS, device=keys.device)
    counters = layers[:, None] + torch.arange(UNIFORM + uniforms, device=keys.device)
    words = hash_keys(keys[:, None, None], counters)
    integers = _shift(words[..., :UNIFORM], 64 - BITS)
    floats = _shift(words[..., UNIFORM:], 40).to(torch.float32) * 2.0**-24
    return integers[..., CHOICE], integers[..., GATE], floats


def choice_word(mixed: int, layer: int) -> int:
    """The integer in [0, 2^53) with which the key of a `mixed_key` chooses the row of a layer."""
    return hash_mixed(mixed, layer * SLOTS + CHOICE) >> (64 - BITS)


def gate_word(mixed: int, layer: int) -> int:
    """The integer in [0, 2^53) with which the key of a `mixed_key` opens the gate of a slot."""
    return hash_mixed(mixed, layer * SLOTS + GATE) >> (64 - BITS)


def uniform_numbers(mixed: int, layer: int, count: int) -> list[float]:
    """The first `count` numbers in [0, 1) in a layer of the key of a `mixed_key`."""
    if not count:
        return []
    first = layer * SLOTS + UNIFORM
    return [(hash_mixed(mixed, first + i) >> 40) * 2.0**-24 for i in range(count)]


def sample_key(seed: int, epoch: int, index: int) -> int:
    """The key of sample `index` in `epoch` under `seed`, as a signed Python int.

    Neighbouring samples have neighbouring keys: the hash of a draw sets them apart.
    """
    return _signed(hash_int(seed, epoch) + index)


def sample_keys(seed: int, epoch: int, indices: Tensor) -> Tensor:
    """The keys of the samples `indices` in `epoch` under `seed`: (N,) int64."""
    return indices.to(torch.int64) + _signed(hash_int(seed, epoch))


def fresh_keys(n: int, device: torch.device, generator: torch.Generator | None = None) -> Tensor:
    """(n,) neighbouring keys at a random place from `generator`, or torch's global CPU generator.

    One number is drawn on the CPU whatever the device, so that `torch.manual_seed` gives the same
    keys on CPU and CUDA, and nothing waits for the device.
    """
    place = torch.device("cpu") if generator is None else generator.device
    first = torch.randint(-(2**63), 2**63 - 1, (), generator=generator, device=place)
    return first + torch.arange(n, device=device)


def cutout_measures(
    height: int, width: int, magnitude: float | None, *, size: int, central: Any, min_side: int
) -> tuple[float, float, float, float] | None:
    """Cutout's side, spans of its centre in x and y, and rule; None where nothing is cut."""
    side = size if magnitude is None else magnitude * width
    rule = CLIPPED if magnitude is None else WHOLE
    if central == PIXEL:
        side, rule, central = math.floor(side), ABOUT_PIXEL, None
    if side <= 0 or min(height, width) < min_side:
        return None
    span_x, span_y = (n if central is None else min(n, central) for n in (width, height))
    return side, span_x, span_y, rule


def cutout_box(
    u: Sequence[float], height: int, width: int, magnitude: float | None, **options: Any
) -> tuple[int, int, int, int] | None:
    """(left, top, right, bottom), edges included, or None where nothing is cut."""
    measures = cutout_measures(height, width, magnitude, **options)
    if measures is None:
        return None
    side, span_x, span_y, rule = measures
    left, right = _cut(u[0], width, side, span_x, rule)
    top, bottom = _cut(u[1], height, side, span_y, rule)
    return left, top, right, bottom


def _cut(u: float, length: int, side: float, span: float, rule: float) -> tuple[int, int]:
    """First and last pixel; WHOLE keeps the side where the square crosses the first border."""
    centre = (length - span) / 2 + u * span
    if rule == ABOUT_PIXEL:
        first = int(centre) - int(side) // 2
        return max(0, first), min(length, first + int(side)) - 1
    start = int(max(0.0, centre - side / 2))
    return start, int(min(length, (start if rule == WHOLE else centre - side / 2) + side))


def cut_tensor(
    u: Tensor, length: int, side: Tensor, span: Tensor, rule: Tensor
) -> tuple[Tensor, Tensor]:
    """`_cut` for many images at once; all are float64 of one shape."""
    centre, pixel = (length - span) / 2 + u * span, rule == ABOUT_PIXEL
    first = torch.where(pixel, centre.floor() - (side / 2).floor(), centre - side / 2)
    start = first.clamp(min=0).floor()
    stop = (torch.where(rule == WHOLE, start, first) + side).clamp(max=length).floor()
    return start.to(torch.int32), (stop - pixel.double()).to(torch.int32)
