"""Augment whole batches on the device that trains: augment, normalise, feed a model.

Usage: python examples/02_gpu_batches.py [POLICY]

Every image of a batch has its own draw. There is no DataLoader and no worker process: the images
stay on the device as bytes. Runs on a GPU if there is one, and on the CPU otherwise, with the
same augmented pixels.
"""

import sys
import time

import torch
from torch import nn

from deepaa import DeepAutoAugment
from deepaa.data import load_embedded
from deepaa.models import build_model


def main(policy: str) -> None:
    """Train a small network for a few epochs."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = load_embedded()
    images, labels = data.train_images.to(device), data.train_labels.to(device)

    augment = DeepAutoAugment(policy, seed=0)
    # takes bytes: it normalises in its first layer, where it cannot be forgotten
    model = build_model("small", 10).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    for epoch in range(2):
        augment.set_epoch(epoch)  # other draws in each epoch
        start = time.perf_counter()
        total = 0.0
        for index in torch.randperm(len(images)).split(200):
            # the index makes the draw of an image independent of the order of the batches
            batch = augment(images[index.to(device)], index=index)
            loss = nn.functional.cross_entropy(model(batch), labels[index.to(device)])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.item() * len(index)
        seconds = time.perf_counter() - start
        print(f"{device}: epoch {epoch}, loss {total / len(images):.3f}, {seconds:.1f} s")

    # For validation, leave the transform out: it augments in eval() mode too.
    model.eval()
    with torch.no_grad():
        guesses = model(data.test_images.to(device)).argmax(1).cpu()
    accuracy = (guesses == data.test_labels).float().mean().item()
    print(f"accuracy on {len(guesses)} test images: {accuracy:.1%}")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "uniform")
