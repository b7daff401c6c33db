"""Where crop, flip and cutout run beside what a method finds: after it, before it, or nowhere."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blobs import blobs
from worlds import PooledNet, make_world

from deepaa import CIFAR, find_policy, load_policy
from deepaa.policy import DEFAULTS, Policy, compared_policy, default_policy
from deepaa.search import open_method
from deepaa.search.methods import MethodConfig, Searcher, World, default_place
from deepaa.search.methods.dada_pairs import Pairs, Place as ImagePlace
from deepaa.search.methods.registry import METHODS, stored_method
from deepaa.search.methods.trainings import Trainings
from deepaa.search.settings import ProxyConfig
from deepaa.train import TrainConfig

OURS = {"crop", "flip", "cutout"}
SHORT: dict[str, list[str]] = {
    "random": ["epochs=1", "trials=2", "chains=2"],
    "randaugment": ["epochs=1", "numbers=[1]", "magnitudes=[3,9]"],
    "fast-aa": ["epochs=1", "folds=1", "trials=2", "keep=1"],
    "pba": ["epochs=3", "population=2", "interval=1"],
    "dada": ["epochs=2"],
}
"""Changes to the preset demo, by method."""


def a_world(**changes: Any) -> World:
    given = {"defaults": default_policy(), "model": PooledNet, "batch": 20, **changes}
    return make_world(blobs(60, 1), blobs(40, 2), **given)


def a_search(name: str, place: str, **changes: Any) -> Searcher:
    # cutout only by default, so that it tells where the defaults are
    space = CIFAR.without("cutout", "crop", "flip")
    method, _ = open_method(name, "demo", [*SHORT[name], f"defaults={place}"])
    return method.searcher(a_world(space=space, **changes), method.config)


def names_of(policy: Policy, epoch: int = 0) -> list[set[str]]:
    """The operations beside identity that each layer or slot may apply."""
    names = [operation.name for operation in policy.table.operations]
    rows = policy.operation_probabilities(epoch).tolist()
    found = [{n for n, p in zip(names, row, strict=True) if p and n != "identity"} for row in rows]
    return [each for each in found if each]


def check_order(policy: Policy, place: str) -> None:
    for phase in policy.phases:
        slots = names_of(policy, phase.epoch)
        is_ours = [slot <= OURS for slot in slots]
        own = len(slots) - 3
        if place == "none":
            assert not any(is_ours)
        elif place == "after":
            assert is_ours == [False] * own + [True] * 3
        else:
            assert is_ours == [True] * 3 + [False] * own


@pytest.mark.parametrize("place", DEFAULTS)
@pytest.mark.parametrize("name", METHODS)
def test_networks_train_with_the_defaults_where_the_policy_has_them(
    name: str, place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Policy | None] = []
    given = Trainings._training

    def noted(self: Trainings, job: Any) -> Any:
        trained.append(job.policy)
        return given(self, job)

    monkeypatch.setattr(Trainings, "_training", noted)
    search = a_search(name, place)
    check_order(search.policy, place)
    list(search)
    check_order(search.policy, place)
    assert bool(trained) == (name != "dada")  # which is looked at below
    for policy in trained:
        assert policy is not None
        if name in ("fast-aa", "pba"):  # the defaults alone: folds always, members at first
            assert names_of(policy) == ([] if place == "none" else [{"crop"}, {"flip"}, {"cutout"}])
        else:
            check_order(policy, place)


@pytest.mark.parametrize("place", DEFAULTS)
def test_trials_of_fast_aa_and_members_of_pba_have_the_order_too(place: str) -> None:
    fast, pba = a_search("fast-aa", place), a_search("pba", place)
    sub_policy = [[fast.space.draw((0.1, 0.5, 0.9)), fast.space.draw((0.5, 0.5, 0.9))]]  # type: ignore[attr-defined]
    check_order(fast.trial_policy(sub_policy), place)  # type: ignore[attr-defined]
    check_order(pba._member_policy((5, 5) * (pba.choices.count // 2)), place)  # type: ignore[attr-defined]


@pytest.mark.parametrize(("place", "border"), [("after", 0), ("before", 255), ("none", 155)])
def test_dada_augments_in_the_order_of_its_policy(place: str, border: int) -> None:
    """A crop is black beyond the border; what is inverted after it is white there."""
    here = a_world(defaults=default_policy(cutout=False))
    search = a_search("dada", place, defaults=here.defaults)
    pairs = search.pairs  # type: ignore[attr-defined]
    assert isinstance(pairs, Pairs)
    invert = next(n for n, each in enumerate(pairs.space.operations) if each.name == "invert")
    images = torch.full((64, 3, 16, 16), 100, dtype=torch.uint8)
    rows = torch.tensor([[pairs.space.row(invert, 0.5), 0]]).expand(64, 2)
    found = pairs.augmented(images, rows, ImagePlace(1, 0, torch.arange(64)))
    assert set(found.unique().tolist()) == {155, border}


@pytest.mark.parametrize("place", DEFAULTS)
def test_dada_draws_what_its_policy_draws(place: str) -> None:
    """The same share of images is inverted, cropped or both, whichever of them comes first."""
    search = a_search("dada", place, defaults=default_policy(cutout=False))
    pairs = search.pairs  # type: ignore[attr-defined]
    seen = pairs.augmented(
        torch.full((200, 3, 16, 16), 100, dtype=torch.uint8),
        torch.zeros(200, 2, dtype=torch.int64),
        ImagePlace(1, 0, torch.arange(200)),
    )
    changed = (seen != 100).flatten(1).any(1).double().mean()
    # of 81 equally likely crops by up to 4 pixels one moves nothing
    assert changed == 0 if place == "none" else 0.95 < changed <= 1


@pytest.mark.parametrize("name", METHODS)
def test_the_place_is_a_setting_of_every_method(name: str) -> None:
    method, others = open_method(name, changes=["defaults=before"])
    assert others == []
    assert isinstance(method.config, MethodConfig)
    assert method.config.defaults == "before"
    assert stored_method(method.to_json()).config == method.config
    assert all(each.defaults == "after" for each in method.searcher.presets.values())
    with pytest.raises(ValueError, match="defaults should be after or before or none, got 'off'"):
        replace(method.config, defaults="off")


def test_settings_that_say_nothing_have_them_after() -> None:
    assert default_place(object()) == "after"


# In files


def small_search(**options: Any) -> Policy:
    proxy = ProxyConfig(model="small", train=TrainConfig(epochs=2, batch=32))
    settings = {"epochs": 1, "trials": 2, "chains": 2}
    return find_policy(
        blobs(160, 0),
        proxy=proxy,
        device="cpu",
        method="random",
        sizes=(60, 20, 40),
        contest=False,
        protect=False,
        **settings,
        **options,
    )


@pytest.mark.parametrize("place", DEFAULTS)
def test_a_run_keeps_the_place_and_nothing_is_added_to_its_policy(
    tmp_path: Path, place: str
) -> None:
    found = small_search(out=tmp_path, defaults=place)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["settings"]["method"]["config"]["defaults"] == place
    policy = load_policy(tmp_path / "policy.json")
    assert policy.info["defaults"] == place
    assert compared_policy(tmp_path / "policy.json").equals(policy)
    assert policy.equals(found)


def test_defaults_that_were_left_out_by_name_stay_away(tmp_path: Path) -> None:
    """The policy of chains alone that is left would get them as a published one does."""
    small_search(out=tmp_path, exclude="crop,flip,cutout")
    policy = compared_policy(tmp_path / "policy.json")
    assert not OURS & set(policy.expected_uses())
    assert set(compared_policy(tmp_path / "policy.json", defaults=True).expected_uses()) >= OURS


def test_chains_of_others_get_the_defaults_as_before(tmp_path: Path) -> None:
    small_search(out=tmp_path, defaults="none")
    policy = load_policy(tmp_path / "policy.json")
    for info in ({}, {"defaults": "yes"}):
        Policy(policy.table, policy.phases[0].stages, info=info).save(tmp_path / "theirs.json")
        assert set(compared_policy(tmp_path / "theirs.json").expected_uses()) >= OURS
