"""Data flows one way: a module imports only from those above it in this list."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "deepaa"

# Each line may import from the lines above it; modules of one line do not know each other.
LAYERS = [
    ["builtin", "keys", "locks", "strict_json", "run_files", "policies", "dual"],
    ["space"],
    ["ops.boxes", "ops.constants", "ops.convert"],
    ["ops.plan", "ops.pil"],
    ["ops.batched", "ops.native", "ops.fused", "ops.fused_draw"],
    ["ops.engine"],
    ["ops"],
    ["shake"],
    ["stages", "samples", "own_operations", "image_files", "gradients", "models"],
    ["stack", "prepared", "model_checks"],
    ["arrays"],
    ["data", "folder", "splits", "torchvision_source"],
    ["scan"],
    ["sources"],
    ["own_model", "test_sets"],
    ["policy"],
    ["policy_import", "gate", "baselines", "pba", "hidden"],
    ["policy_json", "named_policies"],
    ["policy_file"],
    ["compared", "export.measured", "export.kornia_pipeline", "export.torchvision_pipeline"],
    ["export.shared"],
    ["export.albumentations", "export.kornia", "export.torchvision"],
    ["export", "compare"],
    ["signals", "distributed", "search_config", "search_records", "pairs", "results"],
    ["run_history", "run_lock", "train_config", "agreement"],
    ["narrow_conv", "sgd"],
    ["checkpoint", "evaluation", "train_batches", "train_step"],
    ["transforms", "doctor", "report.tables", "report.preview", "rewards", "train"],
    ["decoding"],
    ["checked_files", "streamed_policy"],
    ["streaming", "recipes"],
    ["scorer", "ascent", "layer_end", "training_data"],
    ["provenance", "search", "presets"],
    ["runs", "run_settings", "forecast"],
    ["pipeline"],
    ["verify", "training_folder"],
    ["training_run", "training_plan"],
    ["report.subject", "report.svg"],
    ["report.run_tables", "report.accuracy_tables", "report.chains"],
    ["report.examples", "report.figures", "report.figure_files", "report.page_tables"],
    ["report.page"],
    ["tensorboard_log"],
    ["report"],
    ["bench.peers"],
    ["bench.timing"],
    ["bench.report"],
    ["bench", "bench.search", "bench.train", "report.terminal"],
    ["report.compare_figure", "report.compare_lines"],
    ["report.compare_page"],
    [""],  # deepaa itself, which offers names of all
    ["cli_progress", "cli_policy", "cli_data"],
    ["cli_compare", "cli_convert"],
    ["cli_report"],
    ["cli_search_plan"],
    ["cli_search", "cli_bench_train", "cli_train_progress"],
    ["cli_train_work"],
    ["cli_train"],
    ["cli"],
    ["__main__"],
]
# what a person who only applies policies needs may not pull these in
HEAVY = {"torchvision", "matplotlib", "typer", "rich", "jinja2", "kornia", "timm", "albumentations"}


def modules() -> dict[str, Path]:
    found = {}
    for path in SOURCE.rglob("*.py"):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        found[name] = path
    return found


def imports(path: Path) -> set[str]:
    """The modules of deepaa that a file imports anywhere, also inside functions."""
    names = set()
    known = modules()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}: relative import"
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                inner = whole.removeprefix("deepaa.")
                names.add(whole if whole.startswith("deepaa.") and inner in known else node.module)
    ours = {name for name in names if name == "deepaa" or name.startswith("deepaa.")}
    return {name.removeprefix("deepaa").removeprefix(".") for name in ours}


RANK = {name: rank for rank, line in enumerate(LAYERS) for name in line}
# saving is a method of a policy for convenience; reading and writing live below
ALLOWED = {("policy", "policy_file")}


def test_every_module_has_its_place() -> None:
    assert sorted(modules()) == sorted(RANK)


@pytest.mark.parametrize("name", sorted(modules()))
def test_imports_go_one_way(name: str) -> None:
    for other in imports(modules()[name]):
        if (name, other) in ALLOWED:
            continue
        assert RANK[other] < RANK[name], f"{name} imports {other}, which comes later"


def test_batched_kernels_do_not_import_pil() -> None:
    for name in ("batched", "plan", "constants", "boxes", "fused", "fused_draw", "native"):
        assert "PIL" not in modules()[f"ops.{name}"].read_text()


def test_importing_and_using_a_policy_stays_light() -> None:
    code = (
        "import sys, torch, deepaa\n"
        "before = set(sys.modules)\n"
        "t = deepaa.DeepAutoAugment('deepta', seed=0)\n"
        "t(torch.zeros(2, 3, 8, 8, dtype=torch.uint8))\n"
        "print(*{name.split('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_files_keep_one_subject() -> None:
    long = {
        name: n
        for name, path in modules().items()
        if (n := len(path.read_text().split("\n"))) > 400
    }
    assert not long
