"""The compared policies: against torchvision running, published files and obvious procedures."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from frequencies import Step, check_counts, our_name, outcomes, step
from oracle import pil_batch, random_uniform
from PIL import Image, ImageDraw, ImageOps
from policy_text import loads
from torchvision.transforms import InterpolationMode, autoaugment, functional as F, v2

from deepaa.data.embedded import load_embedded
from deepaa.ops import kernels_c, kernels_torch
from deepaa.ops.apply import Draw, apply_batch, run_pil
from deepaa.ops.conversions import pil_to_tensor, tensor_to_pil
from deepaa.ops.plan import plan_for, resolve
from deepaa.ops.rng import cutout_box
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Space, Table
from deepaa.policy import PolicyFileError, dumps, load_policy, policy_names
from deepaa.policy.baselines import (
    UNIFORM_LEVELS,
    auto_augment,
    default_policy,
    rand_augment,
    trivial_augment,
    trivial_augment_wide,
    uniform_augment,
)
from deepaa.policy.load import GENERATED, compared_policy, with_defaults
from deepaa.policy.policy import Policy
from deepaa.policy.stages import Chains, Layers
from deepaa.transforms.transform import DeepAutoAugment

IMAGES = load_embedded().train_images[:64]
SIGNED = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
ENHANCE = ("color", "contrast", "brightness", "sharpness")
FAST_AUTOAUGMENT: dict[str, tuple[float, float] | None] = {
    "shear_x": (-0.3, 0.3),
    "shear_y": (-0.3, 0.3),
    "translate_x": (-0.45, 0.45),
    "translate_y": (-0.45, 0.45),
    "rotate": (-30.0, 30.0),
    "auto_contrast": None,
    "invert": None,
    "equalize": None,
    "solarize": (0.0, 256.0),
    "posterize": (4.0, 8.0),
    "contrast": (0.1, 1.9),
    "color": (0.1, 1.9),
    "brightness": (0.1, 1.9),
    "sharpness": (0.1, 1.9),
    "cutout": (0.0, 0.2),
}
"""Operations and ranges of kakaobrain/fast-autoaugment, `augmentations.py`, as published; DADA and
UniformAugment took them over."""


# The original Cutout


def original_cutout(image: np.ndarray[Any, Any], x: int, y: int, size: int) -> None:
    """A square of `size` about the pixel (x, y), as far as it lies inside."""
    height, width = image.shape[:2]
    for row in range(y - size // 2, y - size // 2 + size):
        for column in range(x - size // 2, x - size // 2 + size):
            if 0 <= row < height and 0 <= column < width:
                image[row, column] = (125, 123, 114)


def every_centre(height: int, width: int) -> Draw:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    uniform = torch.stack(((x.flatten() + 0.5) / width, (y.flatten() + 0.5) / height), -1)
    return Draw(torch.zeros(height * width, 1, dtype=torch.int64), uniform[:, None])


@pytest.mark.parametrize("size", [16, 5, 2, 1, 70])
@pytest.mark.parametrize(("height", "width"), [(32, 32), (9, 21)])
def test_cutout_about_a_pixel(height: int, width: int, size: int) -> None:
    table = Table([(Operation("cutout", options={"size": size, "central": "pixel"}), None)])
    draw = every_centre(height, width)
    images = torch.zeros(height * width, 3, height, width, dtype=torch.uint8)
    expected = np.zeros((height * width, height, width, 3), np.uint8)
    for i in range(height * width):
        original_cutout(expected[i], i % width, i // width, size)
    want = torch.from_numpy(expected).permute(0, 3, 1, 2)
    assert torch.equal(pil_batch(images, draw, table), want)
    assert torch.equal(apply_batch(images, draw, table), want)


def test_the_cutout_of_the_space_is_the_authors() -> None:
    """Drawn about a point that lies anywhere, its corners moved into the image."""
    table = CIFAR.only("cutout", "identity").table
    row = next(i for i, r in enumerate(table.rows) if r.operation.name == "cutout")
    steps = (torch.arange(97) + 0.25) / 97
    uniform = torch.cartesian_prod(steps, steps)[:, None]
    draw = Draw(torch.full((len(uniform), 1), row), uniform)
    images = torch.zeros(len(uniform), 3, 32, 32, dtype=torch.uint8)
    wanted = []
    for u, v in uniform[:, 0].double().tolist():
        picture = Image.new("RGB", (32, 32))
        corners = [int(min(32.0, max(0.0, 32 * c + d))) for d in (-8, 8) for c in (u, v)]
        ImageDraw.Draw(picture).rectangle(corners, (125, 123, 114))
        wanted.append(np.asarray(picture))
    want = torch.from_numpy(np.stack(wanted)).permute(0, 3, 1, 2)
    assert torch.equal(pil_batch(images, draw, table), want)
    assert torch.equal(apply_batch(images, draw, table), want)


def test_a_cutout_with_a_magnitude_is_that_of_fast_autoaugment() -> None:
    """From the corner that was moved into the image it has its whole side again."""
    side = 0.4 * 20
    settings = {"size": 16, "central": None, "min_side": 0}
    for i in range(200):
        u = (i + 0.5) / 200
        start = int(max(0.0, 20 * u - side / 2))
        box = cutout_box((u, 0.5), 20, 20, 0.4, **settings)  # type: ignore[arg-type]
        assert box is not None
        assert (box[0], box[2]) == (start, int(min(20.0, start + side)))


PIXEL_TABLE = Table(
    [
        (Operation("cutout", options={"central": "pixel"}), None),
        (Operation("cutout", options={"central": "pixel", "size": 5}), None),
        (Operation("cutout", 0.0, 1.0, options={"central": "pixel"}), 0.37),
        (Operation("cutout", 0.0, 1.0, options={"central": "pixel"}), 0.01),
        (Operation("cutout", options={"central": 20, "size": 7}), None),
        (Operation("cutout"), None),
        (Operation("cutout", 0.0, 1.0), 0.3),
    ]
)


@pytest.mark.parametrize("name", ["plain", "native", pytest.param("fused", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("size", [(32, 32), (17, 40)])
def test_every_engine_cuts_the_same_square(name: str, size: tuple[int, int]) -> None:
    if name == "native" and not kernels_c.available():
        pytest.skip("no C compiler")
    draw = Draw(torch.randint(0, len(PIXEL_TABLE), (600, 2)), random_uniform(600, 2, 2))
    images = torch.randint(0, 256, (600, 3, *size), dtype=torch.uint8)
    device = torch.device("cuda" if name == "fused" else "cpu")
    plan = plan_for(PIXEL_TABLE, 3, *size, device)
    choice, uniform = draw.to(device)
    lines = resolve(plan, choice, uniform)
    if name == "plain":
        out = kernels_torch.run(images, lines, plan)
    elif name == "native":
        out = kernels_c.run(images, lines, plan)
    else:
        from deepaa.ops import draw_triton, kernels_triton

        assert torch.equal(draw_triton.resolve(plan, choice, uniform), lines)
        out = kernels_triton.run(images.to(device), lines, plan).cpu()
    assert torch.equal(out, pil_batch(images, draw, PIXEL_TABLE))


def test_the_space_has_no_such_cutout() -> None:
    # why the option exists: whatever its size, the space's square has its centre between pixels
    wanted = Counter((max(0, c - 8), min(32, c + 8) - 1) for c in range(32))
    for size in range(1, 33):
        settings = {"size": size, "central": None, "min_side": 0}
        boxes = [
            cutout_box(((i + 0.5) / 3200, 0.5), 32, 32, None, **settings)  # type: ignore[arg-type]
            for i in range(3200)
        ]
        assert Counter((box[0], box[2]) for box in boxes if box) != wanted


def test_a_wrong_centre_is_refused() -> None:
    for central in ("pixels", 0, True, 1.5):
        with pytest.raises(ValueError, match="central should be in"):
            Operation("cutout", options={"central": central})


# The defaults


def test_default_crop_is_torchvisions() -> None:
    policy = load_policy("crop-flip")
    picture = tensor_to_pil(IMAGES[0])
    padded = F.pad(picture, [4])
    places = [(x, y) for x in range(9) for y in range(9)]
    theirs = {F.crop(padded, y, x, 32, 32).tobytes() for x, y in places}
    ours = {
        run_pil(picture, [(0, [(x + 0.5) / 9, (y + 0.5) / 9])], policy.table).tobytes()
        for x, y in places
    }
    assert len(ours) == 81
    assert ours == theirs


def test_defaults_of_both_data_sets() -> None:
    black, square = Operation("crop", options={"fill": 0}), {"central": "pixel"}
    flip, cutout = Operation("flip"), Operation("cutout", options=square)
    assert load_policy("crop-flip").equals(Policy.always(black, flip))
    assert load_policy("crop-flip-cutout").equals(Policy.always(black, flip, cutout))
    assert default_policy("cifar").equals(load_policy("crop-flip-cutout"))
    inception = Policy.always(Operation("resized_crop"), flip)
    assert default_policy("imagenet").equals(inception)
    assert compared_policy("crop-flip", space="imagenet").equals(inception)
    assert load_policy("crop-flip:space=imagenet").equals(inception)


# torchvision running


def recorded(base: type[Any], runs: int, side: int, **settings: Any) -> Counter[tuple[Step, ...]]:
    """The steps of a v2 transform over many runs, as it hands them to its own kernels."""

    class Recorder(base):  # type: ignore[misc]
        def _apply_image_or_video_transform(
            self, image: Any, transform_id: str, magnitude: float, **kwargs: Any
        ) -> Any:
            steps.append(_torchvision_step(transform_id, magnitude, side))
            return super()._apply_image_or_video_transform(image, transform_id, magnitude, **kwargs)

    transform = Recorder(**settings)
    picture = Image.new("RGB", (side, side))
    counts: Counter[tuple[Step, ...]] = Counter()
    for _ in range(runs):
        steps: list[Step] = []
        transform(picture)
        counts[tuple(s for s in steps if s[0] != "identity")] += 1
    return counts


def _torchvision_step(transform_id: str, magnitude: float, side: int) -> Step:
    name = our_name(transform_id)
    if name in ("identity", "auto_contrast", "equalize", "invert"):
        return name, None
    value = {
        "translate_x": int(magnitude) / side,
        "translate_y": int(magnitude) / side,
        "solarize": magnitude * 255,
    }.get(name, 1 + magnitude if name in ENHANCE else magnitude)
    return step(name, value)


@pytest.mark.parametrize(("n", "m", "side"), [(2, 9, 32), (1, 30, 224), (3, 0, 32), (1, 17, 32)])
def test_randaugment_is_torchvisions(n: int, m: int, side: int) -> None:
    counts = recorded(v2.RandAugment, 4000, side, num_ops=n, magnitude=m)
    space = "cifar" if side == 32 else "imagenet"
    check_counts(counts, outcomes(load_policy(f"randaugment:n={n},m={m},space={space}")))


@pytest.mark.parametrize("table", ["cifar10", "imagenet", "svhn"])
def test_autoaugment_is_torchvisions(table: str) -> None:
    side = 224 if table == "imagenet" else 32
    chosen = autoaugment.AutoAugmentPolicy(table)
    counts = recorded(v2.AutoAugment, 4000, side, policy=chosen)
    policy = load_policy(f"autoaugment-{table}")
    check_counts(counts, outcomes(policy))
    (stage,) = policy.phases[0].stages
    assert isinstance(stage, Chains)


def test_trivialaugment_wide_and_torchvisions() -> None:
    # operations, strengths of shear, and their signs are the same in both
    counts = recorded(v2.TrivialAugmentWide, 6000, 32)
    shared = ("shear_x", "shear_y")

    def coarse(steps: tuple[Step, ...]) -> tuple[Any, ...]:
        name, magnitude = steps[0] if steps else ("identity", None)
        return (name, magnitude) if name in shared else (name,)

    seen: Counter[Any] = Counter()
    for steps, count in counts.items():
        seen[coarse(steps)] += count
    expected: dict[Any, float] = {}
    for steps, p in outcomes(trivial_augment_wide()).items():
        expected[coarse(steps)] = expected.get(coarse(steps), 0.0) + p
    check_counts(seen, expected)
    # translations too, but for what float32 loses before torchvision cuts to whole pixels
    theirs = autoaugment.TrivialAugmentWide()._augmentation_space(31)["TranslateX"][0]
    gaps = [int(level * 32 / 30) - int(theirs[level]) for level in range(31)]
    assert set(gaps) <= {0, 1}
    assert sum(gaps) <= 1


def torchvision_pixels(image: Image.Image, name: str, value: float) -> bytes:
    out = autoaugment._apply_op(image, name, value, InterpolationMode.NEAREST, None)
    return bytes(out.tobytes())


@pytest.mark.parametrize("m", [0, 1, 8, 9, 10, 14, 20, 28, 30])
@pytest.mark.parametrize("space", ["cifar", "imagenet"])
def test_randaugment_pixels_are_torchvisions(m: int, space: Any) -> None:
    side = {"cifar": 32, "imagenet": 224}[space]
    table = rand_augment(1, m, space).table
    theirs = autoaugment.RandAugment()._augmentation_space(31, (side, side))
    ours: dict[str, list[int]] = {}
    for i, row in enumerate(table.rows):
        ours.setdefault(row.operation.name, []).append(i)
    assert sorted(ours) == sorted(map(our_name, theirs))
    for picture in (tensor_to_pil(image).resize((side, side)) for image in IMAGES[:3]):
        for name, (magnitudes, signed) in theirs.items():
            value = float(magnitudes[m]) if magnitudes.ndim else 0.0
            want = {torchvision_pixels(picture, name, v) for v in (value, -value)[: 1 + signed]}
            rows = ours[our_name(name)]
            assert {run_pil(picture, [(i, [])], table).tobytes() for i in rows} == want, name


@pytest.mark.parametrize("name", ["cifar10", "svhn", "imagenet"])
def test_autoaugment_pixels_are_torchvisions(name: str) -> None:
    transform = autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(name))
    side = 224 if name == "imagenet" else 32
    space = transform._augmentation_space(10, (side, side))
    policy = auto_augment(name)
    picture = tensor_to_pil(IMAGES[3]).resize((side, side))
    theirs: dict[str, set[bytes]] = {}
    for operation, _, level in (part for sub in transform.policies for part in sub):
        magnitudes, signed = space[operation]
        value = float(magnitudes[level]) if level is not None else 0.0
        both = (value, -value)[: 1 + signed]
        theirs.setdefault(our_name(operation), set()).update(
            torchvision_pixels(picture, operation, v) for v in both
        )
    ours: dict[str, set[bytes]] = {}
    for i, row in enumerate(policy.table.rows):
        if row.operation.name != "identity":
            done = run_pil(picture, [(i, [])], policy.table).tobytes()
            ours.setdefault(row.operation.name, set()).add(done)
    assert ours == theirs


def test_autoaugment_without_torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("torchvision", "torchvision.transforms"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match="takes its tables from torchvision, which cannot be"):
        load_policy("autoaugment")
    load_policy("randaugment")  # needs none


def test_only_autoaugment_imports_torchvision() -> None:
    code = (
        "import sys\nfrom deepaa.policy.load import compared_policy\n"
        "for name in ('trivialaugment-wide', 'randaugment', 'uniformaugment', 'deepta'):\n"
        "    compared_policy(name)\n"
        "print('torchvision' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# TrivialAugment and UniformAugment, by their procedures


def original_trivial(
    generator: random.Random, wide: bool, pixels: int, side: int
) -> tuple[Step, ...]:
    """One operation at one of 31 levels, with the ranges and the rounding of the original."""
    name = generator.choice(("identity", "auto_contrast", "equalize", *SIGNED, "solarize",
                             "posterize", *ENHANCE))  # fmt: skip
    level, sign = generator.randint(0, 30), generator.choice((1, -1))
    if name in ("shear_x", "shear_y"):
        return (step(name, sign * level * (0.99 if wide else 0.3) / 30),)
    if name in ("translate_x", "translate_y"):
        return (step(name, sign * int(level * pixels / 30) / side),)
    if name == "rotate":
        return (step(name, sign * int(level * (135 if wide else 30) / 30)),)
    if name == "solarize":
        return (step(name, 256 - int(level * 256 / 30)),)
    if name == "posterize":
        return (step(name, 8 - int(level * (6 if wide else 4) / 30)),)
    if name in ENHANCE:
        low, high = (0.01, 2.0) if wide else (0.1, 1.9)
        return (step(name, low + level / 30 * (high - low)),)
    return () if name == "identity" else ((name, None),)


@pytest.mark.parametrize(
    ("make", "wide", "pixels", "side"),
    [
        (lambda: trivial_augment(), False, 10, 32),
        (lambda: trivial_augment("imagenet"), False, 70, 224),
        (lambda: trivial_augment_wide(), True, 32, 32),
        (lambda: trivial_augment_wide("imagenet"), True, 32, 224),
    ],
)
def test_trivialaugment_is_the_original(
    make: Callable[[], Policy], wide: bool, pixels: int, side: int
) -> None:
    generator = random.Random(0)
    runs = range(60_000)
    counts = Counter(original_trivial(generator, wide, pixels, side) for _ in runs)
    check_counts(counts, outcomes(make()))


def test_trivialaugment_moves_whole_pixels() -> None:
    for make, side in ((trivial_augment, 32), (trivial_augment_wide, 32)):
        picture = tensor_to_pil(IMAGES[1])
        table = make().table
        for i, (operation, magnitude) in enumerate(table.rows):
            if operation.name == "translate_x":
                assert magnitude is not None
                pixels = round(magnitude * side)
                want = Image.new("RGB", picture.size)
                want.paste(picture, (-pixels, 0))
                assert run_pil(picture, [(i, [])], table).tobytes() == want.tobytes()


def test_uniformaugment_frequencies() -> None:
    policy = uniform_augment()
    assert policy.depth == 2
    for layer in policy.operation_probabilities().tolist():
        shares = {op.name: p for op, p in zip(policy.table.operations, layer, strict=True)}
        assert shares.pop("identity") == pytest.approx(0.5)
        assert shares == pytest.approx(dict.fromkeys(FAST_AUTOAUGMENT, 0.5 / 15))


def test_uniformaugment_values() -> None:
    policy = uniform_augment()
    layer = policy.row_probabilities()[0].tolist()
    values: dict[str, list[float]] = {}
    for (operation, magnitude), p in zip(policy.table.rows, layer, strict=True):
        if magnitude is not None:
            values.setdefault(operation.name, []).append(magnitude)
            assert p == pytest.approx(1 / 30 / {"posterize": 4, "solarize": 256}.get(
                operation.name, UNIFORM_LEVELS))  # fmt: skip
    assert values.keys() == {name for name, limits in FAST_AUTOAUGMENT.items() if limits}
    for name, grid in values.items():
        limits = FAST_AUTOAUGMENT[name]
        assert limits is not None
        low, high = limits
        if name in ("posterize", "solarize"):
            continue
        # the nearest level is at most half a step from any value of the range
        continuous = np.random.default_rng(0).uniform(low, high, 2000)
        gaps = np.abs(continuous[:, None] - np.array(grid)).min(1)
        assert gaps.max() <= (high - low) / UNIFORM_LEVELS / 2 + 1e-9
        assert np.var(grid) == pytest.approx((high - low) ** 2 / 12, rel=1e-4)
        if name in SIGNED:
            assert sorted(grid) == sorted(-m for m in grid)


def test_uniformaugments_thresholds_and_bits_are_exact() -> None:
    ramp = Image.fromarray(np.arange(256, dtype=np.uint8)[None])
    policy = uniform_augment()
    for threshold in np.random.default_rng(0).uniform(0, 256, 300).tolist():
        want = ImageOps.solarize(ramp, threshold).tobytes()  # type: ignore[arg-type]
        row = next(
            i
            for i, (op, m) in enumerate(policy.table.rows)
            if op.name == "solarize" and m == math.ceil(threshold)
        )
        assert run_pil(ramp, [(row, [])], policy.table).tobytes() == want
    bits = [m for op, m in policy.table.rows if op.name == "posterize"]
    assert bits == [4.0, 5.0, 6.0, 7.0]


# Names


def test_parameters() -> None:
    same = {
        "deepta:4": Policy.trivial(CIFAR, 4),
        "deepta:layers=4": Policy.trivial(CIFAR, 4),
        "deepta:space=imagenet": Policy.trivial(IMAGENET, 5),
        "deepta:3,imagenet": Policy.trivial(IMAGENET, 3),
        "deepta-imagenet:2": Policy.trivial(IMAGENET, 2),
        "randaugment:3, 5": rand_augment(3, 5),
        "randaugment:m=5,n=3": rand_augment(3, 5),
        "randaugment": rand_augment(2, 9),
        "uniformaugment:n=1": uniform_augment(1),
        "none": Policy.identity(),
        "autoaugment": auto_augment("cifar10"),
        "autoaugment:space=imagenet": auto_augment("imagenet"),
    }
    for name, policy in same.items():
        assert load_policy(name).equals(policy), name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("deepta:x", "layers should be a whole number from 1 to 1000, got 'x'"),
        ("deepta:", "layers should be a whole number"),
        ("deepta:0", "got '0'"),
        ("deepta:1001", "got '1001'"),
        ("deepta:00000000000004", "got '00000000000004'"),
        ("deepta:²", "got '²'"),
        ("randaugment:m=31", "m should be a whole number from 0 to 30, got '31'"),
        ("randaugment:q=3", "randaugment has no parameter 'q'; it has n, m, space"),
        ("randaugment:1,2,cifar,4", "has no parameter '4'"),
        ("randaugment:n=1,n=2", "n is given twice"),
        ("trivialaugment:space=mnist", "space should be one of cifar, imagenet, got 'mnist'"),
        ("crop-flip-cutout:3", "crop-flip-cutout has no parameter '3'; it has none"),
        ("deepaa-simple", "needs a policy behind it: deepaa-simple:POLICY"),
        ("deepaa-simple:nothing-here", "no such file, and no policy has this name"),
        ("randaugmnt:n=3", "did you mean 'randaugment'"),
    ],
)
def test_bad_parameters(name: str, message: str) -> None:
    for load in (load_policy, compared_policy):
        with pytest.raises(PolicyFileError, match=message):
            load(name)


def test_a_wrong_space_is_refused() -> None:
    with pytest.raises(ValueError, match="space should be cifar or imagenet, got 'mnist'"):
        compared_policy("deepta", space="mnist")  # type: ignore[arg-type]


# Defaults behind a policy


TAIL = ["crop", "flip", "cutout"]
WITH_DEFAULTS = {
    *("autoaugment", "autoaugment-cifar10", "autoaugment-imagenet", "autoaugment-svhn"),
    *("randaugment", "timm-randaugment", "uniformaugment"),
    *("trivialaugment", "trivialaugment-wide"),
}


def tail(policy: Policy, epoch: int = 0) -> list[str]:
    """The operations of the certain layers at the end."""
    names = []
    for layer in policy.operation_probabilities(epoch):
        most = int(layer.argmax())
        name = policy.table.operations[most].name
        names.append(name if layer[most] == 1 and name != "identity" else "")
    first = max((i + 1 for i, name in enumerate(names) if not name), default=0)
    return names[first:]


@pytest.mark.parametrize("name", GENERATED)
def test_who_runs_with_defaults(name: str) -> None:
    bare, policy = load_policy(name), compared_policy(name)
    if name in WITH_DEFAULTS:
        assert tail(policy) == TAIL
        assert tail(compared_policy(name, space="imagenet")) == ["resized_crop", "flip"]
    else:
        assert policy.equals(bare)
    assert compared_policy(name, defaults=False).equals(bare)
    forced = compared_policy(name, defaults=True)
    assert tail(forced)[-3:] == TAIL
    assert forced.depth == bare.depth + 3
    # what precedes the defaults is the policy, draw for draw
    keys = torch.arange(500)
    rows = [forced.table.rows[i] for i in forced.draw(keys).choice[:, : bare.depth].flatten()]
    assert rows == [bare.table.rows[i] for i in bare.draw(keys).choice.flatten()]
    assert forced.equals(with_defaults(bare))


def test_layers_and_defaults_are_one_stage() -> None:
    (stage,) = compared_policy("trivialaugment-wide").phases[0].stages
    assert isinstance(stage, Layers)
    joined = load_policy("trivialaugment-wide").then(default_policy())
    assert len(joined.phases[0].stages) == 2
    keys = torch.arange(1000)
    ours, plain = compared_policy("trivialaugment-wide").draw(keys), joined.draw(keys)
    assert torch.equal(ours.choice, plain.choice)
    assert torch.equal(ours.uniform, plain.uniform)


def test_the_space_chooses_ranges() -> None:
    for name, policy in {
        "deepta": Policy.trivial(IMAGENET, 5),
        "deepta:3": Policy.trivial(IMAGENET, 3),
        "deepta:space=cifar": Policy.trivial(CIFAR, 6),
        "trivialaugment": trivial_augment("imagenet"),
        "randaugment:2,5": rand_augment(2, 5, "imagenet"),
        "autoaugment": auto_augment("imagenet"),
        "autoaugment-cifar10": auto_augment("cifar10"),
    }.items():
        assert compared_policy(name, space="imagenet", defaults=False).equals(policy), name


def test_first_layers() -> None:
    for k in (1, 3):
        assert compared_policy("deepta", first_layers=k).equals(Policy.trivial(CIFAR, k))
    assert compared_policy("deepta", first_layers=0).depth == 0
    cut = compared_policy("randaugment", first_layers=1)
    assert cut.depth == 4
    assert tail(cut) == TAIL
    with pytest.raises(ValueError, match=r"first_layers\(7\) of a policy of 6 layers"):
        compared_policy("deepta", first_layers=7)


# Files


LIST = [[["ShearX", 0.9, 0.1], ["Invert", 0.2, 0.3]], [["Rotate", 1.0, 0.75], ["Cutout", 0.5, 1.0]]]


def original_sub_policy(
    listed: list[list[list[Any]]], generator: random.Random
) -> tuple[Step, ...]:
    """Fast AutoAugment's procedure: a sub-policy, gates in order, mirrored signs."""
    applied = []
    for name, probability, level in generator.choice(listed):
        ours = our_name(name)
        if generator.random() > probability:
            continue
        limits = FAST_AUTOAUGMENT[ours]
        value = None if limits is None else level * (limits[1] - limits[0]) + limits[0]
        if ours in SIGNED and generator.random() > 0.5:
            value = -value  # type: ignore[operator]
        applied.append(step(ours, value))
    return tuple(applied)


