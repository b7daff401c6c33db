"""Exports: what is kept, how often it is drawn, what its pixels are, and what is refused."""

from __future__ import annotations

import ast
import importlib.util
import math
import re
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
import torch
from export_pixels import WAYS, measure
from frequencies import check_counts
from pictures import noise
from PIL import Image

from deepaa import CIFAR, IMAGENET, Operation, Policy, load_policy
from deepaa.export import TARGETS, export_policy, pipeline_source
from deepaa.export.shared import LEAST, MEASURED, VERSIONS, WITHOUT_SIZE, kept_rows
from deepaa.ops.conversions import tensor_to_pil
from deepaa.ops.kernels_pil import KERNELS
from deepaa.ops.space import Row, Space
from deepaa.policy.policy import Layers

DRAWS = 100_000
DOCS = Path(__file__).parents[2] / "docs" / "export.md"
RANDOM = ("flip", "cutout", "crop", "resized_crop")


def uneven(space: Space = CIFAR, layers: int = 2) -> Policy:
    """Every transformation, with probabilities from far below the limit to a fifth."""
    generator = torch.Generator().manual_seed(3)
    logits = 2.5 * torch.randn(layers, len(space), generator=generator, dtype=torch.float64)
    return Policy(space, logits.softmax(1))


def loaded(target: str, policy: Policy, folder: Path, size: int | None = None) -> ModuleType:
    """The exported file as a module."""
    if target != "torchvision":
        pytest.importorskip(target)
    path = folder / f"pipeline_{target}.py"
    export_policy(policy, path, target, size=size)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# What is kept


def test_rows_above_the_limit_are_kept_and_sum_to_one() -> None:
    space = CIFAR.only("identity", "invert", "flip", "equalize")
    layer = [0.5, 0.4998, 1e-4, 1e-4]  # identity, invert, equalize, flip
    kept = kept_rows(Policy(space, torch.tensor([layer], dtype=torch.float64)), "mine")
    assert [[(row.operation.name, p) for row, p in rows] for rows in kept.layers] == [
        [("identity", 0.5 / 0.9998), ("invert", 0.4998 / 0.9998)]
    ]
    assert kept.left_out == 2
    assert kept.lost == pytest.approx(2e-4)
    assert kept.operations == ("identity", "invert")


def test_every_row_above_the_limit_of_a_full_policy_is_kept() -> None:
    policy = uneven(layers=4)
    kept = kept_rows(policy, "mine")
    rows = policy.row_probabilities()
    assert 0 < kept.left_out == int((rows <= LEAST).sum())
    for layer, probabilities in zip(kept.layers, rows.tolist(), strict=True):
        wanted = [r for r, p in zip(CIFAR.table.rows, probabilities, strict=True) if p > LEAST]
        assert [row for row, _ in layer] == wanted
        assert math.fsum(p for _, p in layer) == pytest.approx(1, abs=1e-12)


OWN = Operation("fade", 0.0, 1.0, pil=lambda image, m, u: image)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (load_policy("autoaugment"), "mine has sub-policies"),
        (
            Policy(CIFAR, schedule=[(e, [Layers(torch.eye(139)[:1])]) for e in (0, 3)]),
            "mine changes over the epochs",
        ),
        (Policy(CIFAR, torch.zeros(0, 139)), "mine has no layers"),
        (Policy.trivial(CIFAR.plus(OWN), 1), "fade is an operation of your own"),
        (
            Policy.uniform(Space((Operation("color", -1.0, 1.0, neutral=1.0),)), 1),
            "color -1 cannot be exported; factors should be at least 0",
        ),
        (Policy.uniform(Space((Operation("rotate", -9.0, 9.0),), 10_001), 1), "no transformation"),
    ],
)
def test_what_cannot_be_exported_is_refused_in_one_line(policy: Policy, message: str) -> None:
    with pytest.raises(ValueError, match=message) as error:
        pipeline_source(policy, "torchvision", name="mine")
    assert "\n" not in str(error.value)


def test_bad_places_and_targets(tmp_path: Path) -> None:
    policy = load_policy("deepta")
    with pytest.raises(ValueError, match="'imgaug'; choose from albumentations, kornia"):
        export_policy(policy, tmp_path / "a.py", "imgaug")
    with pytest.raises(ValueError, match=r"written as \.py$"):
        export_policy(policy, tmp_path / "a.json", "kornia")
    with pytest.raises(ValueError, match="does not exist"):
        export_policy(policy, tmp_path / "no" / "a.py", "kornia")
    with pytest.raises(ValueError, match="needs the size of the images"):
        export_policy(load_policy("deepta-imagenet"), tmp_path / "a.py", "albumentations")
    assert not list(tmp_path.iterdir())


