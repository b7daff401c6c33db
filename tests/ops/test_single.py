"""Single images: the bytes of Pillow from the C kernels, and which images go which way."""

from __future__ import annotations

import gc
import pickle
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from oracle import random_uniform
from PIL import Image

from deepaa.ops import kernels_c, single
from deepaa.ops.apply import run_pil
from deepaa.ops.single import single_array, single_pil, single_tensor
from deepaa.ops.space import CIFAR, IMAGENET, PIXEL, Operation, Table

SIZES = [(32, 32), (28, 28), (17, 23), (1, 9), (9, 1), (2, 5), (40, 64)]
RESIZED = Table(
    [
        (Operation("resized_crop", options={"scale": (0.08, 1.0), "ratio": (3 / 4, 4 / 3)}), None),
        (Operation("resized_crop", options={"scale": (0.5, 1.0), "ratio": (1.0, 1.0)}), None),
    ]
)


@pytest.fixture(autouse=True)
def native_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every size has its plan from the first image on, and a test fails where Pillow runs."""
    if not kernels_c.available():
        pytest.skip(f"no C kernels: {kernels_c.why_not()}")
    monkeypatch.setattr(single, "SEEN", 1)


def picture(channels: int, height: int, width: int) -> Any:
    """An array (H, W) or (H, W, 3) with edges, flat parts and noise."""
    shape = (height, width) if channels == 1 else (height, width, channels)
    pixels = np.random.default_rng(height * width).integers(0, 256, shape, np.uint8)
    pixels[: height // 3] //= 4
    pixels[:, : width // 4] = 77
    return pixels


def draws(table: Table, depth: int) -> list[Any]:
    """Every row of the table in some layer, with numbers as a policy draws them."""
    rows = torch.randperm(len(table)).tolist()
    rows += rows[: -len(rows) % depth]
    numbers = iter(random_uniform(len(rows), table.uniforms).double().tolist())
    steps = [(row, next(numbers)) for row in rows]
    return [steps[i : i + depth] for i in range(0, len(steps), depth)]


def tables() -> dict[str, Table]:
    whole = CIFAR.table.extended([*IMAGENET.table.rows, *RESIZED.rows])
    return {"cifar": CIFAR.table, "imagenet": IMAGENET.table, "resized": RESIZED, "all": whole}


def no_pillow(*_: Any) -> Any:
    raise AssertionError("this image went through Pillow")


@pytest.mark.parametrize("name", sorted(tables()))
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("channels", [1, 3])
def test_every_form_has_the_bytes_of_pillow(
    name: str, size: tuple[int, int], channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = Table(tables()[name].rows)
    pixels = picture(channels, *size)
    planes = torch.from_numpy(np.ascontiguousarray(np.atleast_3d(pixels).transpose(2, 0, 1)))
    pil = Image.fromarray(pixels)
    monkeypatch.setattr(single, "run_pil", no_pillow)
    for steps in draws(table, depth=1) + draws(table, depth=3):
        expected = np.asarray(run_pil(pil, steps, table))
        made = single_pil(pil, steps, table)
        assert (made.mode, made.size) == (pil.mode, pil.size)
        np.testing.assert_array_equal(np.asarray(made), expected, str(steps))
        np.testing.assert_array_equal(single_array(pixels, steps, table), expected, str(steps))
        tensor = single_tensor(planes, steps, table)
        flat = np.atleast_3d(expected).transpose(2, 0, 1)
        np.testing.assert_array_equal(tensor.numpy(), flat, str(steps))
    np.testing.assert_array_equal(pixels, picture(channels, *size))  # nobody wrote to the input
    np.testing.assert_array_equal(np.asarray(pil), pixels)


def test_arrays_need_not_be_plain(monkeypatch: pytest.MonkeyPatch) -> None:
    base, table = picture(3, 21, 34), Table(CIFAR.table.rows)
    frozen = base.copy()
    frozen.flags.writeable = False
    forms = {
        "frozen": frozen,
        "mirrored": base[:, ::-1],
        "upside down": base[::-1],
        "other colours": base[:, :, ::-1],
        "every second": base[::2, ::2],
        "by columns": np.asfortranarray(base),
        "planes": np.ascontiguousarray(base.transpose(2, 0, 1)).transpose(1, 2, 0),
        "one channel of three": base[:, :, 1],
        "last axis of one": base[:, :, :1],
    }
    monkeypatch.setattr(single, "run_pil", no_pillow)
    for name, form in forms.items():
        before = form.copy()
        for steps in draws(table, depth=2)[:30]:
            plain = np.ascontiguousarray(form[:, :, 0] if form.shape[2:] == (1,) else form)
            expected = np.asarray(run_pil(Image.fromarray(plain), steps, table))
            out = single_array(form, steps, table)
            assert out.shape == form.shape
            assert out.flags.c_contiguous
            assert out.flags.writeable
            assert not np.shares_memory(out, base)
            assert not np.shares_memory(out, form)
            np.testing.assert_array_equal(out, expected.reshape(form.shape), f"{name} {steps}")
        np.testing.assert_array_equal(form, before)


def test_tensors_need_not_be_contiguous() -> None:
    table = Table(CIFAR.table.rows)
    tensor = torch.from_numpy(picture(3, 21, 34)).permute(2, 0, 1)
    for image in (tensor, tensor[:, ::2, 1:], tensor[1:2]):
        for steps in draws(table, depth=2)[:20]:
            out = single_tensor(image, steps, table)
            assert out.is_contiguous()
            assert out.data_ptr() != image.data_ptr()
            assert torch.equal(out, single_tensor(image.contiguous().clone(), steps, table))


def test_what_changes_nothing_is_copied_but_for_pil() -> None:
    """As Pillow's own path does: a PIL image comes back as it is, arrays and tensors as copies."""
    table = Table([(Operation("identity"), None)])
    pixels, steps = picture(3, 5, 6), [(0, []), (0, [])]
    pil, tensor = Image.fromarray(pixels), torch.from_numpy(pixels).permute(2, 0, 1)
    assert single_pil(pil, steps, table) is pil
    out = single_array(pixels[:, ::-1], steps, table)
    np.testing.assert_array_equal(out, pixels[:, ::-1])
    assert out.flags.c_contiguous
    assert not np.shares_memory(out, pixels)
    copy = single_tensor(tensor, steps, table)
    assert torch.equal(copy, tensor)
    assert copy.is_contiguous()
    assert copy.data_ptr() != tensor.data_ptr()


