"""The rewards of all transformations for the images of a step (Eq. 7 to 10).

`MinibatchSampler` draws images, each with originals whose gradient it should match; `layer_inputs`
augments them; `GradientMatcher` sends them through the network; `Rewards.of` sums up what comes
back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from deepaa.ops import Drawn, apply_batch, check_images, draw_words, hash_int, sample_key, to_device
from deepaa.policy import Policy, thresholds
from deepaa.search.gradient_matching.gradients import Derivatives, Params, even_weights, flattened
from deepaa.search.gradient_matching.heldout import set_aside
from deepaa.search.settings import SearchConfig

WARM_UP = 2
"""Runs on each stream before a capture: they compile, and let libraries choose algorithms."""
STREAMS = 4
"""Images beside each other on CUDA; each takes the memory of one chunk."""
Indices = tuple[Tensor, Tensor]
"""Which images (G,) and originals (G, V) a minibatch has; on the CPU, wherever the images lie."""


# The images of a step


class SearchData(NamedTuple):
    """Images to augment and images whose gradient is matched, uint8, with labels."""

    images: Tensor
    labels: Tensor
    validation_images: Tensor
    validation_labels: Tensor
    groups: Tensor | None = None
    """Of the images to augment: equal numbers for those that are nearly equal."""

    def check(self) -> None:
        """Refuse images and labels that do not belong together."""
        for what, images, labels in (("search", *self[:2]), ("validation", *self[2:4])):
            check_images(images, f"{what} images")
            if labels.shape != (len(images),):
                raise ValueError(f"{len(images)} {what} images, but labels {tuple(labels.shape)}")
        shape, other = (tuple(part.shape[1:]) for part in (self.images, self.validation_images))
        if shape != other:
            raise ValueError(f"search images are {shape}, validation images {other}")


class Minibatch(NamedTuple):
    """G images with their labels, and for each a batch of V originals with theirs."""

    images: Tensor  # (G, C, H, W)
    labels: Tensor  # (G,)
    originals: Tensor  # (G, V, C, H, W)
    original_labels: Tensor  # (G, V)


class MinibatchSampler:
    """Draws minibatches by class; the held-out images never take part in a step."""

    def __init__(self, data: SearchData, config: SearchConfig) -> None:
        """Set the held-out images aside and index the rest by class."""
        data.check()
        self.data, self.config = data, config
        self.labels = data.labels.cpu()
        count = config.heldout * config.decisions
        self.heldout, rest = set_aside(count, self.labels, config.seed, data.groups)
        found = self.labels[rest]
        self.members = [rest[found == c] for c in sorted(set(found.tolist()))]
        answers = data.validation_labels.cpu()
        self.originals = {
            c: torch.where(answers == c)[0] if config.same_class else torch.arange(len(answers))
            for c in sorted(set(self.labels.tolist()))
        }
        if missing := [c for c, found in self.originals.items() if not len(found)]:
            raise ValueError(f"no validation image of class {missing[0]} ({len(missing)} missing)")

    def draw(self, seed: int, n: int) -> Indices:
        """`n` images, of classes drawn uniformly, and a batch of originals for each."""
        generator, images, originals = _generator(seed), [], []
        for place in torch.randint(len(self.members), (n,), generator=generator).tolist():
            members = self.members[place]
            images.append(int(members[torch.randint(len(members), (1,), generator=generator)]))
            originals.append(self._originals(images[-1], generator))
        return torch.tensor(images), torch.stack(originals)

    def draw_heldout(self, decision: int) -> Indices:
        """The pairs of a decision: held-out images that no other one has, with their originals.

        Only where there are fewer images than decisions, one serves several.
        """
        parts = self.heldout.tensor_split(min(self.config.decisions, len(self.heldout)))
        images = parts[decision % len(parts)]
        generator = _generator(hash_int(hash_int(self.config.seed, 2), decision))
        return images, torch.stack([self._originals(i, generator) for i in images.tolist()])

    def _originals(self, index: int, generator: torch.Generator) -> Tensor:
        """(V,) originals for an image, drawn with replacement."""
        candidates, count = self.originals[int(self.labels[index])], self.config.validation
        return candidates[torch.randint(len(candidates), (count,), generator=generator)]

    def fetch(self, indices: Indices, numbers: list[int], device: torch.device) -> Minibatch:
        """The images with these numbers among the indices, on a device."""
        d = self.data
        images = to_device(indices[0][numbers], d.images.device)
        originals = to_device(indices[1][numbers], d.validation_images.device)
        found = d.images[images], d.labels[images]
        matched = d.validation_images[originals], d.validation_labels[originals]
        return Minibatch(*(part.to(device) for part in (*found, *matched)))


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed % 2**63)


# Augmented images


class NetworkInputs(NamedTuple):
    """Everything that goes through the network for G images."""

    labels: Tensor  # (G,) of chains and candidates
    originals: Tensor  # (G, V, C, H, W): v is their mean gradient
    original_labels: Tensor  # (G, V)
    chains: Tensor  # (G, P, M, C, H, W): each of P parts gives an estimate of g
    weights: Tensor  # (M,) of the images of a part
    candidates: Tensor  # (G, S, C, H, W): inner products of their gradients are taken; S may be 0

    @property
    def passes(self) -> int:
        """Images through the network for each of the G."""
        chains = self.chains.shape[1] * self.chains.shape[2]
        return self.originals.shape[1] + chains + self.candidates.shape[1]


def layer_inputs(
    minibatch: Minibatch,
    prefix: Policy,
    probabilities: Tensor,
    config: SearchConfig,
    seeds: Sequence[int],
    rows: Tensor,
) -> NetworkInputs:
    """The images of one step of a layer (T,), of which `rows` (R,) are rewarded.

    The fewer rows there are, the more draws of the prefix, the layers found so far, each gets. The
    first layer is no special case: the empty prefix makes its mean gradient exact (Eq. 3).
    """
    first, total = not prefix.depth, len(prefix.table)
    draws = 1 if first else config.prefix_draws(total, len(rows))
    candidates = all_transformations(minibatch.images, prefix, seeds, draws, rows)
    if len(rows) == total and (first or not config.chains):  # the mean over the layer is exact
        share = (probabilities / draws).repeat(draws).to(torch.float32)
        weights = to_device(share, candidates.device)
        return NetworkInputs(*minibatch[1:], candidates[:, None], weights, candidates)
    n, halves = config.chains or total, config.halves and config.chains > 0
    strata = (n // 2 if halves else n) if config.stratified else 1
    drawn = sampled_chains(minibatch.images, prefix, probabilities, seeds, n, strata=strata)
    return _with_chains(minibatch, drawn, candidates, halves=halves)


def policy_inputs(
    minibatch: Minibatch, policy: Policy, n: int, seeds: Sequence[int], *, halves: bool
) -> NetworkInputs:
    """`n` draws of a whole policy for the mean gradient, without candidates."""
    drawn = augmented(minibatch.images, policy, seeds, n)
    return _with_chains(minibatch, drawn, drawn[:, :0], halves=halves)


def _with_chains(
    minibatch: Minibatch, drawn: Tensor, candidates: Tensor, *, halves: bool
) -> NetworkInputs:
    """Chains (G, n, C, H, W) as two halves, or as one part."""
    chains = torch.unflatten(drawn, 1, (2 if halves else 1, -1))
    return NetworkInputs(*minibatch[1:], chains, even_weights(chains[0, 0]), candidates)


def all_transformations(
    images: Tensor, prefix: Policy, seeds: Sequence[int], draws: int, rows: Tensor
) -> Tensor:
    """(G, draws x R, C, H, W): draws of the prefix, each under `rows` (R,) of the table (Eq. 7)."""
    table, device = prefix.table, images.device
    first = augmented(images, prefix, seeds, draws).flatten(0, 1)
    choice = to_device(rows, device).repeat(len(first))[:, None]
    uniform = draw_words(_keys(seeds, 1, draws * len(rows), device), 1, table.uniforms)[2]
    out = apply_batch(first.repeat_interleave(len(rows), 0), Drawn(choice, uniform), table)
    return torch.unflatten(out, 0, (len(images), -1))


def augmented(images: Tensor, policy: Policy, seeds: Sequence[int], n: int) -> Tensor:
    """(G, n, C, H, W): each image (G, C, H, W) under `n` draws of the policy."""
    copies = images.repeat_interleave(n, 0)
    if policy.depth:
        draw = policy.draw(_keys(seeds, 0, n, images.device))
        copies = apply_batch(copies, draw, policy.table)
    return torch.unflatten(copies, 0, (len(images), n))


def sampled_chains(
    images: Tensor,
    prefix: Policy,
    probabilities: Tensor,
    seeds: Sequence[int],
    n: int,
    *,
    strata: int,
) -> Tensor:
    """(G, n, C, H, W): each image under the prefix and then the layer `probabilities` (T,) (Eq. 8).

    So many chains in a row as `strata` says are spread evenly over the distribution.
    """
    table, device = prefix.table, images.device
    first = augmented(images, prefix, [hash_int(seed, 2) for seed in seeds], n).flatten(0, 1)
    choice, _, uniform = draw_words(_keys(seeds, 3, n, device), 1, table.uniforms)
    # each chain of a row takes its word from another of equal parts
    parts = (torch.arange(n, device=device) % strata).repeat(len(images))
    words = (parts[:, None] * 2**53 + choice) // strata
    steps = to_device(thresholds(probabilities), device)
    draw = Drawn(torch.searchsorted(steps, words, right=True), uniform)
    return torch.unflatten(apply_batch(first, draw, table), 0, (len(images), n))


def _keys(seeds: Sequence[int], purpose: int, n: int, device: torch.device) -> Tensor:
    """(G x n,) keys: `n` for each seed, which depend on the seed and the purpose alone."""
    firsts = torch.tensor([sample_key(seed, purpose, 0) for seed in seeds])
    return (to_device(firsts, device)[:, None] + torch.arange(n, device=device)).flatten()


# Through the network


class _Captured(NamedTuple):
    graph: torch.cuda.CUDAGraph
    inputs: NetworkInputs
    cosines: Tensor
    products: Tensor


class GradientMatcher:
    """The cosine of v and g and the inner products of Eq. 9, for all images of a batch.

    On CUDA, where the passes are compiled, they run as a graph that is captured once per shape. One
    image takes some thousand small kernels. Launched one by one they keep the device waiting; the
    replay of a CUDA graph launches them together, and several images run on streams beside each
    other, because one alone does not fill the device.
    """

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
        """For image `i`, the cosine of v and g, and the candidates' inner products (S,)."""
        derivatives, label, candidates = self.derivatives, inputs.labels[i], inputs.candidates[i]
        v = derivatives.mean_gradient(inputs.originals[i], inputs.original_labels[i])
        labels = label.expand(len(inputs.weights)).contiguous()
        g = [derivatives.mean_gradient(part, labels, inputs.weights) for part in inputs.chains[i]]
        cosine, direction = cosine_and_direction(v, *g, normalise=self.normalise)
        labels = label.expand(len(candidates)).contiguous()
        return cosine, derivatives.loss_jvp(candidates, labels, direction)

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