def test_a_missing_library_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "albumentations", None)
    with pytest.raises(ValueError, match="albumentations cannot be imported"):
        export_policy(load_policy("deepta"), tmp_path / "a.json", "albumentations")
    export_policy(load_policy("deepta"), tmp_path / "a.py", "albumentations")  # needs no library


# The file


@pytest.mark.parametrize("target", TARGETS)
def test_the_file_needs_no_deepaa_and_says_what_differs(target: str, tmp_path: Path) -> None:
    text = pipeline_source(uneven(), target, name='odd "name" \\.json', size=32)
    tree = ast.parse(text)
    names = {
        name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in [getattr(node, "module", None), *(alias.name for alias in node.names)]
    }
    assert not any(name and name.startswith("deepaa") for name in names)
    head = ast.get_docstring(tree) or ""
    assert head.startswith(f"Augmentation policy odd name .json for {target}")
    assert "left out" in head
    for name in {op.name for op in CIFAR.operations} - set(MEASURED[target]):
        assert re.search(rf"^- equal: [^-]*\b{name}\b", head, re.MULTILINE)
    for name in set(MEASURED[target]) - {"resized_crop"}:
        assert re.search(rf"^- {name}\b", head, re.MULTILINE)


USES = {
    "albumentations": "out = augment(image=np.zeros((32, 32, 3), np.uint8) + 9)['image']",
    "kornia": "out = augment(torch.rand(7, 3, 32, 32))[0].permute(1, 2, 0)",
    "torchvision": "out, label = augment(Image.new('RGB', (32, 32)), 5); assert label == 5\n"
    "    out = np.asarray(out)",
}


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_the_file_runs_where_deepaa_is_not(target: str, tmp_path: Path) -> None:
    pytest.importorskip(target)
    size = 32 if target == "albumentations" else None
    export_policy(uneven(), tmp_path / "mine.py", target, size=size)
    code = (
        "import pickle, sys\nsys.modules['deepaa'] = None\n"
        "import numpy as np, torch\nfrom PIL import Image\nfrom mine import augment\n"
        f"augment = pickle.loads(pickle.dumps(augment))\nfor _ in range(50):\n    {USES[target]}\n"
        "    assert tuple(out.shape) == (32, 32, 3), out.shape\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], cwd=tmp_path, check=True)


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", ["none", "deepta-imagenet:2", "uniformaugment", "two crops"])
def test_policies_of_layers_run(name: str, target: str, tmp_path: Path) -> None:
    two = Policy.trivial(CIFAR, 1).then(load_policy("crop-flip-cutout"))  # fills and cutouts differ
    policy = two if name == "two crops" else load_policy(name)
    augment = loaded(target, policy, tmp_path, 40).augment
    image = noise(3, 40, 40)
    for i in range(20):
        if target == "albumentations":
            out = augment(image=np.ascontiguousarray(image.permute(1, 2, 0)))["image"]
            assert (out.shape, out.dtype) == ((40, 40, 3), np.uint8)
        elif target == "kornia":
            out = augment(image[None].float() / 255)
            assert (out.shape, bool(((out >= 0) & (out <= 1)).all())) == ((1, 3, 40, 40), True)
        else:
            out = augment(tensor_to_pil(image) if i % 2 else image)
            assert type(out) is (Image.Image if i % 2 else torch.Tensor)
            assert (i % 2 and out.size == (40, 40)) or (not i % 2 and out.shape == image.shape)


@pytest.mark.parametrize("ending", ["json", "yaml"])
def test_albumentations_own_file_is_the_same_pipeline(tmp_path: Path, ending: str) -> None:
    A = pytest.importorskip("albumentations")
    policy = uneven()
    export_policy(policy, tmp_path / f"p.{ending}", "albumentations", size=32)
    read = A.load(tmp_path / f"p.{ending}", data_format=ending)
    written = loaded("albumentations", policy, tmp_path, 32).augment
    for one, other in zip(read.transforms, written.transforms, strict=True):
        assert len(one.transforms) == len(other.transforms)
        assert one.transforms_ps == pytest.approx(other.transforms_ps, rel=1e-6)
    again = A.load(tmp_path / f"p.{ending}", data_format=ending)
    assert A.to_dict(again) == A.to_dict(read)
    assert read(image=np.zeros((32, 32, 3), np.uint8))["image"].shape == (32, 32, 3)


def test_an_own_file_that_cannot_be_written_whole_leaves_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(pipeline: Any, place: Any, data_format: str) -> None:
        with nullcontext(place) if hasattr(place, "write") else place.open("w") as file:
            file.write("half of it")
        raise OSError("no space left")

    library = MagicMock(save=save)
    monkeypatch.setitem(sys.modules, "albumentations", library)
    path = tmp_path / "p.json"
    path.write_text("before")
    with pytest.raises(OSError, match="no space left"):
        export_policy(load_policy("deepta"), path, "albumentations")
    assert [(p.name, p.read_text()) for p in tmp_path.iterdir()] == [("p.json", "before")]


# How often


class Recorder:
    """Stands for a transformation: notes that it was drawn, and does nothing."""

    def __init__(self, key: Row, counts: Counter[Any]) -> None:
        self.key, self.counts = key, counts

    def __call__(self, *inputs: Any, force_apply: bool = False, **data: Any) -> Any:
        self.counts[self.key] += 1
        return data if data else inputs[0]


def expected(policy: Policy) -> list[dict[Row, float]]:
    return [dict(layer) for layer in kept_rows(policy, "mine").layers]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["albumentations", "torchvision"])
