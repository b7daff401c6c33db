"""Every engine against Pillow: 0 differing values, no tolerance."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings, strategies as st
from oracle import every_row, pil_batch, random_uniform
from torch import Tensor

from deepaa.data.embedded import load_embedded
from deepaa.ops import kernels_c, kernels_torch
from deepaa.ops.apply import Draw, apply_batch, apply_pil
from deepaa.ops.conversions import pil_to_tensor, tensor_to_pil
from deepaa.ops.kernels_pil import KERNELS as PIL_KERNELS
from deepaa.ops.plan import Kind, plan_for, resolve
from deepaa.ops.rng import cutout_box
from deepaa.ops.space import BUILTIN, CIFAR, IMAGENET, Operation, Space, Table
from deepaa.policy.policy import Policy

SIZES = [(1, 1), (1, 7), (28, 28), (32, 32), (33, 17), (97, 131)]
LARGE = pytest.param((224, 224), marks=pytest.mark.slow)
SPACES = {"cifar": CIFAR, "imagenet": IMAGENET}
ENGINES = [
    "plain",
    "native",
    pytest.param("plain-cuda", marks=pytest.mark.gpu),
    pytest.param("fused", marks=pytest.mark.gpu),
]
Engine = Callable[[Tensor, Draw, Table | Space], Tensor]


def _real(n: int, channels: int, height: int, width: int) -> Tensor:
    all_images = load_embedded().train_images
    images = all_images[torch.arange(n) % len(all_images), :channels].float()
    if (height, width) != images.shape[2:]:
        images = torch.nn.functional.interpolate(images, (height, width), mode="bilinear")
    return images.to(torch.uint8)


def _gradient(n: int, channels: int, height: int, width: int) -> Tensor:
    ramp = torch.arange(height)[:, None] * 3 + torch.arange(width) * 2
    phase = torch.arange(n * channels).view(n, channels, 1, 1) * 7
    return ((ramp + phase) % 256).to(torch.uint8)


CONTENT: dict[str, Callable[..., Tensor]] = {
    "noise": lambda n, c, h, w: torch.randint(0, 256, (n, c, h, w), dtype=torch.uint8),
    "constant": lambda n, c, h, w: (
        torch.randint(0, 256, (n, c, 1, 1), dtype=torch.uint8).expand(n, c, h, w).contiguous()
    ),
    "black-white": lambda n, c, h, w: (torch.randint(0, 2, (n, c, h, w)) * 255).to(torch.uint8),
    "narrow": lambda n, c, h, w: torch.randint(100, 103, (n, c, h, w), dtype=torch.uint8),
    "gradient": _gradient,
    "real": _real,
}


@pytest.fixture(params=ENGINES)
def run(request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine as a function of (images on CPU, draw, table); CUDA ones may never wait."""
    name = request.param
    if name == "native" and not kernels_c.available():
        pytest.skip(f"no C kernels: {kernels_c.why_not()}")
    device = torch.device("cuda" if name in ("plain-cuda", "fused") else "cpu")

    def apply(images: Tensor, draw: Draw, table: Table | Space) -> Tensor:
        table = table.table if isinstance(table, Space) else table
        plan = plan_for(table, *images.shape[1:], device)
        images, choice, uniform = (t.to(device) for t in (images, *draw))
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        lines = resolve(plan, choice, uniform)
        if name.startswith("plain"):
            out = kernels_torch.run(images, lines, plan)
        elif name == "native":
            out = kernels_c.run(images, lines, plan)
        else:
            from deepaa.ops import draw_triton, kernels_triton

            fast = lines if plan.crops else draw_triton.resolve(plan, choice, uniform)
            out = kernels_triton.run(images, fast, plan)
        if device.type == "cuda":
            torch.cuda.set_sync_debug_mode("default")
        return out.cpu()

    yield apply
    if device.type == "cuda":
        torch.cuda.set_sync_debug_mode("default")


def check_equal(out: Tensor, expected: Tensor, draw: Draw, table: Table | Space) -> None:
    table = table.table if isinstance(table, Space) else table
    wrong = (out != expected).flatten(1).any(1).nonzero()[:, 0].tolist()
    rows = [[str(table.rows[r].transformation) for r in draw.choice[i].tolist()] for i in wrong]
    assert not wrong, f"{len(wrong)} images differ from Pillow, among them {rows[:5]}"


