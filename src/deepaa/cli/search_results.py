"""What `deepaa search` prints when the search is done: the policy, and short trainings with it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from deepaa.cli.options import new_console

if TYPE_CHECKING:
    from deepaa.search import PolicySearch, Trial, TrialResult

ADVICE = """\
Use it:

    from deepaa import DeepAutoAugment
    augment = DeepAutoAugment({path!r})
    images = augment(images)  # PIL, numpy, or uint8 (N, C, H, W) on CPU or CUDA

It stands instead of your own crop, flip and cutout: remove those. Resize first, normalise after."""
CAUTION = (
    "One short training of each proves little: seeds alone move such figures by about a point. "
    "Train as long as you mean to, with several seeds, before you decide."
)


def show_policy(search: PolicySearch, out: Path) -> None:
    """Print the policy, where it is, and how to use it; write a picture of it."""
    from deepaa.report import policy_lines, policy_table, preview_grid
    from deepaa.runs import notify

    path, picture = out / "policy.json", out / "preview.png"
    if not search.policy.depth:
        notify("no layer helped: the policy changes nothing")
    console = new_console()
    for line in policy_lines(policy_table(search.policy, str(path), top=4), console.encoding):
        console.print(line)
    images = search.data.images[search.splits.search[:8]]
    preview_grid(images, search.policy, title="policy").save(picture)
    typer.echo(
        f"\npolicy   {path}\npreview  {picture}\nhistory  {out / 'history.jsonl'}\n"
        f"a page   deepaa report {out}\n"
    )
    typer.echo(ADVICE.format(path=str(path)))


def show_trial(results: Iterable[TrialResult], trial: Trial, epochs: int, out: Path) -> None:
    """Print a table of the trainings, line by line as they end; `verify.json` keeps it."""
    count = len(trial.test_labels)
    typer.echo(
        f"\n{epochs} epochs on {len(trial.labels):,} images, accuracy on {count:,} "
        f"{trial.test_name}:\n\n{'':16}{'accuracy':>10}{'loss':>8}{'seconds':>9}"
    )
    rows: list[dict[str, Any]] = []
    for result in results:
        rows.append(result._asdict())
        accuracy = f"{100 * result.accuracy:.1f} %"
        typer.echo(f"{result.name:16}{accuracy:>10}{result.loss:8.3f}{result.seconds:9.0f}")
    typer.echo(f"\n{CAUTION}")
    report = {"epochs": epochs, "train": len(trial.labels), "test": count, "results": rows}
    (out / "verify.json").write_text(json.dumps(report, indent=2) + "\n")
