"""What images say about a layer: the reward of every transformation (Eq. 9), and the cosine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.gradients import (
    Functions,
    cosine_and_direction,
    even_weights,
    loss_slopes,
    mean_gradient,
)
from deepaa.keys import draw_words, hash_int, sample_key
from deepaa.ops import Draw, apply_batch
from deepaa.ops.plan import to_device
from deepaa.pairs import Pairs
from deepaa.policy import Layers, Policy
from deepaa.search_config import draws_of
from deepaa.stages import thresholds


@dataclass(frozen=True)
class Sampling:
    """How a reward is estimated, and where."""

    prefixes: int
    """Draws of the earlier layers; each is seen under every transformation."""
    chains: int
    """Draws of all layers for the mean gradient; 0 takes the images of the prefixes instead."""
    stratified: bool
    """Spread the chains' last rows evenly over the layer's distribution."""
    halves: bool
    """Take two mean gradients, of half of the chains each, and products of both."""
    normalise_target: bool
    """Divide by |v| (the exact derivative of the cosine), so that all images weigh alike."""
    chunk: int
    dtype: torch.dtype | None
    compiled: bool = False
    """Compile the passes and, on CUDA, replay them as one graph."""
    dual: bool = False
    """Take slopes by our dual numbers where the network can be followed, not by torch's."""


def keys_for(seeds: Sequence[int], purpose: int, n: int, device: torch.device) -> Tensor:
    """(G x n,) keys: `n` for each seed, which depend on the seed and the purpose alone."""
    firsts = torch.tensor([sample_key(seed, purpose, 0) for seed in seeds])
    return (to_device(firsts, device)[:, None] + torch.arange(n, device=device)).flatten()


class Scene(NamedTuple):
    """All that the network sees for G images."""

    originals: Tensor  # (G, V, C, H, W): v is their mean gradient
    original_labels: Tensor  # (G, V)
    chains: Tensor  # (G, P, M, C, H, W): each of P parts gives an estimate of g
    weights: Tensor  # (M,) of the images of a part
    images: Tensor  # (G, S, C, H, W): their slopes are asked for; may be none
    labels: Tensor  # (G,) of chains and images

    @property
    def passes(self) -> int:
        """Images through the network for each of the G."""
        return (
            self.originals.shape[1]
            + self.chains.shape[1] * self.chains.shape[2]
            + self.images.shape[1]
        )


def look(
    model: nn.Module, scene: Scene, i: int, how: Sampling, passes: Functions
) -> tuple[Tensor, Tensor]:
    """For image `i`: the cosine of v and g, and the slopes of losses along Eq. 9's direction."""
    originals, chains, images = scene.originals[i], scene.chains[i], scene.images[i]
    label, chunk = scene.labels[i], how.chunk
    even = even_weights(originals)
    v = mean_gradient(model, originals, scene.original_labels[i], even, chunk=chunk, passes=passes)
    labels = label.expand(len(scene.weights)).contiguous()
    g = [
        mean_gradient(model, part, labels, scene.weights, chunk=chunk, passes=passes)
        for part in chains
    ]
    cosine, direction = cosine_and_direction(v, *g, normalise=how.normalise_target)
    labels = label.expand(len(images)).contiguous()
    return cosine, loss_slopes(model, images, labels, direction, chunk=chunk, passes=passes)


def all_transformations(
    images: Tensor, prefix: Policy, seeds: Sequence[int], draws: int, rows: Tensor
) -> Tensor:
    """(G, draws x R, C, H, W): `draws` images from the prefix, each under R rows of the table.

    Args:
        images: (G, C, H, W), with one seed each.
        rows: (R,) which rows.
    """
    table, device = prefix.table, images.device
    first = augmented(images, prefix, seeds, draws).flatten(0, 1)
    choice = to_device(rows, device).repeat(len(first))[:, None]
    keys = keys_for(seeds, 1, draws * len(rows), device)
    uniform = draw_words(keys, 1, table.uniforms)[2]
    out = apply_batch(first.repeat_interleave(len(rows), 0), Draw(choice, uniform), table)
    return torch.unflatten(out, 0, (len(images), -1))