@pytest.mark.parametrize("content", CONTENT)
@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("size", [*SIZES, LARGE], ids=lambda s: f"{s[0]}x{s[1]}")
@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_every_transformation_equals_pillow(
    run: Engine, space: Space, size: tuple[int, int], channels: int, content: str
) -> None:
    draw = every_row(space, repeats=1 if size[0] > 64 else 2)
    images = CONTENT[content](len(draw.choice), channels, *size)
    before = images.clone()
    out = run(images, draw, space)
    assert torch.equal(images, before)
    assert out.dtype == torch.uint8
    check_equal(out, pil_batch(images, draw, space), draw, space)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_random_operations_at_many_places_equal_pillow(run: Engine, space: Space) -> None:
    random = [i for i, row in enumerate(space.table.rows) if row.operation.uniforms]
    choice = torch.tensor(random).repeat(200)[:, None]
    draw = Draw(choice, random_uniform(len(choice), 1, space.table.uniforms))
    for size in [(32, 32), (150, 130), (9, 300)]:
        images = CONTENT["noise"](len(choice), 3, *size)
        check_equal(run(images, draw, space), pil_batch(images, draw, space), draw, space)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_six_layers_equal_pillow(run: Engine, space: Space) -> None:
    draw = Policy.trivial(space, 6).sample(300)
    images = CONTENT["real"](300, 3, 40, 36)
    check_equal(run(images, draw, space), pil_batch(images, draw, space), draw, space)


@pytest.mark.parametrize("n", [0, 1, 4096])
def test_batch_sizes(run: Engine, n: int) -> None:
    draw = Policy.uniform(CIFAR, 2).sample(n)
    images = CONTENT["real"](n, 3, 32, 32)
    if n == 0:
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            none = apply_batch(images.to(device), draw.to(device), CIFAR)
            assert none.shape == (0, 3, 32, 32)
        return
    check_equal(run(images, draw, CIFAR), pil_batch(images, draw, CIFAR), draw, CIFAR)


WIDE = Space(
    (
        Operation("identity"),
        Operation("shear_x", -0.99, 0.99, neutral=0.0),
        Operation("shear_y", -0.99, 0.99, neutral=0.0),
        Operation("translate_x", -1.0, 1.0, neutral=0.0, options={"fill": (10, 20, 30)}),
        Operation("translate_y", -1.5, 1.5, neutral=0.0, options={"fill": 128}),
        Operation("rotate", -180.0, 180.0, neutral=0.0, options={"fill": (1, 2, 3)}),
        Operation("solarize", -10.0, 300.0),
        Operation("posterize", 0.0, 8.0),
        Operation("contrast", 0.0, 2.0),
        Operation("color", -1.0, 4.0),
        Operation("brightness", 0.0, 2.0),
        Operation("sharpness", -1.0, 6.0),
        Operation("cutout", -0.1, 1.2),
        Operation("crop", options={"pad": 9, "fill": (255, 0, 7)}),
        Operation("resized_crop", options={"scale": (0.001, 1.0), "ratio": (0.1, 10.0)}),
    ),
    levels=33,
)


@pytest.mark.parametrize("size", [(1, 1), (3, 3), (2, 5), (32, 32), (28, 41)], ids=str)
@pytest.mark.parametrize("channels", [1, 3])
def test_wide_ranges_and_options_equal_pillow(
    run: Engine, channels: int, size: tuple[int, int]
) -> None:
    draw = every_row(WIDE)
    images = CONTENT["noise"](len(draw.choice), channels, *size)
    check_equal(run(images, draw, WIDE), pil_batch(images, draw, WIDE), draw, WIDE)


def test_quarter_turns_are_in_the_wide_space() -> None:
    angles = {row.magnitude for row in WIDE.table.rows if row.operation.name == "rotate"}
    assert {90.0, -90.0, 180.0, -180.0} <= angles


