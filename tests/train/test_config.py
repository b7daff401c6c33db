"""Settings and the learning rate they mean; recipes: numbers of the paper, names, the page."""

from __future__ import annotations

import json
import math
import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deepaa.models import build_model
from deepaa.train.config import (
    EPOCHS,
    RECIPES,
    TrainConfig,
    device_settings,
    find_recipe,
    learning_rate,
    requested_settings,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
PAGE = Path(__file__).parents[2] / "docs" / "train.md"


def test_learning_rate_rises_in_a_line_and_falls_in_a_cosine():
    config = TrainConfig(epochs=10, lr=0.4, warmup_epochs=2)
    rates = [learning_rate(config, at) for at in (0, 1, 2, 6, 10)]
    assert rates == pytest.approx([0, 0.2, 0.4, 0.2, 0])


def test_a_warm_up_may_begin_above_zero():
    config = TrainConfig(epochs=10, lr=0.8, warmup_epochs=5, warmup_from=0.125)
    rates = [learning_rate(config, at) for at in (0, 2.5, 5)]
    assert rates == pytest.approx([0.1, 0.45, 0.8])


def test_learning_rate_falls_in_steps_at_the_milestones():
    config = TrainConfig(
        epochs=270, lr=0.8, warmup_epochs=5, schedule="step", milestones=(90, 180, 240)
    )
    rates = [learning_rate(config, at) for at in (0, 2.5, 5, 89.99, 90, 179, 180, 241)]
    assert rates == pytest.approx([0, 0.4, 0.8, 0.8, 0.08, 0.08, 0.008, 0.0008])
    halved = replace(config, gamma=0.5)
    assert learning_rate(halved, 200) == pytest.approx(0.2)


def test_settings_survive_json():
    config = TrainConfig(schedule="step", milestones=(10, 20.5), copies=2, graph=False)
    assert TrainConfig(**json.loads(json.dumps(asdict(config)))) == config


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epochs", -1),
        ("epochs", 2.5),
        ("batch", 0),
        ("batch", 128.0),
        ("seed", "0"),
        ("lr", math.nan),
        ("lr", math.inf),
        ("momentum", 1.5),
        ("label_smoothing", -0.1),
        ("warmup_epochs", 46),
        ("warmup_epochs", 45),
        ("end_epochs", -1),
        ("end_epochs", 45),
        ("end_epochs", 0.5),
        ("precision", "int8"),
        ("clip", -1),
        ("copies", 0),
        ("warmup_from", 2),
        ("gamma", -1),
        ("schedule", "linear"),
        ("milestones", (10, 20)),
    ],
)
def test_settings_without_meaning_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        TrainConfig(**{field: value})


@pytest.mark.parametrize("milestones", [(20, 10), (10, 10), (0, 10), (math.nan,), (math.inf,)])
def test_milestones_without_meaning_are_refused(milestones):
    with pytest.raises(ValueError, match="milestones"):
        TrainConfig(schedule="step", milestones=milestones)


# Options


def started(*changes: str, recipe: str | None = None, **given: Any) -> TrainConfig:
    found = None if recipe is None else find_recipe(recipe)
    return requested_settings(found, given, changes)


@pytest.fixture
def new_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of a GPU that computes bfloat16 in hardware, on a machine without one."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)


def test_epochs_can_be_set_in_every_way() -> None:
    assert started().epochs == EPOCHS
    assert started("epochs=3").epochs == started(epochs=3).epochs == 3
    assert started("epochs=30", recipe="wrn-40-2").epochs == 30
    assert started(recipe="wrn-40-2") == find_recipe("wrn-40-2").train
    with pytest.raises(ValueError, match="warmup_epochs is given twice: with its own option and"):
        started("warmup_epochs=3", warmup_epochs=4)


def test_a_schedule_and_its_milestones_are_taken_together() -> None:
    for changes in (
        ("schedule=step", "milestones=[60]"),
        ("milestones=[60]", "schedule=step"),
        ("milestones=[60]",),
    ):
        config = started(*changes)
        assert (config.schedule, config.milestones) == ("step", (60.0,))
    constant = started("schedule=step")
    assert (constant.schedule, constant.milestones) == ("step", ())
    plain = started("schedule=cosine", recipe="resnet50")
    assert (plain.schedule, plain.milestones) == ("cosine", ())
    for changes in (("schedule=cosine", "milestones=[60]"), ("milestones=[60]", "schedule=cosine")):
        with pytest.raises(ValueError, match=r"milestones \[60.0\] belong to the step schedule"):
            started(*changes)


