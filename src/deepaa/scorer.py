"""Runs `rewards.look`: at once, or on CUDA as a graph that is recorded once per shape and replayed.

One look is some two thousand small kernels. Started one by one they keep the device waiting; as a
graph they start together.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.gradients import functions
from deepaa.rewards import Sampling, Scene, look

WARM_UP = 3


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    scene: Scene
    cosine: Tensor
    slopes: Tensor


class Scorer:
    """`look` for one model and one way of sampling."""

    def __init__(self, model: nn.Module, how: Sampling) -> None:
        """Nothing is compiled or recorded before the first scene."""
        self.model, self.how = model, how
        self.passes = functions(model, how.dtype, compiled=how.compiled)
        self._recorded: dict[tuple[int, ...], _Recorded] = {}

    def __call__(self, scene: Scene) -> tuple[Tensor, Tensor]:
        """The cosine () and the slopes (S,) of a scene."""
        if not self.how.compiled or scene.images.device.type != "cuda":
            return look(self.model, scene, self.how, self.passes)
        key = tuple(len(part) for part in scene)
        if key not in self._recorded:
            self._recorded[key] = self._record(scene)
        graph, inputs, cosine, slopes = self._recorded[key]
        for place, value in zip(inputs, scene, strict=True):
            place.copy_(value)
        graph.replay()
        return cosine.clone(), slopes.clone()

    def _record(self, scene: Scene) -> _Recorded:
        inputs = Scene(*(part.clone() for part in scene))
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # compiles, and lets libraries choose their algorithms
            for _ in range(WARM_UP):
                look(self.model, inputs, self.how, self.passes)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            cosine, slopes = look(self.model, inputs, self.how, self.passes)
        return _Recorded(graph, inputs, cosine, slopes)