def test_translation_rounds_like_pillow_for_every_width(run: Engine) -> None:
    rows = [i for i, row in enumerate(CIFAR.table.rows) if "translate" in row.operation.name]
    draw = Draw(torch.tensor(rows)[:, None], torch.zeros(len(rows), 1, 2))
    for width in range(1, 260, 1 if os.environ.get("DEEPAA_ALL_WIDTHS") else 7):
        images = CONTENT["noise"](len(rows), 1, 3, width)
        check_equal(run(images, draw, CIFAR), pil_batch(images, draw, CIFAR), draw, CIFAR)


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_other_numbers_of_channels(run: Engine, channels: int) -> None:
    space = CIFAR.without("color", "contrast")
    draw = every_row(space)
    images = CONTENT["noise"](len(draw.choice), channels, 30, 23)
    expected = torch.cat([pil_batch(images[:, c : c + 1], draw, space) for c in range(channels)], 1)
    check_equal(run(images, draw, space), expected, draw, space)


def test_colour_operations_refuse_other_channels() -> None:
    images = torch.zeros(1, 4, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"color and contrast need grey or RGB .* 4 channels"):
        apply_batch(images, Policy.uniform(CIFAR, 1).sample(1), CIFAR)


@given(data=st.data())
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_operation_magnitude_shape_and_number(run: Engine, data: st.DataObject) -> None:
    space = data.draw(st.sampled_from([CIFAR, IMAGENET, WIDE]))
    height, width = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    channels, depth = data.draw(st.sampled_from([1, 3])), data.draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**32)))
    images = torch.randint(0, 256, (4, channels, height, width), generator=generator)
    images = images.to(torch.uint8)
    if data.draw(st.booleans()):
        images = images // 16 * 16
    choice = torch.randint(0, len(space), (4, depth), generator=generator)
    words = torch.randint(0, 2**24, (4, depth, space.table.uniforms), generator=generator)
    draw = Draw(choice, words.float() * 2.0**-24)
    check_equal(run(images, draw, space), pil_batch(images, draw, space), draw, space)


def test_cutout_larger_than_the_image_and_large_padding(run: Engine) -> None:
    table = Table(
        [
            (Operation("cutout", options={"size": 100}), None),
            (Operation("crop", options={"pad": 50}), None),
        ]
    )
    draw = Draw(torch.tensor([[0], [1]] * 20), random_uniform(40, 1, 2))
    images = CONTENT["noise"](40, 3, 12, 7)
    check_equal(run(images, draw, table), pil_batch(images, draw, table), draw, table)


def test_every_builtin_has_a_definition_and_a_kind() -> None:
    assert set(PIL_KERNELS) == set(BUILTIN)
    ranged = {name: (0.1, 0.5) for name, spec in BUILTIN.items() if spec.magnitude == "needed"}
    for name in BUILTIN:
        low, high = ranged.get(name, (None, None))
        table = Table([(Operation(name, low, high), low)])
        kinds = plan_for(table, 3, 200, 200, torch.device("cpu")).kinds
        assert (kinds == {Kind.IDENTITY}) == (name == "identity"), name


def test_neutral_magnitudes_change_nothing(run: Engine) -> None:
    rows = [(op, op.neutral) for op in CIFAR.operations if op.neutral is not None]
    draw = every_row(Table(rows))
    images = CONTENT["noise"](len(rows), 3, 32, 32)
    assert len(rows) == 11
    check_equal(run(images, draw, Table(rows)), images, draw, Table(rows))


def test_engines_agree_with_the_public_function() -> None:
    draw = Policy.uniform(IMAGENET, 4).sample(64)
    images = CONTENT["real"](64, 3, 50, 60)
    out = apply_batch(images, draw, IMAGENET)
    check_equal(out, pil_batch(images, draw, IMAGENET), draw, IMAGENET)
    views = images.permute(0, 1, 3, 2).contiguous().permute(0, 1, 3, 2)
    assert torch.equal(apply_batch(views, draw, IMAGENET), out)
    assert torch.equal(
        apply_batch(images.to(memory_format=torch.channels_last), draw, IMAGENET), out
    )
    one_by_one = [apply_batch(images[i : i + 1], draw[i : i + 1], IMAGENET) for i in range(64)]
    assert torch.equal(torch.cat(one_by_one), out)


def test_several_threads_give_the_same_bytes() -> None:
    draw = Policy.uniform(CIFAR, 3).sample(2000)
    images = CONTENT["real"](2000, 3, 32, 32)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = apply_batch(images, draw, CIFAR)
        torch.set_num_threads(3)
        assert torch.equal(apply_batch(images, draw, CIFAR), one)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
