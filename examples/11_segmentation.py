"""Train a segmentation network of torchvision for a few steps, with masks that move as the images.

Usage: python examples/11_segmentation.py [POLICY]

The images are discs on a noisy ground, and the network starts from nothing, so that nothing is
downloaded.
"""

import sys

import torch
import torch.nn.functional as F
from torchvision import tv_tensors
from torchvision.models.segmentation import lraspp_mobilenet_v3_large

from deepaa import DeepAutoAugment

SIZE, IGNORED = 64, 255


def discs(n: int) -> tuple[torch.Tensor, tv_tensors.Mask]:
    """(n, 3, H, W) bytes with one bright disc each, and its mask (n, H, W)."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 80, (n, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
    centres = torch.randint(16, SIZE - 16, (2, n, 1, 1), generator=generator)
    places = torch.arange(SIZE)
    inside = (places - centres[0]) ** 2 + (places[:, None] - centres[1]) ** 2 < 12**2
    images = torch.where(inside[:, None], 255, images)
    return images.to(torch.uint8), tv_tensors.Mask(inside.to(torch.int64))


def main(policy: str) -> None:
    """Train on batches that are augmented as a whole, each image with a draw of its own."""
    torch.manual_seed(0)
    images, masks = discs(8)
    # pixels from outside of the image belong to no class
    augment = DeepAutoAugment(policy, seed=0, mask_fill=IGNORED)
    model = lraspp_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(3):
        augment.set_epoch(epoch)
        batch, target = augment(images, masks, index=torch.arange(len(images)))
        outside = (target == IGNORED).float().mean().item()
        out = model(batch.float() / 255)["out"]
        loss = F.cross_entropy(out, target.as_subclass(torch.Tensor), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}, loss {loss.item():.2f}, {outside:.0%} from outside")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "deepta")
