"""Which kernels a wide residual network needs, with which tiles, and their source."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import NamedTuple

GAP = 8
"""Numbers between two pixels in shared memory, see kernels.cu."""
LARGEST = 232_448
"""Bytes of shared memory that a block can have on a Hopper GPU."""
FORWARD, BACKWARD, PLAIN_BACKWARD = "FORWARD", "BACKWARD", "PLAIN_BACKWARD"


class Layer(NamedTuple):
    """A convolution behind batch norm and ReLU, for images that are `side` pixels wide and high."""

    inputs: int
    outputs: int
    side: int
    stride: int = 1
    taps: int = 9

    @property
    def name(self) -> str:
        """The part of a kernel's name that says which layer it is for."""
        return "_".join(map(str, self))

    @property
    def out_side(self) -> int:
        """The width and height of what comes out."""
        return self.side // self.stride

    @property
    def edge(self) -> int:
        """The width and height of the convolution's window."""
        return 3 if self.taps == 9 else 1


class Tile(NamedTuple):
    """What a block of threads makes at a time: rows of images, channels, and the warps for them."""

    channels: int
    rows: int
    images: int
    buffers: int
    """With 2, the next tile arrives while one is multiplied."""
    warps: tuple[int, int]
    """Over pixels and over channels."""
    matrices: tuple[int, int]
    """Of a warp: so many times 16 pixels by 8 channels."""
    blocks: int
    """Most blocks that share the pixels; each makes one tile after the other."""


class WeightTile(NamedTuple):
    """What a block of threads adds up for the gradient of the weights."""

    outputs: int
    inputs: int
    tap_rows: int
    """1 or 3; with 1 each row of taps is another block's."""
    rows: int
    """Of an image that are in shared memory at a time."""
    buffers: int
    """With 2, the next rows arrive while some are multiplied."""
    groups: int
    """Warps that share the pixels."""
    parts: int
    """About how many blocks share the images."""