def test_cutouts_of_every_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[dict[str, Any]] = [
        {"size": 7, "fill": 3, "central": None},
        {"size": 7, "fill": 3, "central": 12},
        {"size": 7, "fill": 3, "central": PIXEL},
        {"size": 7, "fill": (1, 2, 3), "central": None, "min_side": 30},  # not at this size
    ]
    operations = [Operation("cutout", options=each) for each in options]
    table = Table([(operation, None) for operation in operations])
    pixels = picture(3, 19, 26)
    for steps in [draw for _ in range(25) for draw in draws(table, depth=2)]:
        expected = np.asarray(run_pil(Image.fromarray(pixels), steps, table))
        np.testing.assert_array_equal(single_array(pixels, steps, table), expected, str(steps))


def test_a_pil_image_keeps_what_it_carries() -> None:
    pil = Image.fromarray(picture(3, 8, 9))
    pil.info["icc_profile"] = b"profile"
    table = Table([(Operation("invert"), None)])
    made = single_pil(pil, [(0, [])], table)
    assert made.info == run_pil(pil, [(0, [])], table).info == pil.info
    made.info.clear()
    assert pil.info
    opaque = made.convert("RGBA")
    assert opaque.getchannel("A").getextrema() == (255, 255)


# Which way


def count_native(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by one for each image that the C kernels take."""
    taken: list[int] = []
    run = kernels_c.Single.run

    def counted(*args: Any) -> None:
        taken.append(1)
        run(*args)

    monkeypatch.setattr(kernels_c.Single, "run", counted)
    return taken


INVERT = [(Operation("invert"), None)]


def test_a_size_is_native_once_it_was_seen_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "SEEN", 3)
    taken, table = count_native(monkeypatch), Table(INVERT)
    for n, native in enumerate([0, 0, 1, 2]):
        single_array(picture(3, 8, 8), [(0, [])], table)
        single_array(picture(3, 8, 9 + n), [(0, [])], table)
        assert len(taken) == native
    assert list(table.sizes.made) == [(3, 8, 8)]


def test_folders_of_all_sizes_fill_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single, "MAX_COUNTED", 10)
    monkeypatch.setattr(single, "SEEN", 2)
    table = Table(INVERT)
    for width in range(1, 200):
        single_array(picture(1, 2, width), [(0, [])], table)
    sizes = table.sizes
    assert len(sizes.counts) <= 10
    assert not sizes.made
    for width in range(1, 200):
        for _ in range(2):
            single_array(picture(1, 2, width), [(0, [])], table)
    assert len(sizes.made) == single.MAX_SIZES


def test_plans_together_stay_below_their_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    table = CIFAR.table.extended(RESIZED.rows)
    monkeypatch.setattr(single, "MAX_BYTES", 2 << 20)
    for side in range(40, 120, 8):
        single_array(picture(1, side, side + 3), [(0, [])], table)
    sizes = table.sizes
    real = sum(lines.plan.bytes for lines in sizes.made.values())
    assert 1 <= len(sizes.made) < 10
    assert real <= sizes.bytes <= 2 << 20


def test_a_table_that_is_gone_takes_its_plans_along() -> None:
    table = Table(INVERT)
    single_array(picture(1, 4, 4), [(0, [])], table)
    plan = weakref.ref(table.sizes.made[1, 4, 4].plan)
    assert pickle.loads(pickle.dumps(table)).sizes is None
    del table
    gc.collect()
    assert plan() is None


def test_own_operations_and_a_switched_off_library_go_through_pillow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = count_native(monkeypatch)
    own = Operation("mirror", pil=lambda image, m, u: image.transpose(0))
    table = Table([*INVERT, (own, None)])
    pixels = picture(3, 6, 7)
    np.testing.assert_array_equal(single_array(pixels, [(1, [])], table), pixels[:, ::-1])
    np.testing.assert_array_equal(single_array(pixels, [(0, [])], table), 255 - pixels)
    monkeypatch.setenv("DEEPAA_NATIVE", "0")
    plain = Table(INVERT)
    np.testing.assert_array_equal(single_array(pixels, [(0, [])], plain), 255 - pixels)
    assert not taken
    monkeypatch.delenv("DEEPAA_NATIVE")
    plain = Table(INVERT)  # a table asks once
    np.testing.assert_array_equal(single_array(pixels, [(0, [])], plain), 255 - pixels)
    assert taken == [1]


def test_with_a_pillow_that_rounds_otherwise_all_images_go_through_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = count_native(monkeypatch)
    monkeypatch.setattr(single, "pillow_rounds_blends", lambda: False)
    pixels = picture(3, 6, 7)
    np.testing.assert_array_equal(single_array(pixels, [(0, [])], Table(INVERT)), 255 - pixels)
    assert not taken


def test_other_modes_and_rows_are_refused_as_before() -> None:
    with pytest.raises(ValueError, match="mode 'RGBA'"):
        single_pil(Image.new("RGBA", (4, 4)), [(0, [])], Table(INVERT))
    plan = single._maker(Table(INVERT), 3, 4, 4)
    assert plan is not None
    with pytest.raises(ValueError, match="does not fit"):
        plan.run(bytes(48), 0, [2, 99, 0, 0, 0, 0], 3)
    with pytest.raises(ValueError, match="does not fit"):
        plan.run(bytes(48), 0, [2, 0, 0, 0, 0, 0], 5)


def test_threads_that_meet_a_size_together_make_one_plan() -> None:
    table = Table(CIFAR.table.rows)
    pixels = picture(3, 24, 31)
    jobs = draws(table, depth=2)
    expected = [np.asarray(run_pil(Image.fromarray(pixels), steps, table)) for steps in jobs]
    start = threading.Barrier(4)

    def work(_: int) -> tuple[bool, Any]:
        start.wait()
        done = [single_array(pixels, steps, table) for steps in jobs]
        equal = all(map(np.array_equal, done, expected))
        return equal, table.sizes.made[3, 24, 31]

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(work, range(4)))
    assert all(equal for equal, _ in results)
    assert len({id(made) for _, made in results}) == 1


@pytest.mark.parametrize("level", range(len(kernels_c.LEVELS)), ids=kernels_c.LEVELS)
def test_every_level_gives_the_same_bytes(level: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if level not in kernels_c._levels():
        pytest.skip("not for this processor")
    monkeypatch.setattr(kernels_c, "_levels", lambda: (level,))
    table = Table(CIFAR.table.rows)
    for size in ((19, 45), (64, 70)):
        pil = Image.fromarray(picture(3, *size))
        for steps in draws(table, depth=2):
            expected = np.asarray(run_pil(pil, steps, table))
            np.testing.assert_array_equal(np.asarray(single_pil(pil, steps, table)), expected)
            out = single_array(np.asarray(pil), steps, table)
            np.testing.assert_array_equal(out, expected)
