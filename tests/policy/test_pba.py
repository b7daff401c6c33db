"""pba.py: PBA's published schedules against a slow run of its procedure."""

from __future__ import annotations

import ast
import random
import re
from collections import Counter
from fractions import Fraction
from itertools import permutations, product
from pathlib import Path

import numpy as np
import pytest
from frequencies import Step, check_counts, our_name, outcomes, step
from PIL import Image, ImageEnhance, ImageOps

from deepaa.ops.apply import run_pil
from deepaa.policy import PolicyFileError, dumps, load_policy
from deepaa.policy.load import loads
from deepaa.policy.pba import chances, is_log, read_log

SIGNED = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
NAMES = (
    *("rotate", "translate_x", "translate_y", "brightness", "color", "invert", "sharpness"),
    *("posterize", "shear_x", "solarize", "shear_y", "equalize", "auto_contrast", "cutout"),
    "contrast",
)
"""The order of a log's numbers, from arcelien/pba @950397f, `augmentation_transforms_hp.py`."""


def line(trial: str, clone: str, epoch: int, old: list[int], new: list[int]) -> str:
    return str([trial, clone, epoch + 1, epoch, old, new])


def some_numbers(seed: int, *, busy: bool = True) -> list[int]:
    """60 numbers: probabilities and levels of 30 operations."""
    generator = random.Random(seed)
    most = 10 if busy else 2
    return [
        generator.randint(0, most) if i % 2 == 0 else generator.randint(0, 9) for i in range(60)
    ]


# The order of the numbers


def python_2_order(names: list[str]) -> list[str]:
    """How a dict of CPython 2.7 (64 bits) gives keys that were put in as `names`."""

    def put(name: str, slots: list[str]) -> None:
        word = ord(name[0]) << 7
        for letter in name:
            word = (1000003 * word ^ ord(letter)) % 2**64
        place = rest = word ^ len(name)
        while slots[place % len(slots)]:
            place, rest = 5 * place + rest + 1, rest >> 5
        slots[place % len(slots)] = name

    slots = [""] * 8
    for count, name in enumerate(names, start=1):
        put(name, slots)
        if 3 * count >= 2 * len(slots):  # a table four times as large as the keys need
            keys, slots = list(filter(None, slots)), [""] * 2 ** (4 * count).bit_length()
            for key in keys:
                put(key, slots)
    return list(filter(None, slots))


def test_the_order_is_that_of_the_search() -> None:
    """PBA first took the order from a plain dict, and the published logs come from Python 2."""
    filled = (
        "AutoContrast Equalize Invert Rotate Posterize Solarize Color Contrast Brightness "
        "Sharpness ShearX ShearY TranslateX TranslateY Cutout"
    )
    assert [our_name(name) for name in python_2_order(filled.split())] == list(NAMES)


@pytest.mark.parametrize("place", range(30))
def test_each_number_belongs_to_its_operation(place: int) -> None:
    numbers = [0] * 60
    numbers[2 * place], numbers[2 * place + 1] = 10, 5
    uses = read_log(line("4", "0", 0, [0] * 60, numbers), "log").expected_uses()
    assert {name for name, share in uses.items() if share} == {"identity", NAMES[place % 15]}
    assert uses[NAMES[place % 15]] == pytest.approx(0.8)


# Chances


def slow_chances(p: list[Fraction]) -> tuple[Fraction, list[Fraction], list[list[Fraction]]]:
    """Every count, order and set of successes, one by one."""
    n = len(p)
    none, single = Fraction(0), [Fraction(0)] * n
    pair = [[Fraction(0)] * n for _ in p]
    orders = list(permutations(range(n)))
    for count, weight in enumerate((Fraction(2, 10), Fraction(3, 10), Fraction(5, 10))):
        for order, successes in product(orders, product((True, False), repeat=n)):
            chance = weight / len(orders)
            for i, success in enumerate(successes):
                chance *= p[i] if success else 1 - p[i]
            applied = [i for i in order if successes[i]][:count]
            if len(applied) == 2:
                pair[applied[0]][applied[1]] += chance
            elif applied:
                single[applied[0]] += chance
            else:
                none += chance
    return none, single, pair


@pytest.mark.parametrize("tenths", [[], [0], [10], [3, 10], [1, 5, 9], [10, 0, 7, 4], [10] * 4])
def test_chances_by_enumeration(tenths: list[int]) -> None:
    none, single, pair = slow_chances([Fraction(k, 10) for k in tenths])
    found = chances(np.array(tenths) / 10)
    assert found[0] == pytest.approx(float(none), abs=1e-14)
    assert found[1].tolist() == pytest.approx(list(map(float, single)), abs=1e-14)
    for ours, theirs in zip(found[2].tolist(), pair, strict=True):
        assert ours == pytest.approx(list(map(float, theirs)), abs=1e-14)


def test_chances_of_thirty_add_up() -> None:
    p = np.array(some_numbers(3)[::2]) / 10
    none, single, pair = chances(p)
    assert none + single.sum() + pair.sum() == pytest.approx(1, abs=1e-12)
    assert (pair >= 0).all()
    np.testing.assert_allclose(pair, pair.T, atol=1e-15)


