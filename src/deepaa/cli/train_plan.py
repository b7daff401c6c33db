"""What `deepaa train` could train: its recipes, and what a dry run says before anything happens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import typer

from deepaa.cli.options import print_facts
from deepaa.cli.train_run import cheaper, together
from deepaa.data import batch_sizes
from deepaa.files import plural
from deepaa.runs import check_folder, duration
from deepaa.train import RECIPES, Experiment, Recipe, SeedRequest, ended_policy


def preview(experiments: Mapping[Path, Experiment], seeds: SeedRequest) -> None:
    """Print what each run would train, unless one of the folders would refuse it."""
    for folder, experiment in experiments.items():
        check_folder(folder, experiment.identity())
    previews = [(folder, each, seeds.preview(folder)) for folder, each in experiments.items()]
    seconds = 0.0
    for folder, experiment, its_seeds in previews:
        epochs = seeds.epochs_left(folder, experiment.config.epochs)
        seconds += _print_forecast(experiment, its_seeds, epochs)
    facts = {}
    if len(previews) > 1 and seconds:
        facts["in all"] = together(seconds, sum(len(its_seeds) for *_, its_seeds in previews))
    if not seeds.resume and (hint := cheaper(experiment, seconds)) is not None:
        facts["hint"] = hint
    print_facts(facts)


def print_recipes() -> None:
    """Print every recipe with its settings, and the command that trains it."""
    for recipe in RECIPES.values():
        train = recipe.train
        batch = f"{train.batch}" + (f" x {train.copies}" if train.copies > 1 else "")
        typer.echo(
            f"{recipe.full_name:28}{recipe.model}, {plural(train.epochs, 'epoch')}, batch {batch}, "
            f"lr {train.lr:g}, weight decay {train.weight_decay:g}\n    {recipe.command()}\n"
            f"    {recipe.image_passes / 1e6:,.0f} million images through the network; known:"
        )
        for line in _published(recipe):
            typer.echo(f"      {line}")


def _published(recipe: Recipe) -> list[str]:
    """The published accuracies, as the sources give them: 96.1, or 97.56 +- 0.14."""
    lines = []
    for policy, accuracy, source, interval in recipe.expected:
        digits = 1 if interval is None and round(accuracy, 1) == accuracy else 2
        margin = "" if interval is None else f" +- {interval:.2f}"
        lines.append(f"{policy} {accuracy:.{digits}f}{margin} % ({source})")
    return lines


def _epochs(count: float) -> str:
    """`5 epochs`, or `0.5 epochs`."""
    return plural(int(count), "epoch") if count == int(count) else f"{count:g} epochs"


def _ending(experiment: Experiment) -> str:
    """What a weak ending leaves of the policy: crop and flip."""
    config, shape = experiment.config, experiment.images.facts()["shape"]
    policy = ended_policy(experiment.policy, config, shape)
    uses = {} if policy is None else policy.expected_uses(config.epochs - 1)
    names = [name for name, count in uses.items() if count > 0 and name != "identity"]
    return " and ".join(names) or "no augmentation"


def _print_forecast(experiment: Experiment, seeds: Sequence[int], epochs: int) -> float:
    """Print what would be trained, with which seeds, and how long it would take.

    Args:
        epochs: Those that are left of all seeds.

    Returns:
        Their seconds; 0 where they are not measured.
    """
    images, config, policy = experiment.images.facts(), experiment.config, experiment.policy
    weights = sum(p.numel() for p in experiment.make_model(0).parameters())
    shape = " x ".join(map(str, images["shape"]))
    sizes = batch_sizes(images["train_images"], config.batch)
    passes = config.epochs * sum(sizes) * config.copies
    name = experiment.request.policy.name if experiment.request is not None else "policy"
    falls = "a cosine"
    if config.schedule != "cosine":
        listed = ", ".join(f"{m:g}" for m in config.milestones)
        falls = f"steps at {listed}" if listed else "as it is"
    lines = {
        "data": f"{images['data']}: {plural(images['train_images'], 'image')} of {shape}, "
        f"{plural(images['classes'], 'class')}",
        "test": f"{plural(images['test_images'], 'image')}, {images['test']}",
        "policy": f"{name}: {plural(policy.depth, 'layer')} over "
        f"{plural(len(policy.table), 'transformation')}",
        "ending": f"{_ending(experiment)} in the last {plural(config.end_epochs, 'epoch')}",
        "network": f"{experiment.model_name}: {plural(weights, 'weight')} on {experiment.device}",
        "steps": f"{plural(config.epochs, 'epoch')} of {plural(len(sizes), 'step')}, "
        f"{plural(max(sizes), 'image')} x {config.copies} in each",
        "rate": f"{config.lr:g} after {_epochs(config.warmup_epochs)}, then {falls}; "
        f"weight decay {config.weight_decay:g}",
        "speed": f"{config.precision}, {'' if config.compile else 'not '}compiled",
        "passes": f"{plural(passes, 'image')} through the network for each seed",
    }
    if not config.end_epochs:
        del lines["ending"]
    seconds = 0.0
    if (rate := experiment.measured_rate()) is not None:
        each, seconds = passes / rate, passes / rate * epochs / config.epochs
        lines["time"] = f"about {duration(each)} for each, at {rate:,.0f} images/s now"
        if epochs and epochs != config.epochs:
            lines["time"] += f"; {together(seconds, len(seeds))}"
    named = ", ".join(map(str, seeds[:12])) + (", ..." if len(seeds) > 12 else "")
    lines["seeds"] = f"{len(seeds)}: {named}" if seeds else "none left to train"
    recipe, counts = experiment.recipe, (images["train_images"], images["classes"])
    if recipe is not None and counts == (recipe.data.images, recipe.data.classes):
        whole = f"on {recipe.data.name} after {plural(recipe.train.epochs, 'epoch')}:"
        lines["known"] = f"\n{'':9}".join([whole, *_published(recipe)])
    print_facts(lines)
    return seconds
