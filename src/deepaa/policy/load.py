"""`load_policy` and `compared_policy`: policies by name, with parameters, or from a file.

The grammar of names is `NAME`, `NAME:VALUE,KEY=VALUE`, `pba:FILE,over=EPOCHS`,
`deepaa-simple:POLICY` or a path. Only `parse_policy_ref` knows it.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from deepaa.ops import CIFAR, Operation
from deepaa.policy import algebra, baselines, foreign
from deepaa.policy.baselines import SPACES, SpaceName, default_policy
from deepaa.policy.format import FORMAT, read_document
from deepaa.policy.policy import MAX_DEPTH, Policy
from deepaa.policy.stages import Chains, Layers, Stage
from deepaa.policy.strict_json import PolicyFileError, parse, read_bytes

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

Argument = int | str


# Names


_VALUES: Mapping[str, range | tuple[str, ...]] = {
    "layers": range(1, MAX_DEPTH + 1),
    "m": range(baselines.TOP_LEVEL + 1),
    "n": range(1, MAX_DEPTH - 2),
    "over": range(1, 10**7),
    "space": tuple(SPACES),
}
"""The parameters that a name can take behind its colon: whole numbers, or one of several texts."""


def _parse_value(name: str, text: str, source: str) -> Argument:
    """The value of a parameter that `text` spells; errors begin with `source`."""
    values = _VALUES[name]
    if isinstance(values, tuple):
        if text in values:
            return text
        expected = f"one of {', '.join(values)}"
    else:
        short = text.isascii() and text.isdecimal() and len(text) < 10
        if short and int(text) in values:
            return int(text)
        expected = f"a whole number from {values[0]} to {values[-1]}"
    raise PolicyFileError(f"{source}: {name} should be {expected}, got {text!r}")


DEFAULTS = ("after", "before", "none")
"""Where a search of this package has run crop, flip and cutout beside the sub-policies it found."""


class Generated(NamedTuple):
    """A policy that is simple enough to be made by a line of code."""

    description: str
    make: Callable[..., Policy]
    parameters: tuple[str, ...] = ()
    """Keys of `_VALUES`, in the order in which values without a name are taken."""
    defaults: bool = False
    """Whether a training adds the default crop, flip and, on CIFAR, cutout behind it."""


def _deepta(layers: int | None = None, space: SpaceName = "cifar") -> Policy:
    return Policy.trivial(SPACES[space], layers or {"cifar": 6, "imagenet": 5}[space])


def _auto_augment(space: SpaceName = "cifar") -> Policy:
    return baselines.auto_augment("imagenet" if space == "imagenet" else "cifar10")


_on_defaults = partial(Generated, defaults=True)  # published on top of crop, flip and cutout
GENERATED: Mapping[str, Generated] = {
    "identity": Generated("changes nothing", Policy.identity),
    "none": Generated("no augmentation, the same as identity", Policy.identity),
    "uniform": Generated(
        "2 layers, each CIFAR transformation equally likely", lambda: Policy.uniform(CIFAR, 2)
    ),
    "deepta": Generated(
        "6 CIFAR layers, or deepta:4: an operation, then a level", _deepta, ("layers", "space")
    ),
    "deepta-imagenet": Generated(
        "5 ImageNet layers: an operation, then a level",
        partial(_deepta, space="imagenet"),
        ("layers",),
    ),
    "crop-flip": Generated(
        "pad-4 crop (ImageNet: resized crop) and flip",
        partial(default_policy, cutout=False),
        ("space",),
    ),
    "crop-flip-cutout": Generated(
        "pad-4 crop, flip and the original 16-pixel Cutout", default_policy
    ),
    "autoaugment": _on_defaults(
        "autoaugment-cifar10; on ImageNet autoaugment-imagenet", _auto_augment, ("space",)
    ),
    **{
        f"autoaugment-{table}": _on_defaults(
            f"AutoAugment's sub-policies for {title}, from torchvision",
            partial(baselines.auto_augment, table),
        )
        for table, title in (("cifar10", "CIFAR-10"), ("imagenet", "ImageNet"), ("svhn", "SVHN"))
    },
    "randaugment": _on_defaults(
        "2 of 14 operations at strength 9 of 30; or :n=3,m=5",
        baselines.rand_augment,
        ("n", "m", "space"),
    ),
    "timm-randaugment": _on_defaults(
        "timm's rand-m9-mstd0.5-inc1, without solarize_add", baselines.timm_rand_augment
    ),
    "uniformaugment": _on_defaults(
        "2 of 15 operations, each half the time, any strength", baselines.uniform_augment, ("n",)
    ),
    "trivialaugment": _on_defaults(
        "1 of 14 operations, any strength, RandAugment's ranges",
        baselines.trivial_augment,
        ("space",),
    ),
    "trivialaugment-wide": _on_defaults(
        "1 of 14 operations, any strength, wide ranges", baselines.trivial_augment_wide, ("space",)
    ),
}
SIMPLE, PBA = "deepaa-simple", "pba"
OF_RUNS = ("policy.json", "found.json")
"""Names of files that every run folder has, so that they tell nothing without it."""
FORMS = {
    f"{SIMPLE}:POLICY": "the first layer of another policy, a name or a file",
    f"{PBA}:FILE": "a schedule of PBA; FILE,over=160 for 160 epochs",
}
"""Names that need something behind the colon, as errors and help spell them, and what they are."""
_SHIPPED: Traversable = files("deepaa.policy").joinpath("shipped")


def shipped_policies() -> dict[str, Traversable]:
    """The policy files that come with the package, by name."""
    entries = [entry for entry in _SHIPPED.iterdir() if entry.name.endswith(".json")]
    return {entry.name.removesuffix(".json"): entry for entry in entries}


def policy_names() -> tuple[str, ...]:
    """The names `load_policy` knows: the policies shipped with the package, then simple ones."""
    return (*sorted(shipped_policies()), *GENERATED)


@dataclass(frozen=True)
class PolicyRef:
    """A policy as people refer to it, taken apart; nothing has been read yet."""

    text: str
    """As it was written."""
    name: str | None = None
    """A shipped policy, a key of `GENERATED`, or `PBA`; None for a path."""
    arguments: Mapping[str, Argument] = field(default_factory=dict)
    path: Path | None = None
    """The file to read, if the name does not make the policy."""
    first_layer: bool = False
    """Whether only the first layer is meant: `deepaa-simple:`."""
    may_be_misspelt: bool = False
    """Whether the path was given as a text, which may have been meant as a name."""

    @property
    def is_name(self) -> bool:
        """Whether the text means a named policy, whatever files lie around."""
        return self.name is not None or self.first_layer

    @property
    def label(self) -> str:
        """The text without a path's folders, except the run that holds the policy."""
        if self.path is None:
            return self.text
        kept = self.path.parts[-2 if self.path.name in OF_RUNS else -1 :]
        return self.text.replace(str(self.path), str(Path(*kept)))