def test_sub_policies_are_mirrored_and_run_with_defaults(tmp_path: Path) -> None:
    path = tmp_path / "list.json"
    path.write_text(json.dumps(LIST))
    plain = compared_policy(path, defaults=False)
    path.write_text(json.dumps({"method": "mine", "sub_policies": LIST}))
    policy = compared_policy(path, defaults=False)
    assert policy.equals(plain)
    generator = random.Random(0)
    counts = Counter(original_sub_policy(LIST, generator) for _ in range(10_000))
    check_counts(counts, outcomes(policy))
    whole = compared_policy(str(path))
    assert tail(whole) == TAIL
    assert whole.info == {"method": "mine"}
    # the same, converted: it stays as it was written
    for bare in (load_policy(path), policy):
        bare.save(tmp_path / "ours.json")
        again = compared_policy(tmp_path / "ours.json")
        assert tail(again) == TAIL
        assert compared_policy(tmp_path / "ours.json", defaults=False).equals(bare)
    # and once the defaults are in the file, they are not added again
    whole.save(tmp_path / "whole.json")
    assert compared_policy(tmp_path / "whole.json").equals(whole)


def test_files_of_layers_run_alone(tmp_path: Path) -> None:
    Policy.uniform(CIFAR, 3).save(tmp_path / "p.json")
    policy = compared_policy(tmp_path / "p.json")
    assert policy.equals(Policy.uniform(CIFAR, 3))
    simple = compared_policy(f"deepaa-simple:{tmp_path / 'p.json'}")
    assert simple.equals(with_defaults(Policy.uniform(CIFAR, 1)))
    assert load_policy(f"deepaa-simple:{tmp_path / 'p.json'}").equals(Policy.uniform(CIFAR, 1))
    alone = compared_policy(f"deepaa-simple:{tmp_path / 'p.json'}", defaults=False)
    assert alone.equals(Policy.uniform(CIFAR, 1))


