"""Find a policy for images of your own, with a network of your own, and go on after a stop.

Usage: python examples/04_search_your_dataset.py [FOLDER]

FOLDER holds a folder of images per class; without one, a part of CIFAR-10 that comes with the
package is searched. The settings are far too small to find a good policy, so that the example ends
soon: leave out `**QUICK` for a real search.
"""

import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

from deepaa import CIFAR, DeepAutoAugment, find_policy
from deepaa.search import LayerRecord
from deepaa.sources import load_dataset

QUICK = {"preset": "demo", "layers": 1, "steps": 20, "learning_rate": 0.5, "heldout": 16}


class Net(nn.Module):
    """Any module will do that takes bytes and gives logits."""

    def __init__(self, classes: int) -> None:
        """Two convolutions and a linear layer."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Conv2d(16, 32, 3, stride=2), nn.ReLU()
        )
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of uint8 (N, 3, H, W); it normalises by itself."""
        x = (images.float() - 125) / 60
        return self.head(self.body(x).mean((2, 3)))


def show(record: object) -> None:
    """Say something after every layer; records come after epochs and steps too."""
    if isinstance(record, LayerRecord):
        print(f"layer {record.layer}: held-out similarity {record.improvement_mean:+.4f}")


def main(source: str | None) -> None:
    """Search, search again in the same folder, and use the policy."""
    torch.manual_seed(0)
    data = load_dataset(source)
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        options = {
            "model": Net(len(data.class_names)),
            "pretrain": True,  # the network is new; leave it out for one that is trained
            "space": CIFAR.without("invert"),  # what would spoil your images
            "out": run,
            **QUICK,
        }
        policy = find_policy(data, progress=show, **options)
        # the same call goes on after a stop; here the run has ended, so its result comes at once
        again = find_policy(data, progress=show, **options)
        print(f"found {policy.depth} layer, the same again: {again.equals(policy)}")
        augment = DeepAutoAugment(run / "policy.json")
        print("augmented", tuple(augment(data.images[:8]).shape))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
