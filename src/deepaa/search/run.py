"""From a request to a policy: what `find_policy` and `deepaa search` share.

Both say what they want in a `SearchRequest`, open it with `open_search`, and iterate over the
records of the search. So a run that one of them began is one that the other can resume.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepaa import distributed
from deepaa.data import DataSpec, LabelledImages, SearchSubset, absolute_source, as_images
from deepaa.models import is_large, load_model, state_hash
from deepaa.ops import Space, import_operations
from deepaa.policy import Policy
from deepaa.runs import (
    CONFIG,
    ProgressLine,
    Run,
    duration,
    is_interactive,
    read_config,
    read_json,
)
from deepaa.search.gradient_matching.search import LayerRecord, StepRecord
from deepaa.search.plain_network import ProtectionRecord
from deepaa.search.policy_search import SPLITS, PolicySearch, Record
from deepaa.search.settings import ProxyConfig, SearchConfig, Settings, SettingsRequest
from deepaa.train import EpochRecord

KIND = "search"
"""Of the run, in its config.json."""
Sizes = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """What is searched: settings, images and a network, as the command or Python gives them."""

    settings: SettingsRequest
    data: DataSpec | LabelledImages
    """Where the images are read from, or images that are given by Python."""
    model: nn.Module | None = None
    """A classifier of uint8 batches, given by Python; None for one that `settings` name."""
    weights: str | Path | None = None
    """A file of trained weights for the network that `settings` name."""
    pretrain: bool = False
    """Train a network that is given, too."""
    splits: Sizes | None = None
    """Images for pre-training, search and validation."""
    operations: tuple[str, ...] = ()
    """Where `settings.operations` were imported from, MODULE:NAME each."""

    def __post_init__(self) -> None:
        """Refuse weights that belong to nothing."""
        if self.weights is not None and self.settings.model is None:
            raise ValueError("--weights needs --model, the network that they belong to")

    @classmethod
    def from_run(cls, folder: Path, data: str | Path | None = None) -> SearchRequest:
        """The request that began the run in `folder`, if nothing of it was given by Python.

        `data` is where its images lie now, if they have moved.
        """
        if not (folder / CONFIG).exists():
            reason = "holds no run" if folder.is_dir() else "no such folder"
            raise ValueError(f"{folder}: {reason}, so there is nothing to resume; start with --out")
        config = read_config(folder)
        if config.get("kind") != KIND:
            raise ValueError(f"{folder}: this run is not a search; try deepaa train --resume")
        source = config["source"]
        if source["from_python"]:
            raise ValueError(
                f"{folder}: {' and '.join(source['from_python'])} of this run came from Python "
                "code and are not in its folder; call find_policy again with the same arguments"
            )
        spec = DataSpec.from_json(source["data"], f"{folder / CONFIG}: source.data")
        if data is not None:
            spec = replace(spec, data=absolute_source(data))
        own = import_operations(source["operations"])
        search, proxy, space = Settings.from_json(config, own)
        return cls(
            SettingsRequest(search=search, proxy=proxy, space=space, model=proxy.model),
            spec,
            weights=source["weights"],
            pretrain=config["pretrain"],
            splits=None if config["splits"] is None else tuple(config["splits"]),
            operations=tuple(source["operations"]),
        )

    def to_config(
        self, images: LabelledImages, settings: Settings, network: nn.Module | None
    ) -> dict[str, Any]:
        """What identifies the run, and under `source` where it came from, for config.json."""
        own = [op.name for op in settings.space.operations if op.is_custom]
        spec = self.data if isinstance(self.data, DataSpec) else None
        from_python = ["the images"] if spec is None else []
        from_python += ["the network"] if self.model is not None else []
        from_python += [f"the operations {', '.join(own)}"] if own and not self.operations else []
        data = spec and replace(spec, subset_sizes=images.subset_sizes).to_json()
        return {
            "kind": KIND,
            **settings.to_json(),
            "fingerprint": images.fingerprint,
            "splits": self.splits,
            "pretrain": self.pretrain,
            "network": None if network is None else state_hash(network),
            "source": {
                "data": data,
                "weights": None if self.weights is None else str(Path(self.weights).resolve()),
                "operations": self.operations,
                "from_python": from_python,
            },
        }


@contextmanager
def open_search(
    request: SearchRequest,
    out: str | Path | None = None,
    *,
    device: torch.device,
    resume: bool = False,
    dry_run: bool = False,
    download: bool = False,
    checkpoint_seconds: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[PolicySearch]:
    """The search that a request means, in its run folder, which is closed in the end.

    Args:
        out: The run folder; what is there goes on. None keeps nothing.
        resume: Refuse a folder without a run.
        dry_run: Leave the folder as it is.
        download: Fetch a data set that is not there.
        stop: As for `PolicySearch`.
    """
    known = distributed.from_main(lambda: _stored_config(out))
    images = _read_images(request, known, download=download)
    settings = request.settings.resolve(large=is_large(images.images))
    network = request.model
    if request.weights is not None:
        assert settings.proxy.model is not None
        classes, seed = len(images.class_names), settings.search.seed
        network = load_model(settings.proxy.model, images.images, classes, seed, request.weights)
    sizes, run = images.subset_sizes or request.splits, None
    if out is not None and dry_run:
        sizes = _stored_sizes(Path(out)) if resume else sizes
    elif out is not None:
        run = _open_run(out, request.to_config(images, settings, network), resume=resume)
    with run or nullcontext():
        yield PolicySearch(
            images,
            **settings._asdict(),
            model=network,
            pretrain=request.pretrain,
            device=device,
            sizes=sizes,
            run=run,
            checkpoint_seconds=checkpoint_seconds,
            stop=stop,
        )


def _stored_config(out: str | Path | None) -> dict[str, Any] | None:
    """The settings of the search in `out`; None if there is none."""
    found = {} if out is None or not (Path(out) / CONFIG).exists() else read_config(out)
    return found if found.get("kind") == KIND else None


def _stored_sizes(out: Path) -> Sizes | None:
    """The sizes of the splits that a run has."""
    if not (out / SPLITS).exists():
        return None
    first, second, third = (len(part) for part in read_json(out / SPLITS).values())
    return first, second, third


def _read_images(
    request: SearchRequest, known: Mapping[str, Any] | None, *, download: bool
) -> LabelledImages:
    """The images of the request, of a large folder as many as are needed."""
    spec = request.data
    if isinstance(spec, LabelledImages):
        return spec
    if not distributed.is_main():  # which says the same about the images
        logging.getLogger("deepaa.data").setLevel(logging.ERROR)

    def load() -> LabelledImages:
        try:
            return spec.load(download=download, subset=_subset(request, known))
        except MemoryError as error:
            if known is not None or not Path(spec.data or "").is_dir():
                raise  # fewer images cannot be asked for, or all are in one file
            raise MemoryError(f"{error}, as three numbers for --splits") from error

    # one process fetches, the others find it
    return (distributed.run_on_main(load) if download else None) or load()


def _subset(request: SearchRequest, known: Mapping[str, Any] | None) -> SearchSubset | None:
    """What to read of a large folder: a run that goes on takes what it has read before."""
    seed = request.settings.resolve().search.seed
    if known is not None and known["source"]["data"] is not None:
        asked = tuple(known["splits"] or ()), known["pretrain"], known["search"]["seed"]
        if asked == (tuple(request.splits or ()), request.pretrain, seed):
            return DataSpec.from_json(known["source"]["data"]).subset(seed)
    is_given = request.model is not None or request.weights is not None
    return SearchSubset(request.splits, seed, pretrains=request.pretrain or not is_given)


def _open_run(out: str | Path, config: dict[str, Any], *, resume: bool) -> Run | None:
    """The run folder, in the main process alone; what is wrong with it is raised in all."""
    expected = distributed.broadcast(config["fingerprint"])

    def check() -> None:
        if config["fingerprint"] != expected:
            raise ValueError("this process has read other images than the main process")

    distributed.run_on_all(check)
    return distributed.run_on_main(lambda: Run(out, config, resume=resume))


class SearchProgress:
    """Shows the records of a search on stderr: call it with each."""

    def __init__(self, search: PolicySearch) -> None:
        """Nothing is shown before the first record."""
        self.search, self.line = search, ProgressLine()
        self.rate, self.passes = 0.0, 0  # image passes a second, smoothed, and their number so far

    def __call__(self, record: Record) -> None:
        """Show one record; a finished layer stays on the screen."""
        if isinstance(record, LayerRecord):
            self.passes = record.passes
            self.line.message(
                f"layer {record.layer} {'kept' if record.kept else 'dropped'} ({record.reason}): "
                f"held-out similarity {record.improvement_mean:+.4f} over no augmentation, "
                f"DeepTA {record.deepta_mean:+.4f}"
            )
        elif isinstance(record, EpochRecord):
            self._show_epoch(record)
        elif isinstance(record, ProtectionRecord):
            for line in record.lines:
                self.line.message(line)
        else:
            is_last = record.step == self.search.config.steps
            self.line.update(self.step_text(record), always=is_last)

    def clear(self) -> None:
        """Remove the line that changes; what stays on the screen stays."""
        self.line.clear()

    def _show_epoch(self, record: EpochRecord) -> None:
        epochs = self.search.proxy.train.epochs
        left = epochs - record.epoch - 1
        text = (
            f"pre-training {record.epoch + 1}/{epochs}  loss {record.loss:.3f}  "
            f"accuracy {record.accuracy:.3f}  left {duration(record.seconds * left)}"
        )
        self.line.update(text, always=left == 0)
        warning = little_learnt(record, len(self.search.data.class_names))
        if left == 0 and warning is not None:
            self.line.message(f"warning: {warning}")
        if left == 0 and self.search.config.protect:
            self.line.update("looking for operations that turn one class into another")

    def step_text(self, record: StepRecord) -> str:
        """Where the search is, how well the layer does, and the time that is left."""
        config = self.search.config
        if self.passes and record.step > 1:  # a first step compiles
            now = (record.passes - self.passes) / max(record.seconds, 1e-6)
            self.rate = 0.9 * self.rate + 0.1 * now if self.rate else now
        self.passes = record.passes
        passes = config.passes_left(len(self.search.space), record.layer, record.step)
        left = f"left {duration(passes / self.rate)}  " if self.rate else ""
        depth = config.layers or f"at most {config.max_layers}"
        top = ", ".join(f"{name} {share:.2f}" for name, share in record.top)
        return (
            f"layer {record.layer} of {depth}  step {record.step}/{config.steps}  "
            f"similarity {record.similarity:.3f}  {left}{top}"
        )


def little_learnt(record: EpochRecord, classes: int) -> str | None:
    """A warning about a network that is hardly better than guessing; None for a better one."""
    chance = 1 / classes
    if record.accuracy >= max(2 * chance, chance + 0.1):
        return None
    return (
        f"the network has learnt little: accuracy {record.accuracy:.2f} on augmented images, and "
        f"guessing gives {chance:.2f}; its gradients may mislead the search, more --epochs or more "
        "images (--splits) may help"
    )


def find_policy(
    data: object = None,
    model: nn.Module | str | None = None,
    *,
    weights: str | Path | None = None,
    pretrain: bool = False,
    epochs: int | None = None,
    size: int | None = None,
    space: Space | None = None,
    ops: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    preset: str | None = None,
    config: SearchConfig | None = None,
    proxy: ProxyConfig | None = None,
    device: torch.device | str | None = None,
    sizes: Sizes | None = None,
    out: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    progress: bool | Callable[[Record], None] | None = None,
    **settings: Any,
) -> Policy:
    """The policy that a search finds for labelled images.

    What is not explained here is an option of `deepaa search` and means the same: weights, epochs,
    size, ops, exclude, preset, device, checkpoint_seconds.

    Args:
        data: As for `--data`; or a torch data set of PIL images or uint8 tensors with their labels,
            without a transform; or (images, labels) as uint8 (N, C, H, W) and (N,).
        model: A trained classifier of uint8 batches; or a name as for `--model`.
        pretrain: Train the given model first.
        space: What to choose from, instead of the preset's.
        config: All settings of the search, instead of the preset's.
        proxy: How a network is made and trained, instead of the preset's way.
        sizes: Images for pre-training, search and validation, as for `--splits`.
        out: A run folder. Called again with equal arguments, the search there goes on, or gives
            its result at once, and so does `deepaa search --resume`. Ctrl-C saves.
        progress: Whether progress is shown on stderr, by default in terminals and notebooks; or a
            function that is called with every record.
        settings: Single fields of `SearchConfig` to change: `layers=3, seed=1`.
    """
    name, network = (model, None) if isinstance(model, str) else (None, model)
    wanted = SettingsRequest(
        preset=preset,
        search=config,
        proxy=proxy,
        space=space,
        fields=settings,
        model=name,
        epochs=epochs,
        ops=ops,
        exclude=exclude,
    )
    request = SearchRequest(wanted, _source(data, size), network, weights, pretrain, sizes)
    where = distributed.init(str(device or "auto"))
    with open_search(request, out, device=where, checkpoint_seconds=checkpoint_seconds) as search:
        _follow(search, progress)
        return search.policy


def _source(data: object, size: int | None) -> DataSpec | LabelledImages:
    """Where images are read from, or the images themselves."""
    if data is None or isinstance(data, str | Path):
        return DataSpec.from_options(data, size=size)
    if size is not None:
        raise ValueError(f"size={size} is for images in files; resize yours before the search")
    return as_images(data)


def _follow(search: PolicySearch, progress: bool | Callable[[Record], None] | None) -> None:
    """Run the search to its end and show its records; Ctrl-C saves."""
    is_shown = is_interactive() if progress is None else progress is True
    display = SearchProgress(search) if is_shown else None
    on_record = progress if callable(progress) else display
    try:
        for record in search:
            if on_record is not None:
                on_record(record)
    except KeyboardInterrupt:
        search.save()
        raise
    finally:
        if display is not None:
            display.clear()