def test_schedules_are_stretched(tmp_path: Path) -> None:
    zeros, ones = [0] * 60, [3] * 60
    path = tmp_path / "log.txt"
    path.write_text(str(["1", "2", 51, 50, zeros, ones]))
    starts = {
        (str(path), None): [0, 50],
        (str(path), 1800): [0, 450],
        (f"pba:{path},over=100", 20): [0, 10],
        (f"pba:{path}", 20): [0, 5],
    }
    for (source, epochs), expected in starts.items():
        policy = compared_policy(source, epochs=epochs)
        assert [phase.epoch for phase in policy.phases] == expected
        for epoch in expected:
            assert tail(policy, epoch) == TAIL


PUBLISHED = ("dada_cifar10", "dada_imagenet", "fast_autoaugment_cifar10", "fast_autoaugment_svhn")


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_sub_policies(name: str, shared: Path) -> None:
    path = shared / "policies" / f"{name}.json"
    listed = json.loads(path.read_text())["sub_policies"]
    policy = compared_policy(path, defaults=False)
    assert len(policy.table) <= 2000
    generator = random.Random(0)
    counts = Counter(original_sub_policy(listed, generator) for _ in range(20_000))
    check_counts(counts, outcomes(policy))
    assert tail(compared_policy(path)) == TAIL


