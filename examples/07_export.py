"""Export a policy as a torchvision pipeline that does not need this package, and use it.

Usage: python examples/07_export.py [POLICY]

`deepaa convert POLICY FILE --to torchvision` does the same; kornia and albumentations are the
other choices. docs/export.md says where their pixels differ.
"""

import importlib.util
import sys
import tempfile
from pathlib import Path
from types import ModuleType

import numpy as np
import torch
from PIL import Image

from deepaa import load_policy
from deepaa.data import load_embedded
from deepaa.export import export_policy


def imported(path: Path) -> ModuleType:
    """The file as a module; in your project you would simply import it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main(name: str) -> None:
    """Write the file, read it back and draw from it."""
    torch.manual_seed(0)
    pixels = load_embedded().train_images[0].permute(1, 2, 0).numpy()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy_tv.py"
        done = export_policy(load_policy(name), path, "torchvision", name=name)
        print(f"wrote {path.name}: {done.layers} layers, {done.rows} transformations")
        print(f"left out {done.left_out} with a probability of at most 0.0001")
        assert "import deepaa" not in path.read_text()

        augment = imported(path).augment
        for draw in range(3):
            change = np.abs(np.array(augment(Image.fromarray(pixels))).astype(int) - pixels).mean()
            print(f"draw {draw}: changed by {change:.0f} of 255")
    print("the pipeline draws by itself")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "deepta:3")
