"""From labelled images to a policy: splits, a network, the search, the files of a run.

What the command and the Python interface share. A run can be stopped at any time and goes on from
its newest checkpoint; on CPU it then ends with the same policy, bit for bit.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from deepaa import distributed
from deepaa.agreement import by_all, by_main
from deepaa.gate import DROPPED_IDENTITY
from deepaa.model_checks import check_untrained
from deepaa.models import build_model, channel_statistics, copied, frozen_copy
from deepaa.own_model import is_own, load_model, state_hash
from deepaa.pairs import SearchData
from deepaa.policy import Policy
from deepaa.presets import LARGE, SMALL, SPACES, ProxyConfig
from deepaa.run_files import RunError, read_json
from deepaa.run_settings import Settings, preset_of, run_config
from deepaa.runs import CONFIG, Run, open_in_main, part_of, read_config
from deepaa.search import LayerRecord, Search, StepRecord
from deepaa.search_config import SearchConfig, precision_on
from deepaa.sources import LabelledImages, as_images, lasting, needed_again
from deepaa.space import Operation, Space
from deepaa.splits import Needed, Splits, default_sizes, stratified_splits
from deepaa.train import EpochRecord, Training

Record = EpochRecord | StepRecord | LayerRecord
SMALL_SIDE = 64
"""Images up to this side are searched with a wide ResNet, larger ones with ResNet-18."""
DEFAULT_AUGMENTATION = ("crop", "resized_crop", "flip", "cutout")
SPLITS = "splits.json"


class StopAskedError(Exception):
    """Somebody asked to stop: leave what is half done."""


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
        pretrain: bool = False,
        device: torch.device | str = "cpu",
        sizes: tuple[int, int, int] | None = None,
        run: Run | None = None,
        checkpoint_seconds: float = 60.0,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Split the data, and go on from the run's newest checkpoint if it has one.

        Args:
            model: A classifier of uint8 batches, which is copied; None makes one as `proxy` says.
            pretrain: Train the given model first; one that is not given always is.
            sizes: Images for pre-training, search and validation.
            run: Where records, checkpoints and the policy go; None keeps nothing.
            stop: Asked often; once it says yes, the iteration saves and ends with `stopped` true.
        """
        self.data, self.space = data, space
        self.device = torch.device(device)
        self.run = run if distributed.is_main() else None
        self.checkpoint_seconds = checkpoint_seconds
        self.pretrains = model is None or pretrain
        self._resume()
        if sizes is None:
            n, classes = len(data.labels), len(data.class_names)
            sizes = default_sizes(n, classes, pretrains=self.pretrains)
        self.splits = distributed.from_main(by_main(self._kept_splits)) or stratified_splits(
            data.labels, sizes, search.seed, class_names=data.class_names
        )
        self.proxy = proxy.trained_on(len(self.splits.pretrain))
        most = max(1, len(self.splits.search) // 3)  # few images: most of them are for the steps
        self.config = dataclasses.replace(search, heldout=min(search.heldout, most))
        own = self._new_model() if model is None else copied(model)
        self.model = own.to(self.device)
        self.search: Search | None = None
        self.stopped = False
        self._stop = stop
        self._saved = time.monotonic()
        self._unsaved: tuple[str, dict[str, Tensor]] | None = None
        self._record_setting()

    def _new_model(self) -> nn.Module:
        name = self.proxy.model or proxy_name(self.data.images, self.device)
        if is_own(name):
            return load_model(name, self.data, self.config.seed)
        mean, std = channel_statistics(self.data.images[self.splits.pretrain])
        classes, channels = len(self.data.class_names), self.data.images.shape[1]
        seed = self.config.seed
        return build_model(name, classes, mean=mean, std=std, channels=channels, seed=seed)

    def _kept_splits(self) -> Splits | None:
        """Those of a run that has a state: what is the default may have changed since."""
        if self.run is None or not self._state:
            return None
        path = self.run.folder / SPLITS
        if not path.exists():
            return None
        try:
            parts = {k: torch.tensor(v, dtype=torch.int64) for k, v in read_json(path).items()}
            kept = Splits(**parts)
            used = torch.cat(kept).bincount(minlength=len(self.data.labels))
        except (TypeError, ValueError, RuntimeError) as error:
            raise RunError(f"{path}: damaged; without it the splits are drawn again") from error
        if len(used) > len(self.data.labels) or int(used.max()) > 1:
            raise RunError(f"{path}: damaged: it names images that are not there, or one twice")
        return kept

    def _record_setting(self) -> None:
        if self.run is None:
            return
        parts = {name: part.tolist() for name, part in self.splits._asdict().items()}
        self.run.write_json(SPLITS, parts)
        facts = {"data": self.data.name, "fingerprint": self.data.fingerprint}
        self.run.add_provenance({**facts, "device": str(self.device)})

    def _resume(self) -> None:
        phase, state = "pretrain" if self.pretrains else "search", {}
        if self.run is not None and (saved := self.run.latest()) is not None:
            phase, state = saved.position["phase"], saved.tensors
        self._phase, self._state = distributed.from_main((phase, state))

    @property
    def policy(self) -> Policy:
        """What is found so far."""
        if self.search is None:
            return Policy.identity(self.space, 0)
        found = self.search.policy
        layers = f"{found.depth} layer{'' if found.depth == 1 else 's'}"
        info = {
            "description": f"found by deepaa on {self.data.name}, {layers}",
            "data": f"{self.data.name}, sha256 {self.data.fingerprint[:16]}",
            "seed": str(self.config.seed),
            "settings": _differences(self.config),
        }
        if (share := self.search.dropped_identity) is not None:
            info[DROPPED_IDENTITY] = f"{share:.4f}"
        return Policy(found.table, found.phases[0].stages, info=info)

    def check_model(self) -> None:
        """Refuse a network that cannot be searched with, before it is trained for it."""
        frozen = frozen_copy(self.model).to(self.device)
        few = self.splits.search[:2]
        images, labels = self.data.images[few], self.data.labels[few]
        largest = int(self.data.labels.max())
        check_untrained(frozen, images.to(self.device), labels.to(self.device), largest)

    # Running

    def __iter__(self) -> Iterator[Record]:
        """Pre-train, search and write the policy; records as they come."""
        try:
            if self._phase == "pretrain":
                self.check_model()
                yield from self._pretrain()
                self._phase = "search"
            yield from self._search()
        except StopAskedError:
            self.save()
            self.stopped = True
            return
        if self.run is not None:
            self.run.write_policy(self.policy)

    def _pretrain(self) -> Iterator[EpochRecord]:
        part = self.splits.pretrain
        policy = default_augmentation(self.space) if self.proxy.augment else None
        config = dataclasses.replace(
            self.proxy.train,
            seed=self.config.seed,
            precision=precision_on(self.device, self.config.precision),
            channels_last=self.proxy.train.channels_last or self.device.type == "cuda",
        )
        images, labels = self.data.images[part], self.data.labels[part]
        training = Training(self.model, images, labels, policy, config, self.device)
        # every process trains all batches, so they come by here together
        training.before_step = self._leave_if_asked
        if self._state:
            training.load_state(self._state)
            self._state = {}
        for record in training:
            self._log("epoch", record)
            self._keep("pretrain", training.state(), must=training.epoch == config.epochs)
            yield record
            self._leave_if_asked()

    def _search(self) -> Iterator[StepRecord | LayerRecord]:
        weights = part_of(self._state, "model.") or self.model.state_dict()
        # every process trains alike, up to rounding; from here on they must be equal
        weights = distributed.from_main({k: v.cpu() for k, v in weights.items()})
        self.model.load_state_dict(weights)
        d, (_, search, validation) = self.data, self.splits
        parts = [d.images[search], d.labels[search], d.images[validation], d.labels[validation]]
        data = SearchData(*(part.to(self.device) for part in parts))
        frozen = frozen_copy(self.model).to(self.device)
        self.search = Search(frozen, data, self.space, self.config)
        if distributed.world_size() == 1:  # processes that wait for each other stop after a step
            self.search.before_image = self._leave_if_asked
        if self._phase == "search" and self._state:
            self.search.load_state(part_of(self._state, "search."))
        self._state = {}
        fixed = {f"model.{name}": tensor for name, tensor in weights.items()}
        for record in self.search:
            is_layer = isinstance(record, LayerRecord)
            self._log("layer" if is_layer else "step", record)
            state = {f"search.{k}": v.clone() for k, v in self.search.state().items()}
            self._keep("search", {**fixed, **state}, must=is_layer)
            yield record
            self._leave_if_asked()

    def _leave_if_asked(self) -> None:
        if distributed.any_rank(self._stop()):
            raise StopAskedError

    # Saving

    def _log(self, kind: str, record: Record) -> None:
        if self.run is not None:
            self.run.log({"kind": kind, **record._asdict()})

    def _keep(self, phase: str, state: dict[str, Tensor], *, must: bool) -> None:
        """Hold the state that belongs to the newest record, and save it when it is time."""
        self._unsaved = (phase, state)
        if must or time.monotonic() - self._saved >= self.checkpoint_seconds:
            self.save()

    def save(self) -> None:
        """Have the state after the newest record on disk; may be called at any time."""
        if self._unsaved is None:
            return
        phase, state = self._unsaved
        if self.run is not None:
            self.run.save(state, {"phase": phase})
        self._unsaved = None
        self._saved = time.monotonic()


def _differences(config: SearchConfig) -> str:
    """The settings that are not the defaults, as `--set` takes them; the seed stands elsewhere."""
    usual = SearchConfig()
    names = [field.name for field in dataclasses.fields(config) if field.name != "seed"]
    changes = [(name, getattr(config, name)) for name in names]
    texts = [
        f"{name}={'auto' if value is None else value}"
        for name, value in changes
        if value != getattr(usual, name)
    ]
    return ", ".join(texts) or "the defaults"


def is_large(images: Tensor) -> bool:
    """Whether images (N, C, H, W) get what is made for large ones: preset, space, network."""
    return max(images.shape[-2:]) > SMALL_SIDE


def proxy_name(images: Tensor, device: torch.device) -> str:
    """The network for these images on this device."""
    if is_large(images):
        return "resnet18"
    return "small" if device.type == "cpu" else "wrn-40-2"


def default_augmentation(space: Space, names: tuple[str, ...] = DEFAULT_AUGMENTATION) -> Policy:
    """Crop, flip and cutout, as far as the space has them: who leaves flip out has a reason."""
    have: dict[str, Operation] = {op.name: op for op in space.operations}
    wanted = [have[name] for name in names if name in have]
    return Policy.always(*wanted) if wanted else Policy.identity(space)


# The Python interface


def find_policy(
    data: object = None,
    model: nn.Module | None = None,
    *,
    pretrain: bool = False,
    space: Space | None = None,
    preset: str | None = None,
    config: SearchConfig | None = None,
    proxy: ProxyConfig | None = None,
    device: torch.device | str | None = None,
    sizes: tuple[int, int, int] | None = None,
    out: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    progress: Callable[[Record], None] = lambda record: None,
    **settings: Any,
) -> Policy:
    """The policy that a search finds for labelled images.

    Args:
        data: A source as for `--data` (None: the embedded images); a torch data set of PIL images
            or uint8 tensors with their labels, without a transform; or (images, labels) as uint8
            (N, C, H, W) and (N,).
        model: A classifier of uint8 batches, already trained; None makes and trains one.
        pretrain: Train the given model first.
        space: What to choose from; None takes the preset's.
        preset: The settings to start from, see `deepaa.presets.PRESETS`; None takes fast for images
            of up to 64 pixels, and imagenet for larger ones.
        config: All settings of the search, instead of the preset's.
        proxy: How a network is made and trained, instead of the preset's way.
        sizes: Images for pre-training, search and validation.
        out: A run folder: history, checkpoints and the policy. Called again with equal arguments,
            the search there goes on, or gives its result at once. Ctrl-C saves.
        progress: Called with every record.
        settings: Single fields of `SearchConfig` to change: `layers=3, seed=1`.
    """
    if preset is not None:
        preset_of(preset)  # a wrong name is refused before images are read
    where = distributed.init("auto" if device is None else str(device))
    seed = settings.get("seed", config.seed if config else 0)
    stored = distributed.from_main(by_main(lambda: _stored(out, sizes, pretrain, seed)))
    if stored is None:
        images = as_images(data, Needed(sizes, seed, model is None or pretrain))
    else:  # a run goes on with what it has read
        images = as_images(data, needed_again(stored["source"], seed))
    start = preset_of(preset or (LARGE if is_large(images.images) else SMALL))
    search = dataclasses.replace(config or start.search, **settings)
    if proxy is None:
        proxy = start.proxy
        if stored is not None and "least_passes" not in stored["proxy"]:  # it began before
            proxy = dataclasses.replace(proxy, least_passes=0)
    chosen = Settings(search, proxy, space or SPACES[start.space])
    source: dict[str, object] = {"data": images.name, "sizes": sizes, "pretrain": pretrain}
    source["model"] = None if model is None else state_hash(model)
    if images.reads is not None:
        source["reads"] = list(images.reads)
        sizes = images.reads
    run = None if out is None else open_run(out, chosen, images, source)
    if run is not None and isinstance(data, str | Path):
        run.add_provenance({"place": lasting(data)})  # for reports; images may move
    work: dict[str, Any] = {"model": model, "pretrain": pretrain, "sizes": sizes, "run": run}
    work |= {"device": where, "checkpoint_seconds": checkpoint_seconds}
    try:
        task = PolicySearch(images, **chosen._asdict(), **work)
        try:
            for record in task:
                progress(record)
        except KeyboardInterrupt:
            task.save()
            raise
        return task.policy
    finally:
        if run is not None:
            run.close()


def _stored(
    out: str | Path | None, sizes: tuple[int, int, int] | None, pretrain: bool, seed: int
) -> dict[str, Any] | None:
    """The settings of the run in `out`, if it is one that was asked for in the same way."""
    if out is None or not (Path(out) / CONFIG).exists():
        return None
    found = read_config(out)
    try:
        kept = found["source"]["sizes"], found["source"]["pretrain"], found["search"]["seed"]
    except (KeyError, TypeError):  # another kind of run, which is refused later
        return None
    return found if kept == (None if sizes is None else list(sizes), pretrain, seed) else None


def open_run(
    out: str | Path,
    settings: Settings,
    data: LabelledImages,
    source: Mapping[str, object],
    *,
    resume: bool = False,
) -> Run | None:
    """The run folder, in the main process alone; what is wrong with it is raised in all."""
    expected = distributed.from_main(data.fingerprint)

    def check() -> None:
        if data.fingerprint != expected:
            raise ValueError("this process has read other images than the main process")

    by_all(check)
    identity = run_config(settings, fingerprint=data.fingerprint, source=source)
    return open_in_main(out, identity, resume=resume)
