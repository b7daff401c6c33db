"""Runs the searches behind docs/search-cost.md and prints its tables as Markdown.

    python benchmarks/search_cost.py OUT --cifar10 cifar10.npz [--cifar100 F] [--photos FOLDER]

Every search is one `deepaa search` in a process of its own, timed from start to end; a search whose
time is there already is not run again. `--only NAME` (may be repeated) takes some of them; options
behind `--` go to every search.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

from deepaa import Policy, load_policy
from deepaa.policy import policy_distance
from deepaa.runs import read_history

SEARCHES: dict[str, tuple[str, list[str]]] = {
    "seed-0": ("cifar10", ["--seed", "0"]),
    "seed-1": ("cifar10", ["--seed", "1"]),
    "seed-2": ("cifar10", ["--seed", "2"]),
    "float32": ("cifar10", ["--seed", "0", "--precision", "float32"]),
    "half-the-samples": (
        "cifar10",
        ["--seed", "0", "--set", "prefixes=2", "--set", "chains=70"],
    ),
    "cifar100": ("cifar100", ["--seed", "0"]),
    "resnet18": (
        "photos",
        [
            *("--preset", "imagenet", "--layers", "3", "--steps", "40"),
            *("--set", "learning_rate=0.3", "--epochs", "30"),
        ],
    ),
}


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path)
    for data in ("cifar10", "cifar100", "photos"):
        parser.add_argument(f"--{data}")
    parser.add_argument("--only", action="append", choices=SEARCHES)
    words = sys.argv[1:]
    at = words.index("--") if "--" in words else len(words)
    arguments = parser.parse_args(words[:at])
    done = []
    for name in arguments.only or SEARCHES:
        data, options = SEARCHES[name]
        if (source := getattr(arguments, data)) is not None:
            folder = arguments.out / name
            if not folder.with_suffix(".seconds").exists():
                search(folder, ["--data", source, *options, *words[at + 1 :]])
            done.append(folder)
            print("\n".join(lines(folder)), flush=True)
    print("\n".join(distances(done)))


def search(folder: Path, options: list[str]) -> None:
    """One search; how long it took is written beside its folder."""
    if folder.exists():
        sys.exit(f"{folder} holds a search that was not timed to its end; remove it")
    began = time.perf_counter()
    command = [sys.executable, "-m", "deepaa", "search", "--out", str(folder), *options]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_suffix(".log").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    folder.with_suffix(".seconds").write_text(f"{time.perf_counter() - began:.1f}")


def found_policy(folder: Path) -> Policy:
    """What the search found; the winner of a contest may be another policy."""
    own = folder / "found.json"
    return load_policy(own if own.exists() else folder / "policy.json")


def lines(folder: Path) -> list[str]:
    """What a search cost and found."""
    policy = found_policy(folder)
    history = read_history(folder)
    seconds = folder.with_suffix(".seconds").read_text()
    steps = [r for r in history if r["kind"] == "step"]
    layers = [r for r in history if r["kind"] == "layer"]
    passes = layers[-1]["passes"] / 1e6
    training = sum(r["seconds"] for r in history if r["kind"] == "epoch")
    memory = layers[-1].get("memory")
    found = [
        f"\n## {folder.name}: {policy.depth} layers, {passes:.1f} M passes, {seconds} s",
        f"\npre-training {training:.0f} s, first step {steps[0]['seconds']:.0f} s"
        + ("" if memory is None else f", peak memory {memory:.1f} GB"),
        "\n| layer | operations | gain | DeepTA | a step |",
        "|---|---|---:|---:|---:|",
    ]
    for layer in layers:
        own = [step for step in steps if step["layer"] == layer["layer"]]
        top = ", ".join(f"{name} {share:.2f}" for name, share in own[-1]["top"])
        taken = sorted(step["seconds"] for step in own)[len(own) // 2]
        mark = "" if layer["kept"] else " (dropped)"
        found.append(
            f"| {layer['layer']}{mark} | {top} | {layer['improvement_mean']:+.4f} "
            f"| {layer['deepta_mean']:+.4f} | {taken:.3f} s, {len(own)} steps |"
        )
    return found


def distances(folders: list[Path]) -> list[str]:
    """`policy_distance` of every pair; 0 for equal policies, 1 for nothing in common."""
    policies = {folder.name: found_policy(folder) for folder in folders}
    header = ["\n| distance | " + " | ".join(policies) + " |", "|---|" + "---:|" * len(policies)]
    return header + [
        f"| {name} | "
        + " | ".join(f"{policy_distance(policy, other):.2f}" for other in policies.values())
        + " |"
        for name, policy in policies.items()
    ]


if __name__ == "__main__":
    main()