def parse_policy_ref(source: str | Path) -> PolicyRef:
    """The parts of a policy's name, or of the path of its file.

    A text that is a name means the name, whatever files lie around; a `Path` is always a path.
    """
    if isinstance(source, Path):
        return PolicyRef(str(source), path=source)
    name, colon, rest = source.partition(":")
    if name in (SIMPLE, PBA) and not rest:
        form = next(form for form in FORMS if form.startswith(f"{name}:"))
        raise PolicyFileError(f"{source}: needs a policy behind it: {form}")
    if name == SIMPLE:
        if rest.partition(":")[0] == SIMPLE:  # before going deeper: there may be thousands
            raise PolicyFileError(f"{source[:80]}: {SIMPLE} is given twice")
        return replace(parse_policy_ref(rest), text=source, first_layer=True)
    if name == PBA:
        path, comma, over = rest.rpartition(",over=")
        given = {"over": _parse_value("over", over, source)} if comma else {}
        return PolicyRef(source, PBA, given, Path(path if comma else rest))
    if name in GENERATED:
        values = rest.split(",") if colon else ()
        return PolicyRef(source, name, _arguments(source, name, values))
    if source in shipped_policies():
        return PolicyRef(source, source)
    return PolicyRef(source, path=Path(source), may_be_misspelt=True)


