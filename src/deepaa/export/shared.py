"""What all exports share: the rows they keep, the text of the file, and how pixels differ.

The differences are in measured.toml beside this file.
"""

import math
import re
import textwrap
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from deepaa.ops import Operation, Row
from deepaa.policy import Layers, Policy

LEAST = 1e-4
"""Transformations of at most this probability are left out."""
FACTORS = ("contrast", "color", "brightness", "sharpness")


# Differences from Pillow


class Difference(NamedTuple):
    """An operation of an export beside Pillow's, over all its magnitudes in the search space."""

    share: float
    """Of the values that differ."""
    mean: float
    """Mean difference of all values, in levels of 255."""
    why: str = ""


_CONTENT = tomllib.loads(Path(__file__).with_name("measured.toml").read_text("utf-8"))
VERSIONS: Mapping[str, Mapping[str, str]] = _CONTENT["versions"]
"""With which the numbers were measured, beside Pillow 13.0.0."""
NOTES: Mapping[str, list[str]] = _CONTENT["notes"]
MEASURED: Mapping[str, Mapping[str, Difference]] = {
    way: {name: Difference(*numbers) for name, numbers in operations.items()}
    for way, operations in _CONTENT["measured"].items()
}
"""By way of exporting; operations that are not listed give Pillow's values."""
SAMPLE = "32 images of CIFAR-10"
WITHOUT_SIZE = "albumentations, size not given"


# Rows


class Kept(NamedTuple):
    """The part of a policy that an export keeps."""

    name: str
    layers: tuple[tuple[tuple[Row, float], ...], ...]
    """Per layer the rows above `LEAST`, and their probabilities, which sum to 1."""
    left_out: int
    """How many rows with some probability are missing, over all layers."""
    lost: float
    """The largest probability that a layer lost by that."""

    @property
    def rows(self) -> int:
        """How many rows there are over all layers."""
        return sum(map(len, self.layers))

    @property
    def operations(self) -> tuple[str, ...]:
        """The names of the operations, in order of appearance."""
        names = (row.operation.name for layer in self.layers for row, _ in layer)
        return tuple(dict.fromkeys(names))


def kept_rows(policy: Policy, name: str) -> Kept:
    """The rows that an export of `policy` keeps; what cannot be exported is refused."""
    stages = [stage for phase in policy.phases for stage in phase.stages]
    if len(policy.phases) > 1:
        raise ValueError(f"{name} changes over the epochs; only policies of layers can be exported")
    if not all(isinstance(stage, Layers) for stage in stages):
        raise ValueError(f"{name} has sub-policies; only policies of layers can be exported")
    if not policy.depth:
        raise ValueError(f"{name} has no layers, so there is nothing to export")
    layers, left_out, lost = [], 0, 0.0
    for k, probabilities in enumerate(policy.row_probabilities().tolist(), 1):
        listed = [pair for pair in zip(policy.table.rows, probabilities, strict=True) if pair[1]]
        above = [(row, p) for row, p in listed if p > LEAST]
        if not above:
            raise ValueError(f"{name}: layer {k} has no transformation above {LEAST:g}")
        for row, _ in above:
            if row.operation.is_custom:
                raise ValueError(
                    f"{name}: {row.operation.name} is an operation of your own, which other "
                    "libraries lack; export a policy without it"
                )
            if row.operation.name in FACTORS and (row.magnitude or 0.0) < 0:
                raise ValueError(
                    f"{name}: {row.transformation} cannot be exported; factors should be at least 0"
                )
        total = math.fsum(p for _, p in above)
        layers.append(tuple((row, p / total) for row, p in above))
        left_out += len(listed) - len(above)
        lost = max(lost, 1 - total / math.fsum(probabilities))
    return Kept(name, tuple(layers), left_out, max(0.0, lost))


# Text