def test_what_never_comes_is_refused() -> None:
    with pytest.raises(ValueError, match="the recipe's milestones 90, 180, 240 never come in 30"):
        started(recipe="resnet50", epochs=30)
    with pytest.raises(ValueError, match="the recipe's milestones 240 never come in 240 epochs"):
        started("epochs=240", recipe="resnet50")
    with pytest.raises(ValueError, match="milestones 30 never come in 30 epochs; add --set mile"):
        started("milestones=[10,30]", recipe="resnet50", epochs=30)
    assert started("milestones=[10,20]", recipe="resnet50", epochs=30).milestones == (10.0, 20.0)
    with pytest.raises(ValueError, match="the recipe's warm-up of 5 epochs leaves nothing of 5"):
        started(recipe="wrn-28-10", epochs=5)
    assert started(recipe="wrn-28-10", epochs=5, warmup_epochs=1.0).warmup_epochs == 1
    with pytest.raises(ValueError, match="warmup_epochs leaves nothing of the 5 epochs"):
        started(epochs=5, warmup_epochs=5.0)


@pytest.mark.usefixtures("new_gpu")
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_computed_as_they_say_on_cuda(name: str) -> None:
    train = RECIPES[name].train
    assert (train.precision, train.channels_last, train.compile) == ("bfloat16", True, True)
    few = 1000  # images
    assert device_settings(train, (), CUDA, few, recipe=True) == train
    slow = replace(train, precision="float32", compile=False)
    assert device_settings(slow, ("precision", "compile"), CUDA, few, recipe=True) == slow
    cpu = device_settings(train, (), CPU, few, recipe=True)
    assert (cpu.precision, cpu.channels_last, cpu.compile) == ("float32", True, False)


@pytest.mark.usefixtures("new_gpu")
def test_without_a_recipe_the_device_decides() -> None:
    config = TrainConfig()
    few, many = (device_settings(config, (), CUDA, n, recipe=False) for n in (1000, 10_000_000))
    assert (few.precision, few.channels_last, few.compile) == ("bfloat16", True, False)
    assert many.compile
    named = ("compile", "channels_last")
    found = device_settings(config, named, CUDA, 10_000_000, recipe=False)
    assert (found.precision, found.channels_last, found.compile) == ("bfloat16", False, False)


def test_a_gpu_without_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    train = RECIPES["wrn-40-2-cifar10"].train
    for config, recipe in ((train, True), (TrainConfig(), False)):
        assert device_settings(config, (), CUDA, 1000, recipe=recipe).precision == "float32"


# Recipes


def cells(line: str) -> list[str]:
    """The cells of a row of a LaTeX table, without bold type and intervals in maths."""
    plain = re.sub(r"\\textbf|\\DAA|\\\\|[{}$]", "", line).replace(r"\pm", "±")
    return [cell.strip() for cell in plain.split("&")]


def published(text: str, start: str, model: str) -> list[str]:
    """The row of a model in the table behind `start`."""
    table = text[text.index(start) :]
    return next(cells(line) for line in table.splitlines() if line.startswith(model))


@pytest.fixture
def paper(shared: Path) -> str:
    file = shared / "paper.txt"
    if not file.is_file():
        pytest.skip("no text of the paper beside the repository")
    return file.read_text()


def accuracy(name: str, policy: str) -> tuple[float, float | None]:
    return next((e.accuracy, e.interval) for e in RECIPES[name].expected if e.policy == policy)


# The paper


@pytest.mark.parametrize(
    ("recipe", "start", "model"),
    [
        ("wrn-28-10-cifar10", r"\textbf{CIFAR-10} & &", "WRN-28-10"),
        ("wrn-28-10-cifar100", r"\textbf{CIFAR-100} & &", "WRN-28-10"),
        ("shake-shake-cifar10", r"\textbf{CIFAR-10} & &", "Shake-Shake"),
        ("shake-shake-cifar100", r"\textbf{CIFAR-100} & &", "Shake-Shake"),
    ],
)
def test_expected_accuracy_on_cifar_is_that_of_the_paper(paper, recipe, start, model):
    row = published(paper, start, model)
    # "flip left-right, pad-and-crop": without cutout
    assert accuracy(recipe, "crop-flip") == (float(row[1]), None)
    assert accuracy(recipe, "trivialaugment-wide") == (float(row[10]), None)
    ours, interval = map(float, row[11].split("±"))
    assert accuracy(recipe, "DeepAA") == (ours, interval)