def _arguments(source: str, name: str, values: Sequence[str]) -> dict[str, Argument]:
    """The values behind the colon: `key=value`, or values alone in order."""
    parameters = GENERATED[name].parameters
    given: dict[str, Argument] = {}
    for i, part in enumerate(values):
        key, equals, text = part.strip().partition("=")
        if not equals:
            text, key = key, parameters[i] if i < len(parameters) else key
        if key not in parameters:
            has = ", ".join(parameters) or "none"
            raise PolicyFileError(f"{source}: {name} has no parameter {key!r}; it has {has}")
        if key in given:
            raise PolicyFileError(f"{source}: {key} is given twice")
        given[key] = _parse_value(key, text.strip(), source)
    return given


# Reading


class Loaded(NamedTuple):
    """A policy, and how its authors run it."""

    policy: Policy
    defaults: bool
    """Whether the default crop, flip and cutout follow."""
    mirrored: bool = False
    """Whether shear, translate and rotate take either sign, which the file leaves out."""
    over: int | None = None
    """The epochs of the search that gave a schedule."""


def load_policy(source: str | Path, operations: Sequence[Operation] = ()) -> Policy:
    """The policy of a name (`policy_names()`) or in a file.

    A name may carry parameters: `deepta:4`, `randaugment:n=3,m=5`. A file is this package's JSON,
    the authors' `.npz`, a JSON list of sub-policies, or a schedule of PBA. `deepaa-simple:POLICY`
    is the first layer of another policy, `pba:FILE,over=160` a schedule of a search of 160 epochs.
    A text that is a name means the name, whatever files lie around; `Path("uniform")` means the
    file.

    Args:
        operations: Your own operations that the file names; the file gives their range and options.
    """
    if not isinstance(source, str | Path):
        raise TypeError(f"load_policy takes a name or a path, got {type(source).__name__}")
    ref = parse_policy_ref(source)
    policy = _load(ref, operations).policy
    return policy.first_layers(1) if ref.first_layer else policy


def _load(
    ref: PolicyRef, operations: Sequence[Operation], space: SpaceName | None = None
) -> Loaded:
    """The whole policy of a reference; `space` is for names that depend on it and do not say it."""
    if ref.path is None:
        name = str(ref.name)
        if (shipped := shipped_policies().get(name)) is not None:
            return read_policy_text(shipped.read_text("utf-8"), name, operations)
        entry, given = GENERATED[name], dict(ref.arguments)
        if space is not None and "space" in entry.parameters:
            given.setdefault("space", space)
        return Loaded(entry.make(**given), entry.defaults)
    try:
        data = read_bytes(ref.path)
    except FileNotFoundError:
        raise _not_found(ref) from None
    source = str(ref.path / "policy.json" if ref.path.is_dir() else ref.path)
    if ref.name != PBA and (data.startswith(foreign.ZIP) or source.endswith(".npz")):
        return Loaded(foreign.read_npz(data, source), defaults=False, mirrored=True)
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise PolicyFileError(f"{source}: byte {error.start}: not UTF-8 text") from None
    if foreign.is_log(text):
        over = int(ref.arguments.get("over", foreign.SEARCH_EPOCHS))
        return Loaded(foreign.read_log(text, source, over), defaults=True, over=over)
    if ref.name == PBA:
        raise PolicyFileError(f"{source}: not a log of PBA; other files need no {PBA}: before")
    return read_policy_text(text, source, operations)


