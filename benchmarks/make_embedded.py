"""How the images inside the package were made: 4,000 + 1,000 of CIFAR-10 as lossless WebP sheets.

    python benchmarks/make_embedded.py cifar10.npz [OUT]

`cifar10.npz` holds x_train, y_train, x_test and y_test (uint8, N x 32 x 32 x 3) in the official
order of Krizhevsky, "Learning Multiple Layers of Features from Tiny Images", 2009. Taken are the
first 400 training and the first 100 test images of each class. They are interleaved: image i has
class i % 10, so that the first n images are balanced for every n. A sheet holds 50 images a row.
Other orders (by class, contrast or detail) save less than half a percent.
"""

import argparse
import hashlib
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

COLUMNS = 50
CLASS_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
SOURCE = (
    "CIFAR-10: A. Krizhevsky, Learning Multiple Layers of Features from Tiny Images, 2009. "
    "The first images of each class in the official order; official_index counts from 0 in the "
    "50,000 training or 10,000 test images; sha256 is that of the pixels as uint8 (N, 32, 32, 3)."
)


def first_of_each_class(labels: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.int64]:
    """Places of the first `count` images of each class, classes taking turns."""
    places = [np.flatnonzero(labels == c)[:count] for c in range(len(CLASS_NAMES))]
    return np.stack(places, 1).ravel()


def write_sheet(images: npt.NDArray[np.uint8], path: Path) -> None:
    """(N, 32, 32, 3) as one lossless WebP image, row by row."""
    rows = images.reshape(-1, COLUMNS, 32, 32, 3).transpose(0, 2, 1, 3, 4)
    sheet = Image.fromarray(np.ascontiguousarray(rows.reshape(-1, COLUMNS * 32, 3)))
    sheet.save(path, lossless=True, quality=100, method=6, exact=True)
    with Image.open(path) as stored:
        assert np.array_equal(np.asarray(stored.convert("RGB")), np.asarray(sheet)), path


def main() -> None:
    """Write the sheets and cifar10.json."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("npz", type=Path)
    parser.add_argument("out", type=Path, nargs="?", default=Path("src/deepaa/data/cifar10"))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    content: dict[str, object] = {"source": SOURCE, "class_names": CLASS_NAMES}
    with np.load(args.npz) as data:
        for part, count in (("train", 400), ("test", 100)):
            labels = data[f"y_{part}"].ravel()
            places = first_of_each_class(labels, count)
            images = data[f"x_{part}"][places]
            write_sheet(images, args.out / f"cifar10_{part}.webp")
            content[part] = {
                "labels": labels[places].tolist(),
                "official_index": places.tolist(),
                "sha256": hashlib.sha256(images.tobytes()).hexdigest(),
            }
    (args.out / "cifar10.json").write_text(json.dumps(content) + "\n")
    for file in sorted(args.out.iterdir()):
        print(f"{file.stat().st_size:>10,}  {file}")


if __name__ == "__main__":
    main()
