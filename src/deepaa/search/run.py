"""From a request to a policy: what `find_policy` and `deepaa search` share.

Both say what they want in a `SearchRequest`, open it with `open_search`, and iterate over the
records of the search. So a run that one of them began is one that the other can resume.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepaa import distributed
from deepaa.data import DataSpec, LabelledImages, SearchSubset, as_images
from deepaa.distributed import run_on_all, run_on_main
from deepaa.models import is_large, load_model, state_hash
from deepaa.ops import Space, import_operations
from deepaa.policy import Policy
from deepaa.runs import CONFIG, Run, is_interactive, open_in_main, read_config, read_json
from deepaa.search.gradient_matching.config import SearchConfig
from deepaa.search.policy_search import SPLITS, PolicySearch, Record
from deepaa.search.presets import ProxyConfig
from deepaa.search.progress import SearchProgress
from deepaa.search.settings import (
    Settings,
    SettingsRequest,
    settings_from_json,
    settings_to_json,
)

KIND = "search"
"""Of the run, in its config.json."""
Sizes = tuple[int, int, int]


@dataclass(frozen=True, eq=False)
class SearchRequest:
    """What is searched: settings, images and a network, as the command or Python gives them."""

    settings: SettingsRequest
    data: DataSpec | None
    """Where the images are read from; None for `images`."""
    images: LabelledImages | None = None
    model: nn.Module | None = None
    """A classifier of uint8 batches, given by Python; None for one that `settings` name."""
    weights: str | None = None
    """A file of trained weights for the network that `settings` name."""
    pretrain: bool = False
    """Train a network that is given, too."""
    splits: Sizes | None = None
    """Images for pre-training, search and validation."""
    operations: tuple[str, ...] = ()
    """Where `settings.operations` were imported from, MODULE:NAME each."""

    def __post_init__(self) -> None:
        """Refuse wrong settings before images are read."""
        if self.weights is not None and self.settings.model is None:
            raise ValueError("--weights needs --model, the network that they belong to")
        self.settings.resolve()

    @classmethod
    def from_run(cls, folder: Path) -> SearchRequest:
        """The request that began the run in `folder`, if nothing of it was given by Python."""
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
        own = tuple(import_operations(source["operations"]))
        search, proxy, space = settings_from_json(config, own)
        return cls(
            SettingsRequest(search=search, proxy=proxy, space=space, model=proxy.model),
            DataSpec.from_json(source["data"], f"{folder / CONFIG}: source.data"),
            weights=source["weights"],
            pretrain=config["pretrain"],
            splits=None if config["splits"] is None else tuple(config["splits"]),
            operations=tuple(source["operations"]),
        )

    def with_data_at(self, place: str | Path) -> SearchRequest:
        """The same request, for images that have moved."""
        assert self.data is not None
        moved = DataSpec.from_options(place).data
        return dataclasses.replace(self, data=dataclasses.replace(self.data, data=moved))

    @property
    def seed(self) -> int:
        """Of everything random."""
        return self.settings.resolve().search.seed

    def network(self, images: LabelledImages, settings: Settings) -> nn.Module | None:
        """The network that is given; None where one is made and trained."""
        if self.weights is None:
            return self.model
        assert settings.proxy.model is not None
        classes, seed = len(images.class_names), settings.search.seed
        return load_model(settings.proxy.model, images.images, classes, seed, self.weights)

    def to_config(
        self, images: LabelledImages, settings: Settings, network: nn.Module | None
    ) -> dict[str, Any]:
        """What identifies the run, and under `source` where it came from, for config.json."""
        own = [op.name for op in settings.space.operations if op.is_custom]
        from_python = ["the images"] if self.data is None else []
        from_python += ["the network"] if self.model is not None else []
        from_python += [f"the operations {', '.join(own)}"] if own and not self.operations else []
        data = None
        if self.data is not None:
            data = dataclasses.replace(self.data, subset_sizes=images.subset_sizes).to_json()
        return {
            "kind": KIND,
            **settings_to_json(settings),
            "fingerprint": images.fingerprint,
            "splits": None if self.splits is None else list(self.splits),
            "pretrain": self.pretrain,
            "network": None if network is None else state_hash(network),
            "source": {
                "data": data,
                "weights": self.weights,
                "operations": list(self.operations),
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
    known = distributed.broadcast(run_on_main(lambda: _stored_config(out)))
    images = request.images or _read_images(request, known, download=download)
    settings = request.settings.resolve(large=is_large(images.images))
    network = request.network(images, settings)
    sizes = images.subset_sizes or request.splits
    run = None
    if out is not None and dry_run:
        sizes = _stored_sizes(Path(out)) if resume else sizes
    elif out is not None:
        run = _open_run(out, request.to_config(images, settings, network), known, resume=resume)
    try:
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
    finally:
        if run is not None:
            run.close()


def _stored_config(out: str | Path | None) -> dict[str, Any] | None:
    """The settings of the search in `out`; None if there is none."""
    if out is None or not (Path(out) / CONFIG).exists():
        return None
    found = read_config(out)
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
    assert request.data is not None
    if not distributed.is_main():  # which says the same about the images
        logging.getLogger("deepaa.data.load").setLevel(logging.ERROR)
    if download and not distributed.is_main():
        distributed.barrier()  # one process fetches, the others find it
    try:
        images = request.data.load(download=download, subset=_subset(request, known))
    except MemoryError as error:
        if known is not None or not Path(request.data.data or "").is_dir():
            raise  # fewer images cannot be asked for, or all are in one file
        raise MemoryError(f"{error}, as three numbers for --splits") from error
    if download and distributed.is_main():
        distributed.barrier()
    return images


def _subset(request: SearchRequest, known: Mapping[str, Any] | None) -> SearchSubset | None:
    seed = request.seed
    splits = None if request.splits is None else list(request.splits)
    if known is not None and known["source"]["data"] is not None:
        asked = known["splits"], known["pretrain"], known["search"]["seed"]
        if asked == (splits, request.pretrain, seed):  # a run goes on with what it has read
            return DataSpec.from_json(known["source"]["data"]).subset(seed)
    is_given = request.model is not None or request.weights is not None
    return SearchSubset(request.splits, seed, pretrains=request.pretrain or not is_given)


def _open_run(
    out: str | Path, config: dict[str, Any], known: Mapping[str, Any] | None, *, resume: bool
) -> Run | None:
    """The run folder, in the main process alone; what is wrong with it is raised in all."""
    expected = distributed.broadcast(config["fingerprint"])

    def check() -> None:
        if config["fingerprint"] != expected:
            raise ValueError("this process has read other images than the main process")

    run_on_all(check)
    if known is not None and {**known, "source": None} == {**config, "source": None}:
        config = dict(known)  # equal images may lie elsewhere by now
    return open_in_main(out, config, resume=resume)


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

    Args:
        data: A source as for `--data` (None: the embedded images); a torch data set of PIL images
            or uint8 tensors with their labels, without a transform; or (images, labels) as uint8
            (N, C, H, W) and (N,).
        model: A classifier of uint8 batches, already trained; or a name as for `--model`; None
            takes one that fits the images. What has only a name is trained first.
        weights: A file of trained weights for a network with a name, .safetensors.
        pretrain: Train the given model first.
        epochs: Epochs of pre-training, instead of the preset's.
        size: Side to bring images to that are read from files.
        space: What to choose from; None takes the preset's.
        ops: Names of the operations of the space to keep, as a list or with commas between.
        exclude: Names of operations to leave out.
        preset: The settings to start from, see `PRESETS`; None takes fast for images
            of up to 64 pixels, and imagenet for larger ones.
        config: All settings of the search, instead of the preset's.
        proxy: How a network is made and trained, instead of the preset's way.
        sizes: Images for pre-training, search and validation.
        out: A run folder: history, checkpoints and the policy. Called again with equal arguments,
            the search there goes on, or gives its result at once, and so does
            `deepaa search --resume`. Ctrl-C saves.
        progress: Whether progress is shown on stderr, by default in terminals and notebooks; or
            a function that is called with every record.
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
    wanted.resolve()  # before images are read
    spec, images = None, None
    if data is None or isinstance(data, str | Path):
        spec = DataSpec.from_options(data, size=size)
    elif size is None:
        images = as_images(data)
    else:
        raise ValueError(f"size={size} is for images in files; resize yours before the search")
    request = SearchRequest(
        wanted,
        spec,
        images,
        model=network,
        weights=None if weights is None else str(Path(weights).resolve()),
        pretrain=pretrain,
        splits=sizes,
    )
    where = distributed.init("auto" if device is None else str(device))
    with open_search(request, out, device=where, checkpoint_seconds=checkpoint_seconds) as search:
        is_shown = is_interactive() if progress is None else progress is True
        display = SearchProgress(search, enabled=is_shown)
        on_record = progress if callable(progress) else display
        try:
            for record in search:
                on_record(record)
        except KeyboardInterrupt:
            search.save()
            raise
        finally:
            display.clear()
        return search.policy
