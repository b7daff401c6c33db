"""What all exports share: the rows that are kept, what is refused, and the text of the file."""

from __future__ import annotations

import math
import re
import textwrap
from pathlib import Path
from typing import Any, NamedTuple

from deepaa.export.measured import MEASURED, NOTES, SAMPLE, VERSIONS, Difference
from deepaa.ops import Row
from deepaa.policy import Layers, Policy

LEAST = 1e-4
"""Transformations of at most this probability are left out."""
FACTORS = ("contrast", "color", "brightness", "sharpness")
BEGIN, END = "# the policy: begin", "# the policy: end"


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
            _check(row, name)
        total = math.fsum(p for _, p in above)
        layers.append(tuple((row, p / total) for row, p in above))
        left_out += len(listed) - len(above)
        lost = max(lost, 1 - total / math.fsum(probabilities))
    return Kept(name, tuple(layers), left_out, max(0.0, lost))


def _check(row: Row, name: str) -> None:
    operation = row.operation
    if operation.is_custom:
        raise ValueError(
            f"{name}: {operation.name} is an operation of your own, which other libraries lack; "
            "export a policy without it"
        )
    if operation.name in FACTORS and (row.magnitude or 0.0) < 0:
        raise ValueError(
            f"{name}: {row.transformation} cannot be exported; factors should be at least 0"
        )


# Text


def header(kept: Kept, target: str, use: str, way: str | None = None, note: str = "") -> str:
    """The docstring of an exported file.

    Args:
        way: The key of `MEASURED`, where it is not the library's name.
        note: One more sentence about the pipeline.
    """
    name = Path(kept.name).name.encode("ascii", "replace").decode()
    name = "".join(c for c in name if c.isprintable() and c not in "\"'\\")
    count = f"{len(kept.layers)} layer{'s' * (len(kept.layers) > 1)}"
    lost = (
        f"{kept.left_out} of at most {LEAST:g} are left out, {100 * kept.lost:.2g} % of a layer at "
        "most, and the others sum to 1 again"
        if kept.left_out
        else f"none is left out, since all are above {LEAST:g}"
    )
    versions = ", ".join(f"{key} {value}" for key, value in VERSIONS[target].items())
    paragraphs = [
        f"{count} in sequence; each draws one transformation per image. {kept.rows} "
        f"transformations over all layers: {lost}. {note}".strip(),
        f"Where pixels differ from Pillow's, measured on {SAMPLE} with {versions}. In brackets: "
        "the share of values that differ, and the mean difference in levels of 255.",
    ]
    filled = "\n\n".join(textwrap.fill(text, 98) for text in paragraphs)
    differences = "\n".join(difference_lines(kept, target, way or target))
    title = f"Augmentation policy {name[:40]} for {target}, written by deepaa."
    return f'"""{title}\n\n{use}\n\n{filled}\n\n{differences}\n"""\n'


def difference_lines(kept: Kept, target: str, way: str) -> list[str]:
    """What differs in pixels or in law, for the operations of a policy."""
    found = MEASURED[way]
    equal = [name for name in kept.operations if name not in found]
    lines = [f"equal: {', '.join(equal)}"] if equal else []
    lines += [_line(name, found[name]) for name in kept.operations if name in found]
    return [
        textwrap.fill(f"- {line}", 98, subsequent_indent="  ", break_on_hyphens=False)
        for line in (*lines, *NOTES[target])
    ]


def _line(name: str, item: Difference) -> str:
    if not item.share:
        return f"{name}: {item.why}"
    numbers = f"{name} ({100 * item.share:.2g} %, {item.mean:.2g})"
    return f"{numbers}: {item.why}" if item.why else numbers


def filled_template(kept: Kept, target: str, module: str) -> str:
    """The module of this package named after the library, with the policy and a new docstring.

    What follows the first line of its own docstring says how the pipeline is used.
    """
    template = Path(__file__).with_name(f"{target}.py").read_text("utf-8")
    _, docstring, code = template.split('"""', 2)
    use = docstring.partition("\n\n")[2].rstrip().replace("{module}", module)
    head = header(kept, target, use)
    code = re.sub(r"  # type: ignore\[.*?\]", "", code)
    before, _, rest = code.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{head}\n{before.lstrip()}{_data(kept)}{after}"


def _data(kept: Kept) -> str:
    """The policy as Python: operations with options, then probabilities by magnitude."""
    operations = dict.fromkeys(row.operation for layer in kept.layers for row, _ in layer)
    keys: dict[Any, str] = {}
    for operation in operations:  # two of one name differ in their options
        same = sum(key.name == operation.name for key in keys)
        keys[operation] = operation.name if not same else f"{operation.name}_{same + 1}"
    lines = ["OPERATIONS = {"]
    for operation, key in keys.items():
        lines.append(f'    "{key}": ("{operation.name}", {literal(dict(operation.options))}),')
    lines += ["}", "LAYERS = ["]
    for layer in kept.layers:
        levels: dict[str, dict[float | None, float]] = {}
        for row, p in layer:
            levels.setdefault(keys[row.operation], {})[row.magnitude] = p
        lines.append("    {")
        for key, share in levels.items():
            lines += _wrapped(key, share)
        lines.append("    },")
    return "\n".join([*lines, "]"])


def _wrapped(key: str, share: dict[float | None, float]) -> list[str]:
    """`"rotate": {-30.0: 0.1, ...},` in lines that do not part a magnitude from its share."""
    pairs = ", ".join(f"{m}:\0{p:.8g}" for m, p in share.items())
    text = f'"{key}": {{{pairs}}},'
    lines = textwrap.wrap(text, 98, initial_indent=" " * 8, subsequent_indent=" " * 12)
    return [line.replace("\0", " ") for line in lines]


def literal(value: Any) -> str:
    """A number, text, tuple or dict as Python."""
    if isinstance(value, float):
        return f"{value:.10g}" if value % 1 else f"{value:.1f}"
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, dict):
        return "{" + ", ".join(f'"{key}": {literal(item)}' for key, item in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else repr(value)
