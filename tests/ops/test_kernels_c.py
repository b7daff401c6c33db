"""The C kernels: how they are built and loaded, and that no input leads them outside of memory."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from forks import TORCH, Program, in_forks
from oracle import every_row, random_uniform
from torch import Tensor

import build_kernels
from deepaa.ops import kernels_c, kernels_torch
from deepaa.ops.apply import (
    Draw,
    Drawn,
    apply_batch,
    apply_pil,
    apply_torch,
    run_pil,
)
from deepaa.ops.conversions import tensor_to_pil
from deepaa.ops.plan import Kind, Plan, plan_for, resolve
from deepaa.ops.space import CIFAR, IMAGENET, Operation, Table
from deepaa.policy.policy import Policy

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests/helpers"
FILES = ("kernels.c", "libdeepaa.so", "libdeepaa.so.sha256")


def noise(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def compiler() -> list[str]:
    try:
        return build_kernels._compiler()
    except build_kernels.BuildError as error:
        pytest.skip(str(error))


# Building


def test_the_kernels_of_this_tree_are_built() -> None:
    """Otherwise all tests of the C kernels would be skipped without a word."""
    compiler()
    assert kernels_c.why_not() is None


def test_building_makes_a_library_and_its_checksum(tmp_path: Path) -> None:
    compiler()
    shutil.copy(kernels_c.FOLDER / "kernels.c", tmp_path)
    library = build_kernels.build(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(FILES)
    source = hashlib.sha256((tmp_path / "kernels.c").read_bytes()).hexdigest()
    loaded = ctypes.CDLL(str(library))
    assert loaded.deepaa_level() in range(3)
    assert f"deepaa kernels.c {source}".encode() in library.read_bytes()


@pytest.mark.parametrize(
    ("path", "chosen", "said"),
    [
        ("", "", "there is no C compiler (cc, gcc or clang, or the variable CC)"),
        (None, "/no/such/compiler", "/no/such/compiler does not run: "),
        (None, "false", "false failed: exit code 1"),
    ],
)
def test_without_a_compiler_the_command_says_so(
    path: str | None,
    chosen: str,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("CC", chosen)
    if path is not None:
        monkeypatch.setenv("PATH", path)
    assert build_kernels.main() == 1
    printed = capsys.readouterr()
    assert printed.err.startswith("error: no C kernels, torch's slower ones will serve: " + said)
    assert printed.err.count("\n") == 1
    assert kernels_c._library.__wrapped__() is not None  # what was there before still is


@pytest.mark.slow
def test_it_compiles_for_arm64(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if shutil.which("aarch64-linux-gnu-gcc") is None:
        pytest.skip("no compiler for arm64: the Debian package gcc-aarch64-linux-gnu")
    monkeypatch.setenv("CC", "aarch64-linux-gnu-gcc -Werror")
    shutil.copy(kernels_c.FOLDER / "kernels.c", tmp_path)
    content = build_kernels.build(tmp_path).read_bytes()
    assert content[:4] == b"\x7fELF"
    assert content[18] == 183  # the machine's number in the header
    assert b"deepaa_apply_0" in content
    assert b"deepaa_apply_1" not in content


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, "/no/such/compiler"], ids=["compiler", "no compiler"])
def test_a_wheel_holds_the_kernels_where_there_is_a_compiler(
    chosen: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if chosen is None:
        compiler()
    else:
        monkeypatch.setenv("CC", chosen)
    tree = tmp_path / "tree"
    ignored = shutil.ignore_patterns(".git", ".venv", "out", "results", "__pycache__", "*.so*")
    shutil.copytree(ROOT, tree, ignore=ignored)
    words = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir", "dist", "./tree"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    if "hatchling" in done.stderr and "No matching distribution" in done.stderr:
        pytest.skip("no network: pip cannot fetch hatchling, which builds wheels")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    inside = {Path(name).name for name in zipfile.ZipFile(wheel).namelist()}
    assert "kernels.c" in inside
    assert (set(FILES) <= inside) == (chosen is None)
    assert wheel.stem.endswith("-any") == (chosen is not None)
    zipfile.ZipFile(wheel).extractall(tmp_path / "installed")
    code = (
        "from deepaa.ops import kernels_c\n"
        "print(kernels_c.FOLDER.parents[1].name, kernels_c.why_not(), sep='|')"
    )
    path = {"PYTHONPATH": str(tmp_path / "installed")}
    words = [sys.executable, "-c", code]
    found = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, check=True, env=path
    )
    advice = (
        "they were not built with this package: /no/such/compiler does not run: [Errno 2] "
        "No such file or directory: '/no/such/compiler'; install deepaa from its source where "
        "there is a C compiler"
    )
    assert found.stdout.strip() == f"installed|{None if chosen is None else advice}"
    assert ("libdeepaa.so.missing" in inside) == (chosen is not None)


# Loading


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the library, which is what the package finds."""
    if not kernels_c.available():
        pytest.skip(f"no C kernels: {kernels_c.why_not()}")
    for name in FILES:
        shutil.copy(kernels_c.FOLDER / name, tmp_path)
    monkeypatch.setattr(kernels_c, "FOLDER", tmp_path)
    return tmp_path