def read_policy_text(text: str, source: str, operations: Sequence[Operation] = ()) -> Loaded:
    """The policy in JSON text: this package's format or a list of sub-policies.

    Args:
        source: What errors call the text.
        operations: Your own operations that the text names.
    """
    document = parse(text, source)
    keys = document.value if isinstance(document.value, dict) else {}
    is_list = isinstance(document.value, list)
    if is_list or ("sub_policies" in keys and keys.get("format") != FORMAT):
        return Loaded(foreign.read_sub_policies(document), defaults=True, mirrored=True)
    policy = read_document(document, operations)
    stages = [stage for phase in policy.phases for stage in phase.stages]
    # sub-policies were found with the defaults on; a file with layers as well may hold them, and
    # one of a search of this package is the whole of what was measured, and says so
    only_chains = bool(stages) and all(isinstance(stage, Chains) for stage in stages)
    return Loaded(policy, only_chains and policy.info.get("defaults") not in DEFAULTS)


def _not_found(ref: PolicyRef) -> PolicyFileError:
    if not ref.may_be_misspelt:
        return PolicyFileError(f"{ref.path}: no such file")
    written = ref.text.removeprefix(f"{SIMPLE}:")
    names = (*policy_names(), *FORMS)
    close = difflib.get_close_matches(written.lower(), names)
    hint = f"did you mean {' or '.join(map(repr, close))}? " if close else ""
    return PolicyFileError(
        f"{written}: no such file, and no policy has this name; {hint}names: {', '.join(names)}"
    )


# As published


def compared_policy(
    source: str | Path,
    *,
    defaults: bool | None = None,
    space: SpaceName = "cifar",
    epochs: int | None = None,
    first_layers: int | None = None,
    operations: Sequence[Operation] = (),
) -> Policy:
    """The policy of a name or file as a training runs it.

    Published files are mirrored, as their evaluation does: shear, translate and rotate take either
    sign. Methods that were published on top of the default crop, flip and cutout get them.

    Args:
        defaults: Whether the default augmentation follows; None leaves it to the policy.
        space: Which defaults, and which ranges where a name has them for both data sets.
        epochs: Epochs of the training, to which schedules are stretched that say how many they are
            for: PBA's logs, and those that this package's search by PBA writes.
        first_layers: Only so many layers of the policy; the defaults are not counted.
        operations: Your own operations that a file names.
    """
    if space not in ("cifar", "imagenet"):
        raise ValueError(f"space should be cifar or imagenet, got {space!r}")
    ref = parse_policy_ref(source)
    policy, usual, mirrored, over = _load(ref, operations, space)
    if epochs is not None:
        policy = _for_epochs(policy, epochs, over, ref.text)
    if mirrored:
        policy = policy.symmetric()
    if ref.first_layer:
        policy, usual = policy.first_layers(1), True
    if first_layers is not None:
        policy = policy.first_layers(first_layers)
    return with_defaults(policy, space) if (usual if defaults is None else defaults) else policy


def _for_epochs(policy: Policy, epochs: int, over: int | None, source: str) -> Policy:
    """A schedule stretched to the epochs of a training; other policies as they are."""
    if over is not None:
        return policy.stretched(epochs, over)
    if algebra.SCHEDULE_EPOCHS not in policy.info:
        return policy
    try:
        return algebra.fitted_schedule(policy, epochs)
    except ValueError as error:
        raise PolicyFileError(f"{source}: {error}") from None


def with_defaults(policy: Policy, space: SpaceName = "cifar") -> Policy:
    """The policy, then crop and flip, and cutout on CIFAR."""
    joined = policy.then(default_policy(space))
    schedule = [(phase.epoch, _joined_layers(phase.stages)) for phase in joined.phases]
    return Policy(joined.table, schedule=schedule, info=policy.info)


def _joined_layers(stages: tuple[Stage, ...]) -> list[Stage]:
    """Neighbouring layers as one stage: the draws are the same, and one CUDA program makes them."""
    joined: list[Stage] = []
    for stage in stages:
        last = joined[-1] if joined else None
        if isinstance(last, Layers) and isinstance(stage, Layers):
            joined[-1] = Layers(torch.cat([last.probabilities, stage.probabilities]))
        else:
            joined.append(stage)
    return joined
