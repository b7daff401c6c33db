"""Train a detector of torchvision for a few steps on images whose boxes move with them.

Usage: python examples/10_detection.py [POLICY]

The images are squares on a noisy ground; the detector has no weights, so nothing is downloaded.
"""

import sys

import torch
from torchvision import tv_tensors
from torchvision.models.detection import ssdlite320_mobilenet_v3_large
from torchvision.transforms import v2

from deepaa import AugmentedDataset, DeepAutoAugment

SIZE = 64


class Squares(torch.utils.data.Dataset):
    """Images with one bright square, and its box."""

    def __len__(self) -> int:
        """Four images."""
        return 4

    def __getitem__(self, index: int) -> tuple[tv_tensors.Image, dict[str, torch.Tensor]]:
        """Image `index` and its target."""
        generator = torch.Generator().manual_seed(index)
        image = torch.randint(0, 80, (3, SIZE, SIZE), dtype=torch.uint8, generator=generator)
        x, y = torch.randint(8, SIZE - 28, (2,), generator=generator).tolist()
        image[:, y : y + 20, x : x + 20] = 255
        box = torch.tensor([[x, y, x + 20, y + 20]], dtype=torch.float32)
        boxes = tv_tensors.BoundingBoxes(box, format="XYXY", canvas_size=(SIZE, SIZE))
        return tv_tensors.Image(image), {"boxes": boxes, "labels": torch.tensor([1])}


def main(policy: str) -> None:
    """Train, and show where a box went."""
    torch.manual_seed(0)
    # boxes that left the image have no size: this removes them with their labels
    then = v2.Compose([v2.SanitizeBoundingBoxes(), v2.ToDtype(torch.float32, scale=True)])
    data = AugmentedDataset(Squares(), DeepAutoAugment(policy, seed=0), then=then)
    print(f"box {Squares()[0][1]['boxes'].tolist()} -> {data[0][1]['boxes'].tolist()}")

    model = ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None, num_classes=2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005)
    for epoch in range(2):
        data.set_epoch(epoch)
        images, targets = zip(*(data[i] for i in range(len(data))), strict=True)
        loss = sum(model(list(images), list(targets)).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"epoch {epoch}, loss {loss.item():.2f}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "deepta")