@pytest.mark.parametrize(
    ("recipe", "model"), [("resnet50", "ResNet-50"), ("resnet200", "ResNet-200")]
)
def test_expected_accuracy_on_imagenet_is_that_of_the_paper(paper, recipe, model):
    row = published(paper, r"\subsection{Performance on ImageNet}", model)
    assert accuracy(f"{recipe}-imagenet", "crop-flip") == (float(row[1]), None)
    assert accuracy(f"{recipe}-imagenet", "DeepAA") == tuple(map(float, row[10].split("±")))


@pytest.mark.parametrize("data", ["cifar10", "cifar100"])
def test_batch_augmentation_is_that_of_appendix_d(paper, data):
    table = paper[paper.index("Hyperparameters for Batch Augmentation") :]
    label = {"cifar10": "CIFAR-10", "cifar100": "CIFAR-100"}[data]
    lines = table.splitlines()
    first = next(i for i, line in enumerate(lines) if f"{{{label}}} & TA" in line)
    for line, name in zip(
        lines[first : first + 2], ("wrn-28-10-ba-ta", "wrn-28-10-ba"), strict=True
    ):
        method, _, batch, lr, decay, epochs = cells(line)[1:]
        train = RECIPES[f"{name}-{data}"].train
        assert method == ("TA (Wide)" if name.endswith("ta") else "DeepAA")
        assert batch == rf"{train.batch} \times {train.copies}"
        assert (train.lr, train.weight_decay, train.epochs) == (
            float(lr),
            float(decay),
            int(epochs),
        )
    results = published(paper, r"\subsection{Performance with Batch Augmentation}", f"{label} &")
    ta, ours = (tuple(map(float, cell.split("±"))) for cell in results[3:5])
    assert accuracy(f"wrn-28-10-ba-ta-{data}", "trivialaugment-wide") == ta
    assert accuracy(f"wrn-28-10-ba-{data}", "DeepAA") == ours


def test_schedules():
    resnet = RECIPES["resnet50-imagenet"].train
    rates = [learning_rate(resnet, epoch) for epoch in (0, 2.5, 5, 89.9, 90, 180, 240, 269.9)]
    assert rates == pytest.approx([0.1, 0.45, 0.8, 0.8, 0.08, 0.008, 0.0008, 0.0008])
    wide = RECIPES["wrn-28-10-cifar10"].train
    rates = [learning_rate(wide, epoch) for epoch in (0, 2.5, 5, 102.5, 200)]
    assert rates == pytest.approx([0, 0.05, 0.1, 0.05, 0])
    per_image = {name: RECIPES[name].train for name in ("resnet50-imagenet", "resnet200-imagenet")}
    assert {t.lr / t.batch for t in per_image.values()} == {0.1 / 256}


def test_batch_norm_does_not_decay_and_large_images_are_not_clipped():
    for recipe in RECIPES.values():
        assert not recipe.train.decay_norm
        assert recipe.train.clip == (0 if recipe.data.name == "imagenet" else 5)
        assert recipe.train.label_smoothing == 0
        assert recipe.train.nesterov


def test_cost_is_counted_in_image_passes():
    passes = {name: recipe.image_passes for name, recipe in RECIPES.items()}
    assert passes["wrn-28-10-cifar10"] == 200 * 50_000
    assert passes["wrn-28-10-ba-cifar100"] == 35 * 8 * 50_000
    assert passes["shake-shake-cifar10"] == 1800 * 50_000
    assert passes["resnet50-imagenet"] == 270 * 1_281_167


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.slow if name.startswith("timm") else ())
        for name in sorted({recipe.model for recipe in RECIPES.values()})
    ],
)
def test_networks_of_recipes_can_be_built(name):
    if name.startswith("timm"):
        pytest.importorskip("timm")
    recipe = next(r for r in RECIPES.values() if r.model == name)
    mean, std = recipe.data.normalisation or (0.5, 0.25)
    model = build_model(name, recipe.data.classes, mean=mean, std=std).eval()
    with torch.no_grad():
        logits = model(torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    assert logits.shape == (1, recipe.data.classes)


# Names


def test_recipes_are_found_by_name_and_data():
    assert find_recipe("wrn-28-10").full_name == "wrn-28-10-cifar10"
    assert find_recipe("wrn-28-10-cifar100").data.name == "cifar100"
    for data in ("cifar100", "torchvision:CIFAR100", "some/place/cifar-100.npz", Path("CIFAR_100")):
        assert find_recipe("wrn-28-10-ba", data).full_name == "wrn-28-10-ba-cifar100"
    assert find_recipe("resnet50", "anything/at/all").full_name == "resnet50-imagenet"
    assert find_recipe("wrn-40-2", "my_photos").train == RECIPES["wrn-40-2-cifar10"].train
    assert find_recipe("wrn-28-10-ba-cifar10", "my_photos").train.lr == 0.2


def test_other_data_must_say_which_settings_they_want():
    with pytest.raises(ValueError, match="say wrn-28-10-ba-cifar10 or wrn-28-10-ba-cifar100"):
        find_recipe("wrn-28-10-ba", "my_photos")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("wrn-28-1", "no recipe 'wrn-28-1'; did you mean 'wrn-28-10'"),
        ("shakeshake", "did you mean 'shake-shake'"),
        ("zzz", "no recipe 'zzz'; there are wrn-40-2, wrn-40-2-wd2e-4, wrn-28-10, .*resnet200$"),
    ],
)
def test_unknown_recipes_are_refused_with_close_ones(name, message):
    with pytest.raises(ValueError, match=message):
        find_recipe(name)


