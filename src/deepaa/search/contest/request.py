"""`deepaa contest` without a search: from a request to a contest in its run folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from deepaa.data import DataSpec, LabelledImages, check_enough
from deepaa.models import channel_statistics, default_model, is_large, load_model
from deepaa.ops import Row, import_operations
from deepaa.policy import SpaceName, compared_policy, parse_policy_ref
from deepaa.runs import Run, apply_changes, notify, parse_changes, read_json, short, to_plain
from deepaa.search.contest.candidates import (
    Candidate,
    all_candidates,
    found_candidates,
    is_as_found,
    protected_away,
)
from deepaa.search.contest.judged import JudgedImages
from deepaa.search.contest.keep import PHASE, PROTECTING, PROTECTION, ContestRun, Unprotected
from deepaa.search.contest.plan import ContestConfig, LengthPlan
from deepaa.search.contest.run import Contest, Network
from deepaa.search.plain_network import ClassProtection, ProtectionRecord, rows_to_test
from deepaa.search.protection import Protection
from deepaa.train import TrainConfig, device_settings, policy_hash

KIND = "contest"
"""Of the run, in its config.json."""
PROTECTION_EPOCHS = 20
"""Of the network that tells what turns one class into another."""


Asked = ContestConfig | bool | int | Literal["on", "off"] | None
"""How Python code asks for a contest: whether there is one, or its passes, or all about it."""


def asked_contest(asked: Asked) -> ContestConfig | None:
    """The contest that is asked for; None for none."""
    if isinstance(asked, ContestConfig):
        return asked
    if asked is None or (isinstance(asked, bool | str) and asked in (False, "off")):
        return None
    if isinstance(asked, bool | str) and asked in (True, "on"):
        return ContestConfig()
    if isinstance(asked, int) and not isinstance(asked, bool):
        return ContestConfig(passes=asked)
    raise TypeError(
        f"contest should be True or 'on', False or 'off', a number of passes, or a ContestConfig, "
        f"got {short(asked)}"
    )


class Searched(NamedTuple):
    """What searches before a contest have read, set aside and found out."""

    data: LabelledImages
    judge: Tensor
    """The images that no search has seen; none of few."""
    protection: ProtectionRecord | None = None
    """What turns one class into another."""


@dataclass(frozen=True)
class ContestRequest:
    """What a user wants to have compared."""

    data: DataSpec
    policies: tuple[str, ...] = ()
    """Names or files of policies that take part."""
    forms: bool = True
    """Whether what a search has found takes part spread and at half of its strength, too."""
    depths: bool = True
    """Whether it then takes part with fewer layers as well, if gradient matching found it."""
    usual: bool = True
    """Whether TrivialAugment and others that need no search take part."""
    model: str | None = None
    """As `--model` names it; None takes one that fits the images and the device."""
    weights: Path | None = None
    """Where every training begins, in place of fresh weights; the last layer may be new."""
    changes: tuple[str, ...] = ()
    """Settings of the trainings, NAME=VALUE each."""
    contest: ContestConfig = field(default_factory=ContestConfig)
    protect: bool = True
    """Whether operations that turn one class into another are left out."""
    operations: tuple[str, ...] = ()
    """The user's own operations that policies name, MODULE:NAME each."""

    def given(self, space: SpaceName) -> list[list[Candidate]]:
        """The policies that the user names, each with the forms that it takes part in behind it."""
        operations, found = import_operations(self.operations), []
        for text in self.policies:
            ref = parse_policy_ref(text)
            policy = compared_policy(text, space=space, operations=operations)
            one = Candidate(short_name(text), ref.label, policy, "given")
            forms: list[Candidate] = []
            if self.forms and not ref.is_name and is_as_found(policy):
                forms = found_candidates(policy, *one[:2], one.kind, depths=self.depths)
            found.append([one, *(each for each in forms if each.name != one.name)])
        return found

    def candidates(
        self,
        space: SpaceName,
        given: Sequence[Sequence[Candidate]],
        excludes: Callable[[Row], bool] = lambda row: False,
    ) -> list[Candidate]:
        """All that take part, with those that the user names."""
        named, more = [each[0] for each in given], [each[1:] for each in given]
        found = all_candidates(space, given=named, more=more, excludes=excludes)
        return found if self.usual else [each for each in found if _is_asked(each)]

    def settings(self, device: torch.device, passes: int) -> TrainConfig:
        """How networks are trained on a device."""
        values = parse_changes(self.changes, TrainConfig, without=("seed", "epochs"))
        config = apply_changes(TrainConfig(), values)
        return device_settings(config, values, device, passes, recipe=False)


def _is_asked(candidate: Candidate) -> bool:
    return candidate.kind == "given" or candidate.name in ("none", "crop-flip")


def short_name(policy: str) -> str:
    """What a policy is called in a contest: its name, its file, or the run that it is of."""
    ref = parse_policy_ref(policy)
    if ref.is_name or ref.path is None:
        text = policy
    else:
        of_run = ref.path.stem in ("policy", "found") and ref.path.resolve().parent.name
        text = f"{of_run}-{ref.path.stem}" if of_run else ref.path.stem
    return re.sub(r"[^\w.=,+-]+", "-", text)


