"""Find a policy for a folder of pictures, stop, go on, and use it.

Usage: python examples/03_search_an_image_folder.py [FOLDER]

FOLDER holds a folder of pictures per class; without one, some pictures of CIFAR-10 are written to a
temporary folder first. The settings are far too small to find a good policy, so that the example
ends soon: leave out `**QUICK` for a real search.
"""

import sys
import tempfile
from pathlib import Path

from PIL import Image

from deepaa import CIFAR, DeepAutoAugment, find_policy
from deepaa.data import load_embedded
from deepaa.search import LayerRecord

QUICK = {"preset": "demo", "layers": 1, "steps": 8, "learning_rate": 1.2, "images": 2, "heldout": 8}
QUICK |= {"contest": False}  # the search alone: nothing is proved


def write_pictures(folder: Path, each: int = 30) -> Path:
    """A folder per class with some pictures in it."""
    data = load_embedded()  # classes take turns
    for i in range(10 * each):
        path = folder / data.class_names[data.train_labels[i]] / f"{i:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.train_images[i].permute(1, 2, 0).numpy()).save(path)
    return folder


def show(record: object) -> None:
    """Say something after every layer; records come after epochs and steps too."""
    if isinstance(record, LayerRecord):
        print(f"layer {record.layer}: held-out similarity {record.improvement_mean:+.4f}")


def main(source: str | None) -> None:
    """Search, search again in the same run folder, and use the policy."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = source or write_pictures(Path(temporary) / "pictures")
        run = Path(temporary) / "run"
        space = CIFAR.without("invert")  # leave out what would spoil your pictures
        policy = find_policy(folder, space=space, out=run, progress=show, **QUICK)
        # the same call goes on after a stop; here the run has ended, so its result comes at once
        again = find_policy(folder, space=space, out=run, **QUICK)
        print(f"found {policy.depth} layer, the same again: {again.equals(policy)}")
        augment = DeepAutoAugment(run / "policy.json")
        image = Image.open(next(Path(folder).glob("*/*")))
        print("augmented", augment(image.convert("RGB")))


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
