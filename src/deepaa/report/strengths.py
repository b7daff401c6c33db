"""The same images at several strengths of a policy, as many draws as a page has room for."""

from __future__ import annotations

import json
from typing import NamedTuple

import torch
from torch import Tensor

from deepaa.ops import apply_batch, sample_keys
from deepaa.policy import IDENTITY, Policy, weaker_draw
from deepaa.report.pictures import is_exact, small_url

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
MOST_DRAWS = 8
MAX_BYTES = 1_500_000
"""Of all pictures together, as text."""
AS_IT_IS = "as it is"
LINE, MOST_LINES = 17, 8
"""Letters of a caption in a line, and lines that are kept free for one."""


class Shot(NamedTuple):
    """One image at one strength in one draw."""

    picture: int
    """Its place among the pictures."""
    caption: str
    """What was done to it."""


class StrengthExamples(NamedTuple):
    """Every image in every draw at every strength."""

    pictures: tuple[str, ...]
    """Data addresses; equal pictures are there once."""
    draws: tuple[tuple[tuple[Shot, ...], ...], ...]
    """By draw, strength and image."""
    exact: bool
    """Whether the pictures have the pixels of the images."""

    @property
    def first(self) -> tuple[tuple[str, str], ...]:
        """Addresses and captions of the first draw of the policy as it is."""
        return tuple((self.pictures[shot.picture], shot.caption) for shot in self.draws[0][-1])

    @property
    def lines(self) -> int:
        """How many lines the page keeps free for captions, so that it does not jump."""
        longest = max(len(shot.caption) for draw in self.draws for row in draw for shot in row)
        return min(MOST_LINES, -(-longest // LINE))

    @property
    def data(self) -> str:
        """All of it as JSON that can stand in a script of a page."""
        content = {"strengths": STRENGTHS, "pictures": self.pictures, "draws": self.draws}
        return json.dumps(content, separators=(",", ":")).replace("<", "\\u003c")


def strength_examples(
    images: Tensor, policy: Policy, seed: int = 0, epoch: int = 0, draws: int = MOST_DRAWS
) -> StrengthExamples:
    """The images (N, 3, H, W) at `STRENGTHS`; fewer draws where pictures take many bytes.

    Draw d has the keys of a preview's row d: at full strength it shows the same.
    """
    pictures = _Pictures()
    found: list[tuple[tuple[Shot, ...], ...]] = []
    for draw in range(draws):
        keys = sample_keys(seed, epoch + draw, torch.arange(len(images)))
        found.append(tuple(_shots(images, policy, keys, s, epoch, pictures) for s in STRENGTHS))
        total = sum(map(len, pictures.urls))
        if total + total // len(found) > MAX_BYTES:  # another one would be too much
            break
    return StrengthExamples(tuple(pictures.urls), tuple(found), is_exact(images))


class _Pictures:
    """Pictures as text; those with equal pixels are made once."""

    def __init__(self) -> None:
        self.urls: list[str] = []
        self._places: dict[bytes, int] = {}

    def place(self, image: Tensor) -> int:
        place = self._places.setdefault(image.numpy().tobytes(), len(self.urls))
        if place == len(self.urls):
            self.urls.append(small_url(image))
        return place


def _shots(
    images: Tensor, policy: Policy, keys: Tensor, strength: float, epoch: int, pictures: _Pictures
) -> tuple[Shot, ...]:
    """The images of one draw at one strength."""
    drawn, table = weaker_draw(policy, keys, strength, epoch)
    found = []
    for image, rows in zip(apply_batch(images, drawn, table), drawn.choice.tolist(), strict=True):
        done = [str(row.transformation) for i in rows if (row := table.rows[i]) != IDENTITY]
        found.append(Shot(pictures.place(image), ", ".join(done) or AS_IT_IS))
    return tuple(found)