def test_float_images_are_rounded_once_and_come_back_as_float(dtype: torch.dtype) -> None:
    draw = Policy.uniform(CIFAR, 2).sample(40)
    bytes_ = CONTENT["real"](40, 3, 32, 32)
    images = (bytes_.double() / 255).to(dtype)
    out = apply_batch(images, draw, CIFAR)
    assert out.dtype == dtype
    assert torch.equal(
        (out.double() * 255).round().to(torch.uint8), apply_batch(bytes_, draw, CIFAR)
    )


def test_float_image_drawn_identity_is_untouched() -> None:
    images = torch.rand(3, 3, 8, 8)
    out = apply_batch(images, Policy.identity(CIFAR, 2).sample(3), CIFAR)
    assert torch.equal(out, images)


@pytest.mark.parametrize(
    ("images", "error", "message"),
    [
        (torch.zeros(3, 8, 8, dtype=torch.uint8), ValueError, r"\(N, C, H, W\), got shape"),
        (torch.zeros(1, 3, 8, 8, dtype=torch.int64), TypeError, "uint8 or float"),
        (
            torch.zeros(2, 3, 8, 8, dtype=torch.uint8),
            ValueError,
            "a draw of 1 cannot serve 2",
        ),
        (torch.zeros(1, 3, 0, 8, dtype=torch.uint8), ValueError, "no pixels"),
        (torch.full((1, 3, 8, 8), 2.0), ValueError, "augment before you normalise"),
        (torch.full((1, 3, 8, 8), float("nan")), ValueError, r"should lie in \[0, 1\]"),
        (torch.zeros(1, 1, 1, 20000, dtype=torch.uint8), ValueError, "too large"),
    ],
)
def test_bad_batches(images: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        apply_batch(images, Policy.uniform(CIFAR, 1).sample(1), CIFAR)


GOOD = Policy.always(Operation("crop")).sample(2)


@pytest.mark.parametrize(
    ("draw", "error", "message"),
    [
        (GOOD._replace(choice=GOOD.choice - 1), ValueError, "choice names row -1 of 1"),
        (GOOD._replace(choice=GOOD.choice + 1), ValueError, "choice names row 1 of 1"),
        (GOOD._replace(choice=GOOD.choice.to(torch.uint8)), TypeError, "choice should be int64"),
        (
            GOOD._replace(uniform=GOOD.uniform[..., :1]),
            ValueError,
            r"uniform should be \(2, 1, 2\)",
        ),
        (GOOD._replace(uniform=GOOD.uniform[:1]), ValueError, "uniform should be"),
    ],
)
def test_bad_draws(draw: Draw, error: type[Exception], message: str) -> None:
    images = torch.zeros(2, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(error, match=message):
        apply_batch(images, draw, Policy.always(Operation("crop")))


@pytest.mark.parametrize("u", [-1e9, -0.1, 1.0, 50.0, 2e4, 1e30, float("inf"), float("nan")])
def test_numbers_outside_the_interval_stay_inside_the_image(run: Engine, u: float) -> None:
    for space in (CIFAR, IMAGENET):
        rows = [i for i, row in enumerate(space.table.rows) if row.operation.uniforms]
        choice = torch.tensor(rows)[:, None]
        uniform = torch.full((len(rows), 1, space.table.uniforms), u)
        end = torch.full_like(uniform, 1 - 2**-24 if u > 0 else 0.0)
        images = CONTENT["noise"](len(rows), 3, 130, 140)
        out = run(images, Draw(choice, uniform), space)
        assert torch.equal(out, run(images, Draw(choice, end), space))


def test_threads_share_a_policy() -> None:
    """Many threads and sizes at once: plans come and go while others use them."""
    space = Space(CIFAR.operations)
    policy = Policy.uniform(space, 2)
    keys = torch.arange(4)

    def work(number: int) -> bool:
        ok = True
        for turn in range(40):
            side = 8 + (number * 7 + turn) % 40
            images = torch.full((4, 3, side, side), number, dtype=torch.uint8)
            out = apply_batch(images, policy.draw(keys), policy)
            ok &= torch.equal(out, apply_batch(images, policy.draw(keys), policy))
        return ok

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def test_large_resized_crops_are_refused_with_a_hint() -> None:
    images = torch.zeros(1, 1, 1, 3000, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"batches of at most 2048.*resize first"):
        apply_batch(images, Policy.uniform(IMAGENET, 1).sample(1), IMAGENET)


def test_pil_modes_are_refused_by_name() -> None:
    from PIL import Image

    with pytest.raises(ValueError, match=r"mode 'RGBA'.*convert\('RGB'\)"):
        apply_pil(Image.new("RGBA", (4, 4)), Policy.uniform(CIFAR, 1).sample(1), CIFAR)


@pytest.mark.parametrize(
    ("values", "mode"),
    [
        (np.arange(65536, dtype=np.uint16).reshape(256, 256), "I;16"),
        (np.arange(65536, dtype=np.int32).reshape(256, 256), "I"),
        (np.linspace(0, 1, 65536, dtype=np.float32).reshape(256, 256), "F"),
    ],
    ids=["16 bits", "32 bits", "float"],
)
def test_the_advice_for_wide_images_keeps_all_grey_levels(
    values: np.ndarray[Any, Any], mode: str
) -> None:
    """Pillow's own conversion clips them to white."""
    from PIL import Image

    image, draw = Image.fromarray(values), Policy.uniform(CIFAR, 1).sample(1)
    assert image.mode == mode
    with pytest.raises(ValueError, match=f"mode '{mode}'") as caught:
        apply_pil(image, draw, CIFAR)
    assert "convert('RGB')" not in str(caught.value)
    advice = str(caught.value).rpartition(": ")[2]
    narrow = eval(advice, {"Image": Image, "np": np, "image": image})
    assert narrow.mode == "L"
    assert len(np.unique(np.asarray(narrow))) == 256
    apply_pil(narrow, draw, CIFAR)


def test_the_advice_for_wide_tensors_keeps_all_grey_levels() -> None:
    values = torch.arange(65536).view(1, 1, 256, 256)
    draw = Policy.uniform(CIFAR, 1).sample(1)
    for dtype in (torch.int32, torch.int64, torch.uint16):
        with pytest.raises(TypeError, match=r"uint8 or float in \[0, 1\]") as caught:
            apply_batch(values.to(dtype), draw, CIFAR)
        advice = str(caught.value).rpartition(": ")[2]
        narrow = eval(advice, {"torch": torch, "images": values.to(dtype)})
        assert len(apply_batch(narrow, draw, CIFAR)) == 1
        assert len(narrow.unique()) == 256
    with pytest.raises(TypeError, match=r"use images.to\(torch.uint8\)$"):
        apply_batch(values % 256, draw, CIFAR)


@pytest.mark.parametrize(
    ("high", "advice"),
    [
        (255.0, "divide them by 255, or give them as uint8"),
        (65535.0, "divide them by the value of white"),
        (2.5, "augment before you normalise"),
        (float("inf"), "augment before you normalise"),
    ],
)
def test_the_advice_for_floats_out_of_range(high: float, advice: str) -> None:
    images = torch.zeros(1, 3, 8, 8)
    images[0, 0, 0, 0] = high
    with pytest.raises(ValueError, match=f"; {advice}$"):
        apply_batch(images, Policy.uniform(CIFAR, 1).sample(1), CIFAR)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_compiled_equals_eager(device: str) -> None:
    policy = Policy.uniform(IMAGENET, 3)
    images = CONTENT["real"](50, 3, 32, 32).to(device, memory_format=torch.channels_last)
    keys = torch.arange(50, device=device)

    @torch.compile(fullgraph=True)
    def augment(images: Tensor, keys: Tensor) -> Tensor:
        return apply_batch(images, policy.draw(keys), policy.table).float() / 255

    eager = apply_batch(images, policy.draw(keys), policy.table)
    assert torch.equal((augment(images, keys) * 255).round().to(torch.uint8), eager)
    floats = images.float() / 255
    compiled = torch.compile(lambda x, k: apply_batch(x, policy.draw(k), policy), fullgraph=True)
    assert torch.equal(compiled(floats, keys), apply_batch(floats, policy.draw(keys), policy))


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(32, 32), (224, 224)])
def test_cuda_draw_and_apply_never_wait(size: tuple[int, int]) -> None:
    policy = Policy.uniform(IMAGENET, 4)
    images = CONTENT["real"](64, 3, *size)
    keys = torch.arange(64)
    on_gpu, keys_gpu = images.cuda(), keys.cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        out = apply_batch(on_gpu, policy.draw(keys_gpu), policy.table)
        floats = apply_batch(on_gpu.float() / 255, policy.draw(keys_gpu), policy.table)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    expected = apply_batch(images, policy.draw(keys), policy.table)
    assert torch.equal(out.cpu(), expected)
    assert torch.equal((floats * 255).round().to(torch.uint8).cpu(), expected)