def test_chi_square_of_the_librarys_own_choice(target: str, tmp_path: Path) -> None:
    """The pipeline runs as it is; only what was chosen is replaced, by something that counts."""
    policy = uneven()
    augment, wanted = loaded(target, policy, tmp_path, 32).augment, expected(policy)
    counts: list[Counter[Any]] = [Counter() for _ in wanted]
    for layer, rows, count in zip(augment.transforms, wanted, counts, strict=True):
        assert len(layer.transforms) == len(rows)
        if target == "torchvision":  # what the others are made of, pixels show
            own = [(one.name, one.magnitude) for one in layer.transforms]
            assert own == [(row.operation.name, row.magnitude) for row in rows]
        layer.transforms = [Recorder(row, count) for row in rows]
    torch.manual_seed(0)
    if target == "albumentations":
        augment.set_random_seed(0)
    image = np.zeros((2, 2, 3), np.uint8)
    for _ in range(DRAWS):
        if target == "albumentations":
            augment(image=image)
        else:
            augment(0)
    for count, rows in zip(counts, wanted, strict=True):
        assert count.total() == DRAWS
        check_counts(count, rows)


def test_chi_square_of_kornias_rows(tmp_path: Path) -> None:
    policy = uneven(layers=4)
    augment = loaded("kornia", policy, tmp_path).augment
    rows = augment.choose(DRAWS)
    for k, wanted in enumerate(expected(policy)):
        by_name = {(r.operation.name, r.magnitude): p for r, p in wanted.items()}
        check_counts(Counter(augment.rows[i] for i in rows[:, k].tolist()), by_name)


def test_kornia_applies_the_rows_it_chose_image_by_image(tmp_path: Path) -> None:
    policy = uneven(CIFAR.only("identity", "invert", "flip", "rotate"), 1)
    augment = loaded("kornia", policy, tmp_path).augment
    images = noise(64, 3, 9, 7).float() / 255
    torch.manual_seed(1)
    rows = augment.choose(64)[:, 0]
    u = torch.rand(64, 22)
    torch.manual_seed(1)
    out = augment(images)
    for i in range(64):
        alone = augment.apply_rows(images[i : i + 1], rows[i : i + 1], u[i : i + 1])[0]
        assert torch.equal(out[i], alone)
    assert augment(images[:0]).shape == (0, 3, 9, 7)
    with pytest.raises(TypeError, match="expected float"):
        augment(noise(2, 3, 8, 8))


# Pixels


def pillow(row: Row, image: torch.Tensor, u: list[float]) -> Any:
    picture = tensor_to_pil(image)
    options = row.operation.options
    return np.asarray(KERNELS[row.operation.name](picture, row.magnitude, u, **options))


PIXEL_CUTOUT = Row(Operation("cutout", options={"central": "pixel", "fill": 7}), None)
SMALL_CUTOUT = Row(Operation("cutout", 0.0, 0.5), 0.2)


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 9, 23), (1, 30, 17), (3, 130, 150)])
def test_torchvision_on_pil_images_is_exact(shape: tuple[int, ...]) -> None:
    code = pytest.importorskip("deepaa.export.torchvision")
    image = noise(*shape)
    rows = [*CIFAR.table.rows, *IMAGENET.table.rows[-2:-1], PIXEL_CUTOUT, SMALL_CUTOUT]
    for i, row in enumerate(rows):
        u = torch.rand(22, generator=torch.Generator().manual_seed(i)).tolist()
        kernel = code.KERNELS[row.operation.name]
        out = kernel(tensor_to_pil(image), row.magnitude, u, **row.operation.options)
        assert np.array_equal(np.asarray(out), pillow(row, image, u)), row


