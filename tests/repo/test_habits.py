"""What the Makefile, pyproject.toml and the files beside them promise."""

from __future__ import annotations

import ast
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from check_files import problem
from pages import LIBRARIES
from processes import MARK, left_behind

import deepaa

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
IMPORTS = {"pillow": "PIL", "pytest-xdist": "xdist", "pyyaml": "yaml"}
"""Packages whose import has another name."""
BROUGHT = {"yaml": "mkdocs and pre-commit", "triton": "torch on Linux", "cv2": "albumentations"}
"""Imports of packages that pyproject.toml does not name, and who brings them."""
CHOOSY = {ROOT / "src/deepaa/cli/bench_peers.py"}
"""Modules that leave out a package that is missing, and say so."""


def requirements(extra: str | None) -> set[str]:
    """What is imported from the packages of an extra, with those of the package itself."""
    extras = PROJECT["optional-dependencies"]
    words = list(PROJECT["dependencies"])
    todo = [extra] if extra else []
    while todo:
        for word in extras[todo.pop()]:
            if own := re.fullmatch(r"deepaa\[([\w,]+)\]", word):
                todo += own[1].split(",")
            else:
                words.append(word)
    names = {re.split(r"[\[<>=~! ]", word)[0] for word in words}
    return {IMPORTS.get(name, name.replace("-", "_")) for name in names}


