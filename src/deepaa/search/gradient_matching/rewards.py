"""The reward of every transformation for some images (Eq. 9), and its variance (Eq. 10).

It takes three steps: `layer_inputs` augments the images of a minibatch, `match_gradients` sends
them through the network, and `Rewards.of` sums up what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.ops import Draw, apply_batch, draw_words, hash_int, sample_key, to_device
from deepaa.policy import Layers, Policy, thresholds
from deepaa.search.gradient_matching.config import SearchConfig
from deepaa.search.gradient_matching.gradients import (
    Derivatives,
    cosine_and_direction,
    even_weights,
)
from deepaa.search.gradient_matching.minibatch import Minibatch


class NetworkInputs(NamedTuple):
    """Everything that goes through the network for G images."""

    originals: Tensor  # (G, V, C, H, W): v is their mean gradient
    original_labels: Tensor  # (G, V)
    chains: Tensor  # (G, P, M, C, H, W): each of P parts gives an estimate of g
    weights: Tensor  # (M,) of the images of a part
    candidates: Tensor  # (G, S, C, H, W): inner products of their gradients are taken; S may be 0
    labels: Tensor  # (G,) of chains and candidates

    @property
    def passes(self) -> int:
        """Images through the network for each of the G."""
        chains = self.chains.shape[1] * self.chains.shape[2]
        return self.originals.shape[1] + chains + self.candidates.shape[1]


def match_gradients(
    derivatives: Derivatives, inputs: NetworkInputs, i: int, *, normalise: bool
) -> tuple[Tensor, Tensor]:
    """For image `i`, the cosine of v and g, and the candidates' inner products (S,) of Eq. 9."""
    label, candidates = inputs.labels[i], inputs.candidates[i]
    v = derivatives.mean_gradient(inputs.originals[i], inputs.original_labels[i])
    labels = label.expand(len(inputs.weights)).contiguous()
    g = [derivatives.mean_gradient(part, labels, inputs.weights) for part in inputs.chains[i]]
    cosine, direction = cosine_and_direction(v, *g, normalise=normalise)
    labels = label.expand(len(candidates)).contiguous()
    return cosine, derivatives.loss_jvp(candidates, labels, direction)


# Augmented images


