"""Add an operation of your own, let a search choose from it, and load the policy again.

Usage: python examples/04_own_operation.py

The settings are far too small to find a good policy, so that the example ends soon.
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor

from deepaa import CIFAR, DeepAutoAugment, Operation, find_policy, load_policy
from deepaa.data import load_embedded

QUICK = {"preset": "demo", "layers": 1, "steps": 8, "learning_rate": 1.2, "images": 3, "heldout": 8}
QUICK |= {"contest": False}  # the search alone: nothing is proved


def fog(images: Tensor, magnitudes: Tensor, uniforms: Tensor, *, grey: int) -> Tensor:
    """Blend each image with grey, more towards one side, which is drawn.

    Args:
        images: uint8 (N, C, H, W); never written to.
        magnitudes: (N,), one for each image.
        uniforms: (N, 1) random numbers in [0, 1), as many as the operation asks for.
    """
    ramp = torch.linspace(0, 1, images.shape[-1], device=images.device)
    ramp = torch.where(uniforms[:, :1] < 0.5, ramp, ramp.flip(0))  # (N, W)
    share = (magnitudes[:, None] * ramp).view(len(images), 1, 1, -1)
    mixed = images * (1 - share) + grey * share
    return mixed.round().clamp(0, 255).to(torch.uint8)


FOG = Operation("fog", 0.0, 0.9, neutral=0.0, options={"grey": 200}, uniforms=1, batched=fog)


def main() -> None:
    """Search in a space with fog in it."""
    data = load_embedded()
    images, labels = data.train_images[:400], data.train_labels[:400]
    space = CIFAR.only("identity", "rotate", "flip", "cutout").plus(FOG)
    print(f"{len(space)} transformations, {len(FOG.magnitudes(space.levels))} of them fog")
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        policy = find_policy((images, labels), space=space, out=run, **QUICK)
        for name, uses in policy.expected_uses().items():
            print(f"  {name:9} {uses:6.1%} of the images")

        # The file holds fog's name, range and options. Its code is yours to give.
        again = load_policy(run / "policy.json", operations=[FOG])
        augment = DeepAutoAugment(run / "policy.json", operations=[FOG])
        print(f"loaded: {again.equals(policy)}, augmented {tuple(augment(images[:8]).shape)}")


if __name__ == "__main__":
    main()