@pytest.mark.parametrize("name", ["deepaa_cifar_2", "deepaa_imagenet_1"])
def test_published_archives(name: str, shared: Path) -> None:
    path = shared / "policies" / f"{name}.npz"
    policy, raw = compared_policy(path), load_policy(path)
    assert policy.equals(raw.symmetric())
    assert policy.depth == raw.depth
    assert policy.expected_uses() == pytest.approx(raw.expected_uses())
    one = compared_policy(f"deepaa-simple:{path}", defaults=False)
    assert one.equals(raw.symmetric().first_layers(1))


# Every name at work


@pytest.mark.parametrize("name", [*policy_names(), "deepta:2", "randaugment:n=3,m=5"])
def test_every_name_at_work(name: str) -> None:
    for policy in (compared_policy(name), compared_policy(name, defaults=True, space="imagenet")):
        assert len(policy.table) <= 2000
        draw = policy.draw(torch.arange(len(IMAGES)))
        out = apply_batch(IMAGES, draw, policy)
        assert torch.equal(out, pil_batch(IMAGES, draw, policy.table))
        assert loads(dumps(policy)).equals(policy)
        # one image at a time, through Pillow, with the same key
        single = DeepAutoAugment(policy, seed=3)
        batch = single(IMAGES, index=torch.arange(len(IMAGES)))
        for i in (0, 5):
            done = single(tensor_to_pil(IMAGES[i]), index=i)
            assert torch.equal(pil_to_tensor(done), batch[i])
    DeepAutoAugment(name)(tensor_to_pil(IMAGES[0]))


@pytest.mark.gpu
@pytest.mark.parametrize("name", policy_names())
def test_every_name_on_cuda(name: str) -> None:
    for space in ("cifar", "imagenet"):
        policy = compared_policy(name, defaults=True, space=space)  # type: ignore[arg-type]
        keys = torch.arange(4096)
        images = IMAGES.repeat(64, 1, 1, 1)
        draw, fast = policy.draw(keys), policy.draw(keys.cuda())
        assert torch.equal(fast.choice.cpu(), draw.choice)
        assert torch.equal(fast.uniform.cpu(), draw.uniform)
        out = apply_batch(images.cuda(), fast, policy)
        assert torch.equal(out.cpu(), apply_batch(images, draw, policy))


def test_spaces_are_not_touched() -> None:
    # the searched spaces keep the authors' crop and cutout
    for space in (CIFAR, IMAGENET):
        assert isinstance(space, Space)
        options = {op.name: op.options for op in space.operations}
        assert options["cutout"]["central"] in (None, 256)
    assert {op.name: op.options for op in CIFAR.operations}["crop"]["fill"] == (125, 123, 114)