@dataclass(frozen=True)
class Convolution:
    """A convolution forward, or the gradient in its input."""

    layer: Layer
    mode: str
    tile: Tile

    @property
    def name(self) -> str:
        """The name of the compiled kernel."""
        return f"{self.mode.lower()}_{self.layer.name}"

    @cached_property
    def _shape(self) -> tuple[int, int, int, int, int]:
        """Channels in and out, side of the input, stride, and the step of its pixels."""
        layer = self.layer
        if self.mode == FORWARD:
            return layer.inputs, layer.outputs, layer.side, layer.stride, 1
        return layer.outputs, layer.inputs, layer.out_side, 1, layer.stride

    @property
    def side(self) -> int:
        """The width and height of what comes out."""
        _, _, side, stride, step = self._shape
        return side * step // stride

    @property
    def channels(self) -> int:
        """The channels of what comes out."""
        return self._shape[1]

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.tile.warps[0] * self.tile.warps[1] * 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        k, _, _, stride, _ = self._shape
        tile, edge = self.tile, self.layer.edge
        rows, columns = ((n - 1) * stride + edge for n in (tile.rows, self.side))
        pixels = tile.buffers * tile.images * rows * columns * (k + GAP)
        matrix = (tile.channels, k) if self.mode == FORWARD else (k, tile.channels)
        weights = self.layer.taps * matrix[0] * (matrix[1] + GAP)
        return 2 * (pixels + weights + self.threads // 2 * (tile.matrices[1] * 8 + GAP))

    def tiles(self, images: int) -> int:
        """How many tiles so many images are cut into."""
        return images // self.tile.images * (self.side // self.tile.rows)

    def blocks(self, images: int) -> int:
        """How many blocks share them."""
        return min(self.tiles(images), self.tile.blocks)

    def grid(self, images: int) -> tuple[int, int]:
        """Blocks over pixels, and over channels."""
        return self.blocks(images), self.channels // self.tile.channels

    @property
    def source(self) -> str:
        """The kernel, in CUDA C++."""
        k, n, side, stride, step = self._shape
        made, rows, images, buffers, warps, matrices, _ = self.tile
        numbers = (k, n, made, side, side, stride, step, self.layer.taps, rows, images, buffers)
        template = ", ".join(map(str, (self.mode, *numbers, *warps, *matrices)))
        return _wrapped(
            self.name,
            f"Convolution<{template}>",
            self,
            "const bf16* x, const bf16* w, const float* norm, const bf16* add, "
            "const bf16* input, const float* input_norm, bf16* y, float* sums, int tiles",
            "x, w, norm, add, input, input_norm, y, sums, tiles",
        )


@dataclass(frozen=True)
class WeightGradient:
    """The gradient of a convolution in its weights, in parts that are still to be added up."""

    layer: Layer
    tile: WeightTile

    @property
    def name(self) -> str:
        """The name of the compiled kernel."""
        return f"weights_{self.layer.name}"

    @property
    def _units(self) -> int:
        return self.tile.tap_rows * (self.tile.outputs // 32) * max(1, self.tile.inputs // 32)

    @property
    def threads(self) -> int:
        """Of a block."""
        return self._units * self.tile.groups * 32

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a block."""
        layer, tile, edge = self.layer, self.tile, self.layer.edge
        rows = (tile.rows - 1) * layer.stride + tile.tap_rows
        columns = (layer.out_side - 1) * layer.stride + edge
        pixels = rows * columns * (tile.inputs + GAP)
        gradient = tile.rows * layer.out_side * (tile.outputs + GAP)
        room = 4 * self._units * edge * 32 * min(32, tile.inputs)
        return max(2 * tile.buffers * (pixels + gradient), room if tile.groups > 1 else 0)

    def cut(self, images: int) -> tuple[int, int, int]:
        """Tiles of all images, tiles of a block, and blocks that share them."""
        count = images * (self.layer.out_side // self.tile.rows)
        each = -(-count // self.tile.parts)
        return count, each, -(-count // each)

    def grid(self, images: int) -> tuple[int, int]:
        """Blocks over pixels, and over channels and rows of taps."""
        channels = self.layer.outputs // self.tile.outputs * (self.layer.inputs // self.tile.inputs)
        return self.cut(images)[2], self.layer.edge // self.tile.tap_rows * channels

    @property
    def numbers(self) -> int:
        """How many weights there are."""
        return self.layer.outputs * self.layer.taps * self.layer.inputs

    @property
    def source(self) -> str:
        """The kernel, in CUDA C++."""
        layer, tile = self.layer, self.tile
        sizes = (layer.outputs, layer.inputs, tile.outputs, tile.inputs, layer.side, layer.side)
        numbers: tuple[int, ...] = (*sizes, layer.stride, layer.taps, tile.tap_rows, tile.rows)
        numbers += (tile.buffers, tile.groups)
        return _wrapped(
            self.name,
            f"WeightGradient<{', '.join(map(str, numbers))}>",
            self,
            "const bf16* dy, const bf16* x, const float* norm, float* part, int count, int each",
            "dy, x, norm, part, count, each",
        )


def _wrapped(
    name: str, kind: str, kernel: Convolution | WeightGradient, parameters: str, given: str
) -> str:
    threads, shared = kernel.threads, kernel.shared
    return (
        f"using Kind_{name} = {kind};\n"
        f"static_assert(Kind_{name}::THREADS == {threads} && Kind_{name}::SHARED == {shared}, "
        f'"{name}");\n'
        f'extern "C" __global__ void __launch_bounds__({threads}) {name}({parameters}) '
        f"{{ Kind_{name}::run({given}); }}\n"
    )


class Kernels(NamedTuple):
    """What a layer needs."""

    forward: Convolution
    backward: Convolution
    weights: WeightGradient

    @classmethod
    def of(cls, layer: Layer) -> Kernels:
        """The kernels of a layer, with the tiles that were fastest."""
        forward, backward, weights = TILES[layer]
        back = BACKWARD if layer.taps == 9 else PLAIN_BACKWARD
        return cls(
            Convolution(layer, FORWARD, forward),
            Convolution(layer, back, backward),
            WeightGradient(layer, weights),
        )


# Tiles

TILES: dict[Layer, tuple[Tile, Tile, WeightTile]] = {
    Layer(16, 32, 32): (
        Tile(32, 8, 1, 2, (4, 1), (4, 4), 132),
        Tile(16, 8, 1, 2, (4, 1), (4, 2), 132),
        WeightTile(32, 16, 3, 8, 2, 2, 128),
    ),
    Layer(16, 32, 32, 1, 1): (
        Tile(32, 8, 1, 2, (4, 1), (4, 4), 132),
        Tile(16, 8, 1, 2, (4, 1), (4, 2), 132),
        WeightTile(32, 16, 1, 8, 2, 4, 64),
    ),
    Layer(32, 32, 32): (
        Tile(32, 16, 1, 2, (16, 1), (2, 4), 132),
        Tile(32, 16, 1, 1, (8, 1), (4, 4), 132),
        WeightTile(32, 32, 3, 16, 2, 4, 132),
    ),
    Layer(32, 64, 32, 2): (
        Tile(64, 8, 1, 1, (2, 2), (4, 4), 132),
        Tile(32, 8, 1, 1, (4, 1), (4, 4), 132),
        WeightTile(32, 32, 3, 8, 1, 2, 64),
    ),
    Layer(32, 64, 32, 2, 1): (
        Tile(64, 4, 1, 2, (4, 2), (1, 4), 132),
        Tile(32, 8, 1, 2, (4, 1), (4, 4), 132),
        WeightTile(64, 32, 1, 8, 1, 4, 64),
    ),
    Layer(64, 64, 16): (
        Tile(64, 16, 1, 1, (8, 1), (2, 8), 128),
        Tile(64, 16, 1, 1, (8, 1), (2, 8), 128),
        WeightTile(64, 32, 3, 16, 2, 1, 66),
    ),
    Layer(64, 128, 16, 2): (
        Tile(32, 8, 2, 1, (4, 1), (2, 4), 33),
        Tile(32, 16, 1, 1, (4, 1), (4, 4), 66),
        WeightTile(32, 32, 3, 8, 2, 2, 22),
    ),
    Layer(64, 128, 16, 2, 1): (
        Tile(64, 8, 2, 1, (4, 2), (2, 4), 66),
        Tile(32, 16, 1, 1, (4, 1), (4, 4), 66),
        WeightTile(64, 32, 1, 8, 2, 2, 64),
    ),
    Layer(128, 128, 8): (
        Tile(64, 8, 2, 1, (4, 1), (2, 8), 64),
        Tile(64, 8, 2, 1, (4, 1), (2, 8), 64),
        WeightTile(32, 32, 3, 8, 2, 2, 16),
    ),
}
"""The layers of a network of widths 16, 32, 64 and 128 for images of 32 x 32 pixels, and how their
work is cut: forward, for the gradient in the input, and for that in the weights."""


# The source

COMMON = "sum_parts", "normalise", "normalise_backward", "combine", "measure16"
"""Kernels that every network needs."""


def library_source() -> str:
    """The file that the kernels are made from."""
    return files("deepaa.train.fused").joinpath("kernels.cu").read_text("utf-8")


def kernels_of(layers: Sequence[Layer]) -> Iterator[Convolution | WeightGradient]:
    """All kernels that some layers need."""
    for layer in layers:
        yield from Kernels.of(layer)