class Imports(ast.NodeVisitor):
    """The third-party packages that a test file takes for granted, with their lines."""

    def __init__(self, text: str) -> None:
        self.found: list[tuple[str, int]] = []
        self.guarded = set(
            re.findall(r'(?:importorskip\(|find_spec\(|is_installed\(|library ==)\s*"(\w+)', text)
        )
        self.visit(ast.parse(text))

    def visit_Import(self, node: ast.Import) -> None:
        self.found += [(alias.name.split(".")[0], node.lineno) for alias in node.names]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module:
            self.found.append((node.module.split(".")[0], node.lineno))

    def visit_Try(self, node: ast.Try) -> None:
        """An import that may fail is no demand."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if not any("slow" in ast.unparse(decorator) for decorator in node.decorator_list):
            self.generic_visit(node)


def known_here() -> set[str]:
    folders = (ROOT, ROOT / "tests/helpers", ROOT / "benchmarks")
    own = {path.stem for folder in folders for path in folder.glob("*.py")}
    return {"deepaa", "tests", *own, *sys.stdlib_module_names}


def used_modules(text: str) -> set[Path]:
    """The modules of the package that a test file imports."""
    names = set(re.findall(r"^\s*(?:from|import) (deepaa[\w.]+)", text, re.M))
    paths = {ROOT / "src" / f"{name.replace('.', '/')}.py" for name in names}
    return {path for path in paths if path.exists()}


def demands(path: Path) -> set[str]:
    """The packages that the quick tests of a file need, or a module that they import."""
    text = path.read_text()
    imports = Imports(text)
    found = {name for name, _ in imports.found} - imports.guarded
    found -= set(re.findall(r'Path\("(\w+)\.py"\)\.write_text', text))  # made by the test
    for module in used_modules(text) - CHOOSY:
        inner = Imports(module.read_text())
        found |= {name for name, _ in inner.found} - imports.guarded - inner.guarded
    return found


TESTS = sorted((ROOT / "tests").rglob("test_*.py"))


def test_quick_tests_need_only_the_extra_that_make_test_installs() -> None:
    """A package that is missing there must be asked for by `importorskip`."""
    given = requirements("test") | known_here() | set(BROUGHT)
    missing = {path.name: demands(path) - given for path in TESTS}
    assert not {name: found for name, found in missing.items() if found}


def test_an_extra_that_is_missing_would_be_seen() -> None:
    assert any("matplotlib" in demands(path) for path in TESTS)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import matplotlib", {"matplotlib"}),
        ('pytest.importorskip("matplotlib")\nimport matplotlib', set()),
        ("@pytest.mark.slow\ndef test() -> None:\n    import kornia", set()),
        ("def test() -> None:\n    from kornia.augmentation import RandAugment", {"kornia"}),
        ("try:\n    import timm\nexcept ImportError:\n    timm = None", set()),
    ],
)
def test_a_missing_package_is_seen(text: str, found: set[str]) -> None:
    imports = Imports(text)
    assert {name for name, _ in imports.found} - imports.guarded - known_here() == found


def test_the_package_imports_only_what_pyproject_names() -> None:
    given = known_here() | set(BROUGHT)
    given = given.union(*(requirements(extra) for extra in PROJECT["optional-dependencies"]))
    for path in (ROOT / "src").rglob("*.py"):
        missing = {name for name, _ in Imports(path.read_text()).found} - given
        assert not missing, f"{path.relative_to(ROOT)}: {missing}"


# The Makefile


def test_the_first_line_of_the_makefile_lists_its_targets() -> None:
    targets = set(re.findall(r"^([\w-]+):", MAKEFILE, re.M)) - {"help"}
    first = MAKEFILE.split(".")[0].removeprefix("# Targets: ")
    assert set(first.split(", ")) == targets
    assert set(re.findall(r'echo "make ([\w-]+)', MAKEFILE)) == targets
    assert set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.M)[0].split()) == targets | {"help"}


def test_targets_install_extras_that_exist() -> None:
    extras = re.findall(r": \$\(VENV\)/installed-(\w+)$", MAKEFILE, re.M)
    assert {"test", "dev", "docs"} == set(extras) <= PROJECT["optional-dependencies"].keys()


@pytest.mark.parametrize(
    "target",
    ["help", "demo", "test", "test-all", "test-frameworks", "kernels", "lint", "fix", "docs"],
)
def test_make_knows_what_to_do(target: str) -> None:
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    words = ["make", "--dry-run", "--always-make", target]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert ('-m "not slow"' in done.stdout) == (target == "test")


def test_other_libraries_have_one_list() -> None:
    script = (ROOT / "tests/frameworks/install.sh").read_text()
    listed = set(re.findall(r"[\w-]+", script)) | requirements("bench") | {"datasets", "pyarrow"}
    packages = {"nvidia.dali": "nvidia-dali-cuda130", "tensorboard.backend": "tensorboard"}
    wanted = {*LIBRARIES}
    for folder in ("frameworks", "export", "data"):
        for path in (ROOT / "tests" / folder).glob("*.py"):
            wanted |= set(re.findall(r'importorskip\("(\w+)', path.read_text()))
    text = (ROOT / "tests/repo/test_notebooks.py").read_text()
    wanted |= set(re.findall(r'importorskip\("(\w+)', text)) - {"deepaa"}
    missing = {packages.get(name, name) for name in wanted - {"deepaa", "torch", "torchvision"}}
    assert not missing - listed
    assert "tests/frameworks/install.sh" in MAKEFILE
    if (ROOT / ".ci/run").exists():  # not in a source archive
        everywhere = (ROOT / ".ci/run").read_text()
        assert "tests/frameworks/install.sh" in everywhere
        assert "lightning" not in everywhere


def test_a_library_that_is_missing_fails_where_all_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_whole.py").write_text("import pytest\npytest.importorskip('gone_one')\n")
    (tmp_path / "test_parts.py").write_text(
        "import pytest\n\ndef test_import():\n    pytest.importorskip('gone_two')\n\n"
        "def test_said():\n    pytest.skip('gone.three is not installed')\n\n"
        "def test_device():\n    pytest.skip('needs a CUDA device')\n"
    )
    words = [sys.executable, "-m", "pytest", "-q", "-p", "missing", "-p", "no:cacheprovider", "."]
    for asked, code in (("0", 0), ("1", 1)):
        own = {"PYTHONPATH": str(ROOT / "tests/helpers"), "DEEPAA_ALL_LIBRARIES": asked}
        done = subprocess.run(
            [*words, "--continue-on-collection-errors"],
            cwd=tmp_path,
            env={**os.environ, **own},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == code, done.stdout
        counts = "2 failed, 1 skipped, 1 error" if code else "4 skipped"
        assert counts in done.stdout
        assert ("'gone_one'" in done.stdout) == bool(code)


def test_programs_of_the_makefile_come_with_the_extra_dev() -> None:
    programs = set(re.findall(r"\$\(BIN\)/(\w+)", MAKEFILE)) - {"python", "deepaa"}
    assert programs <= requirements("dev")


@pytest.mark.slow
def test_signals_are_tested_under_nohup(tmp_path: Path) -> None:
    """A shell has Ctrl-C ignored by what it starts with `&`."""
    words = f"{sys.executable} -m pytest -q -p no:cacheprovider tests/runs/test_process.py"
    line = f"nohup {words} > {tmp_path}/log & wait $!"
    done = subprocess.run(["sh", "-c", line], cwd=ROOT, check=False, stderr=subprocess.DEVNULL)
    assert done.returncode == 0, (tmp_path / "log").read_text()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.parametrize("line", ["exec sleep 60", "sleep 60 & exit"])
def test_a_process_that_a_test_leaves_is_seen(line: str) -> None:
    session = "of this test"
    program = subprocess.Popen(
        ["sh", "-c", line], env={**os.environ, MARK: session}, start_new_session=True
    )
    try:
        if "exit" in line:
            program.wait()  # its child lives on
        deadline = time.monotonic() + 30
        # while a program becomes another one, it has no name or that of neither
        while "sleep 60" not in " ".join(found := left_behind(session, seconds=0.0)):
            assert time.monotonic() < deadline
        assert len(found) == 1
    finally:
        os.killpg(program.pid, signal.SIGKILL)
        program.wait()
    assert not left_behind(session)


# Versions


def test_the_version_has_one_place() -> None:
    assert "version" not in PROJECT
    assert PROJECT["dynamic"] == ["version"]
    citation = re.findall(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)
    assert citation == [deepaa.__version__]
    assert re.search(
        rf"^## \[{re.escape(deepaa.__version__)}\] - \d{{4}}-\d\d-\d\d$",
        (ROOT / "CHANGELOG.md").read_text(),
        re.M,
    )


def test_deepaa_says_its_version_from_the_source_tree() -> None:
    words = [sys.executable, "-m", "deepaa", "--version"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout == f"deepaa {deepaa.__version__}\n"


def test_nox_tests_the_oldest_torch_that_is_allowed() -> None:
    oldest = re.findall(r'"(torch\w*)==([\d.]+)\.\*"', (ROOT / "noxfile.py").read_text())
    assert {f"{name}>={version}" for name, version in oldest} <= set(PROJECT["dependencies"])
    assert len(oldest) == 2
    assert metadata.version("torch").split(".")[:2] >= oldest[0][1].split(".")


# Files


def test_every_file_is_small_and_readable() -> None:
    pytest.importorskip("yaml", reason="PyYAML is not installed: pip install 'deepaa[dev]'")
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository")
    names = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")[:-1]
    there = [Path(name) for name in names if (ROOT / name).exists()]
    assert len(there) > 100
    assert not [line for path in there if (line := problem(path, ROOT))]


def test_a_large_or_broken_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "large.bin").write_bytes(bytes(300_000))
    (tmp_path / "broken.toml").write_text("a = [")
    (tmp_path / "fine.json").write_text("{}")
    assert "300,000 bytes" in str(problem(Path("large.bin"), tmp_path))
    assert "broken.toml" in str(problem(Path("broken.toml"), tmp_path))
    assert problem(Path("fine.json"), tmp_path) is None