def augmented(images: Tensor, policy: Policy, seeds: Sequence[int], n: int) -> Tensor:
    """(G, n, C, H, W): each image (G, C, H, W) under `n` draws of the policy."""
    copies = images.repeat_interleave(n, 0)
    if policy.depth:
        draw = policy.draw(keys_for(seeds, 0, n, images.device))
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
    """(G, n, C, H, W): each image under the prefix and then the layer `probabilities` (T,).

    Args:
        strata: So many chains in a row are spread evenly over the distribution; 0 for none.
    """
    table, device = prefix.table, images.device
    first = augmented(images, prefix, [hash_int(seed, 2) for seed in seeds], n).flatten(0, 1)
    keys = keys_for(seeds, 3, n, device)
    if strata:
        choice, _, uniform = draw_words(keys, 1, table.uniforms)
        # each chain of a row takes its word from another of equal parts
        parts = (torch.arange(n, device=device) % strata).repeat(len(images))
        words = (parts[:, None] * 2**53 + choice) // strata
        steps = to_device(thresholds(probabilities), device)
        draw = Draw(torch.searchsorted(steps, words, right=True), uniform)
    else:
        draw = Policy(table, Layers(probabilities[None])).draw(keys)
    return torch.unflatten(apply_batch(first, draw, table), 0, (len(images), n))


def layer_scene(
    pairs: Pairs,
    prefix: Policy,
    probabilities: Tensor,
    how: Sampling,
    seeds: Sequence[int],
    rows: Tensor | None = None,
) -> Scene:
    """What is looked at in any layer.

    The empty prefix of the first layer makes its mean gradient exact, not special. Where only some
    rows are asked for, they get the more draws.

    Args:
        prefix: The layers found so far, over the table that `probabilities` (T,) indexes.
        seeds: One for each image.
        rows: (R,) which rows are rewarded; None for all.
    """
    first, total = not prefix.depth, len(prefix.table)
    rows = torch.arange(total) if rows is None else rows
    draws = 1 if first else draws_of(how.prefixes, total, len(rows))
    images = all_transformations(pairs.images, prefix, seeds, draws, rows)
    if len(rows) == total and (first or not how.chains):  # the mean over the last layer is exact
        chains, share = images[:, None], (probabilities / draws).repeat(draws)
        weights = to_device(share.to(torch.float32), images.device)
    else:
        n, halves = how.chains or total, how.halves and how.chains > 0
        strata = (n // 2 if halves else n) if how.stratified else 0
        drawn = sampled_chains(pairs.images, prefix, probabilities, seeds, n, strata=strata)
        chains = _in_parts(drawn, halves)
        weights = even_weights(chains[0, 0])
    return Scene(pairs.originals, pairs.original_labels, chains, weights, images, pairs.labels)


def policy_scene(
    pairs: Pairs, policy: Policy, n: int, seeds: Sequence[int], *, halves: bool
) -> Scene:
    """`n` draws of a whole policy; no slopes."""
    drawn = augmented(pairs.images, policy, seeds, n)
    chains = _in_parts(drawn, halves)
    weights = even_weights(chains[0, 0])
    return Scene(
        pairs.originals, pairs.original_labels, chains, weights, drawn[:, :0], pairs.labels
    )


def _in_parts(chains: Tensor, halves: bool) -> Tensor:
    """(G, P, n / P, C, H, W) of (G, n, C, H, W): two halves, or one part."""
    return torch.unflatten(chains, 1, (2 if halves else 1, -1))


class Rewards(NamedTuple):
    """Rewards of R transformations for each of G images."""

    mean: Tensor  # (G, R) over the prefixes' draws
    relative: Tensor  # (G, R) the same, less the mean under the layer's distribution
    spread: Tensor  # (G, R) variance of one draw's reward
    noise: Tensor  # (G, R) variance of `relative` that the draws leave


def rewards_of(slopes: Tensor, probabilities: Tensor) -> Rewards:
    """What slopes (G, draws x R) say about each transformation.

    The mean of the rewards under the layer's own distribution is zero, because Eq. 9's direction is
    orthogonal to the layer's gradient: what a sample shows of it is noise that all transformations
    share, and `relative` is without it.

    Args:
        probabilities: (R,) the layer's, of the rows asked for.
    """
    each = torch.unflatten(slopes.double(), 1, (-1, len(probabilities)))
    relative = each - (each @ (probabilities / probabilities.sum()))[..., None]
    draws = each.shape[1]
    if draws == 1:
        nothing = torch.zeros_like(each[:, 0])
        return Rewards(each[:, 0], relative[:, 0], nothing, nothing)
    return Rewards(each.mean(1), relative.mean(1), each.var(1), relative.var(1) / draws)


def variance(rewards: Rewards, draws: int | None) -> Tensor:
    """(R,) the variance of rewards over images whose root Eq. 10 takes.

    It holds what sets images apart and the noise of the draws behind each image's reward, and the
    noise is most of it. Given `draws`, it is the variance that so many draws would show: both parts
    are estimated on their own, whatever number is at hand. The sum of few images may then be below
    zero; cut off here, its mean over steps would be too high.
    """
    if draws is None or len(rewards.mean) < 2 or not bool(rewards.spread.any()):
        return rewards.mean.var(0, correction=0)
    between = rewards.relative.var(0) - rewards.noise.mean(0)
    return between + rewards.spread.mean(0) / draws
