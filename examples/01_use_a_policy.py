"""Augment PIL images in a torchvision pipeline, and one numpy array.

Usage: python examples/01_use_a_policy.py [POLICY]

POLICY is the name of a policy (`deepaa policies` lists them) or the path of a policy file. The
images are from the part of CIFAR-10 that comes with the package, so nothing is downloaded.
"""

import sys

import numpy as np
import torch
from PIL import Image
from torchvision.transforms import v2

from deepaa import DeepAutoAugment
from deepaa.data import load_embedded


def main(policy: str) -> None:
    """Show what goes in and what comes out."""
    data = load_embedded()
    image = Image.fromarray(data.train_images[0].permute(1, 2, 0).numpy())
    label = data.class_names[data.train_labels[0]]

    # 1. In a pipeline. The policy works on 8-bit pixels, so it comes before normalisation.
    pipeline = v2.Compose(
        [
            DeepAutoAugment(policy),
            v2.ToImage(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean=[0.4914, 0.4822, 0.4465], std=[0.2023, 0.1994, 0.2010]),
        ]
    )
    tensor = pipeline(image)
    print(f"PIL image {image.size} -> tensor {tuple(tensor.shape)}, mean {tensor.mean():+.2f}")

    # Labels and everything else in a sample come back as they were.
    tensor, same_label = pipeline(image, label)
    print(f"(image, {label!r}) -> (tensor, {same_label!r})")

    # 2. By itself, on a numpy array: height, width, channels; uint8 in, uint8 out.
    augment = DeepAutoAugment(policy)
    pixels = np.array(image)
    print(augment)
    for draw in range(4):
        augmented = augment(pixels)
        change = np.abs(augmented.astype(int) - pixels).mean()
        print(f"draw {draw}: {augmented.dtype} {augmented.shape}, changed by {change:.0f} of 255")

    # 3. With a seed and the image's number, the same draw every time.
    seeded = DeepAutoAugment(policy, seed=0)
    assert np.array_equal(seeded(pixels, index=0), seeded(pixels, index=0))
    print("seed 0, index 0: twice the same pixels")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "uniform")
