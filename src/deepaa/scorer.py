"""Runs `rewards.look`: at once, or on CUDA as a graph that is recorded once per shape and replayed.

One look is some thousand small kernels. Started one by one they keep the device waiting; as a graph
they start together, and the looks at several images run beside each other, because one alone does
not fill the device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from deepaa.dual import Step
from deepaa.gradients import functions
from deepaa.rewards import Sampling, Scene, look

WARM_UP = 2
STREAMS = 4
"""Looks beside each other on CUDA; each takes the memory of one chunk."""


class _Recorded(NamedTuple):
    graph: torch.cuda.CUDAGraph
    scene: Scene
    cosines: Tensor
    slopes: Tensor


class Scorer:
    """`look` for one model and one way of sampling."""

    def __init__(
        self, model: nn.Module, how: Sampling, steps: Sequence[Step] | None = None
    ) -> None:
        """Nothing is compiled or recorded before the first scene.

        Args:
            steps: The network for dual numbers; None takes torch's forward mode.
        """
        self.model, self.how, self.steps = model, how, steps
        self.passes = functions(model, how.dtype, compiled=how.compiled, steps=steps)
        self._recorded: dict[tuple[tuple[int, ...], ...], _Recorded] = {}
        # of all graphs, which run one after the other: memory is used again on its own stream only
        self._memory: Any = None
        self._streams: list[torch.cuda.Stream] = []

    def __call__(
        self, scene: Scene, before_image: Callable[[], None] = lambda: None
    ) -> tuple[Tensor, Tensor]:
        """The cosines (G,) and the slopes (G, S) of a scene."""
        if not self.how.compiled or scene.images.device.type != "cuda":
            looks = []
            for i in range(len(scene.labels)):
                before_image()
                looks.append(look(self.model, scene, i, self.how, self.passes))
            return _stacked(looks)
        before_image()
        key = tuple(tuple(part.shape) for part in scene)
        if key not in self._recorded:
            self._recorded[key] = self._record(scene)
        graph, inputs, cosines, slopes = self._recorded[key]
        for place, value in zip(inputs, scene, strict=True):
            place.copy_(value)
        graph.replay()
        return cosines.clone(), slopes.clone()

    def _record(self, scene: Scene) -> _Recorded:
        inputs = Scene(*(part.clone() for part in scene))
        count = len(scene.labels)
        while len(self._streams) < min(STREAMS, count):
            self._streams.append(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        streams = self._streams[:count]
        # compiles, and lets libraries choose their algorithms
        self._looks(inputs, streams, len(streams) * WARM_UP)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            cosines, slopes = _stacked(self._looks(inputs, streams, count))
        self._memory = graph.pool()
        return _Recorded(graph, inputs, cosines, slopes)

    def _looks(
        self, scene: Scene, streams: list[torch.cuda.Stream], count: int
    ) -> list[tuple[Tensor, Tensor]]:
        """`count` looks, taking turns on the streams; the current stream waits for all."""
        current, looks = torch.cuda.current_stream(), []
        for stream in streams:
            stream.wait_stream(current)
        try:
            for i in range(count):
                with torch.cuda.stream(streams[i % len(streams)]):
                    at = i % len(scene.labels)
                    looks.append(look(self.model, scene, at, self.how, self.passes))
        finally:  # a recording ends well only if all streams came back, also without memory
            for stream in streams:
                current.wait_stream(stream)
        return looks


def _stacked(looks: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.stack([cosine for cosine, _ in looks]), torch.stack([s for _, s in looks])
