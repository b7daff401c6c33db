"""Find a policy with a network of your own: first to be trained, then already trained.

Usage: python examples/05_own_model.py

The settings are far too small to find a good policy, so that the example ends soon: leave out
`**QUICK` for a real search.
"""

import torch
from torch import Tensor, nn

from deepaa import find_policy
from deepaa.data import load_embedded

QUICK = {"preset": "demo", "layers": 1, "steps": 8, "learning_rate": 1.2, "images": 3, "heldout": 8}
QUICK |= {"contest": False}  # the search alone: nothing is proved


class Net(nn.Module):
    """Any module will do that takes bytes and gives logits."""

    def __init__(self, classes: int) -> None:
        """Two convolutions, batch norm, and a linear layer."""
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2),
            nn.ReLU(),
        )
        self.head = nn.Linear(32, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of uint8 (N, 3, H, W); it normalises by itself."""
        return self.head(self.body((images.float() - 125) / 60).mean((2, 3)))


def main() -> None:
    """Search twice."""
    torch.manual_seed(0)
    data = load_embedded()
    images, labels = data.train_images[:600], data.train_labels[:600]

    net = Net(classes=10)
    before = net.head.weight.clone()
    policy = find_policy((images, labels), model=net, pretrain=True, **QUICK)
    print(f"trained first: {policy}")

    # A network that is trained already: all images are left for the search. Images that it was
    # trained on have small gradients; give others if you have them.
    policy = find_policy((images, labels), model=net, **QUICK)
    print(f"as it is: {policy}")
    print(f"your network was copied, not changed: {torch.equal(net.head.weight, before)}")


if __name__ == "__main__":
    main()