def header(kept: Kept, target: str, use: str, size: int | None = None) -> str:
    """The docstring of an exported file; `size` is given where the pipeline depends on it."""
    name = Path(kept.name).name.encode("ascii", "replace").decode()
    name = "".join(c for c in name if c.isprintable() and c not in "\"'\\")
    count = f"{len(kept.layers)} layer{'s' * (len(kept.layers) > 1)}"
    lost = f"none is left out, since all are above {LEAST:g}"
    if kept.left_out:
        share = f"{100 * kept.lost:.2g} % of a layer at most, and the others sum to 1 again"
        lost = f"{kept.left_out} of at most {LEAST:g} are left out, {share}"
    note = f" It is made for images of {size} x {size} pixels." if size is not None else ""
    versions = ", ".join(f"{key} {value}" for key, value in VERSIONS[target].items())
    paragraphs = [
        f"{count} in sequence; each draws one transformation per image. {kept.rows} "
        f"transformations over all layers: {lost}.{note}",
        f"Where pixels differ from Pillow's, measured on {SAMPLE} with {versions}. In brackets: "
        "the share of values that differ, and the mean difference in levels of 255.",
    ]
    filled = "\n\n".join(textwrap.fill(text, 98) for text in paragraphs)
    differences = "\n".join(difference_lines(kept, target, size))
    title = f"Augmentation policy {name[:40]} for {target}, written by deepaa."
    return f'"""{title}\n\n{use}\n\n{filled}\n\n{differences}\n"""\n'


def difference_lines(kept: Kept, target: str, size: int | None) -> list[str]:
    """What differs in pixels or in law, for the operations of a policy."""
    found = MEASURED[WITHOUT_SIZE if target == "albumentations" and size is None else target]
    equal = [name for name in kept.operations if name not in found]
    lines = [f"equal: {', '.join(equal)}"] if equal else []
    for name, item in ((name, found[name]) for name in kept.operations if name in found):
        numbers = f" ({100 * item.share:.2g} %, {item.mean:.2g})" if item.share else ""
        lines.append(f"{name}{numbers}" + (f": {item.why}" if item.why else ""))
    return [
        textwrap.fill(f"- {line}", 98, subsequent_indent="  ", break_on_hyphens=False)
        for line in (*lines, *NOTES[target])
    ]


def filled_template(kept: Kept, target: str, module: str) -> str:
    """The module of this package named after the library, with the policy and a new docstring.

    What follows the first line of its own docstring says how the pipeline is used.
    """
    template = Path(__file__).with_name(f"{target}.py").read_text("utf-8")
    _, docstring, code = template.split('"""', 2)
    use = docstring.partition("\n\n")[2].rstrip().replace("{module}", module)
    head = header(kept, target, use)
    code = re.sub(r"  # type: ignore\[.*?\]", "", code)
    place = re.compile("# the policy: begin.*# the policy: end", re.DOTALL)
    return f"{head}\n{place.sub(lambda _: _data(kept), code.lstrip())}"


def _data(kept: Kept) -> str:
    """The policy as Python: operations with options, then probabilities by magnitude."""
    keys: dict[Operation, str] = {}
    for operation in (row.operation for layer in kept.layers for row, _ in layer):
        same = sum(key.name == operation.name for key in keys)  # they differ in their options
        keys.setdefault(operation, f"{operation.name}_{same + 1}" if same else operation.name)
    lines = ["OPERATIONS = {"]
    for operation, key in keys.items():
        lines.append(f'    "{key}": ("{operation.name}", {literal(dict(operation.options))}),')
    lines += ["}", "LAYERS = ["]
    wrapper = textwrap.TextWrapper(98, initial_indent=" " * 8, subsequent_indent=" " * 12)
    for layer in kept.layers:
        levels: dict[str, list[str]] = {}
        for row, p in layer:  # a zero byte, so that no line ends between the two
            levels.setdefault(keys[row.operation], []).append(f"{row.magnitude}:\0{p:.8g}")
        lines.append("    {")
        for key, pairs in levels.items():
            lines += wrapper.wrap(f'"{key}": {{{", ".join(pairs)}}},')
        lines.append("    },")
    return "\n".join([*lines, "]"]).replace("\0", " ")


def literal(value: Any) -> str:
    """A number, text, tuple or dict as Python, with ten digits of a fraction."""
    exact = r"\d+\.\d{9,}(e[-+]\d+)?"
    return re.sub(exact, lambda m: f"{float(m[0]):.10g}", repr(value)).replace("'", '"')
