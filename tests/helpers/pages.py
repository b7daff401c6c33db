"""The pages of the documentation: their code, and the small world in which it is run.

`python tests/helpers/pages.py PAGE` runs the Python of a page, block after block in one namespace,
in the current folder. It is a program of its own because pages change presets, folders and imports.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "RELEASING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "benchmarks/README.md",
]
PROGRAMS = ("deepaa", "torchrun", "make", "pip", "python")
"""What a block of commands may begin with."""
LIBRARIES = ("timm", "lightning", "datasets", "transformers", "ultralytics", "keras", "nvidia.dali")
OPTIONAL = (*LIBRARIES, "albumentations", "kornia", "matplotlib", "jinja2")
"""Packages that a block may need and a machine may lack."""
TINY = {"layers": 1, "steps": 2, "learning_rate": 4.0, "images": 2, "validation": 4, "prefixes": 1}
TINY |= {"chains": 4, "heldout": 4}
"""Settings of a search that ends in seconds."""


class Block(NamedTuple):
    """A fenced block."""

    line: int
    language: str
    code: str


def blocks(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    text = page.read_text(encoding="utf-8")
    found = re.finditer(r"^```(\w*)\n(.*?)^```$", text, re.S | re.M)
    return [Block(text.count("\n", 0, m.start()) + 2, m[1], m[2]) for m in found]


def is_commands(block: Block) -> bool:
    """Whether a block is to be typed into a shell; one without a language says so by its start."""
    first = block.code.split(maxsplit=1)[0] if block.code.strip() else ""
    return block.language in ("console", "bash", "sh") or (not block.language and first in PROGRAMS)


def commands(page: Path) -> list[tuple[int, list[str]]]:
    """The commands of a page as words, each with its line."""
    found = []
    for block in filter(is_commands, blocks(page)):
        code = block.code.replace("\\\n", "  ")
        for number, line in enumerate(code.split("\n"), block.line):
            if words := shlex.split(line.removeprefix("$ "), comments=True):
                found.append((number, words))
    return found


# The small world: every file that a page speaks of


def make_world(folder: Path) -> None:
    """Pictures, policies and a run under the names that the pages use."""
    import numpy as np

    from deepaa import CIFAR, Policy
    from deepaa.cli.app import run
    from tests.policy.test_foreign import authors, line, some_numbers

    for name in ("my_images", "photos"):
        _write_pictures(folder / name)
    names = sorted(path.relative_to(folder) for path in (folder / "my_images").glob("*/*.png"))
    rows = "".join(f"{name},{name.parent.name}\n" for name in names)
    (folder / "labels.csv").write_text(f"path,species\n{rows}")
    rows = "".join(f"{name},{name.parent.name},train,{k}\n" for k, name in enumerate(names))
    (folder / "birds.csv").write_text(f"photo,species,fold,nest\n{rows}")
    pictures = np.random.default_rng(0).integers(0, 256, (60, 16, 16), np.uint8)
    np.savez(folder / "digits.npz", x=pictures, y=np.arange(60) % 10)
    np.savez(folder / "policy.npz", **authors())
    sub_policies = [[["Rotate", 0.5, 0.9], ["Invert", 0.1, 0.4]]]
    (folder / "fast_autoaugment.json").write_text(json.dumps(sub_policies))
    numbers = some_numbers(0), some_numbers(1)
    (folder / "pba.txt").write_text(line("0", "1", 40, *numbers) + "\n")
    images = ["--data", str(folder / "my_images"), "--device", "cpu"]
    for name in ("found", "trained/a", "trained/b"):  # a search in one page, a training in another
        train = ["train", "--policy", "deepta:2", "--model", "small", "--epochs", "1", *images]
        assert run([*train, "--out", str(folder / name)]) == 0
    own = "found", "found_official", "found_paper", "found_imagenet", "found6", "out/demo", "."
    for name in own:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for file in ("policy.json", "found.json"):
            Policy.trivial(CIFAR, 3).save(folder / name / file)
    Policy.trivial(CIFAR, 2).save(folder / "other.json")
    tiny = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    search = ["search", "--preset", "demo", *tiny, "--epochs", "1", "--contest", "off", *images]
    assert run([*search, "--out", str(folder / "run")]) == 0


def _write_pictures(folder: Path) -> None:
    from PIL import Image

    from deepaa.data.embedded import load_embedded

    data = load_embedded()
    rows = ["file,group\n"]
    for i in range(120):
        path = folder / data.class_names[i % 10] / f"scene{i // 20}_{i:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(data.train_images[i].permute(1, 2, 0).numpy()).save(path)
        rows.append(f"{path.relative_to(folder)},{i // 20}\n")
    (folder / "groups.csv").write_text("".join(rows))


# Running the Python of a page


def is_installed(name: str) -> bool:
    """Whether a package can be imported; it is not."""
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # the package around it
        return False


def needs(code: str) -> str | None:
    """What a block needs that is not here, if anything."""
    for name in OPTIONAL:
        wanted = re.search(rf"^\s*(import|from) {name}\b", code, re.M)
        if wanted and not is_installed(name):
            return f"the package {name}"
    if '"cuda")' in code or 'device="cuda"' in code:
        import torch

        if not torch.cuda.is_available():
            return "a CUDA device"
    return None


def names_for_pages() -> dict[str, Any]:
    """What the pages take for granted: some images, a data set, a network."""
    import torch
    from PIL import Image
    from torch.utils.data import TensorDataset
    from torchvision.transforms import v2

    import deepaa
    from deepaa.data.embedded import load_embedded
    from deepaa.models import build_model

    data = load_embedded()
    images, labels = data.train_images[:120], data.train_labels[:120]
    names: dict[str, Any] = {"images": images, "labels": labels, "torch": torch, "v2": v2}
    names["dataset"] = TensorDataset(images, labels)
    names["groups"] = [f"scene {i // 20}" for i in range(120)]
    names["pil_image"] = Image.fromarray(images[0].permute(1, 2, 0).numpy())
    names["net"] = build_model("small", 10)
    names |= {"mean": [0.5] * 3, "std": [0.25] * 3, "epochs": 2}
    names["DeepAutoAugment"] = deepaa.DeepAutoAugment
    names["AugmentedDataset"] = deepaa.AugmentedDataset
    names["DataLoader"] = torch.utils.data.DataLoader
    return names


def make_presets_tiny() -> None:
    """Have a search of the default preset end in seconds: the code of a page is not for tests."""
    from dataclasses import replace

    from deepaa.search import PRESETS
    from deepaa.search.contest import plan

    plan.PASSES["cpu"], plan.TARGET_EPOCHS, plan.TARGET_PASSES = 30_000, 2, 1
    for name, preset in dict(PRESETS).items():
        train = replace(preset.proxy.train, epochs=1)
        PRESETS[name] = preset._replace(
            search=replace(preset.search, **TINY),
            proxy=replace(preset.proxy, model="small", least_passes=0, train=train),
        )


def stay_here() -> None:
    """Have other libraries write into this folder, and ask no server."""
    here = str(Path.cwd())
    os.environ |= {"YOLO_CONFIG_DIR": here, "YOLO_OFFLINE": "true", "YOLO_AUTOINSTALL": "false"}
    os.environ |= {"KERAS_HOME": here, "HF_HOME": here, "HF_HUB_OFFLINE": "1"}


def run_page(page: Path) -> None:
    """Run all Python of a page; a block that cannot run here is named and left out.

    So are those behind it in its section, which build on it.
    """
    make_presets_tiny()
    stay_here()
    names, lines = names_for_pages(), page.read_text(encoding="utf-8").split("\n")
    without: dict[int, str] = {}
    for block in blocks(page):
        if block.language != "python":
            continue
        section = sum(line.startswith("## ") for line in lines[: block.line])
        if (missing := needs(block.code) or without.get(section)) is not None:
            without[section] = missing
            sys.stdout.write(f"left out: {page.name}, line {block.line} needs {missing}\n")
            continue
        # empty lines in front, so that a traceback has the line of the page
        code = compile("\n" * (block.line - 1) + block.code, str(page), "exec")
        exec(code, names)


if __name__ == "__main__":
    run_page(Path(sys.argv[1]))