def layer_inputs(
    minibatch: Minibatch,
    prefix: Policy,
    probabilities: Tensor,
    config: SearchConfig,
    seeds: Sequence[int],
    rows: Tensor | None = None,
) -> NetworkInputs:
    """The images of one step of a layer.

    The first layer is no special case: the empty prefix makes its mean gradient exact (Eq. 3).

    Args:
        prefix: The layers found so far, over the table that `probabilities` (T,) indexes.
        seeds: One for each image.
        rows: (R,) the rows that are rewarded, each under the more draws the fewer they are; None
            for all.
    """
    first, total = not prefix.depth, len(prefix.table)
    rows = torch.arange(total) if rows is None else rows
    draws = 1 if first else config.prefix_draws(total, len(rows))
    candidates = all_transformations(minibatch.images, prefix, seeds, draws, rows)
    if len(rows) == total and (first or not config.chains):  # the mean over the layer is exact
        chains, share = candidates[:, None], (probabilities / draws).repeat(draws)
        weights = to_device(share.to(torch.float32), candidates.device)
    else:
        n, halves = config.chains or total, config.halves and config.chains > 0
        strata = (n // 2 if halves else n) if config.stratified else 0
        drawn = sampled_chains(minibatch.images, prefix, probabilities, seeds, n, strata=strata)
        chains = _in_parts(drawn, halves)
        weights = even_weights(chains[0, 0])
    return _inputs(minibatch, chains=chains, weights=weights, candidates=candidates)


def policy_inputs(
    minibatch: Minibatch, policy: Policy, n: int, seeds: Sequence[int], *, halves: bool
) -> NetworkInputs:
    """`n` draws of a whole policy for the mean gradient, without candidates."""
    drawn = augmented(minibatch.images, policy, seeds, n)
    chains = _in_parts(drawn, halves)
    weights = even_weights(chains[0, 0])
    return _inputs(minibatch, chains=chains, weights=weights, candidates=drawn[:, :0])


def _inputs(minibatch: Minibatch, **parts: Tensor) -> NetworkInputs:
    return NetworkInputs(
        originals=minibatch.originals,
        original_labels=minibatch.original_labels,
        labels=minibatch.labels,
        **parts,
    )


def _in_parts(chains: Tensor, halves: bool) -> Tensor:
    """(G, P, n / P, C, H, W) of (G, n, C, H, W): two halves, or one part."""
    return torch.unflatten(chains, 1, (2 if halves else 1, -1))


def all_transformations(
    images: Tensor, prefix: Policy, seeds: Sequence[int], draws: int, rows: Tensor
) -> Tensor:
    """(G, draws x R, C, H, W): draws of the prefix, each under R rows of the table (Eq. 7).

    Args:
        images: (G, C, H, W), with one seed each.
        rows: (R,) which rows.
    """
    table, device = prefix.table, images.device
    first = augmented(images, prefix, seeds, draws).flatten(0, 1)
    choice = to_device(rows, device).repeat(len(first))[:, None]
    uniform = draw_words(_keys(seeds, 1, draws * len(rows), device), 1, table.uniforms)[2]
    out = apply_batch(first.repeat_interleave(len(rows), 0), Draw(choice, uniform), table)
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

    Args:
        strata: So many chains in a row are spread evenly over the distribution; 0 for none.
    """
    table, device = prefix.table, images.device
    first = augmented(images, prefix, [hash_int(seed, 2) for seed in seeds], n).flatten(0, 1)
    keys = _keys(seeds, 3, n, device)
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


def _keys(seeds: Sequence[int], purpose: int, n: int, device: torch.device) -> Tensor:
    """(G x n,) keys: `n` for each seed, which depend on the seed and the purpose alone."""
    firsts = torch.tensor([sample_key(seed, purpose, 0) for seed in seeds])
    return (to_device(firsts, device)[:, None] + torch.arange(n, device=device)).flatten()


# Rewards


class Rewards(NamedTuple):
    """Rewards of R transformations for each of G images."""

    mean: Tensor  # (G, R) over the prefix's draws
    relative: Tensor  # (G, R) the same, less the mean under the layer's distribution
    spread: Tensor  # (G, R) variance of one draw's reward
    noise: Tensor  # (G, R) variance of `relative` that is left by the draws

    @classmethod
    def of(cls, products: Tensor, probabilities: Tensor) -> Rewards:
        """The rewards in inner products (G, draws x R) of Eq. 9.

        The mean of the rewards under the layer's own distribution is zero, because Eq. 9's
        direction is orthogonal to the layer's gradient. What a sample shows of it is noise that all
        transformations share, a baseline that `relative` is without.

        Args:
            probabilities: (R,) the layer's, of the rewarded rows.
        """
        each = torch.unflatten(products.double(), 1, (-1, len(probabilities)))
        relative = each - (each @ (probabilities / probabilities.sum()))[..., None]
        draws = each.shape[1]
        if draws == 1:
            zeros = torch.zeros_like(each[:, 0])
            return cls(each[:, 0], relative[:, 0], spread=zeros, noise=zeros)
        noise = relative.var(1) / draws
        return cls(each.mean(1), relative.mean(1), spread=each.var(1), noise=noise)

    def variance(self, draws: int | None) -> Tensor:
        """(R,) the variance over images whose root Eq. 10 takes.

        It is the sum of the variance between images and the noise of the draws behind each image's
        reward, which is most of it. Given `draws`, it is the variance that so many draws would
        show: both parts are estimated apart, whatever number is at hand. With few images the sum
        may then be below zero; clamped here, its mean over steps would be too high.
        """
        if draws is None or len(self.mean) < 2 or not bool(self.spread.any()):
            return self.mean.var(0, correction=0)
        between = self.relative.var(0) - self.noise.mean(0)
        return between + self.spread.mean(0) / draws