@pytest.mark.gpu
def test_cuda_memory_stays_within_six_batches() -> None:
    policy = Policy.uniform(CIFAR, 6)
    images = CONTENT["noise"](16384, 3, 32, 32).cuda()
    keys = torch.arange(16384, device="cuda")
    apply_batch(images, policy.draw(keys), policy.table)
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    apply_batch(images, policy.draw(keys), policy.table)
    assert torch.cuda.max_memory_allocated() - before <= 6 * images.numel()


FUSED_ON_CPU = """
import torch
from oracle import every_row
from deepaa.ops import apply_batch, draw_triton, kernels_triton
from deepaa.ops.plan import plan_for, resolve
from deepaa.policy import Policy
from deepaa.ops.space import CIFAR, IMAGENET
cases = [(CIFAR, (9, 14), 3), (IMAGENET, (33, 17), 1), (IMAGENET, (20, 30), 3)]
for space, size, channels in cases:
    draw = every_row(space)
    images = torch.randint(0, 256, (len(draw.choice), channels, *size), dtype=torch.uint8)
    plan = plan_for(space.table, channels, *size, images.device)
    out = kernels_triton.run(images, resolve(plan, *draw), plan)
    assert torch.equal(out, apply_batch(images, draw, space)), (size, channels)
for space in (CIFAR, CIFAR.only("identity", "flip"), IMAGENET.without("resized_crop")):
    policy, keys = Policy.trivial(space, 3), torch.randint(-(2**63), 2**63 - 1, (300,))
    draw = policy.draw(keys)
    thresholds = policy.phases[0].stages[0].constants[0]
    choice, uniform = draw_triton.draw(keys, thresholds, space.table.uniforms)
    assert torch.equal(choice, draw.choice) and torch.equal(uniform, draw.uniform)
    for size in ((32, 32), (97, 311)):
        plan = plan_for(space.table, 3, *size, keys.device)
        assert torch.equal(draw_triton.resolve(plan, *draw), resolve(plan, *draw)), size
        uniform = torch.where(draw.uniform < 0.5, float("nan"), draw.uniform * 4)
        bad = draw_triton.resolve(plan, draw.choice, uniform)
        assert torch.equal(bad, resolve(plan, draw.choice, uniform)), size
        last = draw_triton.resolve(plan, draw.choice + 2**40, draw.uniform)
        assert (last[..., 5] == len(space) - 1).all()
        first = draw_triton.resolve(plan, draw.choice - 2**40, draw.uniform)
        assert (first[..., 5] == 0).all()
print("equal")
"""


@pytest.mark.slow
def test_fused_program_in_tritons_interpreter() -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", FUSED_ON_CPU], env=environment, capture_output=True, text=True
    )
    assert done.stdout.strip() == "equal", done.stderr[-2000:]


def test_plans_of_many_sizes_are_forgotten() -> None:
    space = Space(CIFAR.operations)
    for size in range(8, 60):
        apply_batch(CONTENT["noise"](2, 3, size, size), Policy.uniform(space, 1).sample(2), space)
    assert len(space.table.cache) <= 16


def test_round_trip_between_pil_and_tensors() -> None:
    for channels in (1, 3):
        image = torch.randint(0, 256, (channels, 5, 9), dtype=torch.uint8)
        assert torch.equal(pil_to_tensor(tensor_to_pil(image)), image)


def test_the_large_cutout_begins_at_its_smallest_side() -> None:
    """120 pixels are left alone, 121 are cut."""
    rule = {"size": 60, "central": None, "min_side": 121}
    assert cutout_box([0.5, 0.5], 121, 200, None, **rule) is not None
    assert cutout_box([0.5, 0.5], 120, 200, None, **rule) is None
