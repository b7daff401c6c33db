"""Protection of classes: which operations turn images of one class into images of another.

A network that was trained without an operation sees held-out images under it. Where it calls half
of a class by the name of one other class, either the operation has changed the class, or the images
look like nothing that the network has seen. The mirror image of a picture is a picture like others:
there the network's word is enough. After any other operation the network is trained further with
those that are suspected, their images under their own labels. What was only strange it learns soon;
two classes that have become one it cannot tell apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor, nn

from deepaa.ops import Draw, Operation, Row, Table, apply_batch, draw_words, sample_keys
from deepaa.policy import Layers, Policy
from deepaa.search.left_out import (
    TURNED,
    Changed as Changed,
    Place,
    Protection as Protection,
    side_of,
)

LEAST_IMAGES, MOST_IMAGES = 40, 64
"""Held-out images of a class: with fewer it is not testable, more are not looked at."""
MOST_IN_ALL = 10_000
"""Of many classes fewer images each are looked at, if so few can be."""
LEAST_RIGHT = 0.5
"""A class is not testable if the network is right on fewer of its images."""
ERROR_RATE = 0.01
"""Of one false suspicion by chance in all tests of a search together."""
STRENGTHS = (1.0, 2 / 3, 1 / 3)
"""Where each side of an operation's range is tested first; a suspected side is tested in full."""
SAME_STRENGTH = 0.15
"""Magnitudes of two ranges of an operation that differ by this share at most are tested once."""
DRAWS = 4
"""An image that a draw has left as it was, as half of all flips do, is drawn again so often."""
BATCH = 256

Retrain = Callable[[Policy], nn.Module]
"""Gives the network after some more training with a policy."""


# What is tested


class Shares(NamedTuple):
    """What a network calls the images of C classes under R rows."""

    of: Tensor  # (R, C, C) of the class's images that are called each class
    images: Tensor  # (R, C) of each class that the row has changed
    mirrors: Tensor  # (R,) whether the row exchanges left and right and does nothing else

    @property
    def others(self) -> Tensor:
        """(R, C, C) the mean share of the classes beside both that are called the second."""
        count = (self.images > 0).sum(1)[:, None, None] - 2
        right = self.of.diagonal(dim1=1, dim2=2)[:, None]
        return (self.of.sum(1, keepdim=True) - self.of - right) / count.clamp(min=1)


def first_rows(rows: Iterable[Row]) -> list[Row]:
    """The rows to begin with: operations without magnitudes, and each side at three strengths.

    An operation that comes with several options is tested with the first of them; what other ranges
    of it add is tested too.
    """
    found: dict[Place, list[Row]] = {}
    for side in _sides(rows):
        kept = found.setdefault(_place(side[0]), [])
        for part in STRENGTHS:
            wanted = part * _strength(side[-1])
            _add(kept, min(side, key=lambda row: abs(_strength(row) - wanted)))
    return [row for kept in found.values() for row in kept]


def more_rows(rows: Iterable[Row], suspects: Sequence[Row]) -> list[Row]:
    """The suspects and the rows on their side, from half of their strength on; weak ones first."""
    found: dict[Place, list[Row]] = {}
    for row in suspects:
        found.setdefault(_place(row), []).append(row)
    least = {place: min(map(_strength, kept)) / 2 for place, kept in found.items()}
    for side in _sides(rows):
        place = _place(side[0])
        for row in reversed(side if place in found else []):
            if _strength(row) >= least[place]:
                _add(found[place], row)
    return sorted((row for kept in found.values() for row in kept), key=_strength)


def _sides(rows: Iterable[Row]) -> list[list[Row]]:
    """The rows that change something, by operation and side of neutral, weak ones first."""
    found: dict[tuple[Operation, Place], list[Row]] = {}
    for row in rows:
        is_neutral = row.magnitude is not None and row.magnitude == row.operation.neutral
        if row.operation.name != "identity" and not is_neutral:
            found.setdefault((row.operation, _place(row)), []).append(row)
    return [sorted(side, key=_strength) for side in found.values()]


def _place(row: Row) -> Place:
    return row.operation.name, side_of(row.magnitude, row.operation.neutral)


