from __future__ import annotations

import copy
import math
import pickle
import re
import sys
from pathlib import Path

import pytest
import torch
from PIL import Image

from deepaa import CIFAR, IMAGENET, Operation, Space, Transformation
from deepaa.ops import import_operations
from deepaa.ops.space import BUILTIN, Row, Table

# The paper's table of ranges (Appendix, "standard augmentation space"), typed from the paper.
PAPER = {
    "identity": None,
    "shear_x": (-0.3, 0.3),
    "shear_y": (-0.3, 0.3),
    "translate_x": (-0.45, 0.45),
    "translate_y": (-0.45, 0.45),
    "rotate": (-30, 30),
    "auto_contrast": None,
    "invert": None,
    "equalize": None,
    "solarize": (0, 256),
    "posterize": (4, 8),
    "contrast": (0.1, 1.9),
    "color": (0.1, 1.9),
    "brightness": (0.1, 1.9),
    "sharpness": (0.1, 1.9),
    "flip": None,
    "cutout": None,
}


@pytest.mark.parametrize(("space", "crop"), [(CIFAR, "crop"), (IMAGENET, "resized_crop")])
def test_the_papers_spaces(space: Space, crop: str) -> None:
    ranges = {op.name: None if op.low is None else (op.low, op.high) for op in space.operations}
    assert ranges == {**PAPER, crop: None}
    assert len(space) == len(space.transformations) == len(set(space.transformations)) == 139
    assert space.transformations[0] == Transformation("identity", None)


def test_thirteen_levels_without_the_neutral_one() -> None:
    for operation in CIFAR.operations:
        if operation.low is None:
            assert operation.magnitudes(13) == (None,)
            continue
        grid = [operation.low + k / 12 * (operation.high - operation.low) for k in range(13)]
        expected = [m for m in grid if not math.isclose(m, operation.neutral, abs_tol=1e-9)]
        assert len(expected) == 12
        assert operation.magnitudes(13) == pytest.approx(expected, abs=1e-11)


def test_signed_grids_are_exactly_symmetric() -> None:
    signed = [op for op in CIFAR.operations if op.is_signed]
    assert [op.name for op in signed] == [
        "shear_x",
        "shear_y",
        "translate_x",
        "translate_y",
        "rotate",
    ]
    for operation in signed:
        magnitudes = operation.magnitudes(13)
        assert magnitudes == tuple(-m for m in reversed(magnitudes))


