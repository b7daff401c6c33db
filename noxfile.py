"""The quick tests in other environments: `nox --list`, `nox -s tests-3.13 -- -x`.

Each session installs a torch of its own, which takes minutes and gigabytes. A Python that is not
on this machine is skipped by name.
"""

from __future__ import annotations

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
OLDEST = ["torch==2.11.*", "torchvision==0.26.*"]
"""The oldest versions that pyproject.toml allows; tests/repo/test_habits.py compares them."""

nox.needs_version = ">=2025.2"
nox.options.reuse_existing_virtualenvs = True
nox.options.error_on_missing_interpreters = False


def quick_tests(session: nox.Session) -> None:
    """Run the quick tests in the environment of a session."""
    words = ["-n", "auto", "--dist", "worksteal", "-m", "not slow", *session.posargs]
    session.run("python", "-m", "pytest", *words, env={"OMP_NUM_THREADS": "1"})


@nox.session(python=PYTHONS)
def tests(session: nox.Session) -> None:
    """Quick tests, with one session for each Python."""
    session.install("--editable", ".[test]")
    quick_tests(session)


@nox.session(python="3.11")
def oldest(session: nox.Session) -> None:
    """Quick tests with the oldest torch that is supported."""
    session.install("--editable", ".[test]", *OLDEST)
    quick_tests(session)


@nox.session(python=PYTHONS[-2:])
def newest(session: nox.Session) -> None:
    """Quick tests with the newest torch, release candidates included."""
    session.install("--upgrade", "--pre", "torch", "torchvision")
    session.install("--editable", ".[test]")
    quick_tests(session)


@nox.session(python="3.11")
def no_extras(session: nox.Session) -> None:
    """Quick tests without any optional package: what needs one is skipped."""
    session.install("--editable", ".", "pytest", "pytest-xdist", "hypothesis")
    quick_tests(session)