@pytest.mark.parametrize("shape", [(3, 32, 32), (3, 9, 23), (1, 30, 17), (3, 130, 150)])
def test_kornias_boxes_are_exact(shape: tuple[int, ...]) -> None:
    code = pytest.importorskip("deepaa.export.kornia")
    image = noise(*shape)
    rows = [r for r in CIFAR.table.rows if r.operation.name in RANDOM]
    for i, row in enumerate([*rows, IMAGENET.table.rows[-2], PIXEL_CUTOUT, SMALL_CUTOUT] * 5):
        u = torch.rand(1, 22, generator=torch.Generator().manual_seed(i))
        m = torch.tensor([math.nan if row.magnitude is None else row.magnitude])
        out = code.KERNELS[row.operation.name](image[None] / 255, m, u, **row.operation.options)
        levels = (out[0] * 255).round().to(torch.uint8)
        assert np.array_equal(np.asarray(tensor_to_pil(levels)), pillow(row, image, u[0].tolist()))


def test_crop_boxes_of_both_are_the_same_and_inside() -> None:
    one = pytest.importorskip("deepaa.export.torchvision")
    other = pytest.importorskip("deepaa.export.kornia")
    u = torch.rand(500, 22, dtype=torch.float64)
    for height, width in ((32, 32), (20, 90), (90, 20)):
        boxes = other.crop_boxes(u, height, width, (0.08, 1.0), (3 / 4, 4 / 3)).tolist()
        for numbers, box in zip(u.tolist(), boxes, strict=True):
            found = one.crop_box(numbers, height, width, (0.08, 1.0), (3 / 4, 4 / 3))
            assert list(found) == box
            assert 0 <= box[0] <= width - box[2]
            assert 0 <= box[1] <= height - box[3]


def test_albumentations_rows_are_nearest_to_their_own(tmp_path: Path) -> None:
    """Sign and magnitude of each call: no other row of its operation is nearer in pixels."""
    policy = Policy.trivial(CIFAR, 1)
    (layer,) = loaded("albumentations", policy, tmp_path, 32).augment.transforms
    picture = Image.effect_mandelbrot((32, 32), (-2, -1.5, 1, 1.5), 40).convert("RGB")
    image = torch.from_numpy(np.array(picture)).permute(2, 0, 1) // 2 + noise(3, 32, 32) // 2
    array = np.ascontiguousarray(image.permute(1, 2, 0).numpy())
    for child, row in zip(layer.transforms, CIFAR.table.rows, strict=True):
        if row.operation.name in RANDOM:
            continue
        out = child(image=array.copy(), force_apply=True)["image"].astype(int)
        gaps = {
            other: np.abs(pillow(other, image, []) - out).mean()
            for other in CIFAR.table.rows
            if other.operation.name == row.operation.name
        }
        assert gaps[row] == min(gaps.values()), row


def test_what_cutout_hides(tmp_path: Path) -> None:
    """The two shares that docs/export.md gives."""
    always = Policy.always(CIFAR.operations[-2])
    steps = [(i + 0.5) / 64 for i in range(64)]
    image, row = torch.full((3, 32, 32), 1, dtype=torch.uint8), always.table.rows[0]
    grey = [(pillow(row, image, [x, y]) != 1).mean() for x in steps for y in steps]
    augment = loaded("albumentations", always, tmp_path, 32).augment
    array = np.ones((32, 32, 3), np.uint8)
    theirs = [(augment(image=array)["image"] != 1).mean() for _ in range(50)]
    assert round(float(np.mean(grey)), 3) == 0.212
    assert {round(float(share), 3) for share in theirs} == {0.282}
    assert "hides 28.2 % of the image" in DOCS.read_text()
    assert "hides 21.2 % on average" in DOCS.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_the_stated_differences_are_those_measured(way: str) -> None:
    library = way.partition(",")[0]
    pytest.importorskip(library)
    for name, wanted in {**VERSIONS[library], "pillow": "13.0.0"}.items():
        package = "opencv-python-headless" if name == "opencv" else name
        if not version(package).startswith(wanted):
            pytest.skip(f"stated for {name} {wanted}, installed is {version(package)}")
    stated = {} if way.endswith("PIL images") else MEASURED[way]
    for name, found in measure(way).items():
        item = stated.get(name)
        assert found == pytest.approx((item.share, item.mean) if item else (0, 0), abs=2e-4), name


def test_the_documentation_states_the_same_numbers() -> None:
    lines = [line.split("|")[1:-1] for line in DOCS.read_text().splitlines() if "|" in line]
    table = {cells[0].strip(" `"): [c.strip() for c in cells[1:]] for cells in lines}
    ways = ("torchvision", "kornia", "albumentations", WITHOUT_SIZE)
    for name in (*(op.name for op in CIFAR.operations), "resized_crop"):
        for way, cell in zip(ways, table[name][1:], strict=True):
            item = MEASURED[way].get(name)
            if cell == "-":
                assert (name, way) == ("resized_crop", WITHOUT_SIZE)
            elif item is None or not item.share:
                assert cell == "0"
            else:
                assert cell == f"{100 * item.share:.2g} %, {item.mean:.2g}"