def cosine_and_direction(
    target: Params, gradient: Params, other: Params | None = None, *, normalise: bool = True
) -> tuple[Tensor, Params]:
    """The cosine of v and g, and the direction u in which moving g raises it (bracket of Eq. 9).

    u = v / |g| - (v.g) g / |g|^3, divided by |v| too when `normalise`: the exact derivative of the
    cosine, which weighs all images alike. Where either vector is zero, both results are zero.

    An estimate of g from few draws is too long, and u would then leave a part of g in: rewards of
    transformations with large gradients come out too high. Products of two estimates have no such
    bias: |g|^2 = a.b and (v.g) g = ((v.a) b + (v.b) a) / 2. With m = (a + b) / 2 and
    d = (a - b) / 2 these are m.m - d.d and (v.m) m - (v.d) d. Two estimates may be at odds, so d
    is scaled down until |g|^2 keeps half of m.m.

    Args:
        target: v, the mean gradient of the original images.
        gradient: g, or an estimate a of it.
        other: An estimate b from other draws.
    """
    v, a = flattened(target), flattened({name: gradient[name] for name in target})
    b = a if other is None else flattened({name: other[name] for name in target})
    v2, (m, d, share, g2) = v @ v, _joined(a, b)
    empty = (g2 <= 0) | (v2 <= 0)
    length, v_length = (torch.where(empty, 1.0, square).sqrt() for square in (g2, v2))
    scale = torch.where(empty, 0.0, 1 / (length * v_length if normalise else length))
    along = ((v @ m) * m - share * (v @ d) * d) / torch.where(empty, 1.0, g2)
    flat = torch.split(scale * (v - along), [p.numel() for p in target.values()])
    direction = {
        name: part.view(p.shape).to(p.dtype)
        for (name, p), part in zip(target.items(), flat, strict=True)
    }
    return _cosine(v, a, b, v_length, empty), direction


def _joined(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """M and d of two estimates, the share of d.d that counts, and |g|^2."""
    m, d = (a + b) / 2, (a - b) / 2
    m2, d2 = m @ m, d @ d
    share = torch.where(d2 > 0, m2 / (2 * d2), 1.0).clamp(max=1)
    return m, d, share, m2 - share * d2


def _cosine(v: Tensor, a: Tensor, b: Tensor, v_length: Tensor, empty: Tensor) -> Tensor:
    """The cosine of v and g, from estimates scaled to one length: a longer one counts no more."""
    lengths = (torch.where(x @ x > 0, x @ x, 1.0).sqrt() for x in (a, b))
    m, _, _, g2 = _joined(*(x / length for x, length in zip((a, b), lengths, strict=True)))
    return torch.where(empty, 0.0, v @ m / (v_length * torch.where(empty, 1.0, g2).sqrt()))