# Commands and the page


def options() -> set[str]:
    """What `deepaa train` takes, from the command itself."""
    import typer

    from deepaa.cli.train import train

    app = typer.Typer()
    app.command()(train)
    found = typer.main.get_command(app)
    return {name for p in found.params for name in (*p.opts, *p.secondary_opts)} | {"--help"}


def test_commands_have_options_that_exist():
    known = options()
    text = PAGE.read_text()
    lines = [line for line in re.findall(r"^[^|\n]*deepaa train.*$", text, re.M) if "`" not in line]
    assert lines
    for line in [*lines, *(recipe.command() for recipe in RECIPES.values())]:
        words = shlex.split(line, comments=True)
        assert {w for w in words[words.index("train") :] if w.startswith("--")} <= known, line


def test_command_names_recipe_data_and_policy():
    assert RECIPES["wrn-28-10-cifar100"].command("deepta:4", seeds=2, out="here") == (
        "deepaa train --recipe wrn-28-10 --data cifar100 --policy deepta:4 --seeds 2 --out here"
    )
    command = RECIPES["resnet50-imagenet"].command()
    assert command.startswith("torchrun --nproc-per-node 8 -m deepaa train --recipe resnet50 ")
    assert "--policy trivialaugment-wide" in RECIPES["wrn-28-10-ba-ta-cifar10"].command()
    for recipe in RECIPES.values():
        assert find_recipe(recipe.name, recipe.data.name) is recipe


def rows_of_the_page() -> dict[str, list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in lines]
    return {f"{row[0]}-{row[1]}": row for row in rows if f"{row[0]}-{row[1]}" in RECIPES}


def test_the_table_of_the_page_is_the_code():
    rows = rows_of_the_page()
    assert set(rows) == set(RECIPES)
    for name, recipe in RECIPES.items():
        train = recipe.train
        shown = rows[name][2:]
        batch = f"{train.batch}" if train.copies == 1 else f"{train.batch} x {train.copies}"
        passes = f"{recipe.image_passes / 1e6:,.0f} M"
        settings = [str(train.epochs), batch, f"{train.lr:g}", f"{train.weight_decay:g}", passes]
        assert shown[:5] == settings, name
        for expected in recipe.expected:
            assert f"{expected.accuracy:g}" in shown[5], (name, expected)


def test_the_python_of_the_page_runs(tmp_path, monkeypatch):
    """On a folder of its layout, with a smaller network and fewer pixels and epochs."""
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for part in ("train", "val"):
        for label in ("a", "b"):
            place = tmp_path / "imagenet" / part / label
            place.mkdir(parents=True)
            for i in range(6):
                pixels = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(place / f"{i}.jpg")
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.S)
    (code,) = [block for block in blocks if "resnet50" in block]
    for old, new in (
        ('find_recipe("resnet50")', 'find_recipe("resnet50")\nrecipe = smaller(recipe)'),
        ('"cuda"', '"cpu"'),
        ("224", "32"),
        ('"torchvision:resnet50"', '"small"'),
    ):
        assert old in code, old
        code = code.replace(old, new)
    monkeypatch.chdir(tmp_path)

    def smaller(recipe):
        from dataclasses import replace

        few = replace(
            recipe.train, epochs=2, batch=4, warmup_epochs=0, precision="float32", compile=False
        )
        return replace(recipe, train=few)

    names = {"smaller": smaller, "__name__": "page"}
    exec(code, names)
    assert names["metrics"].count == 12