def contest_network(
    images: JudgedImages,
    model: str | None,
    config: TrainConfig,
    device: torch.device,
    weights: str | Path | None = None,
) -> Network:
    """The network that every candidate trains, by its name; it normalises by training images."""
    data, train = images.data, images.parts[0].train
    name, classes = model or default_model(data.images, device), len(data.class_names)
    levels = channel_statistics(data.images[train])

    def make(seed: int) -> nn.Module:
        return load_model(name, data.images, classes, seed, weights, levels, new_head=True)

    return Network(name, make, config, device)


@contextmanager
def open_contest(
    request: ContestRequest,
    out: Path | None = None,
    *,
    device: torch.device,
    dry_run: bool = False,
    download: bool = False,
    checkpoint_seconds: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
    show: Callable[[str], None] = lambda text: None,
    searched: Searched | None = None,
) -> Iterator[ContestRun]:
    """The contest that a request means, in its run folder, where one that was stopped goes on.

    Args:
        show: Is told what takes time before the contest begins, in words for a person.
        searched: What searches have read and found, so that it is not done again.
    """
    if searched is None:
        data = request.data.load(download=download, show=show)
        check_enough(data.labels, data.class_names, data.name)
        images = JudgedImages.of(data)
    else:
        data = searched.data
        images = JudgedImages.of(data, searched.judge, searched=True)
    space: SpaceName = "imagenet" if is_large(data.images) else "cifar"
    config = request.settings(device, request.contest.limit(device))
    network = contest_network(images, request.model, config, device, request.weights)
    given = request.given(space)  # read once, as files may change while class protection is at work
    everybody = request.candidates(space, given)
    run = None
    if out is not None and not dry_run:
        run = Run(out, _identity(request, everybody, data, network))

    def contest_without(protection: Protection) -> tuple[Contest, dict[str, Any]]:
        candidates = request.candidates(space, given, protection.excludes)
        away = protected_away(everybody, candidates)
        names = [each.name for each in candidates]
        plan = contest_plan(names, images, network.config, device, request.contest)
        contest = Contest(candidates, images, network, plan)
        return contest, contest_facts(images, network, protection, away)

    with run or nullcontext():
        saved = None if run is None else run.latest()
        phase = None if saved is None else saved.position.get("phase")
        state = {} if saved is None else saved.tensors
        protection, before = Protection(), None
        if request.protect:
            known = None if searched is None else searched.protection
            record = _known(run, known)
            if record is not None:
                protection = record.protection
            else:
                begun = state if phase == PROTECTING else {}
                before = Unprotected(_looking(images, network), contest_without, begun, show)
        yield ContestRun(
            *contest_without(protection),
            run=run,
            state=state if phase == PHASE else None,
            checkpoint_seconds=checkpoint_seconds,
            stop=stop,
            unprotected=before,
        )


def contest_plan(
    names: Sequence[str],
    images: JudgedImages,
    train: TrainConfig,
    device: torch.device,
    config: ContestConfig,
) -> LengthPlan:
    """The trainings of candidates with these names, on these images."""
    return LengthPlan.make(
        names,
        train_images=images.train_images,
        batch=train.batch * train.copies,
        classes=len(images.data.class_names),
        folds=len(images.parts),
        device=device,
        config=config,
    )


def _known(run: Run | None, known: ProtectionRecord | None) -> ProtectionRecord | None:
    """What is known to turn one class into another, from searches or earlier; a run keeps it."""
    path = None if run is None else run.folder / PROTECTION
    if known is not None:
        if run is not None:
            run.write_json(PROTECTION, known._asdict())
        return known
    if path is None or not path.exists():
        return None
    record = ProtectionRecord.from_json(read_json(path), path)
    for line in record.lines:
        notify(line)
    return record


def _looking(images: JudgedImages, network: Network) -> ClassProtection:
    """What looks for operations that turn one class into another, by a network of its own."""
    part = images.parts[0].train  # by class in any order, so cut in two by turns
    steps = network.config.stretched(PROTECTION_EPOCHS)
    halves, rows = (part[0::2], part[1::2]), rows_to_test(images.data)
    return ClassProtection(images.data, halves, network.name, steps, network.device, rows)


def contest_facts(
    images: JudgedImages,
    network: Network,
    protection: Protection,
    excluded: Sequence[Candidate] = (),
) -> dict[str, Any]:
    """What contest.json says of images, network and what was excluded.

    Args:
        excluded: Candidates of whom the protection of classes leaves nothing of their own.
    """
    return {
        "data": images.facts(),
        "network": network.name,
        "device": str(network.device),
        "protected": protection.to_json(),
        "untestable": list(protection.untestable),
        "excluded": [each.title for each in excluded],
    }


def _identity(
    request: ContestRequest, candidates: list[Candidate], data: LabelledImages, network: Network
) -> dict[str, Any]:
    """What makes two contests the same, and under `source` where it came from."""
    return {
        "kind": KIND,
        "contest": asdict(request.contest),
        "candidates": {each.name: policy_hash(each.policy) for each in candidates},
        "model": network.name,
        "train": to_plain(network.config),
        "fingerprint": data.fingerprint,
        "protect": request.protect,
        "source": {
            "data": request.data.to_json(),
            "policies": request.policies,
            "weights": None if request.weights is None else str(request.weights.resolve()),
            "operations": request.operations,
        },
    }