def test_cutouts_and_crops_differ_between_the_spaces() -> None:
    cifar = {op.name: op.options for op in CIFAR.operations}
    imagenet = {op.name: op.options for op in IMAGENET.operations}
    assert cifar["cutout"]["size"] == 16
    assert imagenet["cutout"] == {
        "size": 60,
        "fill": (125, 123, 114),
        "central": 256,
        "min_side": 121,
    }
    assert cifar["crop"] == {"pad": 4, "fill": (125, 123, 114)}
    assert imagenet["resized_crop"] == {"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}
    assert cifar["rotate"] == {"fill": 0}


def test_subsets() -> None:
    small = CIFAR.only("rotate", "identity")
    assert [op.name for op in small.operations] == ["identity", "rotate"]
    assert len(CIFAR.without("invert")) == 138
    own = Operation("own", 0.0, 1.0, pil=lambda image, m, u: image)
    assert len(CIFAR.plus(own)) == 139 + 13
    assert len(Space(CIFAR.operations, levels=5)) == 7 + 5 + 10 * 4 + 1 - 2
    with pytest.raises(ValueError, match=r"no operation 'rotat'.*identity, shear_x"):
        CIFAR.without("rotat")
    with pytest.raises(ValueError, match="at least one operation"):
        Space(())
    with pytest.raises(ValueError, match="'rotate' appears twice"):
        Space((CIFAR.operations[5], CIFAR.operations[5]))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "swirl"}, "unknown operation 'swirl': give it a kernel .* identity, shear_x"),
        ({"name": "rotate"}, "rotate needs a range"),
        ({"name": "invert", "low": 0, "high": 1}, "invert takes no magnitude"),
        ({"name": "rotate", "low": 0}, "give both low and high"),
        ({"name": "rotate", "low": 3, "high": 3}, "low should be below high"),
        ({"name": "rotate", "low": 0, "high": math.nan}, "low should be below high"),
        ({"name": "rotate", "low": -1000, "high": 3}, r"should lie within -360\.\.360"),
        ({"name": "rotate", "low": 0, "high": 3, "neutral": 4}, "neutral 4 lies outside"),
        ({"name": "invert", "neutral": 0}, "neutral 0 needs a range"),
        ({"name": "crop", "options": {"size": 3}}, "crop has no option 'size'"),
        ({"name": "crop", "options": {"pad": -1}}, "pad should be in 0"),
        ({"name": "crop", "options": {"pad": True}}, "pad should be in 0"),
        ({"name": "cutout", "options": {"fill": (1, 2)}}, "fill should be one or three"),
        ({"name": "cutout", "options": {"fill": 256}}, "fill should be one or three"),
        ({"name": "cutout", "options": {"size": 2.5}}, "size should be in"),
        ({"name": "resized_crop", "options": {"scale": (0.5, 0.1)}}, "scale should be 0 < low"),
        ({"name": "resized_crop", "options": {"ratio": 1.0}}, "ratio should be 0 < low"),
        ({"name": "rotate", "pil": print}, "'rotate' is a built-in operation"),
        ({"name": "own", "pil": print, "uniforms": 300}, "uniforms is 300"),
        ({"name": "own", "pil": print, "uniforms": 1.5}, "uniforms is 1.5"),
        ({"name": "flip", "uniforms": 3}, "flip takes 1 uniforms, got 3"),
        ({"name": "own", "pil": print, "options": {"a": object()}}, "option a should be"),
        ({"name": "1st", "pil": print}, "should start with a letter"),
        ({"name": "", "pil": print}, "should start with a letter"),
    ],
)
def test_declarations_that_cannot_work(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Operation(**arguments)


def test_tables_check_magnitudes() -> None:
    rotate = CIFAR.operations[5]
    with pytest.raises(ValueError, match=r"row 1: rotate has magnitude 31.0, outside its range"):
        Table([(rotate, 3.0), (rotate, 31.0)])
    with pytest.raises(ValueError, match="row 0: rotate has magnitude nan"):
        Table([(rotate, math.nan)])
    with pytest.raises(ValueError, match="row 0: rotate needs a magnitude"):
        Table([(rotate, None)])
    with pytest.raises(ValueError, match="row 0: invert has no range, got 3"):
        Table([(Operation("invert"), 3)])
    with pytest.raises(ValueError, match="at least one row"):
        Table([])


def test_tables_compare_by_rows_and_copy_without_what_was_computed() -> None:
    table = Table(CIFAR.table.rows)
    table.cache["anything"] = 1
    for twin in (pickle.loads(pickle.dumps(table)), copy.deepcopy(table), copy.copy(table)):
        assert twin == table
        assert hash(twin) == hash(table)
        assert twin.cache == {}
        assert twin.handle != table.handle
    assert table != IMAGENET.table
    assert pickle.loads(pickle.dumps(CIFAR)) == CIFAR


def test_extending_a_table_adds_what_it_lacks() -> None:
    joined = CIFAR.table.extended(IMAGENET.table.rows)
    assert joined.rows[:139] == CIFAR.table.rows
    assert [row.operation.name for row in joined.rows[139:]] == ["cutout", "resized_crop"]
    assert joined.uniforms == 12
    assert isinstance(joined.rows[0], Row)


def test_texts() -> None:
    assert str(Transformation("rotate", -15.0)) == "rotate -15"
    assert str(Transformation("invert", None)) == "invert"
    assert repr(CIFAR.table) == "Table(139 rows, 18 operations)"


def test_random_operations_say_how_many_numbers_they_take() -> None:
    taken = {name: spec.uniforms for name, spec in BUILTIN.items() if spec.uniforms}
    assert taken == {"flip": 1, "cutout": 2, "crop": 2, "resized_crop": 12}


def test_an_own_operation_with_a_batched_kernel_serves_pil_images_too() -> None:
    from deepaa import Policy, apply_batch, apply_pil
    from deepaa.ops.conversions import pil_to_tensor

    def shift(images: torch.Tensor, m: torch.Tensor, u: torch.Tensor, step: int) -> torch.Tensor:
        amount = (m * step + (u[:, 0] * 10).floor()).to(torch.uint8)
        return images + amount[:, None, None, None]

    own = Operation("shift", 0.0, 4.0, options={"step": 3}, uniforms=1, batched=shift)
    space = CIFAR.only("identity", "invert").plus(own)
    draw = Policy.trivial(space, 3).sample(20)
    images = torch.randint(0, 256, (20, 3, 6, 5), dtype=torch.uint8)
    out = apply_batch(images, draw, space)
    for i in range(20):
        one = Image.fromarray(images[i].permute(1, 2, 0).numpy())
        assert torch.equal(pil_to_tensor(apply_pil(one, draw[i : i + 1], space)), out[i])


def test_an_own_kernel_that_changes_the_shape_is_named() -> None:
    from deepaa import Policy, apply_batch

    own = Operation("half", batched=lambda images, m, u: images[..., ::2])
    space = Space((own,))
    draw, images = Policy.uniform(space, 1).sample(2), torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"operation 'half' gave torch\.uint8"):
        apply_batch(images, draw, space)


