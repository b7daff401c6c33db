"""provenance.py: the commit is that of the code, or none."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from deepaa.runs.environment import code_version, provenance


def git(folder: Path, *arguments: str) -> str:
    who = {"NAME": "a", "EMAIL": "a@example.org"}
    names = {f"GIT_{role}_{k}": v for role in ("AUTHOR", "COMMITTER") for k, v in who.items()}
    command = ["git", "-c", "init.defaultBranch=main", *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **names}, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_provenance_can_be_written() -> None:
    known = json.loads(json.dumps(provenance(), allow_nan=False))
    assert known["versions"].keys() >= {"python", "deepaa", "torch", "numpy", "pillow"}
    assert known["devices"][0].startswith("cpu: ")
    assert known["command"]
    assert known["started"].endswith("+00:00")


def test_the_commit_of_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "code.py").write_text("1")
    assert code_version(package) is None
    git(tmp_path, "init")
    assert code_version(package) is None
    (tmp_path / "notes").write_text("of the user")
    git(tmp_path, "add", "notes")
    git(tmp_path, "commit", "-m", "somebody's repository")
    assert code_version(package) is None  # the package is only installed inside it
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-m", "code")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert code_version(package) == {"commit": commit, "changed": False}
    (tmp_path / "notes").write_text("changed")
    assert code_version(package) == {"commit": commit, "changed": False}
    (package / "code.py").write_text("2")
    assert code_version(package) == {"commit": commit, "changed": True}
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert code_version(package) == {"commit": commit, "changed": True}
    monkeypatch.setenv("PATH", "")
    assert code_version(package) is None