def _strength(row: Row) -> float:
    return 0.0 if row.magnitude is None else abs(row.magnitude - (row.operation.neutral or 0.0))


def _add(kept: list[Row], row: Row) -> None:
    """Add a row, unless one is there that is about as strong."""
    for other in kept:
        a, b = _strength(row), _strength(other)
        if abs(a - b) <= SAME_STRENGTH * max(a, b):
            return
    kept.append(row)


def class_sample(labels: Tensor, classes: int) -> Tensor:
    """Indices of the first images of each class, as many as are looked at."""
    most = max(LEAST_IMAGES, min(MOST_IMAGES, MOST_IN_ALL // classes))
    return torch.cat([(labels == c).nonzero()[:most, 0] for c in range(classes)])


def transformed(images: Tensor, row: Row, seed: int) -> tuple[Tensor, Tensor]:
    """Images (N, ...) under a row, and whether it has changed each of them, (N,)."""
    table, out = Table([row]), images
    choice = torch.zeros(len(images), 1, dtype=torch.int64, device=images.device)
    changed = torch.zeros(len(images), dtype=torch.bool, device=images.device)
    for draw in range(DRAWS if row.operation.uniforms else 1):
        keys = sample_keys(seed, draw, torch.arange(len(images), device=images.device))
        new = apply_batch(images, Draw(choice, draw_words(keys, 1, table.uniforms)[2]), table)
        out = torch.where(changed[:, None, None, None], out, new)
        changed = (out != images).flatten(1).any(1)
        if bool(changed.all()):
            break
    return out, changed


def called_shares(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    classes: int,
    rows: Sequence[Row],
    seed: int,
    before_row: Callable[[int], None] = lambda images: None,
) -> Shares:
    """What `model` calls the images under each row."""
    shares = torch.zeros(len(rows), classes, classes)
    counts = torch.zeros(len(rows), classes, dtype=torch.int64)
    mirrors = torch.zeros(len(rows), dtype=torch.bool)
    for r, row in enumerate(rows):
        before_row(len(images))
        out, changed = transformed(images, row, seed)
        if row.operation.name == "identity":
            changed = torch.ones_like(changed)
        called = predictions(model, out)[changed.cpu()]
        truth = labels[changed].cpu()
        table = torch.bincount(truth * classes + called, minlength=classes**2)
        table = table.view(classes, classes)
        counts[r] = table.sum(1)
        shares[r] = table / counts[r].clamp(min=1)[:, None]
        mirrors[r] = torch.equal(out[changed], images[changed].flip(3))
    return Shares(shares, counts, mirrors)


def predictions(model: nn.Module, images: Tensor) -> Tensor:
    """(N,) the class that the network calls each image, on the CPU."""
    was_training = model.training
    model.eval()
    with torch.no_grad():
        called = torch.cat([model(part).argmax(1) for part in torch.split(images, BATCH)]).cpu()
    model.train(was_training)
    return called


# What is found


def find_changed(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    class_names: Sequence[str],
    rows: Iterable[Row],
    retrain: Retrain,
    seed: int = 0,
    before_row: Callable[[int], None] = lambda images: None,
) -> Protection:
    """The operations that turn one class into another.

    Args:
        model: A network that was trained without any of the operations.
        images: uint8 (N, C, H, W) that it has not seen, on its device.
        labels: Their classes, (N,).
        rows: All that is to be tested: those of a space, and those of other policies.
        retrain: Gives a copy of the network after some more training with a policy.
        before_row: Is told how many images go through a network next, under one of the rows.
    """
    rows, classes, identity = list(rows), len(class_names), Row(Operation("identity"), None)
    chosen = class_sample(labels, classes).to(images.device)
    images, labels = images[chosen], labels.to(images.device)[chosen]
    clean = called_shares(model, images, labels, classes, [identity], seed, before_row)
    before = clean.of[0]
    testable = (clean.images[0] >= LEAST_IMAGES) & (before.diagonal() >= LEAST_RIGHT)
    names = zip(class_names, testable.tolist(), strict=True)
    untestable = tuple(name for name, is_known in names if not is_known)
    pairs = testable[:, None] & testable & ~torch.eye(classes, dtype=torch.bool)
    known = testable.to(labels.device)[labels]

    def measure(network: nn.Module, some: Sequence[Row]) -> Shares:
        some_images, truth = images[known], labels[known]
        return called_shares(network, some_images, truth, classes, some, seed, before_row)

    tested = first_rows(rows) if bool(pairs.any()) else []
    turned = suspicious(measure(model, tested), before, pairs)
    suspects = more_rows(rows, [tested[r] for r in _rows_of(turned)])
    shares = measure(model, suspects)
    turned = suspicious(shares, before, pairs)
    doubtful = [r for r in _rows_of(turned) if not shares.mirrors[r]]
    if doubtful:
        network = retrain(practice([suspects[r] for r in doubtful]))
        told = measure(network, [suspects[r] for r in doubtful])
        turned[doubtful] &= confused(told, measure(network, [identity]).of[0], before)
    return Protection(_weakest(suspects, turned, shares, before, class_names), untestable)


def suspicious(shares: Shares, before: Tensor, pairs: Tensor) -> Tensor:
    """(R, C, C) whether a row makes the network call half of a class by one other name.

    More often than without the row, and more often than the classes beside both: a distortion that
    makes everything look like one class turns no class into it. Both by so many standard errors
    that chance alone hardly ever does it in all tests together. For mirror images it is enough that
    half of the class is lost, most of that to the other: they are no pictures of the class.
    """
    base = torch.maximum(shares.others, before)
    mean, count = (shares.of + base) / 2, shares.images.clamp(min=1)[..., None]
    error = (2 * mean * (1 - mean) / count).sqrt()
    tests = max(1, len(shares.of) * int(pairs.sum()))
    clear = shares.of - base > NormalDist().inv_cdf(1 - ERROR_RATE / tests) * error
    lost = (before.diagonal() - shares.of.diagonal(dim1=1, dim2=2))[..., None] >= TURNED
    largest = shares.of == shares.of.masked_fill(~pairs, 0.0).amax(2, keepdim=True)
    mirrored = shares.mirrors[:, None, None] & lost & largest
    enough = shares.images[..., None] >= LEAST_IMAGES
    return ((shares.of >= TURNED) | mirrored) & clear & enough & pairs


def _rows_of(turned: Tensor) -> list[int]:
    found: list[int] = turned.flatten(1).any(1).nonzero()[:, 0].tolist()
    return found


def practice(rows: Sequence[Row]) -> Policy:
    """Half of the images as they are; the others under one of the operations at a magnitude."""
    table = Table([Row(Operation("identity"), None), *rows])
    names = [row.operation.name for row in rows]
    each = [1 / (2 * len(set(names)) * names.count(name)) for name in names]
    return Policy(table, Layers(torch.tensor([[0.5, *each]], dtype=torch.float64)))


def confused(told: Shares, clean: Tensor, before: Tensor) -> Tensor:
    """(R, C, C) whether a network that was told better still cannot tell two classes apart.

    Images of A that look like B in everything are called B as often as B's own are, whatever the
    network was told: the share of A that is called B and the share of B that is now called A are
    one together. `clean` (C, C) are the shares of its images as they are, `before` those of the
    network before.
    """
    taken = (clean - before).clamp(min=0).T
    return told.of - torch.maximum(told.others, before) + taken >= TURNED


def _weakest(
    rows: Sequence[Row], turned: Tensor, shares: Shares, before: Tensor, names: Sequence[str]
) -> tuple[Changed, ...]:
    """Each operation and pair of classes at the first, weakest row of a side where it happens."""
    found: dict[tuple[str, int, int, int], Changed] = {}
    for r, i, j in turned.nonzero().tolist():
        operation, magnitude = rows[r]
        changed = Changed(
            operation.name,
            magnitude,
            names[i],
            names[j],
            share=shares.of[r, i, j].item(),
            before=before[i, j].item(),
            images=int(shares.images[r, i]),
            neutral=operation.neutral,
        )
        found.setdefault((*_place(rows[r]), i, j), changed)
    return tuple(found.values())
