"""From a request to a policy: what `find_policy` and `deepaa search` share.

Both say what they want in a `SearchRequest`, open it with `open_search`, and iterate over the
records of the search. So a run that one of them began is one that the other can resume.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from deepaa import distributed
from deepaa.data import (
    DataSpec,
    LabelledImages,
    SearchSubset,
    absolute_source,
    as_images,
    check_enough,
    lists_files,
    read_splits,
)
from deepaa.models import is_large, state_hash
from deepaa.ops import Space, check_own_operations
from deepaa.policy import Policy
from deepaa.runs import (
    CONFIG,
    ProgressLine,
    Run,
    checksum,
    is_interactive,
    read_config,
    to_plain,
)
from deepaa.search.contest import Asked, ContestConfig, ContestRecord, asked_contest
from deepaa.search.from_file import check_pretraining, read_network
from deepaa.search.methods import Method, Searcher, base_preset, method_of
from deepaa.search.policy_search import SPLITS, PolicySearch, Record
from deepaa.search.progress import SearchProgress
from deepaa.search.proved import ProvedSearch
from deepaa.search.settings import ProxyConfig, SearchConfig, Settings, SettingsRequest
from deepaa.search.stored import read_stored, stored_subset

KIND = "search"
"""Of the run, in its config.json."""
DEMO_PASSES = 700_000
"""Images through the network in the contest of preset demo: two minutes on two cores."""
Sizes = tuple[int, int, int]
_log = logging.getLogger(__name__)


def demo_contest(contest: ContestConfig, preset: str | None) -> ContestConfig:
    """The contest of a preset: that of demo is short, unless its passes are given."""
    is_short = contest.passes is None and preset == "demo"
    return replace(contest, passes=DEMO_PASSES) if is_short else contest


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
    method: Method | None = None
    """What finds the policy; None for gradient matching."""
    contest: ContestConfig | None = field(default_factory=ContestConfig)
    """How policies are compared by training in the end; None for not at all."""

    def __post_init__(self) -> None:
        """Refuse weights that belong to nothing; the contest of a demo is short."""
        contest = self.contest and demo_contest(self.contest, self.settings.preset)
        object.__setattr__(self, "contest", contest)
        if self.weights is not None and self.settings.model is None:
            raise ValueError("--weights needs --model, the network that they belong to")

    @classmethod
    def from_run(
        cls,
        folder: Path,
        data: str | Path | None = None,
        *,
        operations: Sequence[str] = (),
        model: str | None = None,
        method: str | None = None,
    ) -> SearchRequest:
        """The request that began the run in `folder`, if nothing of it was given by Python.

        `data` is where its images lie now, if they have moved. `operations`, `model` and
        `method` are those of the run once more: code of one's own is not imported because a
        folder names it.
        """
        if not (folder / CONFIG).exists():
            reason = "holds no run" if folder.is_dir() else "no such folder"
            raise ValueError(f"{folder}: {reason}, so there is nothing to resume; start with --out")
        config = read_config(folder)
        if config.get("kind") != KIND:
            raise ValueError(f"{folder}: this run is not a search; try deepaa train --resume")
        kept = read_stored(folder, config, operations, model, method)
        spec = kept.data if data is None else replace(kept.data, data=absolute_source(data))
        search, proxy, space = kept.settings
        return cls(
            SettingsRequest(search=search, proxy=proxy, space=space, model=proxy.model),
            spec,
            weights=kept.weights,
            pretrain=kept.pretrain,
            splits=kept.splits,
            operations=kept.operations,
            method=kept.method,
            contest=kept.contest,
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
        if self.method is not None and not self.method.is_named:
            from_python.append("the search method")
        judged = images.judge is not None and len(images.judge) > 0
        spec = spec and replace(spec, subset_sizes=images.subset_sizes, subset_judged=judged)
        return {
            "kind": KIND,
            **settings.to_json(),
            "fingerprint": images.fingerprint,
            **({} if images.groups is None else {"groups": checksum(images.groups.tolist())}),
            "splits": self.splits,
            "pretrain": self.pretrain,
            "network": None if network is None else state_hash(network),
            "contest": self.contest and to_plain(self.contest),
            **({} if self.method is None else {"method": self.method.to_json()}),
            "source": {
                "data": spec and spec.to_json(),
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
    images: LabelledImages | None = None,
    checkpoint_seconds: float = 60.0,
    stop: Callable[[], bool] = lambda: False,
    show: Callable[[str], None] = lambda text: None,
) -> Iterator[ProvedSearch]:
    """The search that a request means, in its run folder, which is closed in the end.

    Args:
        out: The run folder; what is there goes on. None keeps nothing.
        resume: Refuse a folder without a run.
        dry_run: Leave the folder as it is.
        download: Fetch a data set that is not there.
        images: Those of the request, if they were read before.
        stop: As for `PolicySearch`.
        show: Is told how far the reading of images is, in words for a person.
    """
    known = distributed.from_main(lambda: _stored_config(out))
    images = images or _read_images(request, known, show, download=download)
    check_enough(images.labels, images.class_names, images.name)
    settings = request.settings.resolve(large=is_large(images.images))
    if any(operation.is_custom for operation in settings.space.operations):
        check_own_operations(settings.space.table, images.images[:2].to(device))
    network, has_new_head = request.model, False
    if request.weights is not None:
        network, has_new_head = read_network(settings, images, request.weights)
    if has_new_head and not request.pretrain and request.method is None:
        check_pretraining(request.weights, request.splits)
        request = replace(request, pretrain=True)  # gradients of a layer that knows nothing mislead
        if images.subset_sizes is not None:  # which leave no images for it
            images = _read_images(request, known, show, download=download)
    splits = run = None
    if out is not None and dry_run:
        splits = read_splits(Path(out) / SPLITS, len(images.labels)) if resume else None
    elif out is not None:
        run = _open_run(out, request.to_config(images, settings, network), resume=resume)
    with run or nullcontext():
        search = PolicySearch(
            images,
            **settings._asdict(),
            method=request.method,
            model=network,
            pretrain=request.pretrain,
            weights=request.weights,
            has_new_head=has_new_head,
            device=device,
            sizes=images.subset_sizes or request.splits,
            splits=splits,
            run=run,
            checkpoint_seconds=checkpoint_seconds,
            stop=stop,
        )
        if dry_run:
            search.check_method()
        yield ProvedSearch(search, request.contest)


def _stored_config(out: str | Path | None) -> dict[str, Any] | None:
    """The settings of the search in `out`; None if there is none."""
    found = {} if out is None or not (Path(out) / CONFIG).exists() else read_config(out)
    return found if found.get("kind") == KIND else None


def _read_images(
    request: SearchRequest,
    known: Mapping[str, Any] | None,
    show: Callable[[str], None],
    *,
    download: bool,
) -> LabelledImages:
    """The images of the request, of a large folder as many as are needed."""
    spec = request.data
    if isinstance(spec, LabelledImages):
        return spec
    if not distributed.is_main():  # which says the same about the images
        logging.getLogger("deepaa.data").setLevel(logging.ERROR)

    def load() -> LabelledImages:
        try:
            return spec.load(download=download, subset=_subset(request, known), show=show)
        except MemoryError as error:
            if known is not None or spec.data is None or not lists_files(spec.data):
                raise  # fewer images cannot be asked for, or all are in one file
            raise MemoryError(f"{error}, as three numbers for --splits") from error

    # one process fetches, the others find it
    return (distributed.run_on_main(load) if download else None) or load()


def _subset(request: SearchRequest, known: Mapping[str, Any] | None) -> SearchSubset | None:
    """What to read of a large folder: a run that goes on takes what it has read before."""
    seed = request.settings.resolve().search.seed
    if known is not None:
        before = stored_subset(known, request.splits, seed, pretrain=request.pretrain)
        if before is not None:
            return before[0]
    is_given = request.model is not None or request.weights is not None
    pretrains = request.pretrain or not is_given or request.method is not None
    return SearchSubset(request.splits, seed, pretrains=pretrains)


def _open_run(out: str | Path, config: dict[str, Any], *, resume: bool) -> Run | None:
    """The run folder, in the main process alone; what is wrong with it is raised in all."""
    expected = distributed.broadcast(config["fingerprint"])

    def check() -> None:
        if config["fingerprint"] != expected:
            raise ValueError("this process has read other images than the main process")

    distributed.run_on_all(check)
    return distributed.run_on_main(lambda: Run(out, config, resume=resume))


def find_policy(
    data: object = None,
    model: nn.Module | str | None = None,
    *,
    weights: str | Path | None = None,
    pretrain: bool = False,
    epochs: int | None = None,
    size: int | None = None,
    groups: Any = None,
    columns: str | None = None,
    space: Space | None = None,
    ops: str | Sequence[str] | None = None,
    exclude: str | Sequence[str] | None = None,
    preset: str | None = None,
    config: SearchConfig | None = None,
    proxy: ProxyConfig | None = None,
    device: torch.device | str | None = None,
    sizes: Sizes | None = None,
    method: str | type[Searcher] | None = None,
    contest: Asked = True,
    out: str | Path | None = None,
    checkpoint_seconds: float = 60.0,
    progress: bool | Callable[[Record | ContestRecord], None] | None = None,
    **settings: Any,
) -> Policy:
    """The policy that a search finds for labelled images, or another that trains better on them.

    What is not explained here is an option of `deepaa search` and means the same: epochs, size,
    columns, ops, exclude, preset, device, checkpoint_seconds.

    Args:
        data: As for `--data`; or a torch data set of PIL images or uint8 tensors with their labels,
            without a transform; or (images, labels) as uint8 (N, C, H, W) and (N,).
        groups: As for `--groups`; of images that are given here, an integer or text for each.
        model: A trained classifier of uint8 batches; or a name as for `--model`.
        weights: As for `--weights`: where every training of a named model begins, those of the
            contest too. A model that is given itself is trained from new weights there.
        pretrain: Train the given model first.
        space: What to choose from, instead of the preset's.
        config: All settings of the search, instead of the preset's.
        proxy: How a network is made and trained, instead of the preset's way.
        sizes: Images for pre-training, search and validation, as for `--splits`.
        method: What finds the policy, as for `--method`, or a `Searcher` of one's own; None for
            gradient matching.
        contest: Whether candidates are trained in the end: the found policy in several forms, and
            others that need no search. The best is returned, and its `info["contest"]` says how
            much better it is. False returns what the search found, and nothing is proved. A number
            is as `--contest-passes`, a `ContestConfig` says more; "on" and "off" are taken, too.
        out: A run folder. Called again with equal arguments, the search there goes on, or gives
            its result at once, and so does `deepaa search --resume`. Ctrl-C saves.
        progress: Whether progress is shown on stderr, by default in terminals and notebooks; or a
            function that is called with every record.
        settings: Single fields of `SearchConfig` to change, `layers=3, seed=1`; or, with a method,
            of its own settings.
    """
    name, network = (model, None) if isinstance(model, str) else (None, model)
    found, settings = method_of(method, preset, settings, epochs)
    wanted = SettingsRequest(
        preset=preset if found is None else base_preset(preset),
        search=config,
        proxy=proxy,
        space=space,
        fields=settings,
        model=name,
        epochs=epochs if found is None else None,
        ops=ops,
        exclude=exclude,
    )
    held, source = asked_contest(contest), _source(data, size, groups, columns)
    request = SearchRequest(
        wanted, source, network, weights, pretrain, sizes, method=found, contest=held
    )
    where = distributed.init(str(device or "auto"))
    is_shown = is_interactive() if progress is None else progress is True
    line = ProgressLine() if is_shown else None
    opened = open_search(
        request,
        out,
        device=where,
        checkpoint_seconds=checkpoint_seconds,
        show=(lambda text: None) if line is None else line.update,
    )
    with line or nullcontext(), opened as search:
        _follow(search, progress if callable(progress) else None, line)
        return search.policy


def _source(
    data: object, size: int | None, groups: Any, columns: str | None
) -> DataSpec | LabelledImages:
    """Where images are read from, or the images themselves."""
    if data is None or isinstance(data, str | Path):
        return DataSpec.from_options(data, size=size, groups=groups, columns=columns)
    return as_images(data, groups, size=size, columns=columns)


def _follow(
    search: ProvedSearch,
    progress: Callable[[Record | ContestRecord], None] | None,
    line: ProgressLine | None,
) -> None:
    """Run the search to its end and show its records; Ctrl-C saves."""
    display = None if line is None else SearchProgress(search, line=line)
    on_record = progress or display
    if (note := search.search.training_note) is not None and not search.is_over:
        if line is None:
            _log.info("%s", note)
        else:
            line.message(note)
    for weakness in () if search.is_over else search.weaknesses:
        _log.warning("%s", weakness)
    try:
        for record in search:
            if on_record is not None:
                on_record(record)
    except KeyboardInterrupt:
        search.save()
        raise