# The procedure


def slow_step(name: str, level: int, generator: random.Random) -> Step | None:
    """An operation at a level, as PBA applies it; None where it changes nothing."""
    sign = generator.choice((1, -1))
    if name in SIGNED:
        pixels_or_degrees = {"rotate": int(level * 30 / 10), "shear_x": level * 0.3 / 10}
        value = pixels_or_degrees.get(name, int(level * 10 / 10) / 32)
        value = level * 0.3 / 10 if name == "shear_y" else value
        return step(name, sign * value) if value else None
    if name == "cutout":
        return (f"cutout of {level * 2}", None) if level else None
    if name in ("auto_contrast", "equalize", "invert"):
        return name, None
    values = {"posterize": 4 - int(level * 4 / 10), "solarize": 256 - int(level * 256 / 10)}
    return step(name, values.get(name, level * 1.8 / 10 + 0.1))


def slow_apply(numbers: list[int], generator: random.Random) -> tuple[Step, ...]:
    """PBA's procedure: shuffle, and apply each with its probability until the count is used."""
    count = generator.choices((0, 1, 2), (0.2, 0.3, 0.5))[0]
    listed = list(zip([*NAMES, *NAMES], numbers[::2], numbers[1::2], strict=True))
    generator.shuffle(listed)
    applied = []
    for name, probability, level in listed:
        if count and generator.random() < probability / 10:
            applied.append(slow_step(name, level, generator))
            count -= 1
    return tuple(s for s in applied if s is not None)


def sized_outcomes(text: str, epoch: int) -> dict[tuple[Step, ...], float]:
    """`outcomes`, with the side of cutout in its name."""
    policy = read_log(text, "log")
    (stage,) = policy.phase(epoch).stages
    found: dict[tuple[Step, ...], float] = {}
    for weight, rows in zip(stage.weights.tolist(), stage.rows.tolist(), strict=True):
        steps = []
        for operation, magnitude in (policy.table.rows[row] for row in rows):
            name = operation.name
            if name == "cutout":
                name = f"cutout of {operation.options['size']}"
            if name != "identity":
                steps.append(step(name, magnitude))
        found[tuple(steps)] = found.get(tuple(steps), 0.0) + weight
    return found


@pytest.mark.parametrize("busy", [True, False])
def test_a_phase_is_the_procedure(busy: bool) -> None:
    numbers = some_numbers(5, busy=busy)
    generator = random.Random(0)
    counts = Counter(slow_apply(numbers, generator) for _ in range(40_000))
    text = line("1", "2", 20, [0] * 60, numbers)
    check_counts(counts, sized_outcomes(text, 20))
    assert outcomes(read_log(text, "log"), 19) == {(): 1.0}


# Pixels


def original(image: Image.Image, name: str, level: int, sign: int) -> np.ndarray:
    """An operation by way of RGBA, where transparent is the mean; cutout about (20, 3)."""
    shear, shift = sign * level * 0.3 / 10, sign * level
    affine = {
        "shear_x": (1, shear, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, shear, 1, 0),
        "translate_x": (1, 0, shift, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, shift),
    }
    picture = image.convert("RGBA")
    if name in affine:
        picture = picture.transform((32, 32), Image.Transform.AFFINE, affine[name])
    elif name == "rotate":
        picture = picture.rotate(sign * 3 * level)
    elif name == "cutout":  # 2 pixels a level
        cut = np.array(picture)
        cut[max(0, 3 - level) : 3 + level, 20 - level : 20 + level] = (125, 122, 113, 0)
        picture = Image.fromarray(cut)
    elif name in ("color", "contrast", "brightness", "sharpness"):
        picture = getattr(ImageEnhance, name.title())(picture).enhance(level * 1.8 / 10 + 0.1)
    elif name == "posterize":
        lost = 4 + int(level * 4 / 10)
        picture = image.point([value >> lost << lost for value in range(256)] * 3)
    elif name == "solarize":
        picture = ImageOps.solarize(image, 256 - int(level * 256 / 10))
    else:
        picture = getattr(ImageOps, name.replace("_", ""))(image)
    done = np.asarray(picture.convert("RGBA"))
    return np.where(done[..., 3:] == 0, np.uint8((125, 123, 114)), done[..., :3])


@pytest.mark.parametrize("level", range(10))
@pytest.mark.parametrize("place", range(15))
def test_one_operation_gives_the_pixels_of_the_original(place: int, level: int) -> None:
    numbers = [0] * 60
    numbers[2 * place], numbers[2 * place + 1] = 10, level
    table = read_log(line("4", "0", 0, [0] * 60, numbers), "log").table
    picture = Image.fromarray(np.random.default_rng(level).integers(0, 256, (32, 32, 3), np.uint8))
    rows = range(1, len(table)) or [0]  # level 0 may be no more than identity
    ours = {run_pil(picture, [(i, [20.5 / 32, 3.5 / 32])], table).tobytes() for i in rows}
    assert ours == {original(picture, NAMES[place], level, sign).tobytes() for sign in (1, -1)}


