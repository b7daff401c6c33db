"""What one image says about a layer: the reward of every transformation (Eq. 9), and its cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.gradients import Params, cosine_and_direction, loss_slopes, mean_gradient
from deepaa.keys import draw_words, hash_int
from deepaa.ops import Draw, apply_batch
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


class Rewards(NamedTuple):
    """The outcome for one image."""

    rewards: Tensor  # (T,) float64
    cosine: Tensor  # () float64
    passes: int  # images through the network, forward and backward or forward with slopes


def keys_for(seed: int, purpose: int, n: int, device: torch.device) -> Tensor:
    """(n,) keys that depend on the seed and the purpose alone."""
    first = hash_int(seed, purpose)
    return torch.arange(n, device=device) + (first - (first >> 63 << 64))


def target_gradient(model: nn.Module, images: Tensor, labels: Tensor, how: Sampling) -> Params:
    """v: the mean gradient of a batch of original images."""
    weights = torch.full((len(images),), 1 / len(images), device=images.device)
    return mean_gradient(model, images, labels, weights, chunk=how.chunk, dtype=how.dtype)


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
    steps = thresholds(probabilities).to(image.device)
    return apply_batch(images, Draw(torch.searchsorted(steps, words, right=True), uniform), table)


def layer_rewards(
    model: nn.Module,
    image: Tensor,
    label: Tensor,
    target: Params,
    prefix: Policy,
    probabilities: Tensor,
    how: Sampling,
    seed: int,
) -> Rewards:
    """Eq. 9 for any layer: the empty prefix of the first makes it exact, not special.

    Args:
        image: (1, C, H, W) uint8, with its (1,) label.
        target: v, the gradient to match.
        prefix: The layers found so far, over the table that `probabilities` (T,) indexes.
    """
    first = not prefix.depth
    draws = 1 if first else how.prefixes
    images = all_transformations(image, prefix, seed, draws)
    shared = first or not how.chains
    if shared:  # the mean over the last layer is exact
        chains = images
        weights = (probabilities / draws).repeat(draws).to(image.device, torch.float32)
    else:
        n = how.chains
        chains = sampled_chains(image, prefix, probabilities, seed, n, stratified=how.stratified)
        weights = torch.full((n,), 1 / n, device=image.device)
    chunk, dtype = how.chunk, how.dtype
    labels = label.expand(len(chains))
    g = mean_gradient(model, chains, labels, weights, chunk=chunk, dtype=dtype)
    cosine, direction = cosine_and_direction(target, g, normalise=how.normalise_target)
    labels = label.expand(len(images))
    slopes = loss_slopes(model, images, labels, direction, chunk=chunk, dtype=dtype)
    rewards = slopes.double().view(draws, -1).mean(0)
    return Rewards(rewards, cosine, len(chains) + len(images))


def policy_cosine(
    model: nn.Module,
    image: Tensor,
    label: Tensor,
    target: Params,
    policy: Policy,
    how: Sampling,
    n: int,
    seed: int,
) -> Tensor:
    """The cosine of v and the mean gradient of `n` draws of a whole policy; one for no layers."""
    images = augmented(image, policy, seed, n if policy.depth else 1)
    weights = torch.full((len(images),), 1 / len(images), device=image.device)
    g = mean_gradient(
        model, images, label.expand(len(images)), weights, chunk=how.chunk, dtype=how.dtype
    )
    return cosine_and_direction(target, g)[0]
