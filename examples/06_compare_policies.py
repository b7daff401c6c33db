"""Compare policies: which operations they use, how far they are apart, and a figure.

Usage: python examples/06_compare_policies.py [POLICY ...]

A POLICY is a name (`deepaa policies` lists them) or the path of a policy file. The figure is SVG;
with matplotlib it can be PNG or PDF as well. `deepaa compare` does the same from the command line.
"""

import sys
import tempfile
from pathlib import Path

from deepaa.report import (
    Comparison,
    compare_policies,
    figure_bytes,
    load_entries,
    plot_comparison,
)


def print_uses(found: Comparison) -> None:
    """How often an image meets each operation; 1.0 by defaults is part of it."""
    for policy in found.policies:
        bars = sorted(policy.bars, key=lambda bar: -bar.total)
        top = ", ".join(f"{bar.operation} {bar.total:.2f}" for bar in bars[:5])
        print(f"{policy.label}: {top}")


def print_distances(found: Comparison) -> None:
    """0 for equal policies, 1 for no operation in common."""
    for pair in found.pairs:
        print(f"distance of {pair.first} and {pair.second}: {pair.uses:.2f}")


def draw_figure(found: Comparison, path: Path) -> None:
    """Bars of the operations, coloured by magnitude (Appendix E of the paper)."""
    path.write_bytes(figure_bytes(plot_comparison(found), "svg"))
    print(f"wrote a figure of {path.stat().st_size // 1000} kB")


def main(policies: list[str]) -> None:
    """Each policy is taken as its authors run it: with crop, flip and cutout where they do."""
    found = compare_policies(load_entries(policies))
    print_uses(found)
    print_distances(found)
    with tempfile.TemporaryDirectory() as folder:  # give a path of your own to keep it
        draw_figure(found, Path(folder) / "compared.svg")


if __name__ == "__main__":
    main(sys.argv[1:] or ["deepta", "trivialaugment-wide", "crop-flip-cutout"])
