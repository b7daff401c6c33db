"""Runs `match_gradients`: directly, or on CUDA as a graph that is captured once per shape.

One image takes some thousand small kernels. Launched one by one they keep the device waiting; the
replay of a CUDA graph launches them together, and several images run on streams beside each other,
because one alone does not fill the device.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa.search.gradient_matching.gradients import Derivatives
from deepaa.search.gradient_matching.rewards import NetworkInputs, match_gradients

WARM_UP = 2
"""Runs on each stream before a capture: they compile, and let libraries choose algorithms."""
STREAMS = 4
"""Images beside each other on CUDA; each takes the memory of one chunk."""


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: NetworkInputs
    cosines: Tensor
    products: Tensor


class GradientMatcher:
    """`match_gradients` for all images of a batch, with CUDA graphs where code is compiled."""

    def __init__(self, derivatives: Derivatives, *, normalise: bool) -> None:
        """Nothing is compiled or captured before the first batch."""
        self.derivatives, self.normalise = derivatives, normalise
        self._captured: dict[tuple[torch.Size, ...], _Captured] = {}
        # one memory pool for all graphs, which run one after the other
        self._memory: Any = None
        self._streams: list[torch.cuda.Stream] = []

    def __call__(
        self, inputs: NetworkInputs, before_image: Callable[[], None] = lambda: None
    ) -> tuple[Tensor, Tensor]:
        """The cosines (G,) and the inner products (G, S)."""
        if not self.derivatives.compiled or inputs.labels.device.type != "cuda":
            matches = []
            for i in range(len(inputs.labels)):
                before_image()
                matches.append(self._match(inputs, i))
            return _stacked(matches)
        before_image()
        shapes = tuple(part.shape for part in inputs)
        if shapes not in self._captured:
            self._captured[shapes] = self._capture(inputs)
        captured = self._captured[shapes]
        for place, value in zip(captured.inputs, inputs, strict=True):
            place.copy_(value)
        captured.graph.replay()
        return captured.cosines.clone(), captured.products.clone()

    def _match(self, inputs: NetworkInputs, i: int) -> tuple[Tensor, Tensor]:
        return match_gradients(self.derivatives, inputs, i, normalise=self.normalise)

    def _capture(self, inputs: NetworkInputs) -> _Captured:
        inputs = NetworkInputs(*(part.clone() for part in inputs))
        count = len(inputs.labels)
        while len(self._streams) < min(STREAMS, count):
            self._streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        streams = self._streams[:count]
        self._on_streams(inputs, streams, len(streams) * WARM_UP)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            cosines, products = _stacked(self._on_streams(inputs, streams, count))
        self._memory = graph.pool()
        return _Captured(graph, inputs, cosines, products)

    def _on_streams(
        self, inputs: NetworkInputs, streams: list[torch.cuda.Stream], count: int
    ) -> list[tuple[Tensor, Tensor]]:
        """`count` images, taking turns on the streams; the current stream waits for all."""
        current, matches = torch.cuda.current_stream(), []
        for stream in streams:
            stream.wait_stream(current)
        try:
            for i in range(count):
                with torch.cuda.stream(streams[i % len(streams)]):
                    matches.append(self._match(inputs, i % len(inputs.labels)))
        finally:  # a capture ends well only if all streams joined, also when memory ran out
            for stream in streams:
                current.wait_stream(stream)
        return matches


def _stacked(matches: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([cosine for cosine, _ in matches]), torch.stack([p for _, p in matches])
