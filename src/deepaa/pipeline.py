"""From labelled images to a policy: splits, a network, the search, the files of a run.

What the command and the Python interface share. A run can be stopped after any record and goes on
from its newest checkpoint; on CPU it then ends with the same policy, bit for bit.
"""

from __future__ import annotations

import dataclasses
import importlib
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from deepaa import distributed
from deepaa.gradients import mean_gradient
from deepaa.models import build_model, channel_statistics, frozen_copy
from deepaa.pairs import SearchData
from deepaa.policy import Policy
from deepaa.policy_file import load_policy
from deepaa.presets import PRESETS, SPACES, ProxyConfig
from deepaa.run_settings import run_config
from deepaa.runs import Run
from deepaa.search import LayerRecord, Search, StepRecord
from deepaa.search_config import PRECISIONS, SearchConfig
from deepaa.sources import LabelledImages, fingerprint, load_dataset
from deepaa.space import Space
from deepaa.splits import Splits, stratified_splits
from deepaa.train import EpochRecord, Training

Record = EpochRecord | StepRecord | LayerRecord
SMALL_SIDE = 64
"""Images up to this side are searched with a wide ResNet, larger ones with ResNet-18."""


class PolicySearch:
    """A whole search on labelled images: iterate for its records, then take `policy`."""

    def __init__(
        self,
        data: LabelledImages,
        *,
        space: Space,
        search: SearchConfig,
        proxy: ProxyConfig,
        model: nn.Module | None = None,
        device: torch.device | str = "cpu",
        sizes: tuple[int, int, int] | None = None,
        run: Run | None = None,
        checkpoint_seconds: float = 60.0,
    ) -> None:
        """Split the data, and go on from the run's newest checkpoint if it has one.

        Args:
            model: A trained classifier of uint8 batches; None trains one as `proxy` says.
            sizes: Images for pre-training, search and validation.
            run: Where records, checkpoints and the policy go; None keeps nothing.
        """
        self.data, self.space, self.config, self.proxy = data, space, search, proxy
        self.device = torch.device(device)
        self.run = run if distributed.is_main() else None
        self.checkpoint_seconds = checkpoint_seconds
        self.given = model is not None
        if sizes is None and self.given:
            n = len(data.labels)
            sizes = (0, n - max(1, n // 4), max(1, n // 4))
        self.splits = stratified_splits(
            data.labels, sizes, search.seed, class_names=data.class_names
        )
        self.model = (model if model is not None else self._new_model()).to(self.device)
        self.search: Search | None = None
        self._saved = time.monotonic()
        self._state: Mapping[str, Tensor] = {}
        self._phase = "search" if self.given else "pretrain"
        self._record_setting()
        if run is not None and (saved := run.latest()) is not None:
            self._phase, self._state = saved.position["phase"], saved.tensors
        self._phase, self._state = distributed.from_main((self._phase, self._state))

    def _new_model(self) -> nn.Module:
        name = self.proxy.model or proxy_name(self.data.images, self.device)
        mean, std = channel_statistics(self.data.images[self.splits.pretrain])
        classes = len(self.data.class_names)
        return build_model(name, classes, mean=mean, std=std, seed=self.config.seed)

    def _record_setting(self) -> None:
        if self.run is None:
            return
        parts = {name: part.tolist() for name, part in self.splits._asdict().items()}
        self.run.write_json("splits.json", parts)
        facts = {"data": self.data.name, "fingerprint": self.data.fingerprint}
        self.run.add_provenance({**facts, "device": str(self.device)})

    @property
    def policy(self) -> Policy:
        """What is found so far."""
        if self.search is None:
            return Policy.identity(self.space, 0)
        found = self.search.policy
        info = {
            "description": f"found by deepaa on {self.data.name}, {found.depth} layers",
            "data": f"{self.data.name}, sha256 {self.data.fingerprint[:16]}",
            "seed": str(self.config.seed),
        }
        return Policy(found.table, found.phases[0].stages, info=info)

    def __iter__(self) -> Iterator[Record]:
        """Pre-train, search and write the policy; records as they come."""
        if self._phase == "pretrain":
            yield from self._pretrain()
            self._phase = "search"
        yield from self._search()
        if self.run is not None:
            self.run.write_policy(self.policy)

    def _pretrain(self) -> Iterator[EpochRecord]:
        part = self.splits.pretrain
        policy = load_policy("crop-flip-cutout") if self.proxy.augment else None
        config = dataclasses.replace(self.proxy.train, seed=self.config.seed)
        images, labels = self.data.images[part], self.data.labels[part]
        training = Training(self.model, images, labels, policy, config, self.device)
        if self._state:
            training.load_state(self._state)
            self._state = {}
        for record in training:
            self._log("epoch", record)
            if self._due() or training.epoch == config.epochs:
                self._checkpoint("pretrain", training.state())
            yield record

    def _search(self) -> Iterator[StepRecord | LayerRecord]:
        weights = _part(self._state, "model.") or self.model.state_dict()
        # every process trains alike, up to rounding; from here on they must be equal
        self.model.load_state_dict(distributed.from_main({k: v.cpu() for k, v in weights.items()}))
        d, (_, search, validation) = self.data, self.splits
        parts = [d.images[search], d.labels[search], d.images[validation], d.labels[validation]]
        data = SearchData(*(part.to(self.device) for part in parts))
        frozen = frozen_copy(self.model).to(self.device)
        self.search = Search(frozen, data, self.space, self.config)
        if self._state:
            self.search.load_state(_part(self._state, "search."))
            self._state = {}
        for record in self.search:
            self._log("layer" if isinstance(record, LayerRecord) else "step", record)
            if self._due() or isinstance(record, LayerRecord):
                self.save()
            yield record

    def save(self) -> None:
        """Write a checkpoint of the search now."""
        if self.search is None:
            return
        weights = {f"model.{k}": v.cpu().contiguous() for k, v in self.model.state_dict().items()}
        state = {f"search.{k}": v for k, v in self.search.state().items()}
        self._checkpoint("search", {**weights, **state})

    def _log(self, kind: str, record: Record) -> None:
        if self.run is not None:
            self.run.log({"kind": kind, **record._asdict()})

    def _due(self) -> bool:
        return time.monotonic() - self._saved >= self.checkpoint_seconds

    def _checkpoint(self, phase: str, state: Mapping[str, Tensor]) -> None:
        if self.run is not None:
            self.run.save(state, {"phase": phase})
        self._saved = time.monotonic()


def _part(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def proxy_name(images: Tensor, device: torch.device) -> str:
    """The network for these images on this device."""
    if max(images.shape[-2:]) > SMALL_SIDE:
        return "resnet18"
    return "small" if device.type == "cpu" else "wrn-40-2"


def as_images(data: object) -> LabelledImages:
    """A source for `load_dataset`, (images, labels), or labelled images as they are."""
    if isinstance(data, LabelledImages):
        return data
    if data is None or isinstance(data, str | Path):
        return load_dataset(data)
    pair: Any = data
    images = torch.as_tensor(pair[0])
    labels = torch.as_tensor(pair[1], dtype=torch.int64)
    names = tuple(str(i) for i in range(int(labels.max()) + 1))
    return LabelledImages(images, labels, names, "tensors", fingerprint(images, labels))


def find_policy(
    data: object = None,
    *,
    model: nn.Module | None = None,
    space: Space | None = None,
    preset: str = "fast",
    config: SearchConfig | None = None,
    proxy: ProxyConfig | None = None,
    device: torch.device | str | None = None,
    out: str | Path | None = None,
    **settings: Any,
) -> Policy:
    """The policy that a search finds for labelled images.

    Args:
        data: A source as for `--data` (None: the embedded images), or (images, labels) as uint8
            (N, C, H, W) and (N,).
        model: A trained classifier of uint8 batches; None trains one.
        space: What to choose from; None takes the preset's.
        preset: The settings to start from, see `deepaa.presets.PRESETS`.
        config: All settings of the search, instead of the preset's.
        out: A run folder: history, checkpoints and the policy; a run that is there goes on.
        settings: Single fields of `SearchConfig` to change: `layers=3, seed=1`.
    """
    if preset not in PRESETS:
        raise ValueError(f"no preset {preset!r}; there are {', '.join(PRESETS)}")
    chosen = PRESETS[preset]
    search = dataclasses.replace(config or chosen.search, **settings)
    proxy = proxy or chosen.proxy
    where = distributed.init("auto" if device is None else str(device))
    images = as_images(data)
    work: dict[str, Any] = {"space": space or SPACES[chosen.space], "search": search}
    run = None
    if out is not None and distributed.is_main():
        identity = run_config(
            search=search,
            proxy=proxy,
            space=work["space"],
            fingerprint=images.fingerprint,
            source={"data": images.name, "model": "given" if model is not None else None},
        )
        run = Run.create(out, identity)
    try:
        task = PolicySearch(images, proxy=proxy, model=model, device=where, run=run, **work)
        for _ in task:
            pass
        return task.policy
    finally:
        if run is not None:
            run.close()


def split_counts(splits: Splits) -> dict[str, int]:
    """Images in each part."""
    return {name: len(part) for name, part in splits._asdict().items()}


def load_model(
    spec: str, weights: Path | None, classes: int, data: LabelledImages, seed: int
) -> nn.Module:
    """A user's network: `module:function` called with the number of classes, or a model's name.

    Args:
        weights: A safetensors file of its state.
    """
    if ":" in spec and not spec.startswith(("torchvision:", "timm:")):
        module, _, function = spec.partition(":")
        found = getattr(importlib.import_module(module), function, None)
        if not callable(found):
            raise ValueError(f"--model {spec}: module {module} has no function {function}")
        model = found(classes)
        if not isinstance(model, nn.Module):
            raise TypeError(f"--model {spec} gave {type(model).__name__}, expected an nn.Module")
    else:
        mean, std = channel_statistics(data.images)
        model = build_model(spec, classes, mean=mean, std=std, seed=seed)
    if weights is not None:
        model.load_state_dict(load_file(weights))
    return model


def step_seconds(task: PolicySearch) -> float:
    """Seconds that one image takes through the network, forward and backward, measured now."""
    images = task.data.images[:128].to(task.device)
    labels = task.data.labels[:128].to(task.device)
    weights = torch.full((len(images),), 1 / len(images), device=task.device)
    frozen = frozen_copy(task.model)
    taken = []
    for _ in range(3):
        began = time.perf_counter()
        mean_gradient(frozen, images, labels, weights, dtype=PRECISIONS[task.config.precision])
        if task.device.type == "cuda":
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return min(taken) / len(images)


def foretold_passes(config: SearchConfig, rows: int) -> int:
    """Images through the network in a whole search, if no layer is dropped."""
    layers = config.layers or config.max_layers
    first = config.passes_per_step(rows, first=True)
    later = config.passes_per_step(rows, first=False)
    chains = config.chains or rows
    measured = config.heldout * (2 * (config.validation + chains)) * layers
    return config.steps * (first + (layers - 1) * later) + measured