def loaded() -> ctypes.CDLL | str:
    return kernels_c._library.__wrapped__()


def test_a_copy_can_be_loaded(folder: Path) -> None:
    assert isinstance(loaded(), ctypes.CDLL)


def test_a_damaged_library_is_not_loaded(folder: Path) -> None:
    """Flipped bits would change pixels, and the mapping of a truncated file kills the process."""
    path = folder / "libdeepaa.so"
    whole = path.read_bytes()
    for place in np.linspace(0, len(whole) - 1, 60).astype(int).tolist():
        flipped = bytearray(whole)
        flipped[place] ^= 1 << place % 8
        path.write_bytes(flipped)
        found = loaded()
        assert isinstance(found, str)
        assert "libdeepaa.so is damaged, its checksum differs" in found
    for size in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:size])
        assert "damaged" in str(loaded())
    path.write_bytes(whole)
    (folder / "libdeepaa.so.sha256").unlink()
    assert isinstance(loaded(), str)


def test_a_library_of_another_source_is_not_loaded(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with (folder / "kernels.c").open("a") as file:
        file.write("\n")
    found = loaded()
    assert isinstance(found, str)
    assert found.startswith("libdeepaa.so was built from another kernels.c; ")
    assert [record.message for record in caplog.records] == [
        f"no compiled CPU kernels, torch's slower ones serve instead: {found}"
    ]


def test_a_missing_library_is_no_fault(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    (folder / "libdeepaa.so").unlink()
    assert str(loaded()).startswith("they were not built; ")
    assert not caplog.records


def test_what_the_installation_noted_is_told_until_there_is_a_library(folder: Path) -> None:
    (folder / "libdeepaa.so").unlink()
    error = build_kernels.BuildError("there is no C\ncompiler")
    note = build_kernels.note_reason(error, folder)
    told = "they were not built with this package: there is no C compiler; "
    assert str(loaded()).startswith(told)
    note.write_bytes(b"\xff" * 5000)
    assert len(str(loaded())) < 500
    compiler()
    build_kernels.build(folder)
    assert not note.exists()
    assert isinstance(loaded(), ctypes.CDLL)


def test_nothing_is_compiled_or_read_elsewhere(tmp_path: Path) -> None:
    code = (
        "import torch, os; from deepaa.ops import kernels_c, apply_batch, CIFAR\n"
        "from deepaa.policy import Policy\n"
        "x = torch.arange(3072).to(torch.uint8).view(1, 3, 32, 32)\n"
        "d = Policy.uniform(CIFAR, 4).draw(torch.arange(1))\n"
        "print(kernels_c.available(), apply_batch(x, d, CIFAR).sum().item())"
    )
    home = {"HOME": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    changes: tuple[dict[str, str], ...] = ({}, {"CC": "false"}, {"DEEPAA_NATIVE": "0"})
    programs = [Program(code=code, environment={**home, **change}) for change in changes]
    found = in_forks(programs, modules=TORCH)
    assert not any(done.returncode for done in found), found
    results = [done.stdout.split() for done in found]
    assert [result[0] for result in results] == [str(kernels_c.available())] * 2 + ["False"]
    assert len({result[1] for result in results}) == 1
    assert not list(tmp_path.iterdir())


# Equal bytes from every copy of the loops


@pytest.mark.parametrize("level", range(len(kernels_c.LEVELS)), ids=kernels_c.LEVELS)
@pytest.mark.parametrize("size", [(9, 14), (33, 17), (64, 130)])
def test_every_level_gives_the_same_bytes(
    level: int, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    if not kernels_c.available():
        pytest.skip(f"no C kernels: {kernels_c.why_not()}")
    if level not in kernels_c._levels():
        pytest.skip("not for this processor")
    monkeypatch.setattr(kernels_c, "_levels", lambda: (level,))
    for space in (CIFAR, IMAGENET):
        draw = every_row(space, repeats=2)
        images = noise(len(draw.choice), 3, *size)
        plan = plan_for(space.table, 3, *size, images.device)
        lines = resolve(plan, *draw)
        assert torch.equal(
            kernels_c.run(images, lines, plan), kernels_torch.run(images, lines, plan)
        )


# What is given, on every engine


def through_pil(images: Tensor, draw: Draw, table: Table) -> Any:
    return apply_pil(tensor_to_pil(images[0]), draw[:1], table)


def through_steps(images: Tensor, draw: Draw, table: Table) -> Any:
    steps = zip(draw.choice[0].tolist(), draw.uniform[0].tolist(), strict=True)
    return run_pil(tensor_to_pil(images[0]), list(steps), table)


def through_float(images: Tensor, draw: Draw, table: Table) -> Any:
    return apply_batch(images / 255, draw, table)


def compiled(images: Tensor, draw: Draw, table: Table) -> Any:
    def augment(images: Tensor, choice: Tensor, uniform: Tensor) -> Tensor:
        return apply_batch(images, Draw(choice, uniform), table)

    return torch.compile(augment, backend="eager", fullgraph=True)(images, *draw)


ENTRIES = {
    "C": apply_batch,
    "torch": apply_torch,
    "without C": apply_batch,
    "float": through_float,
    "one PIL image": through_pil,
    "steps": through_steps,
    "compiled": compiled,
}


@pytest.fixture(params=ENTRIES)
def entry(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    if request.param == "without C":
        monkeypatch.setenv("DEEPAA_NATIVE", "0")
    return ENTRIES[request.param]


RANDOM = CIFAR.only("flip", "crop", "cutout").plus(Operation("resized_crop"))


@pytest.mark.parametrize(
    ("number", "said"),
    [(float("nan"), "nan"), (-0.5, "-0.5"), (1.0, "1"), (float("inf"), "inf"), (1e30, "1e+30")],
)
def test_numbers_outside_of_the_interval_are_refused(entry: Any, number: float, said: str) -> None:
    for row in range(len(RANDOM)):
        count = RANDOM.table.uniforms
        uniform = torch.full((1, 1, count), 0.25)
        uniform[0, 0, 0] = number
        draw = Draw(torch.tensor([[row]]), uniform)
        with pytest.raises(ValueError, match=r"^uniform should lie in \[0, 1\), got ") as caught:
            entry(noise(1, 3, 40, 36), draw, RANDOM.table)
        assert str(caught.value).endswith(f"got {said}")


@pytest.mark.parametrize("row", [-1, -(2**40), 4, 2**40])
def test_rows_that_the_table_lacks_are_refused(entry: Any, row: int) -> None:
    draw = Draw(torch.tensor([[row]]), torch.zeros(1, 1, RANDOM.table.uniforms))
    with pytest.raises(ValueError, match=rf"^choice names row {row} of 4$"):
        entry(noise(1, 3, 8, 8), draw, RANDOM.table)


@pytest.mark.parametrize("number", [float("nan"), 7.0])
def test_a_draw_of_a_policy_that_was_changed_is_checked(number: float) -> None:
    draw = Policy.uniform(RANDOM, 2).sample(3)
    assert isinstance(draw, Drawn)
    assert not isinstance(draw._replace(uniform=draw.uniform), Drawn)
    draw.uniform[1, 1, 0] = number
    with pytest.raises(ValueError, match="uniform should lie in"):
        apply_batch(noise(3, 3, 8, 8), draw, RANDOM)


@pytest.mark.gpu
def test_a_draw_made_by_hand_is_checked_on_cuda() -> None:
    uniform = torch.full((1, 1, RANDOM.table.uniforms), float("nan"), device="cuda")
    images, choice = noise(1, 3, 8, 8).cuda(), torch.zeros(1, 1, dtype=torch.int64, device="cuda")
    with pytest.raises(ValueError, match="uniform should lie in"):
        apply_batch(images, Draw(choice, uniform), RANDOM)
    with pytest.raises(ValueError, match="choice names row 9 of 4"):
        apply_batch(images, Draw(choice + 9, uniform), RANDOM)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_numbers_of_other_floats_stay_equal(dtype: torch.dtype) -> None:
    below = torch.tensor(1.0, dtype=dtype).nextafter(torch.tensor(0.0, dtype=dtype))
    for number in (0.0, float(below), 0.5):
        uniform = torch.full((4, 1, RANDOM.table.uniforms), number, dtype=dtype)
        draw, images = Draw(torch.arange(4)[:, None], uniform), noise(4, 3, 33, 40)
        out = apply_batch(images, draw, RANDOM)
        assert torch.equal(out, apply_torch(images, draw, RANDOM.table))
        for i in range(4):
            pil = np.asarray(apply_pil(tensor_to_pil(images[i]), draw[i : i + 1], RANDOM))
            assert np.array_equal(pil, out[i].permute(1, 2, 0))


@pytest.mark.parametrize(
    ("draw", "said"),
    [
        ((torch.zeros(1, 1, dtype=torch.int64), torch.zeros(1, 1, 12)), "should be a Draw of two"),
        (Draw(torch.zeros(1, 1).long(), [0.0]), "should be a Draw of two tensors"),  # type: ignore[arg-type]
        (Draw(torch.zeros(1, 1).long(), torch.zeros(1, 1, 12).long()), "uniform should be float"),
        (Draw(torch.zeros(1, 1).long(), torch.zeros(1, 1, 12, device="meta")), "float on cpu"),
    ],
)
@pytest.mark.parametrize(
    "entry", [apply_batch, apply_torch, through_pil], ids=["C", "torch", "PIL"]
)
def test_what_is_no_draw_is_refused(entry: Any, draw: Any, said: str) -> None:
    if entry is through_pil:
        entry = lambda images, draw, table: apply_pil(tensor_to_pil(images[0]), draw, table)  # noqa: E731
    with pytest.raises(TypeError, match=said):
        entry(noise(1, 3, 8, 8), draw, RANDOM.table)


# Lines that no draw gives


def hostile_lines(plan: Plan, n: int, depth: int, generator: np.random.Generator) -> Tensor:
    """Lines of random numbers, from near the limits to far outside."""
    near = generator.integers(-2, max(plan.width, plan.height, len(plan.lines)) + 3, (n, depth, 6))
    far = generator.integers(-(2**31), 2**31, (n, depth, 6))
    lines = np.where(generator.random((n, depth, 6)) < 0.03, far, near)
    lines[..., 0] = generator.integers(-1, 12, (n, depth))
    return torch.from_numpy(lines.astype(np.int32))


def fitting(line: list[int], plan: Plan) -> bool:
    """Whether the loops may follow a line, in plain words."""
    kind, a, b, c, d, row = line
    if not 0 <= row < len(plan.lines) or not 0 <= kind <= Kind.CUSTOM:
        return False
    if kind == Kind.GEOMETRY:
        return a in range(len(plan.maps_x)) and b in range(len(plan.maps_y))
    if kind == Kind.LOOKUP:
        return a in range(len(plan.lookups))
    if kind in (Kind.CONTRAST, Kind.COLOR):
        return plan.channels in (1, 3)
    if kind == Kind.CUTOUT:
        return a >= 0 and b >= 0
    if kind == Kind.RESIZED_CROP:
        inside = 0 <= a < a + c <= plan.width and 0 <= b < b + d <= plan.height
        return inside and plan.taps_x is not None
    return True


def test_lines_that_do_not_fit_are_refused() -> None:
    if not kernels_c.available():
        pytest.skip(f"no C kernels: {kernels_c.why_not()}")
    generator, passed = np.random.default_rng(0), 0
    for space, channels in ((IMAGENET, 3), (CIFAR, 1), (CIFAR.without("color", "contrast"), 2)):
        plan = plan_for(space.table, channels, 9, 14, torch.device("cpu"))
        images = noise(1, channels, 9, 14)
        for line in hostile_lines(plan, 3000, 1, generator):
            if fitting(line[0].tolist(), plan):
                kernels_c.run(images, line[None], plan)
                passed += 1
            else:
                with pytest.raises(ValueError, match="image 0 has a line that does not fit"):
                    kernels_c.run(images, line[None], plan)
    assert 1000 < passed < 8000


def case(images: Tensor, lines: Tensor, plan: Plan) -> bytes:
    """What `sanitized.c` reads."""
    constants = kernels_c._constants(plan)
    names = [name for name, kind in constants._fields_ if kind is ctypes.c_void_p]
    arrays = {name: getattr(plan, name, None) for name in names} | constants.arrays
    counts = [constants.rows, constants.count_x, constants.count_y, constants.count_lookups]
    head = [plan.channels, plan.height, plan.width, *counts, int(plan.taps_x is not None)]
    head += lines.shape[:2]
    numbers = np.array([*head, kernels_c.scratch_bytes(plan), len(plan.scales)], np.int64)
    parts = [np.asarray(array) for name in names if (array := arrays[name]) is not None]
    return b"".join(part.tobytes() for part in (numbers, *parts, images.numpy(), lines.numpy()))


@pytest.fixture(scope="module", params=kernels_c.LEVELS)
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`sanitized.c` for one level, with address and undefined-behaviour sanitizers."""
    chosen, level = compiler(), kernels_c.LEVELS.index(request.param)
    machine = build_kernels._run([*chosen, "-dumpmachine"]).partition("-")[0]
    flags = build_kernels.LEVELS.get(machine, ((),))
    if not kernels_c.available() or level not in kernels_c._levels():
        pytest.skip("not for this processor")
    program = tmp_path_factory.mktemp("sanitized") / "program"
    watch = ["-O1", "-g", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    given = [f'-DKERNELS="{kernels_c.FOLDER / "kernels.c"}"', '-DSOURCE=""', f"-DLEVEL={level}"]
    words = [*chosen, *build_kernels.FLAGS, *flags[level], *watch, *given]
    words += [str(HELPERS / "sanitized.c"), "-o", str(program)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if done.returncode and any(name in done.stderr for name in ("asan", "ubsan", "-fsanitize")):
        pytest.skip(f"{chosen[0]} has no sanitizers: {done.stderr.strip()[-200:]}")
    assert done.returncode == 0, done.stderr
    return program


def run_driver(program: Path, images: Tensor, lines: Tensor, plan: Plan) -> tuple[int, Tensor]:
    """What the call returned, and the images."""
    given = case(images, lines, plan)
    done = subprocess.run([program], input=given, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    pixels = torch.frombuffer(bytearray(done.stdout[8:]), dtype=torch.uint8)
    return int.from_bytes(done.stdout[:8], "little", signed=True), pixels.view(images.shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [(1, 1), (1, 7), (7, 1), (2, 5), (3, 3), (9, 14), (33, 17), (121, 130)]
)
def test_sanitizers_find_nothing(sanitized: Path, size: tuple[int, int]) -> None:
    check_loops(sanitized, size)


def check_loops(program: Path, size: tuple[int, int]) -> None:
    """All transformations, lines of random numbers, and lines that are refused."""
    generator = np.random.default_rng(0)
    for channels, space in ((1, CIFAR), (2, IMAGENET), (3, IMAGENET), (3, CIFAR), (4, CIFAR)):
        whole = space if channels in (1, 3) else space.without("color", "contrast")
        plan = plan_for(whole.table, channels, *size, torch.device("cpu"))
        rows = every_row(whole).choice
        draw = Draw(rows, random_uniform(len(rows), 1, whole.table.uniforms))
        draw = Draw(
            torch.cat((rows, rows.flip(0)), 1),
            torch.cat((draw.uniform, draw.uniform.flip(0)), 1),
        )
        images, lines = noise(len(rows), channels, *size), resolve(plan, *draw)
        returned, pixels = run_driver(program, images, lines, plan)
        assert returned == -1
        assert torch.equal(pixels, kernels_torch.run(images, lines, plan))

        hostile = hostile_lines(plan, 2000, 1, generator)
        fine = torch.tensor([fitting(line[0].tolist(), plan) for line in hostile])
        images = noise(1, channels, *size)
        many = images.expand(int(fine.sum()), *images.shape[1:])
        assert run_driver(program, many, hostile[fine], plan)[0] == -1
        for line in hostile[~fine][:3]:
            returned, pixels = run_driver(program, images, line[None], plan)
            assert returned == 0
            assert not pixels.any()


@pytest.mark.slow
def test_arm64_gives_the_same_bytes(tmp_path: Path) -> None:
    names = ("aarch64-linux-gnu-gcc", "qemu-aarch64")
    if missing := [name for name in names if shutil.which(name) is None]:
        pytest.skip(f"no {' and no '.join(missing)} to compile and run it here")
    words = [*names[:1], *build_kernels.FLAGS, "-static", '-DSOURCE=""', "-DLEVEL=0"]
    words += [f'-DKERNELS="{kernels_c.FOLDER / "kernels.c"}"', str(HELPERS / "sanitized.c")]
    subprocess.run([*words, "-o", tmp_path / "arm"], check=True)
    program = tmp_path / "emulated"
    program.write_text(f"#!/bin/sh\nexec qemu-aarch64 {tmp_path}/arm\n")
    program.chmod(0o755)
    for size in ((9, 14), (33, 17)):
        check_loops(program, size)


@pytest.mark.slow
def test_the_sanitizers_would_see_a_step_outside(sanitized: Path) -> None:
    """Less scratch than the loops need."""
    plan = plan_for(IMAGENET.table, 3, 9, 14, torch.device("cpu"))
    lines, images = resolve(plan, *every_row(IMAGENET)), noise(len(IMAGENET), 3, 9, 14)
    numbers = bytearray(case(images, lines, plan))
    numbers[80:88] = (kernels_c.scratch_bytes(plan) // 2).to_bytes(8, "little")
    done = subprocess.run([sanitized], input=numbers, capture_output=True, check=False)
    assert done.returncode != 0
    assert b"heap-buffer-overflow" in done.stderr
