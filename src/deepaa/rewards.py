"""What one image says about a layer: the reward of every transformation (Eq. 9), and its cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.gradients import Functions, cosine_and_direction, loss_slopes, mean_gradient
from deepaa.keys import draw_words, hash_int, sample_keys
from deepaa.ops import Draw, apply_batch
from deepaa.ops.plan import to_device
from deepaa.pairs import Pair
from deepaa.policy import Layers, Policy
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
    normalise_target: bool
    """Divide by |v| (the exact derivative of the cosine), so that all images weigh alike."""
    chunk: int
    dtype: torch.dtype | None
    compiled: bool = False
    """Compile the passes and, on CUDA, replay them as one graph per image."""


def keys_for(seed: int, purpose: int, n: int, device: torch.device) -> Tensor:
    """(n,) keys that depend on the seed and the purpose alone."""
    return sample_keys(seed, purpose, torch.arange(n, device=device))


class Scene(NamedTuple):
    """All that the network sees for one image."""

    originals: Tensor  # (V, C, H, W): v is their mean gradient
    original_labels: Tensor
    chains: Tensor  # (M, C, H, W): g is their weighted gradient
    weights: Tensor  # (M,)
    images: Tensor  # (S, C, H, W): their slopes are asked for; may be none
    label: Tensor  # (1,) of chains and images


def look(model: nn.Module, scene: Scene, how: Sampling, passes: Functions) -> tuple[Tensor, Tensor]:
    """The cosine of v and g, and the slopes of the images' losses along Eq. 9's direction."""
    n, chunk = len(scene.originals), how.chunk
    even = torch.full((n,), 1 / n, device=scene.originals.device)
    originals = scene.originals, scene.original_labels, even
    v = mean_gradient(model, *originals, chunk=chunk, passes=passes)
    chains = scene.chains, scene.label.expand(len(scene.chains)), scene.weights
    g = mean_gradient(model, *chains, chunk=chunk, passes=passes)
    cosine, direction = cosine_and_direction(v, g, normalise=how.normalise_target)
    labels = scene.label.expand(len(scene.images))
    return cosine, loss_slopes(model, scene.images, labels, direction, chunk=chunk, passes=passes)


def all_transformations(image: Tensor, prefix: Policy, seed: int, draws: int) -> Tensor:
    """(draws x T, C, H, W): `draws` images from the prefix, each under every row of the table."""
    table, device = prefix.table, image.device
    first = augmented(image, prefix, seed, draws)
    images = first.repeat_interleave(len(table), 0)
    rows = torch.arange(len(table), device=device).repeat(draws)[:, None]
    uniform = draw_words(keys_for(seed, 1, len(rows), device), 1, table.uniforms)[2]
    return apply_batch(images, Draw(rows, uniform), table)


def augmented(image: Tensor, policy: Policy, seed: int, n: int) -> Tensor:
    """(n, C, H, W): the image (1, C, H, W) under `n` draws of the policy."""
    images = image.expand(n, -1, -1, -1)
    if not policy.depth:
        return images.contiguous()
    return apply_batch(images, policy.draw(keys_for(seed, 0, n, image.device)), policy.table)


def sampled_chains(
    image: Tensor, prefix: Policy, probabilities: Tensor, seed: int, n: int, *, stratified: bool
) -> Tensor:
    """(n, C, H, W): the image under the prefix and then the layer `probabilities` (T,)."""
    images = augmented(image, prefix, hash_int(seed, 2), n)
    table = prefix.table
    keys = keys_for(seed, 3, n, image.device)
    if not stratified:
        draw = Policy(table, Layers(probabilities[None])).draw(keys)
        return apply_batch(images, draw, table)
    choice, _, uniform = draw_words(keys, 1, table.uniforms)
    # the i-th chain takes its word from the i-th of n equal parts
    words = (torch.arange(n, device=image.device)[:, None] * 2**53 + choice) // n
    steps = to_device(thresholds(probabilities), image.device)
    return apply_batch(images, Draw(torch.searchsorted(steps, words, right=True), uniform), table)


def layer_scene(
    pair: Pair, prefix: Policy, probabilities: Tensor, how: Sampling, seed: int
) -> Scene:
    """What is looked at for one image in any layer.

    The empty prefix of the first layer makes its mean gradient exact, not special.

    Args:
        prefix: The layers found so far, over the table that `probabilities` (T,) indexes.
    """
    first = not prefix.depth
    draws = 1 if first else how.prefixes
    images = all_transformations(pair.image, prefix, seed, draws)
    if first or not how.chains:  # the mean over the last layer is exact
        chains, weights = images, (probabilities / draws).repeat(draws)
    else:
        n = how.chains
        chains = sampled_chains(
            pair.image, prefix, probabilities, seed, n, stratified=how.stratified
        )
        weights = torch.full((n,), 1 / n)
    weights = to_device(weights.to(torch.float32), images.device)
    return Scene(pair.batch, pair.batch_labels, chains, weights, images, pair.label)


def policy_scene(pair: Pair, policy: Policy, n: int, seed: int) -> Scene:
    """`n` draws of a whole policy, or the image itself for no layers; no slopes."""
    chains = augmented(pair.image, policy, seed, n if policy.depth else 1)
    weights = torch.full((len(chains),), 1 / len(chains), device=chains.device)
    return Scene(pair.batch, pair.batch_labels, chains, weights, chains[:0], pair.label)


def rewards_of(slopes: Tensor, rows: int) -> Tensor:
    """(T,) the mean over the prefixes' draws."""
    return slopes.double().view(-1, rows).mean(0)
