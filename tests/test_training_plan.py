"""What a training is after all that was asked for and left open is settled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from deepaa import training_plan
from deepaa.distributed import check_device
from deepaa.recipes import RECIPES, find_recipe
from deepaa.train_config import TrainConfig
from deepaa.training_plan import (
    EPOCHS,
    Asked,
    Plan,
    _policy,
    _settled,
    _settled_root,
    _start,
    is_policy_name,
)

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
SOURCE: dict[str, Any] = {
    **{"policy": "crop-flip", "defaults": None, "first_layers": None, "data": None, "test": None},
    **{"holdout": None, "size": None, "root": None, "stream": None, "on_bad_image": "stop"},
}


def started(*changes: str, recipe: str | None = None, **given: Any) -> TrainConfig:
    asked = Asked(SOURCE, recipe, given=given, changes=changes)
    return _start(None if recipe is None else find_recipe(recipe), asked)


@pytest.fixture
def new_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What torch says of a GPU that computes bfloat16 in hardware, on a machine without one."""
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: True)


# Settings


def test_epochs_can_be_set_in_every_way() -> None:
    assert started().epochs == EPOCHS
    assert started("epochs=3").epochs == started(epochs=3).epochs == 3
    assert started("epochs=30", recipe="wrn-40-2").epochs == 30
    assert started(recipe="wrn-40-2") == find_recipe("wrn-40-2").train
    with pytest.raises(ValueError, match="warmup_epochs is given twice: with --warmup and with"):
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
        started(recipe="wrn-40-2", epochs=5)
    assert started(recipe="wrn-40-2", epochs=5, warmup_epochs=1.0).warmup_epochs == 1
    with pytest.raises(ValueError, match="warmup_epochs leaves nothing of the 5 epochs"):
        started(epochs=5, warmup_epochs=5.0)


@pytest.mark.usefixtures("new_gpu")
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_are_computed_as_they_say_on_cuda(name: str) -> None:
    train = RECIPES[name].train
    assert (train.precision, train.channels_last, train.compile) == ("bfloat16", True, True)
    few = 1000  # images
    assert _settled(train, Asked(SOURCE, name), CUDA, few) == train
    slow = replace(train, precision="float32", compile=False)
    asked = Asked(SOURCE, name, given={"precision": "float32"}, changes=("compile=false",))
    assert _settled(slow, asked, CUDA, few) == slow
    cpu = _settled(train, Asked(SOURCE, name), CPU, few)
    assert (cpu.precision, cpu.channels_last, cpu.compile) == ("float32", False, False)


@pytest.mark.usefixtures("new_gpu")
def test_without_a_recipe_the_device_decides() -> None:
    config = TrainConfig()
    few, many = (_settled(config, Asked(SOURCE), CUDA, n) for n in (1000, 10_000_000))
    assert (few.precision, few.channels_last, few.compile) == ("bfloat16", True, False)
    assert many.compile
    asked = Asked(SOURCE, given={"compile": False}, changes=("channels_last=false",))
    found = _settled(config, asked, CUDA, 10_000_000)
    assert (found.precision, found.channels_last, found.compile) == ("bfloat16", False, False)


def test_a_gpu_without_bfloat16_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: False)
    train = RECIPES["wrn-40-2-cifar10"].train
    assert _settled(train, Asked(SOURCE, "wrn-40-2-cifar10"), CUDA, 1000).precision == "float32"
    assert _settled(TrainConfig(), Asked(SOURCE), CUDA, 1000).precision == "float32"


# Policies


def test_names_are_names() -> None:
    for name in ("none", "deepta", "deepta:4", "deepaa-simple:x.json", "pba:x.txt,over=9"):
        assert is_policy_name(name)
    for name in ("deepta.json", "./deepta", "x/deepta"):
        assert not is_policy_name(name)


def test_too_many_layers_are_said_in_the_words_of_the_command() -> None:
    for name, layers in (("none", "1 layer"), ("deepta:4", "4 layers")):
        source = {**SOURCE, "policy": name, "first_layers": 9}
        with pytest.raises(ValueError, match=f"^--first-layers 9: {name} has {layers}$"):
            _policy(source, 3, "cifar", None)
    with pytest.raises(ValueError, match="crop-flipp"):
        _policy({**SOURCE, "policy": "crop-flipp", "first_layers": 9}, 3, "cifar", None)
    found = _policy({**SOURCE, "policy": "deepta:4", "first_layers": 3}, 3, "cifar", None)
    assert found.depth == 3


def test_a_policy_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = training_plan.compared_policy

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        return real(*arguments, **options)

    monkeypatch.setattr(training_plan, "compared_policy", counted)
    plan = Plan.of(Asked(SOURCE, given={"epochs": 1}), CPU)
    assert len(calls) == 1
    assert plan.facts()["policy"]["name"] == "crop-flip"
    assert plan.facts()["policy"]["layers"] == 2


# Images


def test_plans_with_the_same_images_share_them() -> None:
    one = Plan.of(Asked(SOURCE, given={"epochs": 1}), CPU)
    asked = Asked({**SOURCE, "policy": "none"}, given={"epochs": 1})
    assert Plan.of(asked, CPU, like=one).material is one.material
    other = Asked({**SOURCE, "holdout": 0.5}, given={"epochs": 1})
    found = Plan.of(other, CPU, like=one).material
    assert found is not one.material
    assert found.facts()["train_images"] == 2000


def test_data_sets_with_a_name_are_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their folder is written down in full, also where it is the usual one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.npz").touch()
    source = {**SOURCE, "data": "cifar10"}
    assert _settled_root(source) == str(tmp_path / "data")
    assert _settled_root({**source, "root": "sets"}) == str(tmp_path / "sets")
    assert _settled_root({**source, "data": "mine.npz"}) is None
    assert _settled_root({**source, "data": "mine.npz", "test": "MNIST"}) is not None
    assert _settled_root({**source, "data": None}) is None


def test_a_plan_is_rehearsed_before_anything_is_made() -> None:
    plan = Plan.of(Asked(SOURCE, given={"epochs": 1}, changes=("graph=true",)), CPU)
    with pytest.raises(
        ValueError, match="graph: a step cannot be recorded where the device is cpu"
    ):
        plan.rehearse()


def test_devices() -> None:
    for device in ("auto", "cpu"):
        check_device(device)
    for device in ("tpuu", "cudaa", "cuda:x", ""):
        with pytest.raises(ValueError, match="--device should be cpu, cuda or auto"):
            check_device(device)
