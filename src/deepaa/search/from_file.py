"""Networks whose weights are in a file, and what a search with them has to do first."""

from __future__ import annotations

from pathlib import Path

from torch import nn

from deepaa.data import LabelledImages
from deepaa.models import load_model, load_weights
from deepaa.search.settings import Settings

Sizes = tuple[int, int, int]


def read_network(
    settings: Settings, images: LabelledImages, weights: str | Path
) -> tuple[nn.Module, bool]:
    """The named network with the weights of a file, and whether its last layer is new."""
    assert settings.proxy.model is not None
    classes, seed = len(images.class_names), settings.search.seed
    network = load_model(settings.proxy.model, images.images, classes, seed)
    return network, load_weights(network, weights, new_head=True)


def check_pretraining(weights: str | Path | None, splits: Sizes | None) -> None:
    """Refuse splits without images for a new last layer, which knows nothing yet."""
    if splits is not None and not splits[0]:
        raise ValueError(
            f"{weights}: its last layer is for other classes, so a new one is trained: the first "
            f"number of --splits should be above 0, got {','.join(map(str, splits))}"
        )