# Logs


def test_phases_and_stretching() -> None:
    a, b, c = some_numbers(1), some_numbers(2), some_numbers(3)
    zeros = [0] * 60
    text = "\n".join(
        [
            line("9", "7", 3, zeros, zeros),  # another line of descent
            line("4", "0", 50, zeros, a),
            "",
            line("2", "4", 120, a, b),
            line("1", "2", 120, b, c),
        ]
    )
    assert is_log(text)
    policy = read_log(text, "log")
    assert [phase.epoch for phase in policy.phases] == [0, 50, 120]
    alone = {0: zeros, 50: a, 120: c}
    for epoch, numbers in alone.items():
        expected = read_log(line("1", "2", 0, zeros, numbers), "one").expected_uses()
        expected = {name: uses for name, uses in expected.items() if uses}
        found = {name: uses for name, uses in policy.expected_uses(epoch).items() if uses}
        assert found == pytest.approx(expected)
    for epochs, starts in {200: [0, 50, 120], 1800: [0, 450, 1080], 5: [0, 1, 3]}.items():
        assert [phase.epoch for phase in policy.stretched(epochs, 200).phases] == starts
    one = policy.stretched(1, 200)  # all phases fall on the only epoch, and the last stays
    assert [phase.epoch for phase in one.phases] == [0]
    assert one.phases[0].stages == policy.phases[-1].stages
    for epochs, over in ((0, 200), (10, 120)):
        with pytest.raises(ValueError, match="begins at epoch 120 cannot be stretched"):
            policy.stretched(epochs, over)


GOOD = line("4", "0", 50, [0] * 60, some_numbers(1))
BAD_LOGS = {
    GOOD.replace("0, 0, 0]", "0, 0]", 1): "line 1: old numbers: 59 numbers, expected 60",
    GOOD.replace("0, 0, 0]", "0, 0, 11]", 1): "line 1: old numbers, number 59: 11 should be from",
    GOOD.replace("0, 0, 0]", "0, 0, 0.5]", 1): "number 59: expected an integer, got 0.5",
    GOOD[:-40]: "line 1: line 1, column",
    "['4', '0', 51]": "line 1: expected [trial, clone, trial epoch, clone epoch, old numbers",
    f"{GOOD}\n['x'": "line 2: ",
    f"{GOOD}\n{line('3', '4', 20, [0] * 60, [0] * 60)}": "epoch 20 follows epoch 50",
    line("4", "0", 200, [0] * 60, [0] * 60): "a change at epoch 200 of a search of 200 epochs",
    "['a']\n" * 10_001: "10,001 lines; at most 10,000 are read",
}


@pytest.mark.parametrize("text", BAD_LOGS, ids=lambda text: BAD_LOGS.get(text, "")[:30])
def test_bad_logs(text: str, tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_text(text)
    with pytest.raises(PolicyFileError, match=re.escape(BAD_LOGS[text])) as caught:
        load_policy(path)
    assert str(caught.value).startswith(f"{path}: ")


def test_names_with_a_file(tmp_path: Path) -> None:
    path = tmp_path / "a,b=c.txt"
    path.write_text(line("4", "0", 170, [0] * 60, some_numbers(1)))
    whole = load_policy(str(path))
    assert whole.equals(load_policy(f"pba:{path}"))
    assert whole.equals(load_policy(f"pba:{path},over=171"))
    with pytest.raises(PolicyFileError, match="a change at epoch 170 of a search of 160 epochs"):
        load_policy(f"pba:{path},over=160")
    with pytest.raises(PolicyFileError, match=r"over should be a whole number .*, got '-3'"):
        load_policy(f"pba:{path},over=-3")
    with pytest.raises(PolicyFileError, match=r"needs a policy behind it: pba:FILE"):
        load_policy("pba")
    with pytest.raises(PolicyFileError, match=r"^no-such-log: no such file$"):
        load_policy("pba:no-such-log")
    for text in ('[[["Invert", 1, 0]]]', '{"sub_policies": []}', ""):
        path.write_text(text)
        with pytest.raises(PolicyFileError, match=r"c\.txt: not a log of PBA; other files need no"):
            load_policy(f"pba:{path}")


def test_published_schedule(shared: Path) -> None:
    path = shared / "policies" / "pba_cifar10.txt"
    text = path.read_text()
    policy = load_policy(path)
    lines = [ast.literal_eval(entry) for entry in text.splitlines()]
    numbers = dict.fromkeys(range(lines[0][3]), lines[0][4])
    for entry, after in zip(lines, [*lines[1:], [0, 0, 0, 200]], strict=True):
        numbers |= dict.fromkeys(range(entry[3], after[3]), entry[5])
    assert sorted(numbers) == list(range(200))
    assert policy.phase(0).stages[0].weights.tolist() == [1.0]
    generator = random.Random(1)
    for epoch in (11, 12, 130, 199):
        counts = Counter(slow_apply(numbers[epoch], generator) for _ in range(10_000))
        check_counts(counts, sized_outcomes(text, epoch))
    assert len(policy.table) <= 2000
    assert loads(dumps(policy)).equals(policy)