def fade(image: Image.Image, m: float, u: list[float]) -> Image.Image:
    """Writes to its input and uses every number it gets."""
    image.putpixel((0, 0), (int(100 * m + sum(u)),) * 3)
    return image


def test_own_operations_see_the_same_on_pil_images_and_batches() -> None:
    from deepaa import Policy, apply_batch, apply_pil
    from deepaa.ops.conversions import pil_to_tensor, tensor_to_pil

    space = CIFAR.only("identity", "rotate", "crop").plus(
        Operation("fade", 0.0, 0.5, uniforms=1, pil=fade)
    )
    draw = Policy.trivial(space, 2).sample(60)
    images = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8)
    before = images.clone()
    out = apply_batch(images, draw, space)
    assert torch.equal(images, before)
    for i in range(60):
        one = tensor_to_pil(images[i])
        assert torch.equal(pil_to_tensor(apply_pil(one, draw[i : i + 1], space)), out[i])
        assert torch.equal(pil_to_tensor(one), images[i])


@pytest.mark.gpu
def test_own_batched_kernels_see_only_their_magnitudes_on_cuda() -> None:
    from deepaa import Policy, apply_batch

    seen = []

    def fill(images: torch.Tensor, m: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
        seen.append(m)
        return images.copy_((m * 100).to(torch.uint8)[:, None, None, None].expand(images.shape))

    space = CIFAR.only("identity", "rotate").plus(Operation("fill", 0.1, 0.5, batched=fill))
    draw = Policy.trivial(space, 2).sample(60)
    images = torch.randint(0, 256, (60, 3, 8, 8), dtype=torch.uint8)
    out = apply_batch(images.cuda(), draw.to("cuda"), space)
    assert torch.equal(out.cpu(), apply_batch(images, draw, space))
    assert all(((m >= 0.1) & (m <= 0.5)).all() for m in seen)


@pytest.mark.parametrize(
    "kernel",
    [lambda i, m, u: None, lambda i, m, u: i.convert("L"), lambda i, m, u: i.resize((3, 4))],
)
def test_what_an_own_pil_kernel_gives_is_checked(kernel: object) -> None:
    from deepaa import Policy, apply_pil

    space = Space((Operation("own", pil=kernel),))
    image, draw = Image.new("RGB", (4, 4)), Policy.uniform(space, 1).sample(1)
    with pytest.raises(ValueError, match=r"operation 'own' gave .*expected a PIL image"):
        apply_pil(image, draw, space)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("3", "own_values:VALUE is 3, expected an Operation or a list of them"),
        ("'ab'", "own_values:VALUE is 'ab', expected an Operation or a list of them"),
        ("[3]", "own_values:VALUE holds 3, expected an Operation"),
    ],
)
def test_what_is_imported_must_be_operations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str
) -> None:
    (tmp_path / "own_values.py").write_text(f"VALUE = {value}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own_values", raising=False)
    with pytest.raises(ValueError, match=re.escape(message)):
        import_operations(["own_values:VALUE"])
    sys.modules.pop("own_values", None)
